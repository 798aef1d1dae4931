"""Makes the skeleton and the tools importable by their own names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Neither is an installed package, and --import-mode=importlib adds no test folder to the path.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]


@pytest.fixture(autouse=True)
def _as_many_threads_as_before() -> Iterator[None]:
    """Undo what an example sets."""
    import torch

    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
