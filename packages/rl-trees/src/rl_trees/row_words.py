"""Rows of tensors as rows of 64-bit words."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from rl_tensordict.types import Words


def bytes_of(rows: torch.Tensor) -> NDArray[np.uint8]:
    """The bytes of rows `[N, ...]` as uint8 `[N, W]`, without a copy if they are contiguous."""
    flat = rows.detach().cpu().contiguous()
    if not flat.numel():  # the shape says how wide a row would be
        width = flat.element_size() * math.prod(flat.shape[1:])
        return np.zeros((len(flat), width), np.uint8)
    flat_bytes: NDArray[np.uint8] = flat.reshape(-1).view(torch.uint8).numpy()
    return flat_bytes.reshape(len(flat), -1)


def words_of(parts: list[NDArray[np.uint8]]) -> Words:
    """Rows of bytes, one part after the other, as words `[N, W]` with zeros at the end.

    One part of whole words is not copied.
    """
    rows, width = len(parts[0]), sum(part.shape[1] for part in parts)
    count = -(-width // 8)
    first = parts[0]
    if len(parts) == 1 and width == 8 * count and first.ctypes.data % 8 == 0:
        return first.view(np.uint64)
    padded, begin = np.zeros((rows, 8 * count), np.uint8), 0
    for part in parts:
        padded[:, begin : begin + part.shape[1]] = part
        begin += part.shape[1]
    return padded.view(np.uint64)
