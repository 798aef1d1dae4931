"""The environment: its specs, its checks, resets of some elements."""
