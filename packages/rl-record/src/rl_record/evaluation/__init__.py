"""Episodes played to measure a policy."""
