"""Input that losses of policies refuse."""

import math

import pytest
import torch

from rl_layout.testing import EndKind
from rl_value import (
    A2CLoss,
    ClipPPOLoss,
    CQLLoss,
    DiscreteCQLLoss,
    DQNLoss,
    IQLLoss,
    KLPENPPOLoss,
    PPOLoss,
    ReinforceLoss,
    SACLoss,
    TD3BCLoss,
    TD3Loss,
    VTrace,
)

KINDS = [EndKind.TERMINATED, EndKind.TRUNCATED, EndKind.CUT]


def test_networks_and_settings_that_cannot_be_are_refused(
    linear_critic, discrete_actor, flat_batch
):
    actor, net = discrete_actor(), linear_critic()
    with pytest.raises(TypeError, match=r"actor_network: .* has get_dist, got TensorDictModule"):
        PPOLoss(net, net)
    with pytest.raises(TypeError, match=r"actor_network: .* has get_dist"):
        VTrace(gamma=0.9, actor_network=net, value_network=net)
    with pytest.raises(TypeError, match=r"actor_network: expected a module .* got None"):
        VTrace(gamma=0.9, actor_network=None, value_network=net)
    with pytest.raises(TypeError, match=r"value_network: expected a module .* got None"):
        DQNLoss(None, action_space="categorical")
    with pytest.raises(TypeError, match=r"critic_network: .*got Modal. Wrap it"):
        PPOLoss(actor, net.module)
    with pytest.raises(ValueError, match=r"clip_value: expected a number of 0 or more, got -0.1"):
        ClipPPOLoss(actor, net, clip_value=-0.1)
    with pytest.raises(ValueError, match=r"shifted=True .* Set one of them to False"):
        PPOLoss(actor, net, delay_value=True).make_value_estimator("gae", shifted=True)
    loss = PPOLoss(actor, net, normalize_advantage=True, normalize_advantage_exclude_dims=(5,))
    with pytest.raises(ValueError, match=r"exclude_dims=\(5,\): advantages are \[9, 1\]"):
        loss(flat_batch())


def test_an_action_with_a_dimension_too_many_is_refused(linear_critic, discrete_actor, flat_batch):
    batch = flat_batch()
    batch["action"] = batch["action"].unsqueeze(-1)
    with pytest.raises(ValueError, match=r"'action': expected \[9\].*got \[9, 1\].*squeeze"):
        PPOLoss(discrete_actor(), linear_critic())(batch)


def test_a_wrong_estimator_is_refused(linear_critic, discrete_actor):
    loss = A2CLoss(discrete_actor(), linear_critic())
    with pytest.raises(KeyError, match="there is no value estimator 'best'"):
        loss.make_value_estimator("best")
    with pytest.raises(TypeError, match="expected a ValueEstimators, got int"):
        loss.make_value_estimator(3)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"gamma": 0.9}, TypeError, r"Use make_value_estimator\(gamma=...\)"),
        ({"entropy_coef": 0.1}, TypeError, "Use entropy_coeff"),
        ({"speed": 0.1}, TypeError, "There is none of that name"),
        ({"loss_critic_type": "l3"}, ValueError, "loss_critic_type: expected 'l1', 'l2' or"),
        ({"clip_epsilon": (0.1, 0.2, 0.3)}, ValueError, "clip_epsilon: expected"),
        ({"clip_epsilon": 1.0}, ValueError, "clip_epsilon: expected"),
        ({"clip_epsilon": -0.1}, ValueError, "clip_epsilon: expected"),
        ({"clip_epsilon": math.nan}, ValueError, "clip_epsilon: expected"),
        ({"clip_epsilon": None}, ValueError, "clip_epsilon: expected"),
        ({"clip_value": -1}, ValueError, "clip_value: expected"),
        ({"entropy_coeff": "much"}, TypeError, "entropy_coeff: expected a number.*'much'"),
        ({"critic_coeff": "much"}, TypeError, "critic_coeff: expected a number, got 'much'"),
        ({"critic_coeff": torch.ones(3)}, TypeError, r"critic_coeff: .* got a tensor \[3\]"),
        ({"entropy_coeff": torch.ones(3)}, TypeError, r"entropy_coeff: .* got a tensor \[3\]"),
        ({"entropy_coeff": math.nan}, ValueError, "entropy_coeff: expected a number, got nan"),
        ({"entropy_coeff": {"a": "b"}}, TypeError, r"entropy_coeff\['a'\]: expected a number"),
        ({"critic_coeff": math.inf}, ValueError, "critic_coeff: expected a finite number, got inf"),
        ({"loss_mask_key": 3}, ValueError, "loss_mask_key: a key must be a string .* got 3"),
        ({"critic_coeff": math.nan}, ValueError, "critic_coeff: expected a number, got nan"),
        ({"samples_mc_entropy": 0}, ValueError, "samples_mc_entropy: expected at least 1, got 0"),
    ],
)
def test_wrong_settings_are_refused(settings, error, message, linear_critic, discrete_actor):
    with pytest.raises(error, match=message):
        ClipPPOLoss(discrete_actor(), linear_critic(), **settings)


@pytest.mark.parametrize("setting", ["policy_noise", "noise_clip"])
def test_noise_of_actions_is_given_by_numbers(setting, nets):
    with pytest.raises(TypeError, match=f"{setting}: expected a number, got 'much'"):
        TD3Loss(nets.deterministic(), nets.critic(), action_spec=nets.Spec(), **{setting: "much"})


def test_a_threshold_is_a_number(nets):
    with pytest.raises(TypeError, match="lagrange_thresh: expected a number, got 'much'"):
        CQLLoss(nets.actor(), nets.critic(), action_spec=nets.Spec(), lagrange_thresh="much")


@pytest.mark.parametrize("wrong", [-1, math.inf])
@pytest.mark.parametrize(
    ("loss", "name"),
    [
        (TD3Loss, "policy_noise"),
        (TD3BCLoss, "alpha"),
        (CQLLoss, "temperature"),
        (CQLLoss, "min_q_weight"),
        (IQLLoss, "temperature"),
        (DiscreteCQLLoss, "min_q_weight"),
        (SACLoss, "alpha_init"),
        (SACLoss, "min_alpha"),
        (SACLoss, "max_alpha"),
    ],
)
def test_weights_are_finite_and_not_negative(loss, name, wrong, nets):
    networks = {
        TD3Loss: (nets.deterministic(), nets.critic()),
        TD3BCLoss: (nets.deterministic(), nets.critic()),
        IQLLoss: (nets.actor(), nets.critic(), nets.state_critic()),
        DiscreteCQLLoss: (nets.action_critic(),),
    }.get(loss, (nets.actor(), nets.critic()))
    spec = {"action_space": "categorical"}
    spec = spec if loss is DiscreteCQLLoss else {"action_spec": nets.Spec()}
    with pytest.raises(ValueError, match=f"{name}: expected a finite number of 0 or more, got"):
        loss(*networks, **spec, **{name: wrong})


@pytest.mark.parametrize("name", ["min_alpha", "max_alpha", "alpha_init"])
def test_bounds_of_a_temperature_are_numbers(name, nets):
    with pytest.raises(TypeError, match=f"{name}: expected a number, got 'a'"):
        SACLoss(nets.actor(), nets.critic(), action_spec=nets.Spec(), **{name: "a"})


@pytest.mark.parametrize("name", ["target_entropy", "lagrange_thresh"])
def test_targets_of_weights_are_finite(name, nets):
    with pytest.raises(ValueError, match=f"finite.*{name}|{name}: expected a finite.* got inf"):
        CQLLoss(nets.actor(), nets.critic(), action_spec=nets.Spec(), **{name: math.inf})


@pytest.mark.parametrize(
    ("name", "wrong"), [("dtarg", -1), ("decrement", -1), ("beta", math.inf), ("beta", -1)]
)
def test_a_penalty_adapts_by_finite_numbers(name, wrong, linear_critic, discrete_actor):
    with pytest.raises(ValueError, match=f"{name}: expected a finite number of 0 or more, got"):
        KLPENPPOLoss(discrete_actor(), linear_critic(), **{name: wrong})


@pytest.mark.parametrize("samples", [0, 1.5])
def test_a_divergence_is_estimated_of_at_least_one_action(samples, linear_critic, discrete_actor):
    with pytest.raises((TypeError, ValueError), match="samples_mc_kl: expected"):
        KLPENPPOLoss(discrete_actor(), linear_critic(), samples_mc_kl=samples)


def test_a_loss_without_actor_is_refused(linear_critic):
    with pytest.raises(TypeError, match="expected an actor"):
        ClipPPOLoss(critic=linear_critic())


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda b: b.exclude("action"), KeyError, "'action' is missing"),
        (lambda b: b.exclude("sample_log_prob"), KeyError, "'sample_log_prob' is missing"),
        (
            lambda b: b.set("sample_log_prob", torch.zeros(9, 1)),
            ValueError,
            r"'sample_log_prob': expected \[9\], as the actor gives it, got \[9, 1\]",
        ),
        (
            lambda b: b.set("advantage", torch.zeros(9)),
            ValueError,
            r"'advantage': expected \[9, 1\], one for each log-probability, got \[9\]",
        ),
        (
            lambda b: b.set("value_target", torch.zeros(9)),
            ValueError,
            r"'value_target': expected \[9, 1\], as the critic gives values, got \[9\]",
        ),
    ],
)
def test_wrong_data_is_refused(change, error, message, linear_critic, discrete_actor, flat_batch):
    with pytest.raises(error, match=message):
        ClipPPOLoss(discrete_actor(), linear_critic())(change(flat_batch()))


def test_a_bound_that_only_clipping_has_is_refused(linear_critic, discrete_actor):
    with pytest.raises(TypeError, match="clip_value=True is for ClipPPOLoss"):
        PPOLoss(discrete_actor(), linear_critic(), clip_value=True)


@pytest.mark.parametrize("loss_class", [PPOLoss, ClipPPOLoss, A2CLoss, ReinforceLoss])
def test_a_batch_of_no_step_is_refused(loss_class, linear_critic, discrete_actor, flat_batch):
    for batch in (flat_batch()[:0], flat_batch()[:0].exclude("advantage")):
        with pytest.raises(ValueError, match=r"at least one step"):
            loss_class(discrete_actor(), linear_critic())(batch)


def test_parameters_that_acted_have_the_shape_of_the_actors(
    linear_critic, discrete_actor, flat_batch
):
    batch = flat_batch()
    for shape in ((9, 1, 3), (9, 4)):
        batch["logits"] = torch.randn(*shape, dtype=torch.float64)
        with pytest.raises(ValueError, match=r"'action': expected the parameters .* \[9, 3\], got"):
            KLPENPPOLoss(discrete_actor(), linear_critic())(batch)


@pytest.mark.parametrize("loss_class", [PPOLoss, ClipPPOLoss, A2CLoss, ReinforceLoss])
@pytest.mark.parametrize("key", ["action", "advantage", "value_target"])
def test_gradient_of_a_batch_that_changed_after_the_loss_is_refused(
    loss_class, key, linear_critic, discrete_actor, flat_batch
):
    batch, loss = flat_batch(), loss_class(discrete_actor(), linear_critic())
    found = loss(batch)
    batch[key].zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        sum(value for key, value in found.items() if key.startswith("loss_")).backward()


def test_stored_values_have_the_shape_of_the_critics(linear_critic, discrete_actor, flat_batch):
    batch = flat_batch()
    batch["state_value"] = torch.zeros(9, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"'state_value': expected \[9, 1\].*got \[9\]"):
        ClipPPOLoss(discrete_actor(), linear_critic(), clip_value=True)(batch)


@pytest.mark.parametrize("setting", [{"entropy_bonus": True}, {"entropy_coeff": 0.1}])
def test_reinforce_refuses_an_entropy_bonus_by_name(discrete_actor, setting):
    with pytest.raises(TypeError, match="take A2CLoss for an entropy bonus"):
        ReinforceLoss(discrete_actor(), **setting)
