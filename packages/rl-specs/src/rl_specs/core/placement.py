"""Dtypes and devices of data, written in full."""

from __future__ import annotations

from typing import Any

import torch

WITHOUT_ARITHMETIC = (torch.uint16, torch.uint32, torch.uint64)


def as_dtype(dtype: torch.dtype | str) -> torch.dtype:
    """Write a dtype as torch does."""
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype):
        msg = f"expected a torch.dtype, such as torch.float32, or its name: got {dtype!r}"
        raise TypeError(msg)
    if found in WITHOUT_ARITHMETIC:
        msg = f"torch cannot compare or draw numbers of {found}: use torch.int32 or torch.int64"
        raise TypeError(msg)
    return found


def as_device(device: torch.device | str | int | None) -> torch.device:
    """Write a device with its index, so that equal devices compare equal."""
    if device is None:
        found = torch.get_default_device()
    else:
        try:
            found = torch.device(device)
        except (TypeError, RuntimeError, ValueError):
            msg = f"expected a device of torch, its name or its index: got {device!r}"
            raise TypeError(msg) from None
    unnumbered = getattr(found, "index", None) is None
    if found.type == "cuda" and unnumbered and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return found


def destination(
    dest: Any, dtype: torch.dtype | None, device: torch.device | None
) -> tuple[torch.dtype | None, torch.device | None]:
    """Read the argument of a `to`."""
    if dest is None:
        return dtype, device
    if isinstance(dest, torch.dtype):
        return as_dtype(dest), device
    return dtype, as_device(dest)


def is_integer(dtype: torch.dtype) -> bool:
    """Whether a dtype holds whole numbers only; bool does."""
    return not (dtype.is_floating_point or dtype.is_complex)


def chosen_domain(domain: str | None, dtype: torch.dtype | str | None) -> str:
    """The domain of a new spec: the given one, or else that of its dtype; continuous without."""
    if domain is None:
        is_discrete = dtype is not None and is_integer(as_dtype(dtype))
        return "discrete" if is_discrete else "continuous"
    if domain not in ("continuous", "discrete"):
        msg = f"domain must be 'continuous' or 'discrete': got {domain!r}"
        raise ValueError(msg)
    return domain


def kept_domain(domain: str | None, dtype: torch.dtype) -> str | None:
    """A domain that differs from what its dtype says, so that casts keep it; None for others."""
    return None if domain == ("discrete" if is_integer(dtype) else "continuous") else domain
