"""The kernels after the public functions: several layers, padding, states at segment ends."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_layout import Segments
from rl_layout.segments.end_kind import EndKind
from rl_layout.synthetic import environments
from rl_recurrent import GRUModule, LSTMModule, Network, Settings
from rl_recurrent.backends.triton.layer import scan
from rl_recurrent.cells import CELLS
from rl_recurrent.functional import gru, lstm, unroll


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
@settings(max_examples=6)
@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=2),
    hidden=st.integers(1, 20),
    bidirectional=st.booleans(),
    save=st.sampled_from(["state", "gates"]),
)
def test_flat_sample_equals_its_rectangular_form_bitwise(
    both_forms, device, make, shape, lengths, hidden, bidirectional, save
):
    grid = environments(*shape, lengths, [EndKind.TERMINATED]).to(device)
    options = {"recurrent_backend": "triton", "recurrent_save": save, "device": device}
    names = {"in_key": "observation", "out_key": "y"}
    module = make(2, hidden, bidirectional=bidirectional, **names, **options)
    assert all(torch.equal(one, other) for one, other in both_forms(module, grid))


def test_cpu_tensors_raise_and_the_message_names_other_backends(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    segments = Segments.from_lengths(torch.tensor([1]))
    lstm = [*map(torch.zeros, ((1, 8), (8, 2))), None, *map(torch.zeros, ((1, 2), (1, 2)))]
    with pytest.raises(ValueError, match=r"got cpu\. Use backend 'pad', 'pack' or 'scan'"):
        scan(CELLS["lstm"], lstm, segments)
    with pytest.raises(ValueError, match="expected tensors on a CUDA device"):
        scan(CELLS["gru"], [*map(torch.zeros, ((1, 6), (6, 2), 2, (1, 2)))], segments)


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU])
def test_wrong_dtypes_raise(kind, device):
    network = Network.of(kind(3, 2, device=device, dtype=torch.float64))
    x = torch.zeros(5, 3, device=device, dtype=torch.float64)
    segments = Segments.from_lengths(torch.tensor([2, 3], device=device))
    with pytest.raises(TypeError, match=r"expected torch\.float32.*, got torch\.float64"):
        unroll(x, segments, None, network, Settings("triton"))


def test_segments_on_another_device_raise(device):
    segments = Segments.from_lengths(torch.tensor([1])).to("meta")
    gates = [*map(torch.zeros, ((1, 6), (6, 2), 2, (1, 2)))]
    with pytest.raises(ValueError, match="like the inputs, got meta"):
        scan(CELLS["gru"], [each.to(device) for each in gates], segments)
