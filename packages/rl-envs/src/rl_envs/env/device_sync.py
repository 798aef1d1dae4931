"""Reads of flags on the host, which wait for the device that holds them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from rl_tensordict.types import KeyPath


def can_sync(env: Any) -> bool:
    """Whether the host may read masks, which synchronises with the device."""
    # the innermost environment decides; batched ones forward names that they lack
    inner = vars(env).get("base_env")
    return bool(env.waits_for_device) if inner is None else can_sync(inner)


def selects_no_row(masks: Mapping[KeyPath, Tensor]) -> bool:
    """Whether every mask is False everywhere: there is nothing to reset."""
    return not any(bool(mask.any()) for mask in masks.values())


def selects_every_row(masks: Mapping[KeyPath, Tensor]) -> bool:
    """Whether every mask is True everywhere: all rows are to be reset."""
    return all(bool(mask.all()) for mask in masks.values())
