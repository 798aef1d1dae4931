"""Transforms on numpy arrays, for environments whose loops write batches in place."""

from rl_transforms.numpy_steps.pipeline import At, LeafView, NumpyPipeline
from rl_transforms.numpy_steps.steps import bind_steps

__all__ = ["At", "LeafView", "NumpyPipeline", "bind_steps"]
