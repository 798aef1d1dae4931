from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from rl_layout import Segments
from rl_recurrent import GRU, LSTM
from rl_recurrent.nets import dense_segments

PAIRS = [(LSTM, nn.LSTM), (GRU, nn.GRU)]
pairs = pytest.mark.parametrize(("ours", "torchs"), PAIRS)


@pairs
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("shape", [(4, 3), (2, 4, 3)])
@pytest.mark.parametrize("given", [True, False])
def test_networks_take_and_return_the_shapes_of_torch(ours, torchs, batch_first, shape, given):
    one = ours(3, 5, num_layers=2, batch_first=batch_first)
    other = torchs(3, 5, num_layers=2, batch_first=batch_first)
    other.load_state_dict(one.state_dict())
    x = torch.randn(shape)
    batch = () if len(shape) == 2 else (shape[0 if batch_first else 1],)
    state = torch.randn(2, *batch, 5)
    states = None if not given else (state, state) if ours is LSTM else state
    assert_close(one(x, states), other(x, states))


@pairs
@pytest.mark.filterwarnings("ignore:LSTM with projections")  # of torch's own
@pytest.mark.parametrize("backend", ["pad", "pack", "auto"])
@pytest.mark.parametrize(
    "options",
    [{"bias": False}, {"bidirectional": True, "num_layers": 2}, {"proj_size": 2}],
    ids=str,
)
def test_networks_equal_torch_on_dense_sequences(ours, torchs, backend, options):
    if ours is GRU and "proj_size" in options:
        return
    one = ours(3, 5, recurrent_backend=backend, **options)
    other = torchs(3, 5, batch_first=True, **options)
    other.load_state_dict(one.state_dict())
    x, seen = torch.randn(6, 4, 3), None
    found = []
    for network in (one, other):
        leaf = x.clone().requires_grad_()
        out, after = network(leaf)
        seen = torch.randn_like(out) if seen is None else seen
        grads = torch.autograd.grad(out, [leaf, *network.parameters()], seen)
        found.append([out, *(after if ours is LSTM else [after]), *grads])
    assert_close(found[0], found[1], rtol=1e-5, atol=1e-5)


@pairs
def test_dense_outputs_have_the_strides_of_torch_and_are_not_copied(ours, torchs):
    x, network = torch.randn(70, 4, 3), ours(3, 60, recurrent_backend="pad")
    assert network(x)[0].stride() == torchs(3, 60, batch_first=True)(x)[0].stride()


@pairs
def test_dropout_applies_between_layers_of_dense_sequences_in_training(ours, torchs):
    network, x = ours(3, 50, num_layers=2, dropout=0.5), torch.randn(6, 4, 3)
    assert not torch.equal(network(x)[0], network(x)[0])
    network.eval()
    assert torch.equal(network(x)[0], network(x)[0])


@pairs
def test_dense_sequences_of_another_shape_raise(ours, torchs):
    network = ours(3, 5, num_layers=2)
    state = torch.zeros(2, 7, 5)
    with pytest.raises(ValueError, match=r"inputs of shape \[6, 4, 3\]: got \[6, 4, 2\]"):
        network(torch.zeros(6, 4, 2))
    with pytest.raises(ValueError, match=r"state h of shape \[2, 6, 5\]: got \[2, 7, 5\]"):
        network(torch.zeros(6, 4, 3), (state, state) if ours is LSTM else state)


@pairs
@pytest.mark.parametrize("backend", ["pad", "pack", "scan", "auto"])
def test_segments_of_one_length_between_padding_equal_dense_sequences(ours, torchs, backend):
    network, x = ours(3, 5, num_layers=2, recurrent_backend=backend), torch.randn(2, 4, 3)
    segments = Segments.from_ids(torch.tensor([[4, 4, 4, -1], [-1, 6, 6, 6]]))
    out, after = network(x, None, segments)
    wanted, ends = network(torch.stack([x[0, :3], x[1, 1:]]))
    assert_close(torch.stack([out[0, :3], out[1, 1:]]), wanted)
    assert_close(after, ends)
    assert not out[[0, 1], [3, 0]].any()


@pairs
def test_state_dicts_load_either_way(ours, torchs):
    options = {"num_layers": 2, "bidirectional": True}
    one, other = ours(3, 5, **options), torchs(3, 5, **options)
    one.load_state_dict(other.state_dict())
    other.load_state_dict(one.state_dict())
    assert [name for name, _ in one.named_parameters()] == [n for n, _ in other.named_parameters()]


@pairs
def test_initial_parameters_equal_those_of_torch(ours, torchs):
    torch.manual_seed(1)
    one = ours(3, 5)
    torch.manual_seed(1)
    other = torchs(3, 5)
    assert_close(list(one.parameters()), list(other.parameters()), rtol=0, atol=0)


@pairs
@pytest.mark.parametrize("backend", ["pad", "pack", "scan", "auto"])
def test_segments_equal_separate_sequences(ours, torchs, backend):
    network = ours(3, 5, recurrent_backend=backend)
    segments, x = Segments.from_lengths(torch.tensor([2, 4])), torch.randn(6, 3)
    state = torch.randn(1, 2, 5)
    states = (state, state) if ours is LSTM else state
    out, after = network(x, states, segments)
    for number, rows in enumerate((slice(0, 2), slice(2, 6))):
        part = state[:, number]
        alone, end = network(x[rows], (part, part) if ours is LSTM else part)
        assert_close(out[rows], alone)
        ends = zip(after, end, strict=True) if ours is LSTM else [(after, end)]
        for whole, single in ends:
            assert_close(whole[:, number], single)


@pairs
def test_packed_sequences_and_wrong_ranks_raise(ours, torchs):
    network, x = ours(3, 5), torch.randn(2, 4, 3)
    packed = nn.utils.rnn.pack_padded_sequence(x, [4, 2], batch_first=True)
    with pytest.raises(TypeError, match="packed sequences are not taken"):
        network(packed)
    with pytest.raises(ValueError, match=r"\[T, I\] or \[B, T, I\]"):
        network(x[None])
    with pytest.raises(ValueError, match="at least one row"):
        network(x[:, :0])


def test_dense_segments_are_cached():
    cpu = torch.device("cpu")
    assert dense_segments(3, 4, cpu) is dense_segments(3, 4, cpu)
    assert dense_segments(3, 4, cpu).batch_shape == (3, 4)
