"""Returns, advantages and losses that cut where trajectories end."""
