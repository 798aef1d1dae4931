from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torch import nn
from torch.testing import assert_close

from rl_layout import Segments, keys, set_recurrent_mode
from rl_layout.segments.end_kind import EndKind
from rl_layout.synthetic import environments, trajectories
from rl_layout.testing import batches
from rl_recurrent import GRUModule, LSTMModule, Network, Settings
from rl_recurrent.backends.static.unroll import start_flags, unroll_static
from rl_recurrent.functional import unroll
from rl_recurrent.inputs import recurrent_segments

NETWORKS = [
    (nn.LSTM, {"num_layers": 2}),
    (nn.GRU, {"num_layers": 2}),
    (nn.LSTM, {"num_layers": 2, "proj_size": 3}),
    (nn.GRU, {"num_layers": 2, "bidirectional": True}),
    (nn.LSTM, {"proj_size": 3, "bidirectional": True}),
]


@settings(max_examples=15)
@given(batch=batches(), more=st.integers(0, 5))
@pytest.mark.parametrize(("kind", "options"), NETWORKS, ids=str)
@pytest.mark.parametrize("every_state", [True, False])
def test_static_shapes_equal_segments(kind, options, every_state, batch, more):
    if batch.get("is_init", None) is None:
        return
    network = Network.of(kind(2, 5, dtype=torch.float64, **options))
    segments = recurrent_segments(batch)
    if not len(segments):
        return
    x = torch.randn(*batch.batch_size, 2, dtype=torch.float64)
    states = tuple(
        torch.randn(*batch.batch_size, *shape, dtype=torch.float64)
        for shape in network.state_shapes
    )
    ready = Settings("scan", max_length=segments.max_length + more)
    out, after = unroll_static(batch, x, states, network, ready, every_state=every_state)
    firsts = tuple(segments.first(state) for state in states)
    wanted, ends = unroll(x, segments, firsts, network, every_state=every_state)
    assert_close(out, wanted)
    for state, end in zip(after, ends, strict=True):
        if every_state:
            assert_close(state, segments.scatter(end))
            continue
        assert_close(segments.last(state), end)
        state.flatten(0, batch.ndim - 1)[segments.lasts] = 0
        assert not state.any()


def module_and_batch(make, **options):
    module = make(2, 5, in_key="observation", out_key="y", recurrent_backend="scan", **options)
    # two of the rows begin in mid-trajectory
    batch = environments(3, 9, [2, 5], [EndKind.TERMINATED, EndKind.TRUNCATED])[:, 3:]
    for key in module.state_keys:
        batch[key] = torch.randn(
            3, 6, *Network.of(module.network).state_shapes[module.state_keys.index(key)]
        )
    batch.names = None
    return module, batch


@pytest.mark.parametrize("make", [LSTMModule, GRUModule])
def test_module_with_max_length_never_derives_segments(make, monkeypatch):
    module, batch = module_and_batch(make, max_length=6)
    eager, _ = module_and_batch(make)
    eager.load_state_dict(module.state_dict())
    with set_recurrent_mode(True):
        wanted = eager(batch.clone())

        def refuse(*_):
            pytest.fail("segments were made")

        monkeypatch.setattr(Segments, "of", refuse)
        found = module(batch.clone())
    for key in module.out_keys:
        assert_close(found[key], wanted[key])


@pytest.mark.parametrize("make", [LSTMModule, GRUModule])
@pytest.mark.parametrize("every_state", [True, False])
def test_burn_in_in_static_shapes_equals_segments(make, every_state):
    static, batch = module_and_batch(make, max_length=6, burn_in=2, every_state=every_state)
    plain, _ = module_and_batch(make, burn_in=2, every_state=every_state)
    plain.load_state_dict(static.state_dict())
    seen, found = torch.randn(3, 6, 5), []
    for module in (static, plain):
        rows = batch.clone()
        leaves = [rows[k].requires_grad_() for k in ("observation", *module.state_keys)]
        with set_recurrent_mode(True):
            out = module(rows)
        grads = torch.autograd.grad(out["y"], [*leaves, *module.parameters()], seen)
        found.append([*(out[key] for key in module.out_keys), *grads])
    assert_close(found[0], found[1])
    burnt = plain.burn_in_mask(batch)
    assert 0 < burnt.sum() < burnt.numel()
    assert not found[0][len(plain.out_keys)][burnt].any()  # the gradient of the inputs


@pytest.mark.parametrize(
    ("make", "backend", "options"),
    [
        (LSTMModule, "scan", {}),
        (GRUModule, "auto", {}),
        (GRUModule, "auto", {"burn_in": 2}),
        (LSTMModule, "auto", {"proj_size": 3}),
        (GRUModule, "scan", {"bidirectional": True}),
    ],
    ids=str,
)
def test_compiled_call_is_one_graph_with_the_same_gradients(make, backend, options):
    module, batch = module_and_batch(make, **options)
    plain = make(2, 5, in_key="observation", out_key="y", recurrent_backend="pack", **options)
    plain.load_state_dict(module.state_dict())
    module.settings = type(module.settings)(backend=backend)

    def loss(*leaves):
        rows = TensorDict(
            {
                "observation": leaves[0],
                "is_init": leaves[1],
                ("next", "done"): leaves[2],
                keys.TRAJ_STEP: leaves[3],
                **dict(zip(module.state_keys, leaves[4:], strict=True)),
            },
            [3, 6],
        )
        with set_recurrent_mode(True):
            return module(rows)["y"].square().sum()

    names = ("observation", "is_init", ("next", "done"), keys.TRAJ_STEP, *module.state_keys)
    leaves = [batch[key].clone() for key in names]
    leaves[0].requires_grad_()
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    compiled(*leaves).backward()
    with set_recurrent_mode(True):
        rows = batch.clone()
        rows["observation"].requires_grad_()
        plain(rows)["y"].square().sum().backward()
    assert_close(leaves[0].grad, rows["observation"].grad)
    for one, other in zip(module.parameters(), plain.parameters(), strict=True):
        assert_close(one.grad, other.grad)


def test_compiled_module_follows_markers_that_the_first_batch_lacked():
    module, batch = module_and_batch(GRUModule)
    module.settings = type(module.settings)(backend="scan", max_length=6)
    compiled = copy.deepcopy(module)
    torch.compiler.reset()
    compiled.compile(backend="aot_eager")
    mask = torch.ones(3, 6, dtype=torch.bool)
    mask[1, 4:] = False
    batch = batch.exclude("collector")
    with set_recurrent_mode(True):
        compiled(batch.clone())
        batch[keys.MASK] = mask
        assert torch.equal(compiled(batch.clone())["y"], module(batch.clone())["y"])


def test_burn_in_without_gradient_is_one_run():
    module, batch = module_and_batch(GRUModule, burn_in=2)
    plain = copy.deepcopy(module)
    plain.burn_in = 0
    with torch.no_grad(), set_recurrent_mode(True):
        assert torch.equal(module(batch.clone())["y"], plain(batch.clone())["y"])


def test_trajectory_beyond_max_length_raises():
    module, batch = module_and_batch(GRUModule, max_length=3)
    with (
        set_recurrent_mode(True),
        pytest.raises(RuntimeError, match="longer than max_length, which is 3"),
    ):
        module(batch)


def test_flat_batch_in_static_shapes_needs_a_max_length():
    batch, network = trajectories([4, 2]), Network.of(nn.GRU(2, 5))
    given = batch, batch["observation"], (torch.zeros(6, 1, 5),), network
    with pytest.raises(ValueError, match=r"flat batch \[6\] .* needs max_length="):
        unroll_static(*given, Settings("scan"))
    out, _ = unroll_static(*given, Settings("scan", max_length=4))
    grid = [each.unsqueeze(0) for each in (batch, batch["observation"], given[2][0])]
    wanted, _ = unroll_static(*grid[:2], (grid[2],), network, Settings("scan"))
    assert_close(out, wanted[0])


def test_compiled_call_takes_batches_of_any_shape():
    module, _ = module_and_batch(GRUModule, max_length=8)

    def run(observation, is_init, state):
        rows = {"observation": observation, "is_init": is_init, "recurrent_state": state}
        with set_recurrent_mode(True):
            return module(TensorDict(rows, observation.shape[:2]))["y"]

    torch.compiler.reset()
    compiled = torch.compile(run, backend="eager", fullgraph=True)
    for shape in ((3, 6), (4, 6), (2, 7), (5, 9)):  # from the second one on they are symbols
        is_init = torch.zeros(*shape, 1, dtype=torch.bool)
        is_init[:, 1::3] = True
        given = torch.randn(*shape, 2), is_init, torch.randn(*shape, 1, 5)
        assert_close(compiled(*given), run(*given))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("make", [LSTMModule, GRUModule])
def test_static_shapes_never_synchronise_with_the_device(make):
    module, batch = module_and_batch(make, max_length=6, device="cuda")
    batch = batch.to("cuda")
    batch["observation"].requires_grad_()
    with set_recurrent_mode(True):
        module(batch.clone())["y"].sum().backward()  # what is loaded on the first call may wait
        torch.cuda.set_sync_debug_mode("error")
        try:
            module(batch.clone())["y"].sum().backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")


def rows_of(kind, **options):
    """A module, and a batch with padding after the first environment's third step."""
    module = kind(2, 5, in_key="observation", out_key="features", **options)
    batch = environments(2, 6, [3, 4], [EndKind.TERMINATED])
    for key in module.state_keys:
        batch[key] = torch.zeros(2, 6, 1, 5)
    batch[keys.MASK] = torch.ones(2, 6, dtype=torch.bool)
    batch[keys.MASK][0, 3:] = False
    return module, batch


@pytest.mark.parametrize("kind", [LSTMModule, GRUModule])
@pytest.mark.parametrize("narrow", [None, torch.bfloat16])
def test_padding_may_hold_anything(kind, narrow):
    fixed, batch = rows_of(kind, recurrent_backend="scan", max_length=6)
    fixed.to(narrow)
    plain = kind(2, 5, in_key="observation", out_key="features", recurrent_backend="pack")
    plain.to(narrow).load_state_dict(fixed.state_dict())
    results = []
    for module in (plain, fixed):
        given = batch.clone()
        for key in ("observation", *module.state_keys):
            given[key][0, 3:] = torch.nan
            given[key] = given[key].to(narrow or torch.float32)
        with set_recurrent_mode(True):
            module(given)
        given["features"].float().square().sum().backward()
        grads = [parameter.grad for parameter in module.parameters()]
        results.append([given["features"], *grads])
    assert_close(*results)


@pytest.mark.parametrize("kind", [LSTMModule, GRUModule])
def test_narrow_networks_are_computed_in_single_precision(kind):
    torch.manual_seed(0)
    module = kind(4, 64, in_key="x", out_key="f", recurrent_backend="scan", max_length=40)
    module.to(torch.bfloat16)
    plain = kind(4, 64, in_key="x", out_key="f", recurrent_backend="scan").to(torch.bfloat16)
    plain.load_state_dict(module.state_dict())
    batch = trajectories([40, 40])
    batch["x"] = torch.randn(80, 4, dtype=torch.bfloat16)
    for key in module.state_keys:
        batch[key] = torch.zeros(80, 1, 64, dtype=torch.bfloat16)
    found = []
    for one in (plain, module):
        with set_recurrent_mode(True), torch.no_grad():
            found.append(one(batch.clone())["f"])
    assert torch.equal(*found)


@pytest.mark.parametrize("kind", [LSTMModule, GRUModule])
@pytest.mark.parametrize("backend", ["scan", "fixed", "pack"])
def test_autocast_changes_neither_mode(kind, backend):
    chosen = {"recurrent_backend": "scan", "max_length": 6} if backend == "fixed" else {}
    chosen = chosen or {"recurrent_backend": backend}
    module, batch = rows_of(kind, **chosen)
    row = batch[:, 0].exclude("next", keys.MASK)
    results = []
    for cast in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=cast):
            step = module(row.clone())
            with set_recurrent_mode(True):
                whole = module(batch.clone())
        results.append([step["features"], whole["features"]])
        results[-1] += [step["next", key] for key in module.state_keys]
    assert_close(*results, rtol=0, atol=0)


def test_lost_start_after_padding_raises():
    _, batch = rows_of(GRUModule)
    batch["is_init"][1, 0] = False  # its step is 0, and what comes before it is padding
    assert batch[keys.TRAJ_STEP][1, 0] == 0
    with pytest.raises(RuntimeError, match="is_init is False"):
        start_flags(batch)
