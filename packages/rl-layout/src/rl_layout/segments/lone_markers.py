"""Markers that come alone, without a batch: checked, and flattened."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_layout.arguments import check_dense
from rl_layout.segments.markers import SIGNED, flat_marker


def flag_rows(flag: Tensor, name: str) -> Tensor:
    """Check a lone flag and flatten it."""
    check_dense(flag, name, "bool [*B, T, 1]")
    if flag.dtype != torch.bool:
        msg = f"{name}: expected torch.bool, got {flag.dtype}. Call .bool()."
        raise TypeError(msg)
    if flag.ndim < 2 or flag.shape[-1] != 1 or not flag.numel():
        msg = f"{name}: expected [*B, T, 1] with rows, got {list(flag.shape)}. Call unsqueeze(-1)."
        raise ValueError(msg)
    return flag.reshape(-1)


def id_rows(ids: Tensor, steps: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Check lone ids, and steps if there are any, and flatten them."""
    given = {"ids": ids} if steps is None else {"ids": ids, "steps": steps}
    for name, value in given.items():
        check_dense(value, name, "integers [*B, T]")
        if value.dtype not in SIGNED:
            msg = f"{name}: expected signed integers, got {value.dtype}. Call .long()."
            raise TypeError(msg)
    if not ids.numel() or not ids.ndim or (steps is not None and steps.shape != ids.shape):
        got = "none" if steps is None else list(steps.shape)
        msg = f"expected ids and steps of one shape [*B, T]: got {list(ids.shape)} and {got}."
        raise ValueError(msg)
    return ids.reshape(-1), None if steps is None else steps.reshape(-1)


def mask_rows(mask: Tensor, shape: torch.Size) -> Tensor:
    """Check a lone mask of real steps and flatten it."""
    check_dense(mask, "mask", f"bool {list(shape)}")
    return flat_marker(mask, shape, "mask", torch.bool, False)
