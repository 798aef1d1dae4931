"""A flat sample and its form [num_slices, slice_len]: the same bits, under every backend."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rl_layout import Segments
from rl_layout.segments.end_kind import EndKind
from rl_layout.synthetic import environments
from rl_recurrent import GRU, LSTM, GRUModule, LSTMModule

each_module = pytest.mark.parametrize("make", [LSTMModule, GRUModule])
each_backend = pytest.mark.parametrize("backend", ["pad", "pack", "scan", "auto"])
ends = [EndKind.TERMINATED, EndKind.TRUNCATED]
slices = st.builds(
    environments,
    st.integers(1, 7),
    st.integers(1, 9),
    st.lists(st.integers(1, 12), min_size=1, max_size=3),
    st.just(ends),
)


def module_of(make, hidden, **options):
    return make(2, hidden, in_key="observation", out_key="y", **options)


def same_bits(pairs):
    return all(torch.equal(one, other) for one, other in pairs)


@each_module
@each_backend
@settings(max_examples=20)
@given(
    grid=slices,
    hidden=st.integers(1, 34),
    layers=st.integers(1, 3),
    kind=st.sampled_from(["plain", "bidirectional", "burn_in", "learned", "projected"]),
    every_state=st.booleans(),
)
def test_flat_sample_equals_its_rectangular_form_bitwise(
    both_forms, make, backend, grid, hidden, layers, kind, every_state
):
    assume(kind != "projected" or (make is LSTMModule and hidden > 1))
    assume(not (every_state and backend == "pad" and make is LSTMModule))
    options = {
        "plain": {},
        "bidirectional": {"bidirectional": True},
        "burn_in": {"burn_in": 2},
        "learned": {"learned_initial_state": True},
        "projected": {"proj_size": 1},
    }[kind]
    module = module_of(make, hidden, num_layers=layers, recurrent_backend=backend, **options)
    module.every_state = every_state
    assert same_bits(both_forms(module, grid))


@each_module
@settings(max_examples=40)
@given(
    grid=slices,
    hidden=st.integers(1, 34),
    more=st.sampled_from([0, 1, 2, 5, 11, 80]),
    bidirectional=st.booleans(),
    burn_in=st.integers(0, 2),
)
def test_flat_sample_equals_its_rectangular_form_for_any_max_length(
    both_forms, make, grid, hidden, more, bidirectional, burn_in
):
    longest = Segments.of(grid).max_length  # at most the length of a slice, and often less
    options = {"bidirectional": True} if bidirectional else {"burn_in": burn_in}
    options = {"recurrent_backend": "scan", "max_length": longest + more, **options}
    assert same_bits(both_forms(module_of(make, hidden, num_layers=2, **options), grid))


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize(
    ("backend", "max_length"),
    [(name, None) for name in ("reference", "pad", "pack", "scan")]
    + [("scan", length) for length in (5, 6, 13)],
)
def test_layer_is_independent_of_the_shape_of_the_batch(layer, cell, backend, max_length):
    grid = environments(4, 5, [3, 4], ends)
    grid["is_init"][:, 0] = True  # as slices are marked
    options = {} if backend == "reference" else {"max_length": max_length}
    found = []
    for batch in (grid, grid.reshape(-1)):
        segments = Segments.of(batch)
        case = layer(cell, segments.lengths.tolist(), size=7)
        case.segments = segments
        found.append(case.run(backend, torch.float32, **options))
    assert same_bits(zip(*found, strict=True))


@pytest.mark.parametrize("make", [LSTM, GRU])
@each_backend
@settings(max_examples=20)
@given(
    shape=st.tuples(st.integers(1, 7), st.integers(1, 6)),
    layers=st.integers(1, 3),
    bidirectional=st.booleans(),
    bias=st.booleans(),
)
def test_sequences_of_a_network_equal_their_rows_end_to_end(
    make, backend, shape, layers, bidirectional, bias
):
    options = {"num_layers": layers, "bidirectional": bidirectional, "bias": bias}
    network = make(3, 9, recurrent_backend=backend, **options)
    x, found = torch.randn(*shape, 3), []
    count = layers * (2 if bidirectional else 1)
    given = [torch.randn(count, shape[0], 9) for _ in range(2 if make is LSTM else 1)]
    segments = Segments.from_lengths(torch.full((shape[0],), shape[1]))
    for rows, where in ((x, None), (x.reshape(-1, 3), segments)):
        leaves = [leaf.clone().requires_grad_() for leaf in (rows, *given)]
        states = tuple(leaves[1:]) if make is LSTM else leaves[1]
        out, after = network(leaves[0], states, where)
        made = [out.reshape(-1, out.shape[-1]), *(after if make is LSTM else [after])]
        seen = [torch.linspace(-1, 2, t.numel()).view_as(t) for t in made]
        grads = torch.autograd.grad(made, [*leaves, *network.parameters()], seen)
        found.append([t.flatten() for t in (*made, *grads)])
    assert same_bits(zip(*found, strict=True))


@pytest.mark.parametrize(("make", "max_length"), [(LSTMModule, 8), (GRUModule, 50)])
def test_flat_sample_equals_its_rectangular_form_in_one_compiled_graph(
    both_forms, make, max_length
):
    module = module_of(make, 5, recurrent_backend="scan", max_length=max_length)
    grid = environments(3, 6, [2, 4], ends).select("observation", "is_init", ("next", "done"))
    torch.compiler.reset()  # all modules share the code that is compiled, and a limit on its graphs
    module.compile(backend="aot_eager", fullgraph=True, dynamic=False)
    assert same_bits(both_forms(module, grid))


@pytest.mark.gpu
@each_module
@pytest.mark.parametrize(
    ("backend", "max_length"),
    [(name, None) for name in ("pad", "pack", "scan", "triton", "auto")]
    + [("scan", length) for length in (40, 50, 130)],
)
def test_flat_sample_equals_its_rectangular_form_on_cuda(both_forms, make, backend, max_length):
    options = {"num_layers": 2, "recurrent_backend": backend, "max_length": max_length}
    module = module_of(make, 96, device="cuda", **options)
    assert same_bits(both_forms(module, environments(12, 50, [7, 40, 23], ends).to("cuda")))
