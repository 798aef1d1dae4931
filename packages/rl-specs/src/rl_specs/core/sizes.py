"""Sizes with dynamic (-1) dimensions, and shape operations on what a spec holds.

A shape operation is a function of one tensor. It is worked out on a stand-in, where every
dynamic dimension has the size of one large prime: whatever comes out as a multiple of it is
dynamic again, so expanding, reshaping and indexing need no rules of their own for -1.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

TensorView: TypeAlias = Callable[[Tensor], Tensor]

# two of each, because no static size may be a multiple; small ones for many dimensions, because
# torch counts elements in 63 bits
PRIMES = (100_003, 100_019), (4_099, 4_111)
NO_SIZE = torch.Size(())
LARGEST = 2**62


def as_size(*shape: Any) -> torch.Size:
    """Write sizes as a `torch.Size`."""
    given = shape[0] if len(shape) == 1 else shape
    if given is None:
        return NO_SIZE
    try:
        # a tensor of one number is no sequence
        several = isinstance(given, Iterable) and getattr(given, "ndim", None) != 0
        sizes = [operator.index(size) for size in (given if several else (given,))]
    except (TypeError, ValueError, RuntimeError):
        msg = f"a shape must be integers or a sequence of integers: got {given!r}"
        raise TypeError(msg) from None
    if max(sizes, default=0) > LARGEST:
        msg = f"sizes must be below 2 ** 62: got {tuple(sizes)}"
        raise ValueError(msg)
    if min(sizes, default=0) < -1:
        msg = f"sizes must be positive, 0, or -1 for a dynamic dimension: got {tuple(sizes)}"
        raise ValueError(msg)
    return torch.Size(sizes)


def safe(shape: Sequence[int]) -> torch.Size:
    """Put 1 where a dimension is dynamic."""
    return torch.Size([1 if size < 0 else size for size in shape])


def padded(found: Sequence[int], shape: Sequence[int]) -> list[int] | None:
    """Fit sizes to a shape by adding and removing dimensions of size 1."""
    left = [size for size in found if size != 1]
    fixed = sum(size not in (-1, 1) for size in shape)
    sizes = []
    for size in shape:
        # a dynamic dimension takes a size where more are left than the others need
        taken = size == -1 and len(left) > fixed
        fixed -= size not in (-1, 1)
        sizes.append(left.pop(0) if left and (taken or size not in (-1, 1)) else 1)
        if size not in (-1, sizes[-1]):
            return None
    return None if left else sizes


def stand_in_size(shape: Sequence[int]) -> int:
    """Choose the prime that represents -1 in a shape."""
    first, second = PRIMES[0] if sum(size < 0 for size in shape) <= 3 else PRIMES[1]
    return second if any(size > 0 and size % first == 0 for size in shape) else first


def stand_in(shape: Sequence[int]) -> torch.Size:
    """Replace dynamic dimensions (-1) by the prime."""
    prime = stand_in_size(shape)
    return torch.Size([prime if size < 0 else size for size in shape])


def viewed_shape(view: TensorView, shape: torch.Size) -> torch.Size:
    """Shape after a shape operation. No memory of that shape is allocated."""
    sizes = view(torch.zeros((), dtype=torch.bool, device="cpu").expand(stand_in(shape))).shape
    if -1 not in shape:
        return sizes
    prime = stand_in_size(shape)
    return torch.Size([-1 if size and size % prime == 0 else size for size in sizes])


def viewed(view: TensorView, part: Tensor, shape: torch.Size) -> Tensor:
    """Apply a shape operation to the first dimensions of a tensor."""
    ndim = len(shape)
    lead = part.shape[:ndim]
    steps = zip(part.stride()[:ndim], lead, strict=True)
    if lead.numel() and all(step == 0 or size == 1 for step, size in steps):
        # the same in every row: a view of one, whatever the operation is
        return part[(0,) * ndim].expand(safe(viewed_shape(view, shape)) + part.shape[ndim:])
    if part.ndim == ndim:
        return _shrunk(view(part.expand(stand_in(shape))), shape)
    # rows are looked up, because an opaque operation must not see the dimensions of the rest
    rows = torch.arange(lead.numel(), device="cpu").reshape(lead).expand(stand_in(shape))
    return part.reshape(-1, *part.shape[ndim:])[_shrunk(view(rows), shape)]


def without_repeats(part: Tensor, change: TensorView) -> Tensor:
    """Move or copy a tensor; dimensions repeated by `expand` stay expanded."""
    distinct = part[tuple(slice(0, 1) if step == 0 else slice(None) for step in part.stride())]
    return change(distinct).expand(part.shape)


def _shrunk(value: Tensor, shape: torch.Size) -> Tensor:
    """Reduce the stand-ins to size 1: a tensor is constant along a dynamic dimension."""
    if -1 in shape:
        prime = stand_in_size(shape)
        for dim, size in enumerate(value.shape):
            if size and size % prime == 0:
                value = value.narrow(dim, 0, 1)
    return value
