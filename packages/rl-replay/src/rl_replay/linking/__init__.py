"""Which row continues which, from markers and observations."""
