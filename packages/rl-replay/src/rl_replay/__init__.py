"""Replay buffers of flat trajectories: storages, samplers, writers."""
