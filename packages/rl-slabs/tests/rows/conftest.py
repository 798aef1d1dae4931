"""What tests of rows read from tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import torch


@pytest.fixture
def versions() -> Callable[[Iterable[torch.Tensor]], list[int]]:
    """How often autograd takes each leaf to have been written to in place."""
    # private: torch has no public name for the counter, which integers have too
    return lambda leaves: [leaf._version for leaf in leaves]
