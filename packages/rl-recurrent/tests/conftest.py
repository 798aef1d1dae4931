"""One layer on random rows, by any backend and in any dtype, for the tests to compare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from rl_layout import Segments, set_recurrent_mode
from rl_recurrent import Network, reference
from rl_recurrent.backends.dispatch import Settings
from rl_recurrent.cells import CELLS
from rl_recurrent.cells.cell import RowWeights
from rl_recurrent.network import backend_layer
from rl_recurrent.testing import layer_of


@dataclass
class Layer:
    """One layer of a cell, and rows for it, in float64."""

    cell: str
    segments: Segments
    tensors: list[Tensor]  # x, w_ih, w_hh, bias, (b_hn,) and states
    seen: list[Tensor]  # gradients of the outputs and of the final states

    def run(
        self, backend: str, dtype: torch.dtype = torch.float64, device: str = "cpu", **options: Any
    ) -> list[Tensor]:
        """Outputs, final states and every gradient, in float64 on the CPU."""
        inputs = [t.to(device, dtype, copy=True).requires_grad_() for t in self.tensors]
        segments = self.segments.to(device)
        outputs = self.outputs(backend, inputs, segments, options)
        seen = (t.to(device, dtype) for t in self.seen)
        torch.autograd.backward(outputs, list(seen))
        return [t.detach().double().cpu() for t in (*outputs, *(t.grad for t in inputs))]

    def outputs(
        self, backend: str, inputs: list[Tensor], segments: Segments, options: Any
    ) -> list[Tensor]:
        """Outputs after every row, and final states."""
        x, w_ih, w_hh, bias, *rest = inputs
        ends = segments.offsets[1:] - 1
        b_hn = rest.pop(0) if self.cell == "gru" else None
        weights = RowWeights(w_ih, w_hh, bias, b_hn)
        run = layer_of(reference) if backend == "reference" else backend_layer(backend)
        settings = () if backend == "reference" else (Settings(backend, **options),)
        states = run(CELLS[self.cell], x, weights, tuple(rest), segments, *settings)
        cells = [state if backend == "pad" else state[ends] for state in states[1:]]
        return [states[0], states[0][ends], *cells]


@pytest.fixture
def layer() -> Callable[..., Layer]:
    """Make a layer and rows for it, at the scale of a freshly made network."""

    def make(cell: str, lengths: list[int], inputs: int = 3, size: int = 5) -> Layer:
        generator = torch.Generator().manual_seed(len(lengths))
        gates, rows, count = (4 if cell == "lstm" else 3) * size, sum(lengths), len(lengths)

        def draw(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        def uniform(*shape: int) -> Tensor:
            return (2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1) / size**0.5

        weights = [uniform(gates, inputs), uniform(gates, size), uniform(gates)]
        weights += [uniform(size)] if cell == "gru" else []
        states = [draw(count, size) for _ in range(2 if cell == "lstm" else 1)]
        seen = [draw(rows, size), *(draw(count, size) for _ in states)]
        segments = Segments.from_lengths(torch.tensor(lengths))
        return Layer(cell, segments, [draw(rows, inputs), *weights, *states], seen)

    return make


@pytest.fixture(scope="session")
def both_forms() -> Callable[..., list[tuple[Tensor, Tensor]]]:
    """Run a module over slices ``[S, T]`` and over the same rows end to end; pairs of results."""

    def run(module: Any, grid: TensorDict) -> list[tuple[Tensor, Tensor]]:
        grid, generator = grid.clone(), torch.Generator().manual_seed(0)
        grid["is_init"][:, 0] = True  # as slices are marked
        grid.names = None
        device = grid["observation"].device
        for key, shape in zip(
            module.state_keys, Network.of(module.network).state_shapes, strict=True
        ):
            drawn = torch.randn(*grid.batch_size, *shape, generator=generator)
            grid[key] = torch.where(torch.rand(drawn.shape[:2])[..., None, None] < 0.3, 0, drawn)
            grid[key] = grid[key].to(device)
        return list(zip(results(module, grid), results(module, grid.reshape(-1)), strict=True))

    return run


def results(module: Any, batch: TensorDict) -> list[Tensor]:
    """Outputs, next states and the gradients of inputs, states and parameters, flattened."""
    batch = batch.clone()
    leaves = [batch[key].requires_grad_() for key in ("observation", *module.state_keys)]
    with set_recurrent_mode(True):
        out = module(batch)
    outputs = [out[key] for key in module.out_keys]
    seen = [torch.linspace(-1, 2, t.numel(), device=t.device).view_as(t) for t in outputs]
    leaves += module.parameters()
    grads = torch.autograd.grad(outputs, leaves, seen, allow_unused=True)
    return [t.flatten() for t in (*outputs, *grads) if t is not None]


def _module_of(make, hidden=5, **options):
    options = {"in_key": "observation", "out_key": "features", "dtype": torch.float64, **options}
    return make(2, hidden, **options)


def _with_states(batch, module, seed=0):
    """The batch in float64, with a state stored in every row, as a collector leaves it."""
    generator = torch.Generator().manual_seed(seed)
    batch = batch.clone()
    batch["observation"] = torch.randn(
        batch["observation"].shape, generator=generator, dtype=torch.float64
    )
    for key, shape in zip(module.state_keys, Network.of(module.network).state_shapes, strict=True):
        drawn = torch.randn(*batch.batch_size, *shape, generator=generator, dtype=torch.float64)
        batch[key] = drawn
    return batch


def _in_float32(batch):
    """The batch with its floats in the dtype of a module that is made without one."""
    return batch.apply(lambda leaf: leaf.float() if leaf.is_floating_point() else leaf)


def _step_by_step(module, batch):
    """The same rows in sequential mode: the state is carried, or read where a segment starts."""
    flat = batch.reshape(-1)
    starts = set(Segments.of(batch).starts.tolist())
    outs, states, after = [], [], None
    for row in range(len(flat)):
        root = flat[row].exclude("next")
        if row not in starts:
            for key, value in zip(module.state_keys, after, strict=True):
                root[key] = value
        module(root)
        after = [root[key] for key in module.out_keys[1:]]
        outs.append(root["features"])
        states.append(after)
    stacked = [torch.stack(each) for each in zip(*states, strict=True)]
    return torch.stack(outs), stacked


@pytest.fixture(scope="session")
def in_float32():
    """The batch with its floats in the dtype of a module that is made without one."""
    return _in_float32


@pytest.fixture(scope="session")
def module_of():
    return _module_of


@pytest.fixture(scope="session")
def step_by_step():
    """The same rows in sequential mode: the state is carried, or read where a segment starts."""
    return _step_by_step


@pytest.fixture(scope="session")
def with_states():
    """The batch in float64, with a state stored in every row, as a collector leaves it."""
    return _with_states
