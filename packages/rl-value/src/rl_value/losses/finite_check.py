"""The check that losses are numbers, and the search for what made them none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_tensordict import CPU, NestedKey, as_key, as_tuple, find
from rl_value.scan.block_scan import is_transformed


def not_finite(results: Mapping[str, Tensor], everywhere: bool) -> list[str]:
    """Name the scalar losses that are not finite; a device is waited for only if `everywhere`."""
    if is_transformed():
        return []
    return [
        name
        for name, value in results.items()
        if name.startswith("loss")
        and not value.ndim
        and (everywhere or value.is_cpu)
        and not isfinite(value.item())
    ]


def is_nothing(results: Mapping[str, Tensor]) -> bool:
    """Whether all scalar losses are exactly 0, as where no step counts; no device is waited for."""
    if is_transformed():
        return False
    losses = [value for name, value in results.items() if name.startswith("loss")]
    return all(not value.ndim and value.is_cpu and value.item() == 0 for value in losses)


def reason_of(
    batch: TensorDictBase,
    read: Iterable[NestedKey],
    derived: Iterable[NestedKey],
    counted: Tensor | None,
    networks: nn.Module,
) -> str:
    """Say what is not finite: an entry that was read, a parameter, or an entry that was derived."""
    every = torch.ones(batch.batch_size, dtype=torch.bool, device=CPU)
    steps = every if counted is None else counted
    steps = steps.flatten(batch.ndim).any(-1) if steps.ndim > batch.ndim else steps
    bad = [name for name, value in networks.named_parameters() if not bool(value.isfinite().all())]
    if bad:
        found = f"{len(bad)} parameters of the loss are not finite, {bad[0]!r} first"
    else:
        found = "all that it reads is finite, so numbers ran over: look at log-probabilities"
    return _entry(batch, read, steps) or (bad and found) or _entry(batch, derived, steps) or found


def _entry(batch: TensorDictBase, names: Iterable[NestedKey], steps: Tensor) -> str:
    """The first entry that is not finite in a step that counts; empty if all are."""
    for key in names:
        value = find(batch, as_tuple(key))
        if not isinstance(value, Tensor) or not value.is_floating_point():
            continue
        wrong = ~value.isfinite().reshape(*batch.batch_size, -1).all(-1) & steps.to(value.device)
        if bool(wrong.any()):
            first = tuple(wrong.nonzero()[0].tolist())
            return (
                f"{as_key(as_tuple(key))!r} is not finite in {int(wrong.sum())} of "
                f"{int(steps.sum())} steps, first in {first}"
            )
    return ""
