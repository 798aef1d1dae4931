"""Types of numpy rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]
RowArrays: TypeAlias = Mapping[tuple[str, ...], Array]
