"""Requests: when they arrive, how long they are, of what class."""
