"""Recorded columns, and the tables, numbers and intervals computed from them."""
