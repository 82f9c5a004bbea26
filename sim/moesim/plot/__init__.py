"""Figures of results; each carries one message."""
