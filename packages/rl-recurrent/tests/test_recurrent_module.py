from __future__ import annotations

import copy
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torch.testing import assert_close

from rl_layout import Segments, keys, set_recurrent_mode, step_mdp
from rl_layout.segments.end_kind import EndKind
from rl_layout.synthetic import environments, trajectories
from rl_recurrent import GRUModule, LSTMModule, Network
from rl_transforms import MultiStep

BACKENDS = ["pad", "pack", "scan", "auto"]
MODULES = [LSTMModule, GRUModule]
each_module = pytest.mark.parametrize("make", MODULES)
each_backend = pytest.mark.parametrize("backend", BACKENDS)
sequences = set_recurrent_mode("recurrent")


def module_of(make, hidden=5, **options):
    options = {"in_key": "observation", "out_key": "features", "dtype": torch.float64, **options}
    return make(2, hidden, **options)


def with_states(batch, module, seed=0):
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


def in_float32(batch):
    """The batch with its floats in the dtype of a module that is made without one."""
    return batch.apply(lambda leaf: leaf.float() if leaf.is_floating_point() else leaf)


def step_by_step(module, batch):
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


def layouts():
    lengths = st.lists(st.integers(1, 6), min_size=1, max_size=5)
    kinds = st.lists(st.sampled_from(list(EndKind)), min_size=1, max_size=3)
    flat = st.builds(
        lambda n, first: trajectories(n, first_step=first), lengths, st.sampled_from([0, 3])
    )
    many = st.builds(environments, st.integers(1, 3), st.integers(1, 7), lengths, kinds)
    return st.one_of(flat, many)


@each_module
@each_backend
@settings(max_examples=15)
@given(batch=layouts(), layers=st.integers(1, 2))
def test_both_modes_give_the_same_outputs_and_gradients(make, backend, batch, layers):
    module = module_of(make, num_layers=layers, recurrent_backend=backend)
    batch = with_states(batch, module)
    seen = torch.randn(batch.numel(), 5, dtype=torch.float64)
    found = []
    for mode in ("recurrent", "sequential"):
        rows = batch.clone()
        leaves = [rows[key].requires_grad_() for key in ("observation", *module.state_keys)]
        with set_recurrent_mode(mode):
            if mode == "recurrent":
                out = module(rows)["features"].flatten(0, -2)
            else:
                out, _ = step_by_step(module, rows)
        parameters = list(module.parameters())
        grads = torch.autograd.grad(out, [*leaves, *parameters], seen)
        found.append([out, *grads])
    assert_close(found[0], found[1], rtol=1e-9, atol=1e-11)


@each_module
@each_backend
def test_states_are_usable_at_segment_ends_and_zero_elsewhere(make, backend):
    module = module_of(make, num_layers=2, recurrent_backend=backend)
    batch = with_states(environments(3, 7, [2, 5], [EndKind.TRUNCATED]), module)
    segments, (_, states) = Segments.of(batch), step_by_step(module, batch)
    with sequences:
        module(batch)
    for key, state in zip(module.out_keys[1:], states, strict=True):
        found = batch[key]
        assert found.shape == (3, 7, 2, 5)
        assert_close(segments.last(found), state[segments.lasts])
        found.flatten(0, 1)[segments.lasts] = 0
        assert not found.any()


@each_module
@pytest.mark.parametrize("backend", ["pack", "scan", "auto"])
def test_every_state_gives_states_after_every_row(make, backend):
    module = module_of(make, num_layers=2, recurrent_backend=backend, every_state=True)
    batch = with_states(environments(3, 7, [2, 5], [EndKind.TRUNCATED]), module)
    _, states = step_by_step(module, batch)
    with sequences:
        module(batch)
    for key, state in zip(module.out_keys[1:], states, strict=True):
        assert_close(batch[key].flatten(0, 1), state)


@each_module
def test_first_rows_start_from_their_stored_state_with_and_without_is_init(make):
    module = module_of(make)
    batch = with_states(trajectories([4], first_step=7), module)
    assert not batch["is_init"][0]
    with sequences:
        unmarked = module(batch.clone())["features"]
        marked = batch.clone()
        marked["is_init"] = marked["is_init"].clone()
        marked["is_init"][0] = True
        assert torch.equal(module(marked)["features"], unmarked)
        other = batch.clone()
        other[module.state_keys[0]] = other[module.state_keys[0]] + 1
        assert not torch.isclose(module(other)["features"], unmarked).any()


@each_module
@each_backend
@pytest.mark.parametrize("static", [{}, {"max_length": 6}], ids=str)
def test_n_step_rows_continue_until_done_is_one_step_away(make, backend, static):
    batch = MultiStep(gamma=0.9, n_steps=3)(trajectories([6, 4]).unsqueeze(0)).squeeze(0)
    assert batch["next", "done"].sum() > 2
    module = module_of(make, recurrent_backend=backend, **static)
    batch = with_states(batch, module)
    with sequences:
        plain = with_states(trajectories([6, 4]), module)
        assert torch.equal(module(batch)["features"], module(plain)["features"])


@each_module
def test_padding_changes_no_output(make):
    module = module_of(make)
    whole = with_states(trajectories([3, 2, 4]), module)
    padded = whole.clone()
    padded[keys.MASK] = torch.tensor([True] * 3 + [False] * 2 + [True] * 4)
    padded["observation"][3:5] = torch.nan
    with sequences:
        found, wanted = module(padded)["features"], module(whole)["features"]
    for real in (slice(3), slice(5, 9)):  # products of another number of rows round otherwise
        assert_close(found[real], wanted[real], rtol=1e-12, atol=1e-14)
    assert not found[3:5].any()


@each_module
def test_step_takes_and_returns_plain_tensors(make):
    module = module_of(make, num_layers=2)
    root = with_states(trajectories([1] * 6), module).exclude("next")
    root.names = [None]  # six environments, not six steps
    made = module.step(*(root[key] for key in module.in_keys))
    with set_recurrent_mode(False):
        module(root)
    for key, value in zip(module.out_keys, made, strict=True):
        assert torch.equal(root[key], value)


@each_module
@pytest.mark.parametrize("batch", [(), (4,), (2, 3)])
def test_step_takes_any_batch_of_environments(make, batch):
    module = module_of(make)
    x = torch.randn(*batch, 2, dtype=torch.float64)
    states = [torch.randn(*batch, 1, 5, dtype=torch.float64) for _ in module.state_keys]
    is_init = torch.zeros(*batch, 1, dtype=torch.bool)
    out, *after = module.step(x, *states, is_init)
    assert out.shape == (*batch, 5)
    flat = module.step(x.reshape(-1, 2), *(s.reshape(-1, 1, 5) for s in states), is_init)
    assert_close(out.reshape(-1, 5), flat[0])
    assert [state.shape for state in after] == [state.shape for state in states]


@each_module
def test_step_at_a_reset_starts_from_the_default_of_the_primer(make):
    module = module_of(make)
    primer = module.make_tensordict_primer()
    root = primer.reset(TensorDict({}, [3]))
    assert all(not root[key].any() and root[key].shape == (3, 1, 5) for key in module.state_keys)
    root["observation"], root["is_init"] = torch.ones(3, 2).double(), torch.ones(3, 1) == 1
    module(root)
    marks = root["is_init"]
    root["next", "observation"] = root["observation"]
    after = step_mdp(root)
    assert torch.equal(after[module.state_keys[0]], root[module.out_keys[1]])
    assert marks.all()


@each_module
def test_modules_wrap_and_load_networks_of_torch(make):
    inner = (nn.LSTM if make is LSTMModule else nn.GRU)(2, 5, batch_first=True).double()
    name = "lstm" if make is LSTMModule else "gru"
    taken = make(in_key="observation", out_key="features", **{name: inner})
    assert getattr(taken, name) is inner
    made = module_of(make)
    getattr(made, name).load_state_dict(inner.state_dict())
    batch = with_states(trajectories([3, 4]), made)
    with sequences:
        assert torch.equal(taken(batch.clone())["features"], made(batch)["features"])
    inner.load_state_dict(getattr(made, name).state_dict())


def test_modules_nest_in_sequences_and_copy():
    module = module_of(
        GRUModule,
        in_keys=["embed", "state"],
        out_keys=["f", ("next", "state")],
        in_key=None,
        out_key=None,
    )
    first = TensorDictModule(nn.Linear(2, 2).double(), ["observation"], ["embed"])
    policy = TensorDictSequential(first, module)
    assert module.in_keys == ["embed", "state", "is_init"]
    batch = with_states(trajectories([3, 4]), module)
    with sequences:
        one = policy(batch.clone())["f"]
        assert torch.equal(copy.deepcopy(policy)(batch)["f"], one)


def test_default_recurrent_mode_applies_when_no_mode_is_set():
    module = module_of(GRUModule, default_recurrent_mode=True)
    batch = with_states(trajectories([3, 4]), module)
    found = module(batch.clone())["features"]
    with sequences:
        assert torch.equal(module(batch)["features"], found)
    with set_recurrent_mode(False), pytest.raises(ValueError, match="sequential mode expects"):
        module(batch)


@each_module
def test_module_leaves_its_inputs_unchanged(make):
    module = module_of(make)
    batch = with_states(environments(2, 6, [4], [EndKind.TERMINATED]), module)
    before = batch.clone()
    with sequences:
        module(batch)
    for key in before.keys(include_nested=True, leaves_only=True):
        assert torch.equal(batch[key], before[key]), key


@each_module
def test_burn_in_warms_states_up_without_gradient(make):
    module = module_of(make, burn_in=2)
    plain = module_of(make)
    plain.load_state_dict(module.state_dict())
    # the first begins in mid-trajectory; the others at a reset, where the state is right already
    batch = with_states(trajectories([5, 1, 3], first_step=4), module)
    x = batch["observation"].requires_grad_()
    with sequences:
        out = module(batch.clone())
        wanted = plain(batch.clone())
    assert_close(out["features"], wanted["features"])
    for key in module.out_keys[1:]:
        assert_close(out[key], wanted[key])
    out["features"].sum().backward()
    assert module.burn_in_mask(batch).tolist() == [True, True, *[False] * 7]
    assert x.grad.any(1).tolist() == [False, False, *[True] * 7]


def test_burn_in_covers_every_segment_without_steps():
    module = module_of(GRUModule, burn_in=2)
    batch = with_states(trajectories([5, 1, 3]), module).exclude(keys.TRAJ_STEP)
    wanted = [True, True, False, False, False, True, True, True, False]
    assert module.burn_in_mask(batch).tolist() == wanted
    batch["observation"].requires_grad_()
    with sequences:
        module(batch)["features"].sum().backward()
    assert batch["observation"].grad.any(1).logical_not().tolist() == wanted


@each_module
def test_learned_initial_state_replaces_the_zeros_of_the_primer(make):
    module = module_of(make, learned_initial_state=True)
    for learned in module.initial_states:
        nn.init.normal_(learned)
    batch = with_states(trajectories([3, 4]), module)
    for key in module.state_keys:
        batch[key][3] = 0
    plain = module_of(make)
    plain.network.load_state_dict(module.network.state_dict())
    filled = batch.clone()
    for key, learned in zip(module.state_keys, module.initial_states, strict=True):
        filled[key][3] = learned.detach()
    with sequences:
        out = module(batch.clone())["features"]
        assert_close(out, plain(filled)["features"])
    out.sum().backward()
    assert all(learned.grad.any() for learned in module.initial_states)
    steps, _ = step_by_step(module, batch)
    assert_close(steps, out)
    with torch.no_grad():
        for learned in module.initial_states:
            learned.add_(1)
    changed, _ = step_by_step(module, batch)
    assert_close(changed[:3], out[:3])
    assert not torch.isclose(changed[3:], out[3:]).all(-1).any()


@each_module
@each_backend
def test_refreshed_states_carry_the_numbers_of_their_rows(make, backend):
    module = module_of(make, num_layers=2, recurrent_backend=backend)
    batch = with_states(environments(2, 5, [3, 4], [EndKind.TERMINATED]), module)
    batch[keys.ROW] = torch.arange(100, 110).view(2, 5)
    batch["index"] = torch.arange(10).view(2, 5)
    _, states = step_by_step(module, batch)
    fresh = module.refreshed_states(batch)
    starts = {100, 103, 105, 109}
    assert fresh[keys.ROW].tolist() == [row for row in range(100, 110) if row not in starts]
    assert torch.equal(fresh["index"], fresh[keys.ROW] - 100)
    for key, state in zip(module.state_keys, states, strict=True):
        assert_close(fresh[key], state[fresh["index"] - 1])
        assert not fresh[key].requires_grad


@each_module
def test_missing_is_init_error_names_the_transform(make):
    module = module_of(make)
    batch = with_states(trajectories([3]), module).exclude("is_init")
    for mode, rows in (("recurrent", batch), ("sequential", batch[0])):
        with set_recurrent_mode(mode), pytest.raises(KeyError, match="InitTracker writes it"):
            module(rows)


@each_module
@pytest.mark.parametrize("static", [{}, {"recurrent_backend": "scan", "max_length": 4}], ids=str)
def test_lost_is_init_raises_with_its_row(make, static):
    module = module_of(make, **static)
    batch = with_states(trajectories([3, 4]), module)
    batch["is_init"] = torch.zeros_like(batch["is_init"])
    with sequences, pytest.raises(ValueError, match="is_init is False at row 0, where another"):
        module(batch)
    assert "features" not in batch


@each_module
def test_triton_on_a_cpu_raises_and_names_the_other_backends(make, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr("rl_recurrent.backends.dispatch.has_triton", lambda: True)
    module = module_of(make, recurrent_backend="triton")
    batch = with_states(trajectories([3, 4]), module)
    with sequences, pytest.raises(RuntimeError, match="is on cpu: take pad, pack, scan or auto"):
        module(batch)


@each_module
def test_missing_state_error_names_the_primer(make):
    module = module_of(make)
    batch = with_states(trajectories([3]), module).exclude(module.state_keys[-1])
    for mode, rows in (("recurrent", batch), ("sequential", batch[0])):
        match = f"{module.state_keys[-1]}.*make_tensordict_primer"
        with set_recurrent_mode(mode), pytest.raises(KeyError, match=match):
            module(rows)


@pytest.mark.parametrize("shape", [[5], [7, 5], [7, 2, 5], [7, 1, 4]])
def test_state_of_another_shape_raises(shape):
    module = module_of(GRUModule)
    batch = with_states(trajectories([3, 4]), module)
    state = torch.zeros(7, *shape[1:]) if shape[0] == 7 else torch.zeros(7, 5)
    batch["recurrent_state"] = state.double()
    message = rf"state h of shape \[7, 1, 5\]: got \[{', '.join(map(str, state.shape))}\]"
    with sequences, pytest.raises(ValueError, match=message):
        module(batch)
    with pytest.raises(ValueError, match=r"state h of shape \[7, 1, 5\]"):
        module.step(batch["observation"], state.double(), batch["is_init"])


def test_module_in_the_wrong_mode_raises():
    module = module_of(GRUModule)
    batch = with_states(environments(2, 3, [3], [EndKind.TERMINATED]), module)
    for rows in (batch, batch[0], TensorDict(batch.to_dict(), [2, 3])):
        with pytest.raises(ValueError, match="sequential mode expects one step"):
            module(rows)
    with sequences, pytest.raises(ValueError, match=r"recurrent mode expects .* \[\]"):
        module(batch[0, 0])
    module(batch[:, 0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"in_key": None}, "in_key or in_keys"),
        ({"in_keys": ["a"]}, "in_key or in_keys"),
        ({"out_key": None}, "out_key or out_keys"),
        ({"in_key": None, "in_keys": ["a"]}, "1 states and is_init"),
        ({"out_key": None, "out_keys": ["a"]}, "out_keys of an output and 1"),
        ({"in_key": None, "in_keys": ["a", "b", ("agents", "is_init")]}, "nested group"),
        ({"batch_first": False}, "batch_first"),
        ({"recurrent_backend": "hoptorch"}, "backend must be one of"),
        ({"recurrent_matmul_precision": "high"}, "precision must be one of"),
        ({"burn_in": -1}, "burn_in must be 0 or more"),
        ({"burn_in": 1, "bidirectional": True}, "burn_in warms up .* leave bidirectional False"),
        ({"max_length": 0}, "max_length must be at least 1"),
        ({"gru": nn.GRU(2, 5, batch_first=True)}, "got both"),
    ],
)
def test_constructor_errors_say_what_was_expected(arguments, message):
    with pytest.raises(ValueError, match=message):
        module_of(GRUModule, **arguments)


def test_constructor_raises_for_wrong_networks():
    names = {"in_key": "observation", "out_key": "features"}
    with pytest.raises(ValueError, match=r"torch.nn.GRU: got LSTM"):
        GRUModule(gru=nn.LSTM(2, 5, batch_first=True), **names)
    with pytest.raises(ValueError, match="batch_first=True"):
        GRUModule(gru=nn.GRU(2, 5), **names)
    with pytest.raises(ValueError, match="input_size and hidden_size"):
        GRUModule(input_size=2, **names)


def test_bidirectional_module_runs_in_recurrent_mode_only():
    module = module_of(GRUModule, bidirectional=True)
    batch = with_states(trajectories([3, 4]), module)
    with sequences:
        assert module(batch.clone())["features"].shape == (7, 10)
    with pytest.raises(ValueError, match="bidirectional network reads the future"):
        module(batch[0])


def test_primer_needs_next_keys_of_the_same_name():
    module = module_of(GRUModule, out_key=None, out_keys=["features", ("next", "other")])
    with pytest.raises(RuntimeError, match=r"needs out_keys\[1:\]"):
        module.make_tensordict_primer()


def test_explicit_triton_on_a_cpu_raises(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    module = module_of(GRUModule, recurrent_backend="triton")
    batch = with_states(trajectories([3, 4]), module)
    with sequences, pytest.raises(RuntimeError, match="runs on CUDA, the batch is on cpu"):
        module(batch)


def test_pad_with_every_state_of_an_lstm_raises():
    module = module_of(LSTMModule, recurrent_backend="pad", every_state=True)
    batch = with_states(trajectories([3, 4]), module)
    with sequences, pytest.raises(ValueError, match="pad gives cell states at segment ends only"):
        module(batch)


def test_explain_backend_of_a_module_names_the_reason():
    module = module_of(LSTMModule, dtype=torch.float32)
    batch = trajectories([3, 4])
    assert str(module.explain_backend(batch)) == "pack: LSTM on a CPU, segments of several lengths"
    assert module.explain_backend(trajectories([4, 4])).backend == "pad"
    assert module_of(LSTMModule, recurrent_backend="scan").explain_backend(batch).backend == "scan"


def functions_called(act):
    """Modules and names of the package's functions that a call passes through."""
    found = set()

    def record(frame, event, _):
        name = frame.f_globals.get("__name__", "")
        if event == "call" and name.startswith("rl_recurrent."):
            found.add(f"{name.removeprefix('rl_recurrent.')}.{frame.f_code.co_name}")

    sys.setprofile(record)
    try:
        act()
    finally:
        sys.setprofile(None)
    return found


@each_module
@pytest.mark.parametrize(("lengths", "backend"), [([20, 35, 9], "pack"), ([20] * 150, "pad")])
def test_call_of_a_plain_module_takes_the_path_that_is_explained(make, lengths, backend):
    module = make(2, 64, in_key="observation", out_key="features")
    batch = in_float32(with_states(trajectories(lengths), module))
    with sequences:
        explained = module.explain(batch)
        called = functions_called(lambda: module(batch))
    rows = f"{len(lengths)} segments in {sum(lengths)} rows, the longest {max(lengths)}"
    assert explained == f"{rows}\n{module.explain_backend(batch)}"
    ran = {name for name in ("pack", "pad", "static.scan") if f"backends.{name}.layer" in called}
    assert ran == {backend} == {module.explain_backend(batch).backend}
    assert called & {"network.of", "inputs.refuse_lost_starts"} == {"network.of"}


@each_module
@pytest.mark.parametrize(
    ("options", "explained"),
    [
        ({}, "one step: one call of torch's cell"),
        ({"num_layers": 2}, "one step: layer by layer (several layers)"),
    ],
    ids=str,
)
def test_step_of_a_module_takes_the_path_that_is_explained(make, options, explained):
    module = make(2, 64, in_key="observation", out_key="features", **options)
    roots = in_float32(with_states(environments(3, 4, [5], [EndKind.CUT]), module))[:, 0]
    assert module.explain(roots) == explained
    called = functions_called(lambda: module(roots))
    assert ("single_step.step_network" in called) is ("layer by layer" in explained)
    assert ("network.of" in called) is ("layer by layer" in explained)


def test_explain_raises_where_the_call_would():
    module = module_of(LSTMModule, dtype=torch.float32)
    with pytest.raises(ValueError, match="sequential mode expects one step"):
        module.explain(trajectories([3, 4]))


def test_explain_backend_of_static_shapes_names_max_length():
    module = module_of(GRUModule, recurrent_backend="scan", max_length=9)
    assert str(module.explain_backend(trajectories([3]))) == "scan: asked for, ready for 9 rows"


@pytest.mark.gpu
@each_module
@pytest.mark.parametrize("backend", [*BACKENDS, "triton"])
def test_both_modes_agree_between_cuda_and_cpu(make, backend):
    module = module_of(make, 64, recurrent_backend=backend, dtype=torch.float32, device="cuda")
    module.settings = type(module.settings)(backend, precision="ieee")
    here = module_of(make, 64, recurrent_backend="pack", dtype=torch.float32)
    here.load_state_dict(module.state_dict())
    grid = with_states(environments(16, 100, [7, 40, 23], [EndKind.TERMINATED]), here)
    grid = in_float32(grid)
    with sequences, torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        wanted, found = here(grid.clone()), module(grid.to("cuda"))
    for key in module.out_keys:
        assert_close(found[key].cpu(), wanted[key], rtol=1e-4, atol=1e-5)
    root = grid[:, 3].exclude("next")
    one, other = here(root.clone()), module(root.to("cuda"))
    assert_close(other["features"].cpu(), one["features"], rtol=1e-4, atol=1e-5)
