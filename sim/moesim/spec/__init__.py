"""What there is: frozen descriptions of models, hardware, placements and serving."""
