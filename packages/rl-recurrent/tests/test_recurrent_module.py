from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torch.testing import assert_close

from rl_layout import Segments, keys, set_recurrent_mode
from rl_layout.segments.end_kind import EndKind
from rl_layout.synthetic import environments, trajectories
from rl_recurrent import GRUModule, LSTMModule
from rl_transforms import MultiStep

BACKENDS = ["pad", "pack", "scan", "auto"]

MODULES = [LSTMModule, GRUModule]

each_module = pytest.mark.parametrize("make", MODULES)

each_backend = pytest.mark.parametrize("backend", BACKENDS)

sequences = set_recurrent_mode("recurrent")


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
def test_both_modes_give_the_same_outputs_and_gradients(
    make, backend, batch, layers, module_of, step_by_step, with_states
):
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
def test_states_are_usable_at_segment_ends_and_zero_elsewhere(
    make, backend, module_of, step_by_step, with_states
):
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
def test_every_state_gives_states_after_every_row(
    make, backend, module_of, step_by_step, with_states
):
    module = module_of(make, num_layers=2, recurrent_backend=backend, every_state=True)
    batch = with_states(environments(3, 7, [2, 5], [EndKind.TRUNCATED]), module)
    _, states = step_by_step(module, batch)
    with sequences:
        module(batch)
    for key, state in zip(module.out_keys[1:], states, strict=True):
        assert_close(batch[key].flatten(0, 1), state)


@each_module
@each_backend
@pytest.mark.parametrize("static", [{}, {"max_length": 6}], ids=str)
def test_n_step_rows_continue_until_done_is_one_step_away(
    make, backend, static, module_of, with_states
):
    batch = MultiStep(gamma=0.9, n_steps=3)(trajectories([6, 4]).unsqueeze(0)).squeeze(0)
    assert batch["next", "done"].sum() > 2
    module = module_of(make, recurrent_backend=backend, **static)
    batch = with_states(batch, module)
    with sequences:
        plain = with_states(trajectories([6, 4]), module)
        assert torch.equal(module(batch)["features"], module(plain)["features"])


@each_module
def test_padding_changes_no_output(make, module_of, with_states):
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
def test_step_takes_and_returns_plain_tensors(make, module_of, with_states):
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
def test_step_takes_any_batch_of_environments(make, batch, module_of):
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
def test_modules_wrap_and_load_networks_of_torch(make, module_of, with_states):
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


def test_modules_nest_in_sequences_and_copy(module_of, with_states):
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


def test_default_recurrent_mode_applies_when_no_mode_is_set(module_of, with_states):
    module = module_of(GRUModule, default_recurrent_mode=True)
    batch = with_states(trajectories([3, 4]), module)
    found = module(batch.clone())["features"]
    with sequences:
        assert torch.equal(module(batch)["features"], found)
    with set_recurrent_mode(False), pytest.raises(ValueError, match="sequential mode expects"):
        module(batch)


@each_module
def test_module_leaves_its_inputs_unchanged(make, module_of, with_states):
    module = module_of(make)
    batch = with_states(environments(2, 6, [4], [EndKind.TERMINATED]), module)
    before = batch.clone()
    with sequences:
        module(batch)
    for key in before.keys(include_nested=True, leaves_only=True):
        assert torch.equal(batch[key], before[key]), key


def test_bidirectional_module_runs_in_recurrent_mode_only(module_of, with_states):
    module = module_of(GRUModule, bidirectional=True)
    batch = with_states(trajectories([3, 4]), module)
    with sequences:
        assert module(batch.clone())["features"].shape == (7, 10)
    with pytest.raises(ValueError, match="bidirectional network reads the future"):
        module(batch[0])


@pytest.mark.gpu
@each_module
@pytest.mark.parametrize("backend", [*BACKENDS, "triton"])
def test_both_modes_agree_between_cuda_and_cpu(make, backend, in_float32, module_of, with_states):
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
