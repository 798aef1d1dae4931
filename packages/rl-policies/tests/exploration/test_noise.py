from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import InteractionType, TensorDictSequential, set_interaction_type
from torch import nn
from torch.testing import assert_close

from rl_layout import step_mdp
from rl_policies import Actor, AdditiveGaussianModule, OrnsteinUhlenbeckModule
from rl_specs import Bounded, Categorical, Composite, Unbounded

WIDE = Unbounded((3,))
KINDS = [AdditiveGaussianModule, OrnsteinUhlenbeckModule]


def inputs(module, action):
    return [action, torch.zeros_like(action)][: len(module.in_keys)]


def ou(spec=WIDE, **kwargs):
    return OrnsteinUhlenbeckModule(spec, **{"eps_init": 1.0, "eps_end": 0.0, **kwargs})


def test_gaussian_noise_by_hand():
    mean, std = torch.tensor([0.5, 0.0, -1.0]), torch.tensor([1.0, 2.0, 0.0])
    module = AdditiveGaussianModule(WIDE, sigma_init=0.4, mean=mean, std=std)
    action = torch.randn(5, 3)
    torch.manual_seed(3)
    found = module.step(action)[0]
    torch.manual_seed(3)
    assert_close(found, action + 0.4 * (mean + std * torch.randn(5, 3)))


def test_gaussian_noise_has_the_given_deviation():
    module = AdditiveGaussianModule(WIDE, sigma_init=0.5, std=3.0)
    drawn = module.step(torch.zeros(20_000, 3))[0]
    # six standard errors
    assert (drawn.mean(0).abs() < 6 * 1.5 / 20_000**0.5).all()
    assert ((drawn.std(0) - 1.5).abs() < 6 * 1.5 / 40_000**0.5).all()


def test_ornstein_uhlenbeck_noise_by_hand():
    module = ou(theta=0.5, mu=2.0, sigma=0.3, dt=0.25)
    action, noise = torch.randn(5, 3), torch.randn(5, 3)
    module.step(250)
    torch.manual_seed(3)
    found, after = module.step(action, noise)
    torch.manual_seed(3)
    wanted = noise + 0.5 * (2.0 - noise) * 0.25 + 0.3 * 0.5 * torch.randn(5, 3)
    assert_close(after, wanted)
    assert_close(found, action + 0.75 * wanted)


def test_ornstein_uhlenbeck_noise_has_its_stationary_mean_and_variance():
    module, noise = ou(theta=0.3, mu=1.5, sigma=0.4, dt=0.5), torch.zeros(4_000, 3)
    for _ in range(80):
        _, noise = module.step(torch.zeros(4_000, 3), noise)
    keep = 1 - 0.3 * 0.5
    variance = 0.4**2 * 0.5 / (1 - keep**2)
    # six standard errors
    assert ((noise.mean(0) - 1.5).abs() < 6 * (variance / 4_000) ** 0.5).all()
    assert ((noise.var(0) / variance - 1).abs() < 6 * (2 / 4_000) ** 0.5).all()


def test_noise_restarts_with_a_trajectory():
    module = ou(x0=0.5)
    primer = module.make_tensordict_primer()
    root = primer.reset(TensorDict({"action": torch.zeros(4, 3)}, [4]))
    assert (root["ou_noise"] == 0.5).all()
    for _ in range(3):
        module(root)
        before, root = root, step_mdp(root, exclude_action=False)
        assert torch.equal(root["ou_noise"], before["next", "ou_noise"])
    reset = torch.tensor([True, False, True, False])
    again = primer.reset(root, reset)["ou_noise"]
    assert (again[reset] == 0.5).all()
    assert torch.equal(again[~reset], root["ou_noise"][~reset])


def test_noise_key_of_a_group_is_next_to_its_action():
    key = ("agents", "action")
    module = OrnsteinUhlenbeckModule(Composite({"agents": {"action": WIDE}}), action_key=key)
    assert module.in_keys == [key, ("agents", "ou_noise")]
    assert module.out_keys == [key, ("next", "agents", "ou_noise")]
    primed = module.make_tensordict_primer().primers
    assert primed["agents", "ou_noise"].shape == (3,)
    named = OrnsteinUhlenbeckModule(WIDE, noise_key="other")
    assert named.in_keys == ["action", "other"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(3,), (5, 3), (2, 5, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noisy_actions_stay_in_their_spec(kind, shape, dtype):
    low, high = torch.tensor([-1.0, 0.0, 2.0]), torch.tensor([1.0, 0.1, 3.0])
    module = kind(Bounded(low, high, dtype=dtype), 50.0)
    action = torch.ones(shape, dtype=dtype)
    given, before = inputs(module, action), action.clone()
    found = module.step(*given)[0]
    assert (found.dtype, found.shape) == (dtype, shape)
    assert ((found >= low) & (found <= high)).all()
    assert (found != action).any()
    assert torch.equal(action, before)


@pytest.mark.parametrize("kind", KINDS)
def test_spec_of_several_environments_fits_any_batch(kind):
    module = kind(Bounded(-1, 1, shape=(4, 3)), 900.0)
    for rows in (4, 7):
        found = module.step(*inputs(module, torch.zeros(rows, 3)))[0]
        assert found.shape == (rows, 3)
        assert found.abs().max() == 1


@pytest.mark.parametrize("kind", KINDS)
def test_noise_is_added_under_random_only(kind):
    module = kind(WIDE)
    given = inputs(module, torch.randn(5, 3))
    for other in (InteractionType.MODE, InteractionType.MEAN, InteractionType.DETERMINISTIC):
        with set_interaction_type(other):
            assert all(a is b for a, b in zip(module.step(*given), given, strict=True))
    with set_interaction_type(InteractionType.RANDOM):
        assert (module.step(*given)[0] != given[0]).all()
    assert (module.step(*given)[0] != given[0]).all()
    still = kind(WIDE, default_interaction_type="deterministic")
    assert still.step(*given)[0] is given[0]


@pytest.mark.parametrize(("kind", "name"), [(KINDS[0], "sigma"), (KINDS[1], "eps")])
def test_noise_falls_with_the_frames_and_is_saved(kind, name):
    module, other = (kind(WIDE, 0.9, 0.1, 8) for _ in range(2))
    found = []
    for frames in (1, 2, 4, 100):
        module.step(frames)
        found.append(getattr(module, name).item())
    assert_close(found, [0.8, 0.6, 0.2, 0.1])
    other.load_state_dict(module.state_dict())
    assert getattr(other, name) == getattr(module, name)


@pytest.mark.parametrize("kind", KINDS)
def test_module_and_step_in_a_sequence_draw_the_same(kind):
    explore = kind(Bounded(-1, 1, shape=(2,)))
    policy = TensorDictSequential(Actor(nn.Linear(3, 2)), explore)
    batch = TensorDict({"observation": torch.randn(5, 3), "ou_noise": torch.randn(5, 2)}, [5])
    torch.manual_seed(5)
    whole = policy(batch.clone())
    torch.manual_seed(5)
    action = policy.module[0].step(batch["observation"])[0]
    outputs = explore.step(*[{"action": action}.get(k, batch.get(k)) for k in explore.in_keys])
    for key, value in zip(explore.out_keys, outputs, strict=True):
        assert torch.equal(whole[key], value)


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_specs_and_schedules_raise(kind):
    with pytest.raises(TypeError, match=r"floating-point actions: got a spec of torch.int64"):
        kind(Categorical(3))
    with pytest.raises(TypeError, match="spec is missing"):
        kind(None)
    with pytest.raises(ValueError, match=r"_end=0.5"):
        kind(WIDE, 0.1, 0.5)
    with pytest.raises(ValueError, match="at least 1: got 0"):
        kind(WIDE, annealing_num_steps=0)
    module = kind(WIDE)
    with pytest.raises(ValueError, match=r"must end in shape \(3,\)"):
        module.step(*inputs(module, torch.zeros(5, 2)))
    with pytest.raises(TypeError, match="float32 by its spec"):
        module.step(*inputs(module, torch.zeros(5, 3).double()))


def test_wrong_ornstein_uhlenbeck_arguments_raise():
    with pytest.raises(ValueError, match="sigma=-1"):
        ou(sigma=-1.0)
    with pytest.raises(ValueError, match=r"got \(4, 3\) for actions \(5, 3\)"):
        ou().step(torch.zeros(5, 3), torch.zeros(4, 3))
    with pytest.raises(KeyError, match=r"'ou_noise' is missing: make_tensordict_primer\(\)"):
        ou()(TensorDict({"action": torch.zeros(5, 3)}, [5]))
