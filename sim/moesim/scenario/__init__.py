"""Scenario files: read, checked, frozen, and built into the parts of a run."""
