"""Weights on their way to a worker that shares no memory with the caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from rl_collect.weights.load import load_weights
from rl_slabs import PackedRows


class OfferedWeights:
    """The newest weights that a worker was told of, which it fetches when it needs them."""

    # A worker that was told of several versions since its last batch fetches only the newest.

    def __init__(self) -> None:
        self._version = -1
        self._fetch: Callable[[], PackedRows] | None = None

    @property
    def newest(self) -> int:
        """The version offered last; -1 if there was none."""
        return self._version

    def offer(self, version: int, fetch: Callable[[], PackedRows]) -> None:
        """Note a version, and how to get it."""
        self._version, self._fetch = version, fetch

    def load_into(self, policy: Any, have: int) -> int:
        """Copy the newest weights into a policy, where it has older ones."""
        if self._fetch is None or self._version <= have:
            return have
        row = self._fetch().unpack()
        found: dict[str, Tensor] = {str(name): leaf[0] for name, leaf in row.items()}
        load_weights(policy, found)
        return self._version
