"""Errors for arguments that are no modules or no tensors."""

from __future__ import annotations

from typing import Any

from tensordict.nn import TensorDictModuleBase
from torch import Tensor


def require_module(name: str, value: Any, its_keys: str = "[...], out_keys=[...]") -> None:
    """Raise unless a value is a tensordict module; the keys show how to make one."""
    if not isinstance(value, TensorDictModuleBase):
        msg = (
            f"{name} must be a tensordict module: got {type(value).__name__}. "
            f"Wrap it: TensorDictModule(module, in_keys={its_keys})."
        )
        raise TypeError(msg)


def require_tensor(value: Any, what: str) -> None:
    """Raise unless a value is a tensor."""
    if not isinstance(value, Tensor):
        msg = f"expected {what} as a tensor: got {type(value).__name__}"
        raise TypeError(msg)
