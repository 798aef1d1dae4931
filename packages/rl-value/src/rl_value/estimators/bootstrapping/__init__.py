"""Values of states and of next states."""
