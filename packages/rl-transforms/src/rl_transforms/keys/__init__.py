"""Transforms of the keys of a tensordict."""
