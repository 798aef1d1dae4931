"""Kernels run compiled on a CUDA device, and interpreted on the CPU if there is none.

Triton decides that when a kernel module is imported. The variable is set for these tests only, so
that everywhere else in the process the backend refuses a CPU, as it does for users.
"""

import importlib
import importlib.util
import os
import sys

import pytest
import torch

VARIABLE = "TRITON_INTERPRET"
KERNELS = ("tiles", "lstm_kernels", "gru_kernels")  # in the order of their imports
INTERPRETED = not torch.cuda.is_available()

# Triton exists for Linux alone
collect_ignore_glob = [] if importlib.util.find_spec("triton") else ["test_*.py"]


def import_interpreted():
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "1"
    for name in (f"rl_recurrent.backends.triton.{kernels}" for kernels in KERNELS):
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


@pytest.fixture(scope="session")
def device():
    """Where the small tests run."""
    return torch.device("cpu" if INTERPRETED else "cuda")
