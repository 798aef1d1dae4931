"""Private names of torch that the packages need, each wrapped in a function of its own."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

# C code, asked at every call: a function around it would cost more than it does
version_of: Callable[[Tensor], int] = attrgetter("_version")
"""How often a tensor was written to in place; inference tensors do not count that."""

has_transforms: Callable[[], bool] = torch._C._are_functorch_transforms_active
"""Whether a transform of `torch.func` is active."""

has_dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
"""How many modes intercept operations, as tracers and fake tensors do; 0 is False."""


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


def assert_on_device(condition: Tensor, message: str) -> None:
    """Have the device raise where a flag is False; the host does not wait for that."""
    torch._assert_async(condition, message)


def lerp_all(targets: list[Tensor], sources: list[Tensor], weight: float) -> None:
    """Move tensors towards others in place, all in one call."""
    torch._foreach_lerp_(targets, sources, weight)
