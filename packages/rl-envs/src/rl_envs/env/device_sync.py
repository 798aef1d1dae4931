"""Whether the host may look at flags, which waits for the device that they lie on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from rl_envs.env.done import Prefix


def may_wait(env: Any) -> bool:
    """Tell whether masks may be looked at, which waits for the device they lie on.

    Args:
        env: any environment; one around another asks that.

    Returns:
        What the inmost environment says.

    Example:
        >>> from rl_envs.testing import CountingEnv
        >>> may_wait(CountingEnv())
        True
    """
    inner = getattr(env, "base_env", None)
    return bool(env.waits_for_device) if inner is None else may_wait(inner)


def names_no_row(masks: Mapping[Prefix, Tensor]) -> bool:
    """Look whether masks are False everywhere.

    Args:
        masks: bool, by prefix.

    Returns:
        Whether nothing is to be reset.

    Example:
        >>> import torch
        >>> names_no_row({(): torch.tensor([[False], [True]])})
        False
    """
    return not any(bool(mask.any()) for mask in masks.values())


def names_every_row(masks: Mapping[Prefix, Tensor]) -> bool:
    """Look whether masks are True everywhere.

    Args:
        masks: bool, by prefix.

    Returns:
        Whether everything is to be reset.

    Example:
        >>> import torch
        >>> names_every_row({(): torch.tensor([[False], [True]])})
        False
    """
    return all(bool(mask.all()) for mask in masks.values())
