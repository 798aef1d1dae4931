"""What is logged, as it travels from the training thread to the thread that writes."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

FLOAT_BITS = sys.float_info.max_exp  # whole numbers below are finite as floats

Number: TypeAlias = float | int | Tensor | np.ndarray[Any, Any]


@dataclass(frozen=True)
class Metrics:
    """Numbers of one step."""

    values: Mapping[str, Any]  # numbers, or copies of tensors of one element
    step: int
    time: float  # seconds since 1970
    is_backwards: bool  # a later step of one of the names was logged before


@dataclass(frozen=True)
class Histogram:
    """A distribution of numbers at one step."""

    name: str
    data: Tensor
    bins: int
    step: int
    time: float


@dataclass(frozen=True)
class Video:
    """Frames at one step, or the file that holds them already."""

    name: str
    frames: Tensor | Path  # uint8 [T, C, H, W]
    step: int
    fps: float
    time: float


@dataclass(frozen=True)
class SingleFrames:
    """Frames that the thread makes one tensor of, on their way to it."""

    name: str
    frames: Sequence[Tensor]  # uint8 [C, H, W] each
    step: int
    fps: float
    time: float

    def as_video(self) -> Video:
        """What sinks are given."""
        return Video(self.name, torch.stack(list(self.frames)), self.step, self.fps, self.time)


@dataclass(frozen=True)
class RunSettings:
    """What a run was started with."""

    values: Mapping[str, Any]
    time: float


@dataclass(frozen=True)
class Rewind:
    """The run resumes from a checkpoint: what was logged after its step is void."""

    step: int
    time: float


Event: TypeAlias = Metrics | Histogram | Video | RunSettings | Rewind


class Sink(Protocol):
    """Where events go: a file, or the client of a service.

    Both methods are called in the thread that writes.
    """

    def write(self, events: Sequence[Event]) -> None:
        """Write events, in the order in which they were logged, so that a crash keeps them."""
        ...

    def close(self) -> None:
        """Give up what is held; nothing is written afterwards."""
        ...


def taken(name: str, value: object) -> object:
    """A number as it is now; one on a device is copied there, without waiting for the device."""
    if isinstance(value, int | np.bool_ | Integral) and int(value).bit_length() < FLOAT_BITS:
        return int(value)
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        if not value.is_cpu:
            return value.detach().clone()
        value = value.item()  # takes a third of the time of a copy
        return int(value) if isinstance(value, bool) else value
    if isinstance(value, np.ndarray) and value.size == 1:
        return taken(name, value[(0,) * value.ndim])
    if type(value) is float or (isinstance(value, Real) and not isinstance(value, Integral)):
        return float(value)
    got = type(value).__name__
    if isinstance(value, Integral):
        got = f"a whole number of {int(value).bit_length()} bits, too many for a float"
    if isinstance(value, Tensor | np.ndarray):
        got = f"{value.dtype} {list(value.shape)}"
        got += "; log_histogram takes many" * (math.prod(value.shape) != 1)
    msg = f"{name!r}: expected a number, or a tensor of one element, got {got}."
    raise TypeError(msg)


def numbers(values: Mapping[str, Any]) -> dict[str, float | int]:
    """Taken numbers as Python's own; those of a device by one copy for each device and dtype."""
    found = dict(values)
    groups: dict[tuple[torch.device, torch.dtype], list[str]] = {}
    for name, value in values.items():
        if isinstance(value, Tensor):
            groups.setdefault((value.device, value.dtype), []).append(name)
    for names in groups.values():
        packed = torch.cat([values[name].reshape(1) for name in names]).tolist()
        if isinstance(packed[0], bool):
            packed = list(map(int, packed))
        found.update(zip(names, packed, strict=True))
    return found
