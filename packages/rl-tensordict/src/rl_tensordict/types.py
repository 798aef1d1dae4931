"""Names of types that the packages share."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

NestedKey: TypeAlias = str | tuple[str, ...]
KeyPath: TypeAlias = tuple[str, ...]  # a nested key written as a tuple, as `as_tuple` does
Array: TypeAlias = NDArray[Any]
Ints: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]
