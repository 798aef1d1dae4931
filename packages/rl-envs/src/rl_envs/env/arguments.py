"""Batch sizes and devices that environments are given."""

from __future__ import annotations

from typing import Any

import torch


def sizes_of(batch_size: Any) -> torch.Size:
    """Read a batch size."""
    given = [batch_size] if isinstance(batch_size, int) else batch_size
    try:
        sizes = torch.Size(given)
    except TypeError:
        sizes = None
    if sizes is None or any(size < 0 for size in sizes):
        msg = f"expected a batch size of whole numbers, as (3,): got {batch_size!r}."
        raise ValueError(msg)
    return sizes


def device_of(device: Any) -> torch.device:
    """Read a device, or raise if there is none like it."""
    try:
        return torch.empty(0, device=torch.device(device)).device  # with its number
    except (AssertionError, RuntimeError, TypeError, NotImplementedError) as error:
        msg = f"expected a device of this machine, as 'cpu': got {device!r} ({error})."
        raise RuntimeError(msg) from error
