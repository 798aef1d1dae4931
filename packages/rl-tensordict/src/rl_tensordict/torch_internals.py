"""Private names of torch that the packages need, each behind a function of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def version_of(tensor: Tensor) -> int:
    """How often a tensor was written to in place; inference tensors do not count that."""
    return tensor._version


def parameters_of(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """The live dictionary of a module's own parameters, without a look-up by name."""
    return module._parameters


def buffers_of(module: nn.Module) -> dict[str, Tensor | None]:
    """The live dictionary of a module's own buffers."""
    return module._buffers


def modules_of(module: nn.Module) -> dict[str, Any]:
    """The live dictionary of a module's own children."""
    return module._modules


def is_compiled_in_place(module: nn.Module) -> bool:
    """Whether `nn.Module.compile` replaced the call of a module."""
    return module._compiled_call_impl is not None


def has_transforms() -> bool:
    """Whether a transform of `torch.func` is active."""
    active: bool = torch._C._are_functorch_transforms_active()
    return active


def has_dispatch_modes() -> bool:
    """Whether operations are intercepted, as tracers and fake tensors do."""
    depth: int = torch._C._len_torch_dispatch_stack()
    return depth > 0


def assert_on_device(condition: Tensor, message: str) -> None:
    """Have the device raise where a flag is False; the host does not wait for that."""
    torch._assert_async(condition, message)


def lerp_all(targets: list[Tensor], sources: list[Tensor], weight: float) -> None:
    """Move tensors towards others in place, all in one call."""
    torch._foreach_lerp_(targets, sources, weight)
