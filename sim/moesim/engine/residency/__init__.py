"""Experts that are not all in device memory."""
