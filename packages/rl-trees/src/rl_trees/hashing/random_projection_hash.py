"""Hashes of random projections."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from rl_tensordict.arguments import check_calls, check_integer, check_type, check_whole
from rl_trees.hashing.sip_hash import SipHash, check_rows

DEFAULT_COMPONENTS = 16


class RandomProjectionHash(SipHash):
    """Projects wide rows onto a few random directions, rounds, and hashes the result by SipHash.

    Rows that are nearly equal often have the same hash, as rounding to `dtype_cast` leaves out
    the low bits: that merges states that differ by noise. Where keys are compared in full, as in a
    `TensorDictMap`, such rows stay apart and only share a place to begin the search.

    A projection is added up in one order whatever the batch, in double precision, so a row has
    one hash on every machine; the directions come from SipHash and a seed.

    Args:
        n_components: Directions; 16 unless given.
        dtype_cast: What projections are rounded to.
        as_tensor: Return hashes. If False, return the bytes of each projection.
        init_method: Fills the directions, float64 `[F, n_components]`, in place; numbers in
            [-1, 1) that depend on `seed` alone unless given.
        seed: Of the directions.

    Source:
        Charikar (2002), Similarity estimation techniques from rounding algorithms.

    Example:
        >>> import torch
        >>> rows = torch.arange(200.0).reshape(2, 100)
        >>> hash_module = RandomProjectionHash(n_components=4)
        >>> bool((hash_module(rows) == hash_module(rows + 1e-6)).all())
        True
    """

    def __init__(
        self,
        *,
        n_components: int | None = None,
        dtype_cast: torch.dtype = torch.bfloat16,
        as_tensor: bool = True,
        init_method: Callable[[torch.Tensor], Any] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(as_tensor)
        self.n_components = DEFAULT_COMPONENTS if n_components is None else n_components
        check_whole("n_components", self.n_components, 1)
        check_type("dtype_cast", dtype_cast, torch.dtype, "a dtype")
        check_calls(init_method=init_method)
        check_integer("seed", seed)
        self.dtype_cast = dtype_cast
        self.init_method = init_method
        self.seed = seed
        self.transform: torch.Tensor | None
        self.register_buffer("transform", None)

    def fit(self, x: torch.Tensor) -> None:
        """Draws the directions for rows of the width of `x`; the first call does it.

        Args:
            x: `[N, F]`, or more dimensions, which count as features.
        """
        shape = (_features(x).shape[1], self.n_components)
        transform = self._directions(shape)
        if self.init_method is not None:
            self.init_method(transform)
        self.transform = transform

    def forward(self, x: torch.Tensor) -> torch.Tensor | list[bytes]:
        """Hashes rows.

        Args:
            x: `[N, F]` of any real dtype.

        Returns:
            int64 `[N]` on the device of `x`, or a list of bytes.

        Raises:
            ValueError: Rows of another width than the first ones.
        """
        if self.transform is None:
            self.fit(x)
        rows, transform = _features(x), self.get_buffer("transform")
        if rows.shape[1] != len(transform):
            raise ValueError(
                f"rows have {rows.shape[1]} features, and the directions were drawn for "
                f"{len(transform)}: use another RandomProjectionHash."
            )
        rounded = _projected(rows, transform.cpu()).to(self.dtype_cast)
        hashes = super().forward(rounded)
        return hashes if isinstance(hashes, list) else hashes.to(x.device)

    def _directions(self, shape: tuple[int, int]) -> torch.Tensor:
        """Numbers in [-1, 1): the upper 53 bits of the hashes of places."""
        places = torch.arange(shape[0] * shape[1], device="cpu")
        key = (self.seed % 2**128).to_bytes(16, "little")
        hashes = SipHash(key=key)(places)
        # 53 bits fit the mantissa of a double: nothing is rounded
        bits = np.asarray(hashes).view(np.uint64) >> np.uint64(11)
        return torch.from_numpy(bits * 2.0**-52 - 1).reshape(shape)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *rest: Any, **options: Any
    ) -> None:
        """Takes the shape of saved directions over before they are copied."""
        saved = state_dict.get(f"{prefix}transform")
        if saved is not None:
            self.transform = torch.empty_like(saved)
        super()._load_from_state_dict(state_dict, prefix, *rest, **options)


def _features(x: torch.Tensor) -> torch.Tensor:
    """Rows as float64 `[N, F]` on the CPU."""
    check_rows(x)
    if not x.ndim:
        raise ValueError("x has no dimension of rows: pass x.unsqueeze(0) for a single row.")
    if x.is_complex():
        raise TypeError(f"x: expected real numbers, got {x.dtype}: pass torch.view_as_real(x).")
    rows = x.detach().cpu().double()
    return rows.reshape(len(rows), math.prod(rows.shape[1:]))


def _projected(rows: torch.Tensor, transform: torch.Tensor) -> torch.Tensor:
    """The projections `[N, C]`: halves are added to each other until one column is left.

    A matrix product would add in an order that depends on the library and on the batch.
    """
    columns = []
    for direction in transform.unbind(1):
        products = rows * direction
        while products.shape[1] > 1:
            half = products.shape[1] // 2
            # the last column of an odd number waits for the next round
            odd = products[:, 2 * half :]
            products = torch.cat([products[:, :half] + products[:, half : 2 * half], odd], 1)
        columns.append(products)
    return torch.cat(columns, 1)
