"""Kernels run compiled on a CUDA device, and interpreted on the CPU if there is none.

Triton decides that when a kernel module is imported. The variable is set for these tests only, so
that everywhere else in the process the backend refuses a CPU, as it does for users.
"""

import dataclasses
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable

import pytest
import torch

from rl_layout import Segments
from rl_recurrent.cells import CELLS

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


def lstm_loop(gates, w_hh, h0, c0, lengths):
    """Independent plain recurrence, one step of all segments that last so long at a time."""

    def step(x, states):
        h, c = states
        i, f, g, o = (x + h @ w_hh.T).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c

    return walked(step, gates, (h0, c0), lengths)


def gru_loop(gates, w_hh, b_hn, h0, lengths):
    """The same of a GRU."""

    def step(x, states):
        (h,) = states
        (x_r, x_z, x_n), (q_r, q_z, q_n) = x.chunk(3, -1), (h @ w_hh.T).chunk(3, -1)
        z = (x_z + q_z).sigmoid()
        n = (x_n + (x_r + q_r).sigmoid() * (q_n + b_hn)).tanh()
        return ((1 - z) * n + z * h,)

    return walked(step, gates, (h0,), lengths)


def walked(step, gates, states, lengths):
    """States of every row; a segment that is over keeps its own."""
    starts = torch.tensor([sum(lengths[:s]) for s in range(len(lengths))], device=gates.device)
    counts = torch.tensor(lengths, device=gates.device)
    rows, found = [], []
    for t in range(max(lengths)):
        on = counts > t
        row = starts + t * on
        after = step(gates[row], states)
        states = tuple(torch.where(on[:, None], a, b) for a, b in zip(after, states, strict=True))
        rows.append(row[on])
        found.append([state[on] for state in states])
    back = torch.cat(rows).argsort()
    return tuple(torch.cat(each)[back] for each in zip(*found, strict=True))


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell under test: its loop, and where its tensors differ from the other's."""

    name: str
    loop: Callable
    num_gates: int
    has_bias: bool  # one that the reset gate scales
    num_states: int

    def by(self, plan, tensors, segments, **options):
        """The states of every row, by a given plan."""
        from rl_recurrent.backends.triton.layer import planned_scan  # once kernels are interpreted

        return planned_scan(CELLS[self.name], self.inputs(tensors), segments, plan, **options)

    def scan(self, *tensors, segments, **options):
        """The states of every row, by the checked function."""
        from rl_recurrent.backends.triton.layer import scan

        return scan(CELLS[self.name], self.inputs(tensors), segments, **options)

    def inputs(self, tensors):
        """Gates, weights, the bias or None, and the states."""
        gates, w_hh, *rest = tensors
        return [gates, w_hh, *([] if self.has_bias else [None]), *rest]

    def drawn(self, lengths, size, device="cpu", seed=0):
        """Gates, weights at torch's initial scale, a bias if there is one, and initial states."""
        generator = torch.Generator().manual_seed(seed)
        rows, count, width = sum(lengths), len(lengths), self.num_gates * size
        uniform = torch.rand(width, size, generator=generator) * 2 - 1
        shapes = [(size,)] * self.has_bias + [(count, size)] * self.num_states
        tensors = [
            torch.randn(rows, width, generator=generator),
            uniform * size**-0.5,
            *(torch.randn(shape, generator=generator) / 2 for shape in shapes),
        ]
        return [tensor.to(device).requires_grad_() for tensor in tensors]

    def assert_like_the_loop(self, run, inputs, lengths, bounds=(2e-6, 1e-5)):
        """Outputs within an absolute bound, gradients within a relative one, of float64."""
        bound, relative = bounds
        wide = [tensor.detach().double().requires_grad_() for tensor in inputs]
        made, expected = run(*inputs), self.loop(*wide, lengths)
        generator = torch.Generator().manual_seed(1)
        seen = [
            torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o.device)
            for o in expected
        ]
        for ours, theirs in zip(made, expected, strict=True):
            assert (ours - theirs).abs().max() <= bound
        found = torch.autograd.grad(made, inputs, [each.to(made[0].dtype) for each in seen])
        for ours, theirs in zip(found, torch.autograd.grad(expected, wide, seen), strict=True):
            assert (ours - theirs).norm() <= relative * theirs.norm()


CELLS_BY_NAME = {
    "lstm": Cell("lstm", lstm_loop, 4, has_bias=False, num_states=2),
    "gru": Cell("gru", gru_loop, 3, has_bias=True, num_states=1),
}


@pytest.fixture(params=CELLS_BY_NAME)
def cell(request):
    """Each cell; one of them where a test is parametrised by its name, indirectly."""
    return CELLS_BY_NAME[request.param]


@pytest.fixture(scope="session")
def plan_of():
    """Makes a plan of a regime for so many units."""
    from rl_recurrent.backends.triton.launch import LaunchPlan

    def make(regime, size, block_s=16, precision="ieee"):
        block_h = 16 if size <= 16 else 32 if size <= 32 else 64
        block_j = block_h if regime == "resident" else 16
        return LaunchPlan(regime, torch.float32, precision, block_s, block_j, 32, 4, 1)

    return make


@pytest.fixture(scope="session")
def segments_of():
    """Makes segments of given lengths."""
    return lambda lengths, device="cpu": Segments.from_lengths(torch.tensor(lengths, device=device))
