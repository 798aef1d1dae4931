"""Batches: their markers, ids and complete trajectories."""
