"""Names of types that the packages share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

NestedKey: TypeAlias = str | tuple[str, ...]
KeyPath: TypeAlias = tuple[str, ...]  # a nested key written as a tuple, as `as_tuple` does
Array: TypeAlias = NDArray[Any]
Ints: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]
Floats: TypeAlias = NDArray[np.float64]
Singles: TypeAlias = NDArray[np.float32]
Words: TypeAlias = NDArray[np.uint64]
LeafTensors: TypeAlias = dict[KeyPath, Tensor]
# a function on tensors, with the keys of its inputs and of its outputs
StepCall: TypeAlias = tuple[Callable[..., Any], list[NestedKey], list[NestedKey]]
