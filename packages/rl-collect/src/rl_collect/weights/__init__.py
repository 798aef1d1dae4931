"""Policy weights on their way to workers."""
