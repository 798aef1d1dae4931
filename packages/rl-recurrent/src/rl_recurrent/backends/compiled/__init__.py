"""Segments in loops that numba compiles, for a CPU."""
