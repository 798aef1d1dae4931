from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from rl_layout import Segments
from rl_recurrent import Network, Settings
from rl_recurrent.functional import gru, lstm, unroll

LENGTHS = [3, 1, 4, 4, 2, 9]
VARIANTS = [
    {},
    {"num_layers": 3},
    {"bias": False},
    {"bidirectional": True, "num_layers": 2},
    {"proj_size": 2, "num_layers": 2},
    {"proj_size": 2, "bidirectional": True},
]
each_backend = pytest.mark.parametrize("backend", ["pad", "pack", "scan", "auto"])


def torchs(network, x, states, lengths):
    """What torch computes on packed sequences: rows end to end, and states ``[S, L, H]``."""
    given = tuple(state.transpose(0, 1).contiguous() for state in states)
    packed = nn.utils.rnn.pack_sequence(x.split(lengths), enforce_sorted=False)
    out, after = network(packed, given if len(given) > 1 else given[0])
    padded, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
    rows = [row[:length] for row, length in zip(padded, lengths, strict=True)]
    return torch.cat(rows), tuple(
        s.transpose(0, 1) for s in (after if len(given) > 1 else (after,))
    )


@each_backend
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_networks_equal_those_of_torch(backend, kind, variant):
    if "proj_size" in variant and kind is nn.GRU:
        return
    module = kind(3, 5, dtype=torch.float64, **variant)
    network, segments = Network.of(module), Segments.from_lengths(torch.tensor(LENGTHS))
    x = torch.randn(sum(LENGTHS), 3, dtype=torch.float64, requires_grad=True)
    shapes = network.state_shapes
    states = tuple(
        torch.randn(len(LENGTHS), *s, dtype=torch.float64, requires_grad=True) for s in shapes
    )
    found, seen = [], None
    for which in ("torch", "ours"):
        if which == "torch":
            out, after = torchs(module, x, states, LENGTHS)
        else:
            out, after = unroll(x, segments, states, network, Settings(backend))
        seen = seen or [torch.randn_like(t) for t in (out, *after)]
        leaves = [x, *states, *module.parameters()]
        found.append([out, *after, *torch.autograd.grad((out, *after), leaves, seen)])
    assert_close(found[1], found[0], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("backend", ["pad", "pack", "scan"])
def test_bfloat16_networks_stay_within_error_bounds(kind, backend):
    lengths = [70, 33, 1, 128]
    module = kind(16, 32)
    segments = Segments.from_lengths(torch.tensor(lengths))
    x = torch.randn(sum(lengths), 16).bfloat16()
    rounded = kind(16, 32).bfloat16()
    rounded.load_state_dict(module.state_dict())
    exact = kind(16, 32).double()
    exact.load_state_dict(rounded.state_dict())
    found = []
    for network, given in ((exact, x.double()), (rounded, x)):
        leaf = given.requires_grad_()
        out, _ = unroll(leaf, segments, None, Network.of(network), Settings(backend))
        grads = torch.autograd.grad(out, [leaf, *network.parameters()], torch.ones_like(out))
        found.append([out, *grads])
    assert found[1][0].dtype == torch.bfloat16
    assert (found[0][0] - found[1][0].double()).abs().max() < 5e-3
    for wanted, got in zip(found[0][1:], found[1][1:], strict=True):
        assert (wanted - got.double()).norm() < 5e-3 * wanted.norm()


def test_outputs_are_zero_on_padding():
    ids = torch.tensor([[4, 4, -1, 5], [-1, 6, 6, 6]])
    segments, network = Segments.from_ids(ids), Network.of(nn.GRU(3, 5))
    x = torch.randn(2, 4, 3)
    out, h = gru(x, segments, None, network)
    assert out.shape == (2, 4, 5)
    assert not out[0, 2].any()
    assert not out[1, 0].any()
    assert torch.equal(h[:, 0], torch.stack([out[0, 1], out[0, 3], out[1, 3]]))


@each_backend
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_batch_of_padding_alone_gives_zeros(backend, kind):
    segments, module = Segments.from_ids(torch.tensor([[-1, -1]] * 3)), kind(4, 5, num_layers=2)
    out, states = unroll(
        torch.randn(3, 2, 4), segments, None, Network.of(module), Settings(backend)
    )
    assert out.shape == (3, 2, 5)
    assert not out.any()
    assert all(state.shape == (0, 2, 5) for state in states)
    assert not any(grad.any() for grad in torch.autograd.grad(out.sum(), list(module.parameters())))


@pytest.mark.parametrize("backend", ["pack", "scan"])
def test_states_after_every_row_include_those_at_the_ends(backend):
    segments = Segments.from_lengths(torch.tensor(LENGTHS))
    network = Network.of(nn.LSTM(3, 5, num_layers=2, bidirectional=True))
    x, settings = torch.randn(sum(LENGTHS), 3), Settings(backend)
    out, (h, c) = lstm(x, segments, None, network, settings, every_state=True)
    _, (h_end, c_end) = lstm(x, segments, None, network, settings)
    assert h.shape == (sum(LENGTHS), 4, 5)
    assert_close(torch.cat([h[:, 2], h[:, 3]], 1), out)
    forward = segments.lasts
    assert_close(h[forward][:, [0, 2]], h_end[:, [0, 2]])
    assert_close(c[segments.starts][:, [1, 3]], c_end[:, [1, 3]])  # backwards ends at the start


def test_dropout_applies_between_layers_in_training_only():
    module = nn.GRU(3, 200, num_layers=2, dropout=0.5)
    segments, x = Segments.from_lengths(torch.tensor([40])), torch.randn(40, 3)
    one, other = (gru(x, segments, None, Network.of(module))[0] for _ in range(2))
    assert not torch.equal(one, other)
    module.eval()
    one, other = (gru(x, segments, None, Network.of(module))[0] for _ in range(2))
    assert torch.equal(one, other)
    # half of the first layer's features are dropped, the others are doubled
    first = Network("gru", Network.of(module).layers[:1])
    hidden, _ = gru(x, segments, None, first)
    second = Network("gru", (Network.of(module).layers[1],))
    probe = Network("gru", Network.of(module).layers, dropout=0.5)
    torch.manual_seed(3)
    dropped, _ = gru(x, segments, None, probe)
    torch.manual_seed(3)
    seen = nn.functional.dropout(hidden, 0.5)
    assert_close(dropped, gru(seen, segments, None, second)[0])


def test_autocast_changes_nothing():
    segments, x = Segments.from_lengths(torch.tensor([4, 6])), torch.randn(10, 3)
    network = Network.of(nn.LSTM(3, 5))
    wanted, _ = lstm(x, segments, None, network)
    with torch.autocast("cpu", torch.bfloat16):
        found, _ = lstm(x, segments, None, network)
    assert torch.equal(found, wanted)


@pytest.mark.parametrize(
    ("x", "states", "message"),
    [
        (torch.zeros(6, 4), None, r"inputs of shape \[6, 3\]: got \[6, 4\]"),
        (torch.zeros(2, 3, 3), None, r"inputs of shape \[6, 3\]: got \[2, 3, 3\]"),
        (torch.zeros(6, 3).double(), None, r"torch.float32 on cpu.*got torch.float64"),
        (torch.zeros(6, 3), torch.zeros(1, 2, 5), r"state h of shape \[2, 1, 5\]: got \[1, 2, 5\]"),
        (torch.zeros(6, 3), torch.zeros(2, 1, 5).double(), "state h in torch.float32"),
        (torch.zeros(6, 3), torch.zeros(2, 1, 5, device="meta"), "cpu: got torch.float32 on meta"),
    ],
)
def test_inputs_of_another_shape_raise(x, states, message):
    segments = Segments.from_lengths(torch.tensor([2, 4]))
    with pytest.raises(ValueError, match=message):
        gru(x, segments, states, Network.of(nn.GRU(3, 5)))


def test_number_of_states_is_checked():
    segments, state = Segments.from_lengths(torch.tensor([2, 4])), torch.zeros(2, 1, 5)
    with pytest.raises(ValueError, match="expected 2 states: got 1"):
        unroll(torch.zeros(6, 3), segments, (state,), Network.of(nn.LSTM(3, 5)))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("backend", ["pad", "pack", "scan", "triton", "auto"])
@pytest.mark.parametrize("is_dense", [False, True])
def test_networks_agree_between_cuda_and_cpu(kind, variant, backend, is_dense):
    if "proj_size" in variant and kind is nn.GRU:
        return
    lengths = [64] * 80 if is_dense else torch.randint(1, 129, (80,)).tolist()
    module = kind(64, 96, **variant)
    there = kind(64, 96, **variant).cuda()
    there.load_state_dict(module.state_dict())
    x = torch.randn(sum(lengths), 64)
    segments = Segments.from_lengths(torch.tensor(lengths))
    network = Network.of(module)
    before = tuple(torch.randn(80, *shape) for shape in network.state_shapes)
    wanted, states = unroll(x, segments, before, network, Settings("pack"))
    before = tuple(state.cuda() for state in before)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        settings = Settings(backend, precision="ieee")
        found, after = unroll(x.cuda(), segments.to("cuda"), before, Network.of(there), settings)
    assert_close(found.cpu(), wanted, rtol=1e-4, atol=1e-5)
    assert_close([s.cpu() for s in after], list(states), rtol=1e-4, atol=1e-5)
