"""Experts that move while an instance serves."""
