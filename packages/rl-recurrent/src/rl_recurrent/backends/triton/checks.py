"""What the Triton recurrences take; shapes are checked before a backend is chosen."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from rl_layout import Segments
from rl_recurrent.backends.triton import tiles

DTYPES = (torch.float32, torch.bfloat16)


def check_gates(gates: Tensor, segments: Segments) -> None:
    """Raise for a device or a dtype without kernels, and for segments on another device."""
    if segments.starts.device != gates.device:
        msg = (
            f"expected segments on {gates.device} like the inputs, got {segments.starts.device}. "
            "Move them there with segments.to(device)."
        )
        raise ValueError(msg)
    dtypes = DTYPES if gates.is_cuda else DTYPES[:1]
    if gates.dtype not in dtypes:
        names = " or ".join(map(str, dtypes))
        msg = f"backend 'triton': expected {names} on {gates.device.type}, got {gates.dtype}."
        raise TypeError(msg)
    if gates.is_cuda:
        return
    interpreting = triton.knobs.runtime.interpret
    if gates.device.type == "cpu" and interpreting and not is_compiled():
        return
    # the variable is read when the kernels are decorated, at import
    late = " TRITON_INTERPRET was set after the kernels were imported." if interpreting else ""
    msg = (
        f"backend 'triton': expected tensors on a CUDA device, got {gates.device}.{late} "
        "Use backend 'pad', 'pack' or 'scan', which run there."
    )
    raise ValueError(msg)


def is_compiled() -> bool:
    """Whether the kernels were imported to be compiled, not interpreted."""
    return isinstance(tiles.tanh, triton.runtime.JITFunction)
