"""Means over tokens, sequences and groups of sequences."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from rl_layout import Segments
from rl_tensordict.arguments import check_choice, check_type
from rl_value.arguments import check_tensor
from rl_value.tokens.groups import group_of

MeanOver = Literal["token", "sequence", "sequence_sum", "group"]


def token_mean(
    values: Tensor,
    segments: Segments,
    over: MeanOver = "token",
    *,
    counted: Tensor | None = None,
    groups: Tensor | None = None,
) -> Tensor:
    """Average a value of each token over the tokens that count.

    With c tokens that count, S sequences and G groups that have any: ``"token"`` is Σ v / c;
    ``"sequence"`` the mean over sequences of their means, Σₛ (Σ v / cₛ) / S; ``"sequence_sum"`` the
    mean of their sums, Σ v / S; ``"group"`` the mean over groups of the mean of their tokens,
    Σ_g (Σ v / c_g) / G. Sums are taken in float64. How sequences are packed or padded makes no
    difference.

    Args:
        values: float ``[*B, T]`` or ``[*B, T, 1]``.
        segments: the sequences of the batch.
        over: what has the same weight.
        counted: bool ``[*B, T]``, tokens that count; all real ones if absent.
        groups: integers ``[*B, T]``, equal in sequences of one group; for ``"group"`` alone.

    Returns:
        A scalar of the values' dtype; 0 where no token counts.

    Raises:
        ValueError: there is no such mean, a shape does not fit, or groups are missing or differ in
            one sequence.
        TypeError: values are no floats, flags no bools, groups no integers, or segments no
            `Segments`.

    Example:
        >>> segments = Segments.from_lengths(torch.tensor([1, 3]))
        >>> values = torch.tensor([6.0, 0.0, 3.0, 0.0])
        >>> [token_mean(values, segments, over).item() for over in ("token", "sequence")]
        [2.25, 3.5]
    """
    check_choice("over", over, get_args(MeanOver))
    check_type("values", values, Tensor, "a tensor, a value of each token")
    if not values.is_floating_point():
        msg = f"values: expected floating point, got {values.dtype}. Call .float()."
        raise TypeError(msg)
    check_type("segments", segments, Segments, "Segments")
    if over == "group" and groups is None:
        msg = "groups: expected the group of each token for over='group', got None."
        raise ValueError(msg)
    flat = segments.gather(values).reshape(segments.num_real).double()
    count = torch.ones_like(flat)
    if counted is not None:
        check_tensor("counted", counted)
        if counted.dtype != torch.bool:
            msg = f"counted: expected torch.bool, got {counted.dtype}. Call .bool()."
            raise TypeError(msg)
        real = segments.gather(counted).reshape(segments.num_real)
        flat, count = flat.masked_fill(~real, 0), real.to(flat.dtype)
    if over == "token":
        return (flat.sum() / count.sum().clamp(min=1)).to(values.dtype)
    parts = torch.arange(len(segments), device=flat.device)
    if over == "group" and groups is not None:
        parts = group_of("groups", groups, segments).unique(return_inverse=True)[1]
    part = segments.spread(parts)
    empty = flat.new_zeros(len(segments))  # as many parts at most
    sums, counts = empty.index_add(0, part, flat), empty.index_add(0, part, count)
    shares = sums if over == "sequence_sum" else sums / counts.clamp(min=1)
    return (shares.sum() / (counts > 0).sum().clamp(min=1)).to(values.dtype)
