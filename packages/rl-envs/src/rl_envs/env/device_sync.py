"""Whether the host may look at flags, which waits for the device that they are on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from rl_envs.env.done import Prefix


def may_wait(env: Any) -> bool:
    """Tell whether masks may be looked at, which waits for the device they are on."""
    inner = getattr(env, "base_env", None)
    return bool(env.waits_for_device) if inner is None else may_wait(inner)


def names_no_row(masks: Mapping[Prefix, Tensor]) -> bool:
    """Look whether masks are False everywhere."""
    return not any(bool(mask.any()) for mask in masks.values())


def names_every_row(masks: Mapping[Prefix, Tensor]) -> bool:
    """Look whether masks are True everywhere."""
    return all(bool(mask.all()) for mask in masks.values())
