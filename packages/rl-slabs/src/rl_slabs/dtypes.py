"""Which dtypes a row can hold, and the plain dtype that carries the bits of each."""

from __future__ import annotations

import torch

_PLAIN = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128),
)
# numpy does not know these, or torch cannot write them by index: they are moved as integers
_CARRIED = {
    torch.bfloat16: torch.int16,
    torch.complex32: torch.int32,
    torch.uint16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e4m3fnuz: torch.uint8,
    torch.float8_e5m2: torch.uint8,
    torch.float8_e5m2fnuz: torch.uint8,
}
CARRIERS = {dtype: dtype for dtype in _PLAIN} | _CARRIED
_BY_NAME = {str(dtype).removeprefix("torch."): dtype for dtype in CARRIERS}


def carrier(dtype: torch.dtype) -> torch.dtype:
    """The dtype of equal size that numpy and index writes can move, often `dtype` itself."""
    try:
        return CARRIERS[dtype]
    except KeyError:
        known = ", ".join(_BY_NAME)
        raise TypeError(f"a row cannot hold {dtype!r}: use one of torch's {known}.") from None


def name_of(dtype: torch.dtype) -> str:
    """The name of a dtype in a manifest."""
    return str(dtype).removeprefix("torch.")


def dtype_named(name: str) -> torch.dtype:
    """The dtype of a name in a manifest."""
    try:
        return _BY_NAME[name]
    except KeyError:
        raise ValueError(
            f"unknown dtype {name!r}: expected one of {', '.join(_BY_NAME)}. "
            "The schema was altered or written by a newer rl-slabs."
        ) from None
