"""States that segments start from: stored, warmed up, learned, refreshed."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torch.testing import assert_close

from rl_layout import keys, set_recurrent_mode, step_mdp
from rl_layout.segments.end_kind import EndKind
from rl_layout.synthetic import environments, trajectories
from rl_recurrent import GRUModule, LSTMModule

BACKENDS = ["pad", "pack", "scan", "auto"]

MODULES = [LSTMModule, GRUModule]

each_module = pytest.mark.parametrize("make", MODULES)

each_backend = pytest.mark.parametrize("backend", BACKENDS)

sequences = set_recurrent_mode("recurrent")


@each_module
def test_first_rows_start_from_their_stored_state_with_and_without_is_init(
    make, module_of, with_states
):
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
def test_step_at_a_reset_starts_from_the_default_of_the_primer(make, module_of):
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
def test_burn_in_warms_states_up_without_gradient(make, module_of, with_states):
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


def test_burn_in_covers_every_segment_without_steps(module_of, with_states):
    module = module_of(GRUModule, burn_in=2)
    batch = with_states(trajectories([5, 1, 3]), module).exclude(keys.TRAJ_STEP)
    wanted = [True, True, False, False, False, True, True, True, False]
    assert module.burn_in_mask(batch).tolist() == wanted
    batch["observation"].requires_grad_()
    with sequences:
        module(batch)["features"].sum().backward()
    assert batch["observation"].grad.any(1).logical_not().tolist() == wanted


@each_module
def test_learned_initial_state_replaces_the_zeros_of_the_primer(
    make, module_of, step_by_step, with_states
):
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
def test_refreshed_states_carry_the_numbers_of_their_rows(
    make, backend, module_of, step_by_step, with_states
):
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
def test_missing_state_error_names_the_primer(make, module_of, with_states):
    module = module_of(make)
    batch = with_states(trajectories([3]), module).exclude(module.state_keys[-1])
    for mode, rows in (("recurrent", batch), ("sequential", batch[0])):
        match = f"{module.state_keys[-1]}.*make_tensordict_primer"
        with set_recurrent_mode(mode), pytest.raises(KeyError, match=match):
            module(rows)


def test_primer_needs_next_keys_of_the_same_name(module_of):
    module = module_of(GRUModule, out_key=None, out_keys=["features", ("next", "other")])
    with pytest.raises(RuntimeError, match=r"needs out_keys\[1:\]"):
        module.make_tensordict_primer()
