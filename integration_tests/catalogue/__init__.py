"""Environments of the transforms, and how their rows are compared."""
