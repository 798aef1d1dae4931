"""The kernels behind the public functions: several layers, padding, states at segment ends."""

import pytest
import torch

from rl_layout import Segments, set_recurrent_mode
from rl_layout.end_kind import EndKind
from rl_layout.synthetic import environments
from rl_recurrent import GRUModule, LSTMModule, Network, Settings
from rl_recurrent.functional import gru, lstm


@pytest.mark.parametrize(("run", "kind"), [(lstm, torch.nn.LSTM), (gru, torch.nn.GRU)])
def test_two_layers_equal_packed_sequences_with_every_gradient(run, kind, device):
    segments = Segments.from_ids(torch.tensor([[3, 3, 3, -1], [5, 6, 6, 6]], device=device))
    network = kind(7, 16, num_layers=2).to(device)
    x = torch.randn(2, 4, 7, device=device, requires_grad=True)
    found = {}
    for backend in ("triton", "pack"):
        settings = Settings(backend=backend, precision="ieee")
        out, states = run(x, segments, None, Network.of(network), settings)
        last = states[1] if isinstance(states, tuple) else states
        total = out.square().sum() + last.square().sum()
        found[backend] = [out, last, *torch.autograd.grad(total, [x, *network.parameters()])]
    for ours, theirs in zip(found["triton"], found["pack"], strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("make", [LSTMModule, GRUModule])
def test_a_flat_sample_equals_its_rectangular_form_bitwise(make, device):
    module = make(
        2, 11, in_key="observation", out_key="y", recurrent_backend="triton", device=device
    )
    grid = environments(3, 4, [2, 5], [EndKind.TERMINATED]).to(device)
    for key in module.state_keys:
        grid[key] = torch.randn(3, 4, 1, 11, device=device)
    grid["is_init"][:, 0] = True  # as slices are marked
    flat, found = grid.reshape(-1), []
    for batch in (grid, flat):
        module.zero_grad()
        with set_recurrent_mode("recurrent"):
            out = module(batch)
        out["y"].square().sum().backward()
        states = [out[key].flatten(0, -3) for key in module.out_keys[1:]]
        found.append([out["y"].flatten(0, -2), *states, *(p.grad for p in module.parameters())])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
