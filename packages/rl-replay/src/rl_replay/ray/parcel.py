"""Tensordicts as they are sent between machines: one block of bytes each."""

from __future__ import annotations

from typing import Any, NamedTuple

from tensordict import TensorDictBase

from rl_slabs import PackedRows


class Parcel(NamedTuple):
    """A tensordict on its way; Ray would take it apart leaf by leaf."""

    rows: PackedRows
    names: list[str | None]


def wrapped(value: Any) -> Any:
    """A tensordict as a block of bytes; what is none, or has no rows of one size, as it is."""
    if isinstance(value, list):
        return [wrapped(one) for one in value]
    if not isinstance(value, TensorDictBase):
        return value
    flat = value if value.device is None or value.device.type == "cpu" else value.cpu()
    try:
        return Parcel(PackedRows.of(flat), list(flat.names))
    except (TypeError, ValueError):
        return flat


def unwrapped(value: Any) -> Any:
    """The tensordict that a block holds, copied; anything else as it is."""
    if isinstance(value, Parcel):
        rows = value.rows.unpack()
        rows.names = value.names
        return rows
    if isinstance(value, list):
        return [unwrapped(one) for one in value]
    return value
