"""Objects as they are sent to another machine: a short pickle, and large arrays apart from it."""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Pickled(NamedTuple):
    """An object, pickled, with its arrays apart, so that a transport need not copy them."""

    head: bytes
    buffers: list[NDArray[np.uint8]]

    @classmethod
    def of(cls, value: Any) -> Pickled:
        """Pickle an object."""
        found: list[pickle.PickleBuffer] = []
        head = pickle.dumps(value, protocol=5, buffer_callback=found.append)
        return cls(head, [np.frombuffer(one.raw(), np.uint8) for one in found])

    def open(self) -> Any:
        """Make the object again; its arrays are views of the buffers."""
        return pickle.loads(self.head, buffers=self.buffers)
