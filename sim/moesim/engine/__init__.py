"""When things happen: the only room that knows SimPy."""
