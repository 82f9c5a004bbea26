"""Memory while an instance serves: what is in it, what waits for it, what leaves it."""
