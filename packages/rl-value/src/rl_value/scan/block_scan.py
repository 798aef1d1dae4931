"""The recurrence on the CPU: many blocks of time at once, then their heads."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from rl_layout.internals import LEAST_ROWS, array_of, run_compiled
from rl_tensordict.torch_internals import has_transforms
from rl_tensordict.types import Array, Flags
from rl_value.scan.doubling_scan import doubling_scan

BLOCKS = "numpy, in blocks"
LOOPS = "rl_value.scan.numba_loops"
PIECE = 262_144  # rows at a time, or near it: in the cache, and worth the calls of a piece
FEW = 128  # rows that are scanned one by one, which takes less time than calls of numpy


def is_transformed() -> bool:
    """Tell whether values may not be looked into: code is compiled, or under `torch.func`."""
    return torch.compiler.is_compiling() or has_transforms()


def obstacle(factors: tuple[float | Tensor, ...], *values: Tensor) -> str:
    """Say why steps cannot be scanned in the memory of the CPU; "" where they can."""
    if is_transformed():
        return "the code is compiled or transformed"
    for factor in factors:
        if isinstance(factor, Tensor):
            return "a factor for each step"
    wanted, dtype = torch.is_grad_enabled(), values[0].dtype
    for value in values:
        if not value.is_cpu:
            return f"on {value.device.type}"
        if wanted and value.requires_grad:
            return "gradients are wanted"
        if value.dtype != dtype:
            return "several dtypes"
    return "" if values[0].numel() else "no step"


def gae_of_rows(
    arrays: tuple[Tensor, Tensor, Tensor],
    ends: tuple[Tensor, Tensor],
    factors: tuple[float | Tensor, float | Tensor],
    dim: int,
) -> tuple[Tensor, Tensor]:
    """Advantages and targets of steps without an `obstacle`; `ends` are terminated and done."""
    reward, gamma, lmbda = arrays[0], float(factors[0]), float(factors[1])
    size, decay = reward.numel(), gamma * lmbda
    rewards, values, ahead, ended, done = rows_of(dim, *arrays, *ends)
    advantage, out = empty_rows(reward, dim)
    target, targets = empty_rows(reward, dim)
    cut = cuts_of(reward.shape[dim], ended, done)
    given = (rewards, values, ahead, ended, cut, gamma, decay, out, targets)
    # with no decay not even what is not finite is carried
    if decay and size >= LEAST_ROWS and run_compiled(LOOPS, "gae_rows", *given):
        return advantage, target
    with np.errstate(all="ignore"):  # values that are not finite are the caller's to find
        delta = ahead * gamma
        np.copyto(delta, 0, where=ended)
        delta += rewards
        delta -= values
        constant_scan(decay, cut, delta, out)
        np.add(out, values, out=targets)
    return advantage, target


def rows_of(dim: int, *values: Tensor) -> list[Array]:
    """Lay arrays out flat in the shape of the first one, time running fastest."""
    rows, shape = [], values[0].shape
    flat = runs_fastest(shape, dim)
    for value in values:
        wide = value if value.shape == shape else value.expand(shape)
        array = array_of(wide.detach() if wide.requires_grad else wide)
        rows.append((array if flat else np.moveaxis(array, dim, -1)).reshape(-1))
    return rows


def runs_fastest(shape: tuple[int, ...], dim: int) -> bool:
    """Whether time, the dimension `dim`, is the fastest of more than one element."""
    return shape[dim] == math.prod(shape[dim:])


def empty_rows(like: Tensor, dim: int) -> tuple[Tensor, Array]:
    """Make an array that is in memory as `rows_of` lays others out."""
    shape = like.shape
    dtype = np.float32 if like.dtype == torch.float32 else np.float64
    if runs_fastest(shape, dim):
        made = np.empty(shape, dtype)
        return torch.from_numpy(made), made.reshape(-1)
    made = np.empty((*shape[:dim], *shape[dim + 1 :], shape[dim]), dtype)
    return torch.from_numpy(made).movedim(-1, dim), made.reshape(-1)


def cuts_of(steps: int, *flags: Flags) -> Flags:
    """Flag the rows that are cut: those of some flags, and the last of each column of steps."""
    cut: Flags = flags[0].copy() if len(flags) == 1 else np.logical_or(*flags)
    cut.reshape(-1, steps)[:, -1] = True
    return cut


def constant_scan(factor: float, cut: Flags, term: Array, out: Array) -> None:
    """Write y[i] = b[i] + factor y[i + 1], and y[i] = b[i] where row i is cut."""
    weight = np.full(len(term), factor, term.dtype)
    np.copyto(weight, 0, where=cut)
    block_scan(weight, term, out)


def block_scan(weight: Array, term: Array, out: Array) -> None:
    """Write y[i] = b[i] + a[i] y[i + 1] over flat rows, y[N] = 0; nothing passes an a of 0."""
    _scan_pieces(weight, term, out)
    with np.errstate(all="ignore"):
        is_finite = bool(np.isfinite(np.add.reduce(out)))
    # what is not finite stays so up to the first row: then, and only then, it may pass a cut
    if not is_finite:
        _scan_around(weight, term, out)


def _scan_around(weight: Array, term: Array, out: Array) -> None:
    """Scan rows of which some come out not finite, the others with the bits they have alone."""
    exact = doubling_scan(*(torch.from_numpy(np.array(rows)) for rows in (weight, term))).numpy()
    lost = ~np.isfinite(exact)
    _scan_pieces(np.where(lost, 0, weight), np.where(lost, 0, term), out)
    np.copyto(out, exact, where=lost | ~np.isfinite(out))


def _scan_pieces(weight: Array, term: Array, out: Array) -> None:
    """Scan piece by piece, from the last one: what a cut should stop may pass it as 0 times it."""
    size = len(out)
    most = -(-size // (max(1, round(size / PIECE)) * 16)) * 16  # no small piece is left
    scratch: Array = np.empty((2, min(most, size)), out.dtype)
    carry = 0.0  # y of the first row scanned
    with np.errstate(all="ignore"):  # values that are not finite are the caller's to find
        for stop in range(size, 0, -most):
            piece = slice(max(0, stop - most), stop)
            carry = _scan_piece(weight[piece], term[piece], out[piece], scratch, carry)


def _scan_piece(weight: Array, term: Array, out: Array, scratch: Array, carry: float) -> float:
    """Scan ``[P]`` rows before one whose y is the carry; returns the first y."""
    steps = 16 if len(term) >= 2_048 else 8
    whole = 0 if len(term) <= FEW else len(term) // steps * steps
    found = []  # rows that fill no block, from the last one
    for factor, value in zip(
        weight[whole:][::-1].tolist(), term[whole:][::-1].tolist(), strict=True
    ):
        carry = value + factor * carry
        found.append(carry)
    out[whole:][::-1] = found
    if not whole:
        return carry
    a, b, y = (rows[:whole].reshape(-1, steps).T for rows in (weight, term, out))
    return _scan_blocks(a, b, y, scratch, carry)


def _scan_blocks(a: Array, b: Array, out: Array, scratch: Array, carry: float) -> float:
    """Scan n blocks of L steps, ``[L, n]`` each, side by side; returns the first y."""
    # First the y that the first step of each block would have alone. Doubling joins these heads, in
    # double precision. Then all steps again, from what enters each block.
    weight, y = (rows[: b.size].reshape(b.shape) for rows in scratch)
    np.copyto(weight, a)
    np.copyto(y, b)
    factors, heads = np.empty((2, b.shape[1] + 1))
    # in double precision: 0.999 multiplied by itself in single is biased
    np.multiply.reduce(weight, 0, dtype=float, out=factors[:-1])
    weights, terms, head = list(weight), list(y), y[-1].copy()
    for k in range(len(terms) - 2, -1, -1):
        np.multiply(weights[k], head, head)
        np.add(head, terms[k], head)
    heads[:-1], heads[-1] = head, carry
    _join(factors, heads)
    after = heads[1:].astype(y.dtype)
    for k in range(len(terms) - 1, -1, -1):
        np.multiply(weights[k], after, weights[k])
        after = np.add(weights[k], terms[k], terms[k])
    np.copyto(out, y)
    return float(heads[0])


def _join(weight: Array, term: Array) -> None:
    """Turn first terms of blocks ``[n + 1]`` into their first y, until none reaches further."""
    # weight: products of the a's of each block, used up. term: what the first y of each block
    # would be alone, and last the y after them all
    weight[-1] = 0
    seen = 1
    while seen < len(term) and weight.any():
        term[:-seen] += weight[:-seen] * term[seen:]
        weight[:-seen] *= weight[seen:]
        weight[-seen:] = 0
        seen *= 2
