"""Options of a recurrence that change its cost, not its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rl_layout import Segments

PRECISIONS = ("auto", "ieee", "tf32", "tf32x3", "bf16")


@dataclass(frozen=True)
class Settings:
    """Options of a recurrence: backend, precision, memory.

    Attributes:
        backend: ``"pad"``, ``"pack"``, ``"scan"``, ``"triton"`` or ``"auto"``.
        precision: of the operands of matrix products in ``triton``: ``"ieee"``, ``"tf32"``,
            ``"tf32x3"``, ``"bf16"``, or ``"auto"``, which does as ``torch.nn`` does on that device.
        save: what is kept for backward: ``"state"`` for the least memory, ``"gates"`` to compute
            less. ``"auto"`` is ``"gates"`` for an LSTM in ``pack``, ``"state"`` in ``triton``. A
            GRU in ``pack``, and ``scan``, keep states alone; what ``pad`` keeps is up to torch.
        max_length: the longest segment that ``scan`` must be ready for, where its shapes must not
            depend on the data; None to read it from the data. Best the length of a slice: it is
            used as it is, so that flat rows and ``[B, T]`` give the same bits.

    Raises:
        ValueError: one of them is unknown.

    Example:
        >>> Settings(backend="pack").precision
        'auto'
    """

    backend: str = "auto"
    precision: str = "auto"
    save: str = "auto"
    max_length: int | None = None

    def __post_init__(self) -> None:
        known = {
            "backend": ("auto", "pad", "pack", "scan", "triton"),
            "precision": PRECISIONS,
            "save": ("auto", "state", "gates"),
        }
        for name, values in known.items():
            value: Any = getattr(self, name)
            if not isinstance(value, str) or value not in values:
                msg = f"{name} must be one of {', '.join(values)}: got {getattr(self, name)!r}."
                raise ValueError(msg)
        length: Any = self.max_length
        if length is not None and (not isinstance(length, int) or length < 1):
            msg = f"max_length must be at least 1: got {self.max_length}."
            raise ValueError(msg)


def is_dense(segments: Segments) -> bool:
    """Tell whether there are segments, all of one length: their rows are then ``[S, T]``."""
    return 0 < segments.num_real == segments.max_length * len(segments)
