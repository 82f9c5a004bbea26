"""A discrete-event simulator of Mixture-of-Experts inference clusters."""

__version__ = "0.1.0"
