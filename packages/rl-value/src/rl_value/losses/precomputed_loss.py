"""Autograd functions for losses whose values and gradients were computed in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, from_numpy
from torch.autograd import Function

from rl_value.losses.arrays import Array


@dataclass
class PrecomputedLoss:
    """Losses of one tensor, and their gradient by it."""

    losses: tuple[float, ...]
    # gives [n, ...], the gradient of the sum of the losses, each weighted with one number
    gradient: Callable[..., Array]
    counted: Array | None  # bool [N], the n rows that count; None where all do
    # the same losses of the tensor by autograd, for gradients of gradients
    plain: Callable[[Tensor], tuple[Tensor, ...]]


def attach(known: PrecomputedLoss, at: Tensor) -> tuple[Tensor, ...]:
    """Return precomputed losses as scalar tensors that are differentiable by their input."""
    # Each tensor that losses are computed from has a node of its own, so that the losses of one can
    # go back while the graph of another stays.
    found: tuple[Tensor, ...] = _apply(known, at)  # type: ignore[no-untyped-call]
    return found


class PrecomputedGradients(Function):
    """Losses of one tensor as a node of autograd; its gradient is computed in NumPy."""

    @staticmethod
    def forward(ctx: Any, known: PrecomputedLoss, at: Tensor) -> tuple[Tensor, ...]:
        """Return the losses as scalars."""
        ctx.known = known
        ctx.save_for_backward(at)
        ctx.set_materialize_grads(False)
        return tuple(torch.scalar_tensor(loss, dtype=at.dtype) for loss in known.losses)

    @staticmethod
    def backward(ctx: Any, *given: Tensor | None) -> tuple[None, Tensor | None]:
        """Return the gradient that was computed with the losses."""
        (at,) = ctx.saved_tensors
        known = ctx.known
        if torch.is_grad_enabled():  # create_graph: the gradient is differentiated in turn
            return None, _twice(known.plain, at, *given)
        weights = [0.0 if grad is None else grad.item() for grad in given]
        return None, from_numpy(_laid_out(known.gradient(*weights), known.counted, at.shape))


# Function.apply looks for transforms before it calls this, which takes as long as a small loss.
_apply = super(Function, PrecomputedGradients).apply


def _laid_out(made: Array, counted: Array | None, shape: torch.Size) -> Array:
    """Write rows ``[n, ...]`` as ``[*B, ...]``, zeros where steps do not count."""
    if counted is not None:
        whole = np.zeros((counted.size, *made.shape[1:]), made.dtype)
        whole[counted] = made
        made = whole
    return made if made.shape == shape else made.reshape(shape)


def _twice(
    plain: Callable[[Tensor], tuple[Tensor, ...]], at: Tensor, *given: Tensor | None
) -> Tensor | None:
    """A gradient that has gradients itself."""
    pairs = [(loss, grad) for loss, grad in zip(plain(at), given, strict=True) if grad is not None]
    losses, grads = zip(*pairs, strict=True)
    found = torch.autograd.grad(losses, at, grads, create_graph=True, allow_unused=True)
    return found[0]
