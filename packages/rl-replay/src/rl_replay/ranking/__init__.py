"""Buffers that keep the best: rows or whole trajectories, by a leaf that ranks them."""
