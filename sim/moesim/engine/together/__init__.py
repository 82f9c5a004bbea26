"""Replications of one scenario that advance together."""
