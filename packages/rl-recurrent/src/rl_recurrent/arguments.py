"""Checks of the arguments of networks, before torch raises less clear errors."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any, NoReturn

import torch
from torch import Tensor

from rl_tensordict.arguments import as_device, check_integer, check_type, shown

FLAGS = ("bias", "batch_first", "bidirectional")


def check_network_arguments(sizes: Mapping[str, Any], shape: Mapping[str, Any]) -> None:
    """Raise for arguments that torch does not take: ``sizes`` at least 1, the rest in ``shape``."""
    for name, value in sizes.items():
        _check_whole(name, value, 1)
    for name in FLAGS:
        check_type(name, shape.get(name, True), bool, "True or False")
    dropout = shape.get("dropout", 0.0)
    if not isinstance(dropout, Real) or not 0 <= float(dropout) <= 1:
        msg = f"dropout: expected a share from 0 to 1, got {shown(dropout)}."
        raise ValueError(msg)
    projected = shape.get("proj_size", 0)
    _check_whole("proj_size", projected, 0)
    if projected and projected >= sizes["hidden_size"]:
        msg = f"proj_size: expected less than hidden_size={sizes['hidden_size']}, got {projected}."
        raise ValueError(msg)
    dtype = shape.get("dtype")
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        msg = f"dtype: expected a floating-point torch.dtype, got {shown(dtype)}."
        raise TypeError(msg)
    if shape.get("device") is not None:
        as_device("device", shape["device"])


def check_tensor(name: str, value: Any) -> None:
    """Raise unless a value is a tensor."""
    check_type(name, value, Tensor, "a tensor")


def refuse_batch(value: Any) -> NoReturn:
    """Raise for a value that is no tensordict."""
    msg = f"expected a tensordict, got {shown(value)}."
    raise TypeError(msg)


def _check_whole(name: str, value: Any, least: int) -> None:
    if not least <= check_integer(name, value) < 2**31:
        msg = f"{name}: expected {least} to {2**31 - 1}, got {value}."
        raise ValueError(msg)
