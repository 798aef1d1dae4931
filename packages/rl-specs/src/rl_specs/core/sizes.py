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

View: TypeAlias = Callable[[Tensor], Tensor]

# two of each, because no static size may be a multiple; small ones for many dimensions, because
# torch counts elements in 63 bits
PRIMES = (100_003, 100_019), (4_099, 4_111)
NO_SIZE = torch.Size(())
LARGEST = 2**62


def as_size(*shape: Any) -> torch.Size:
    """Write sizes as a `torch.Size`.

    Args:
        *shape: integers, or one integer, one iterable of integers, or None for no dimension.

    Returns:
        The sizes, in order.

    Raises:
        TypeError: something else was given.
        ValueError: a size is below -1.

    Example:
        >>> as_size(2, 3), as_size([2, 3]), as_size(None)
        (torch.Size([2, 3]), torch.Size([2, 3]), torch.Size([]))
    """
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
    if any(size > LARGEST for size in sizes):
        msg = f"sizes must be below 2 ** 62: got {tuple(sizes)}"
        raise ValueError(msg)
    if any(size < -1 for size in sizes):
        msg = f"sizes must be positive, 0, or -1 for a dynamic dimension: got {tuple(sizes)}"
        raise ValueError(msg)
    return torch.Size(sizes)


def safe(shape: Sequence[int]) -> torch.Size:
    """Put 1 where a dimension is dynamic.

    Args:
        shape: sizes, -1 where dynamic.

    Returns:
        The sizes, none negative.

    Example:
        >>> safe((3, -1))
        torch.Size([3, 1])
    """
    return torch.Size([1 if size < 0 else size for size in shape])


def padded(found: Sequence[int], shape: Sequence[int]) -> list[int] | None:
    """Fit sizes to a shape by adding and removing dimensions of size 1.

    Args:
        found: sizes of a value.
        shape: the wanted sizes, -1 where dynamic.

    Returns:
        The sizes to reshape to; None where the other dimensions differ, in size or order.

    Example:
        >>> padded((3,), (1, 3, 1)), padded((), (-1,)), padded((3, 2), (2, 3))
        ([1, 3, 1], [1], None)
    """
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
    """Choose the prime that stands for -1 in a shape.

    Args:
        shape: sizes, -1 where dynamic.

    Returns:
        A prime of which no size is a multiple.

    Example:
        >>> stand_in_size((3, -1)), stand_in_size((100_003, -1))
        (100003, 100019)
    """
    first, second = PRIMES[0] if sum(size < 0 for size in shape) <= 3 else PRIMES[1]
    return second if any(size > 0 and size % first == 0 for size in shape) else first


def stand_in(shape: Sequence[int]) -> torch.Size:
    """Put the prime that stands for -1 where a dimension is dynamic.

    Args:
        shape: sizes, -1 where dynamic.

    Returns:
        The sizes, none negative.

    Example:
        >>> stand_in((3, -1))
        torch.Size([3, 100003])
    """
    prime = stand_in_size(shape)
    return torch.Size([prime if size < 0 else size for size in shape])


def viewed_shape(view: View, shape: torch.Size) -> torch.Size:
    """Tell what a shape operation makes of a shape. No memory of that shape is allocated.

    Args:
        view: the shape operation.
        shape: sizes, -1 where dynamic.

    Returns:
        The new sizes, -1 where dynamic.

    Example:
        >>> viewed_shape(lambda value: value.flatten(), torch.Size((3, -1))).numel()
        -1
    """
    sizes = view(torch.zeros((), dtype=torch.bool).expand(stand_in(shape))).shape
    if -1 not in shape:
        return sizes
    prime = stand_in_size(shape)
    return torch.Size([-1 if size and size % prime == 0 else size for size in sizes])


def viewed(view: View, part: Tensor, shape: torch.Size) -> Tensor:
    """Apply a shape operation to the first dimensions of a tensor.

    Args:
        view: the shape operation.
        part: any dtype, `[*safe(shape), *rest]`.
        shape: the sizes that the operation acts on, -1 where dynamic.

    Returns:
        The tensor, `[*safe(new shape), *rest]`.

    Example:
        >>> viewed(lambda value: value.T, torch.zeros(3, 5, 7), torch.Size((3, 5))).shape
        torch.Size([5, 3, 7])
    """
    ndim = len(shape)
    lead = part.shape[:ndim]
    steps = zip(part.stride()[:ndim], lead, strict=True)
    if lead.numel() and all(step == 0 or size == 1 for step, size in steps):
        # the same in every row: a view of one, whatever the operation is
        return part[(0,) * ndim].expand(safe(viewed_shape(view, shape)) + part.shape[ndim:])
    if part.ndim == ndim:
        return _shrunk(view(part.expand(stand_in(shape))), shape)
    # rows are looked up, because an opaque operation must not see the dimensions of the rest
    rows = torch.arange(lead.numel()).reshape(lead).expand(stand_in(shape))
    return part.reshape(-1, *part.shape[ndim:])[_shrunk(view(rows), shape)]


def without_repeats(part: Tensor, change: View) -> Tensor:
    """Move or copy a tensor, without writing out what is only repeated by `expand`.

    Args:
        part: any tensor.
        change: what to do with its distinct elements. It keeps their shape.

    Returns:
        The changed tensor, repeated as the given one is.

    Example:
        >>> without_repeats(torch.zeros(1).expand(5), torch.clone).stride()
        (0,)
    """
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
