"""Which experts each token uses: generators, replayed logs, and their statistics."""
