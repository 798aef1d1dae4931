"""Texts as they are in tensordicts."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import NonTensorData, NonTensorStack
from torch import Tensor

from rl_tensordict import UnfitValue
from rl_tensordict.arguments import shown


def texts_of(value: Any) -> tuple[list[str], torch.Size]:
    """The texts of an entry, one after the other, and the shape that they are in."""
    if isinstance(value, str):
        return [value], torch.Size([])
    if isinstance(value, Tensor) or not hasattr(value, "batch_size"):
        msg = f"expected texts, got {shown(value)}."
        raise UnfitValue(msg)
    shape = value.batch_size
    if isinstance(value, NonTensorData):  # one text for all
        found = [value.data] * shape.numel()
    else:
        nested = value.tolist()
        for _ in range(len(shape) - 1):
            nested = [one for part in nested for one in part]
        found = list(nested)
    for one in found:
        if not isinstance(one, str):
            msg = f"expected texts, got {shown(one)}."
            raise UnfitValue(msg)
    return found, shape


def as_texts(texts: list[str], shape: torch.Size) -> Any:
    """An entry of texts in a shape, the inverse of `texts_of`."""
    if not shape:
        return NonTensorData(texts[0])
    if len(shape) == 1:
        return NonTensorStack(*texts)
    each = len(texts) // shape[0] if shape[0] else 0
    parts = [texts[begin : begin + each] for begin in range(0, len(texts), each)]
    return NonTensorStack(*(as_texts(part, shape[1:]) for part in parts))
