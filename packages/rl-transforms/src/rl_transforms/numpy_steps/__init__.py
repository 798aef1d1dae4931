"""Transforms on numpy arrays, for environments whose loops write batches in place."""

from rl_transforms.numpy_steps.pipeline import ArrayChain, At, Cell
from rl_transforms.numpy_steps.steps import bind_steps

__all__ = ["ArrayChain", "At", "Cell", "bind_steps"]
