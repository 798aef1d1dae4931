"""SipHash of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rl_layout.internals import load_compiled
from rl_tensordict.arguments import check_flags, check_type, shown
from rl_trees.hashing import numpy_rounds
from rl_trees.row_words import bytes_of, words_of

_NUMBA = "rl_trees.hashing.numba_rounds"


class SipHash(torch.nn.Module):
    """Hashes the bytes of each row by SipHash-2-4.

    Equal rows have equal hashes in every process and on every machine of the same byte order; rows
    that differ in one bit have others, but for one pair in 2**64. `-0.0` and `0.0` differ in a bit.

    Args:
        as_tensor: Return hashes. If False, return the bytes of each row, as keys of a dict.
        key: 16 bytes; another key gives other hashes.

    Raises:
        ValueError: A key of another length.
        TypeError: A key that is not bytes.

    Source:
        Aumasson and Bernstein (2012), SipHash: a fast short-input PRF.

    Example:
        >>> import torch
        >>> rows = torch.tensor([[0.1, 0.2], [0.3, 0.4], [0.1, 0.2]])
        >>> SipHash()(rows)
        tensor([ 4808729436102273750, -5429870037876819565,  4808729436102273750])
    """

    def __init__(self, as_tensor: bool = True, *, key: bytes = bytes(16)) -> None:
        super().__init__()
        check_flags(as_tensor=as_tensor)
        check_type("key", key, bytes, "16 bytes")
        if len(key) != 16:
            raise ValueError(f"key must have 16 bytes, got {len(key)}.")
        self.as_tensor = as_tensor
        self.key = key

    def forward(self, x: torch.Tensor) -> torch.Tensor | list[bytes]:
        """Hashes rows.

        Args:
            x: `[N, ...]` of any dtype, on any device.

        Returns:
            int64 `[N]` on the device of `x`, or a list of bytes.

        Raises:
            ValueError: A tensor without rows.
            TypeError: No dense tensor.
        """
        check_rows(x)
        if not x.ndim:
            raise ValueError("x has no dimension of rows: pass x.unsqueeze(0) for a single row.")
        rows = bytes_of(x)
        if not self.as_tensor:
            return [row.tobytes() for row in rows]
        key = np.frombuffer(self.key, np.uint64)
        loops: Any = load_compiled(_NUMBA) or numpy_rounds
        hashes = loops.hash_words(words_of([rows]), rows.shape[1], key)
        return torch.from_numpy(hashes.view(np.int64)).to(x.device)


def check_rows(x: object) -> None:
    """Raises unless a value is a tensor with a byte string for each row."""
    if not isinstance(x, torch.Tensor) or x.layout is not torch.strided or x.is_nested:
        raise TypeError(f"x: expected a dense tensor [N, ...] of rows, got {shown(x)}.")
    if x.is_quantized or x.is_meta:
        raise TypeError(f"x: expected a tensor whose bytes can be read, got {shown(x)}.")
