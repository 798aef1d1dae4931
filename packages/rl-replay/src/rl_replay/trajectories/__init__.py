"""The index of trajectories, built from each row's offset to its predecessor."""
