"""Kernels run compiled on a CUDA device, and interpreted on the CPU if there is none.

Triton decides that when a kernel module is imported. The variable is set for these tests only, so
that everywhere else in the process a CPU is refused, as it is for users.
"""

import importlib
import importlib.util
import os
import sys

import pytest
import torch

VARIABLE = "TRITON_INTERPRET"
# the second takes functions of the first
KERNELS = "rl_value.scan.triton.scan_kernels", "rl_value.scan.triton.gae_kernels"
INTERPRETED = not torch.cuda.is_available()

# Triton exists for Linux alone
collect_ignore_glob = [] if importlib.util.find_spec("triton") else ["test_*.py"]


def import_interpreted():
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "1"
    for name in KERNELS:
        if name in sys.modules:
            importlib.reload(sys.modules[name])
        else:
            importlib.import_module(name)
    del os.environ[VARIABLE]
    if before is not None:
        os.environ[VARIABLE] = before


if INTERPRETED and not collect_ignore_glob:
    import_interpreted()


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
    if INTERPRETED:
        monkeypatch.setenv(VARIABLE, "1")


@pytest.fixture
def device():
    """Where the small tests run."""
    return torch.device("cpu" if INTERPRETED else "cuda")
