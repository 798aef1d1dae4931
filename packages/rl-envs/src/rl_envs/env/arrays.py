"""Types of numpy rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from rl_tensordict.types import Array

RowArrays: TypeAlias = Mapping[tuple[str, ...], Array]
