"""The loops that step an environment with a policy."""
