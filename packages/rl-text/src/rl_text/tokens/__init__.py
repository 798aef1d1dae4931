"""Conversations as trajectories: one row a token, end to end."""
