"""The objective on packed tokens, against a loop over samples in float64."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)

from rl_layout.synthetic import trajectories
from rl_value import GRPOLoss, reference

VOCABULARY = 5
OVER = ["token", "sequence", "sequence_sum", "group"]
SAMPLES = st.lists(
    st.tuples(st.integers(0, 2), st.lists(st.booleans(), min_size=1, max_size=4)),
    min_size=1,
    max_size=5,
).filter(lambda samples: any(any(flags) for _, flags in samples))


def model():
    net = torch.nn.Linear(2, VOCABULARY, dtype=torch.float64)
    return TensorDictModule(net, ["observation"], ["logits"])


def packed(samples):
    """Sequences end to end: group, and which of their actions count."""
    lengths = [len(flags) for _, flags in samples]
    batch = trajectories(lengths)
    size = len(batch)
    batch["observation"] = torch.randn(size, 2, dtype=torch.float64)
    batch["action"] = torch.randint(VOCABULARY, (size,))
    batch["loss_mask"] = torch.tensor([flag for _, flags in samples for flag in flags])
    # rows that do not count may hold anything
    noise = torch.randn(size, dtype=torch.float64)
    batch["sample_log_prob"] = torch.where(batch["loss_mask"], noise - 1.5, torch.nan)
    each = torch.randn(len(samples), dtype=torch.float64)
    counts = torch.tensor(lengths)
    batch["advantage"] = torch.repeat_interleave(each, counts).unsqueeze(-1)
    groups = torch.tensor([group for group, _ in samples])
    batch["group_ids"] = torch.repeat_interleave(groups, counts)
    return batch, each.tolist(), lengths, groups.tolist()


@pytest.mark.parametrize("over", OVER)
@given(samples=SAMPLES, order=st.randoms(use_true_random=False))
def test_loss_and_gradients_are_those_of_a_loop_for_every_packing(over, samples, order):
    actor = model()
    batch, advantage, lengths, groups = packed(samples)
    now = actor.module(batch["observation"]).log_softmax(-1)
    now = now.gather(-1, batch["action"].unsqueeze(-1)).squeeze(-1)
    real = batch["loss_mask"].split(lengths)
    chosen, before = (
        [piece[flags] for piece, flags in zip(values.split(lengths), real, strict=True)]
        for values in (now, batch["sample_log_prob"])
    )
    wanted = reference.grpo(chosen, before, advantage, (0.2, 0.3), groups, over)
    loss = GRPOLoss(actor, clip_epsilon=(0.2, 0.3), over=over)
    found = loss(batch)["loss_objective"]
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
    weights = list(actor.parameters())
    theirs = torch.autograd.grad(wanted, weights)
    ours = torch.autograd.grad(found, weights)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    pieces = list(batch.split(lengths))
    order.shuffle(pieces)
    again = loss(torch.cat(pieces))["loss_objective"]
    torch.testing.assert_close(again, found, rtol=1e-6, atol=1e-6)


def test_penalty_is_the_low_variance_divergence_by_hand():
    batch, *_ = packed([(0, [True, False])])
    actor = model()
    torch.nn.init.zeros_(actor.module.weight)
    torch.nn.init.zeros_(actor.module.bias)
    uniform = -torch.tensor(5.0, dtype=torch.float64).log()
    batch["sample_log_prob"] = uniform.expand(2)
    batch["ref_log_prob"] = uniform.expand(2) + torch.tensor([0.5, torch.nan])
    found = GRPOLoss(actor, kl_coeff=0.1)(batch)
    kl = torch.tensor(0.5).double().exp() - 1.5
    torch.testing.assert_close(found["kl_to_ref"], kl)
    torch.testing.assert_close(found["loss_kl"], 0.1 * kl)
    torch.testing.assert_close(found["loss_objective"], -batch["advantage"][0, 0])
    assert found["clip_fraction"] == 0
    assert found["kl_approx"].abs() < 1e-9


def test_actor_with_a_distribution_has_the_same_loss():
    batch, *_ = packed([(0, [True, False]), (1, [True, True, True])])
    actor, head = model(), torch.distributions.Categorical
    chance = ProbabilisticTensorDictModule(["logits"], ["action"], distribution_class=head)
    with_chance = ProbabilisticTensorDictSequential(actor, chance)
    found = GRPOLoss(with_chance)(batch)["loss_objective"]
    torch.testing.assert_close(found, GRPOLoss(actor)(batch)["loss_objective"])


def test_inputs_are_what_the_settings_read():
    names = GRPOLoss(model(), kl_coeff=0.1, over="group").in_keys
    wanted = "action sample_log_prob advantage ref_log_prob group_ids loss_mask observation"
    assert names == wanted.split()
    batch, *_ = packed([(0, [True, True])])
    assert set(GRPOLoss(model())(batch).keys()) == set(GRPOLoss(model()).out_keys)


def test_sequences_without_an_action_are_left_out_and_said():
    samples = [(0, [True, True]), (0, [False, False, False])]
    batch, *_ = packed(samples)
    loss = GRPOLoss(model(), over="sequence")
    whole, alone = loss(batch)["loss_objective"], loss(batch[:2])["loss_objective"]
    torch.testing.assert_close(whole, alone)
    said = loss.explain(batch)
    assert "sequences: 1 of 2 have an action that counts" in said
    assert "groups: 1, 0 of one sequence" in said


@pytest.mark.parametrize("epsilon", [-0.1, (0.2,), (1.0, 0.2), "wide"])
def test_range_of_ratios_is_checked(epsilon):
    with pytest.raises(ValueError, match="clip_epsilon: expected"):
        GRPOLoss(model(), clip_epsilon=epsilon)


def test_a_range_of_ratios_counts_from_when_it_is_set():
    batch, *_ = packed([(0, [True, True, True]), (1, [True, False])])
    actor = model()
    loss, narrow = GRPOLoss(actor), GRPOLoss(actor, clip_epsilon=(0.01, 0.03))
    wanted = narrow(batch)["loss_objective"]
    assert loss(batch)["loss_objective"] != wanted
    loss.clip_epsilon = (0.01, 0.03)
    assert loss(batch)["loss_objective"] == wanted


def test_negative_penalty_is_refused():
    for kl_coeff in (-1, float("inf")):
        with pytest.raises(ValueError, match=f"kl_coeff: expected a finite .* got {kl_coeff}"):
            GRPOLoss(model(), kl_coeff=kl_coeff)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"action": torch.zeros(5, 1, dtype=torch.int64)}, ValueError, "one number a token"),
        ({"sample_log_prob": torch.zeros(5, 2)}, ValueError, "'sample_log_prob': expected"),
        ({"loss_mask": None}, KeyError, "loss_mask"),
        ({"action": torch.full((5,), 9)}, IndexError, "expected numbers from 0 to 4"),
        ({"action": torch.zeros(5)}, TypeError, "'action': expected whole numbers, got torch.floa"),
    ],
)
def test_entries_that_do_not_fit_are_named(change, error, message):
    batch, *_ = packed([(0, [True, True]), (0, [True, True, True])])
    for name, value in change.items():
        batch = batch.exclude(name) if value is None else batch.set(name, value)
    with pytest.raises(error, match=message):
        GRPOLoss(model())(batch)


def test_model_without_logits_is_refused():
    net = TensorDictModule(torch.nn.Linear(2, 3).double(), ["observation"], ["scores"])
    batch, *_ = packed([(0, [True])])
    with pytest.raises(KeyError, match="expected a module that writes 'logits'"):
        GRPOLoss(net)(batch)


def test_logits_of_another_shape_are_refused():
    net = TensorDictModule(lambda seen: seen[..., 0], ["observation"], ["logits"])
    batch, *_ = packed([(0, [True, True])])
    with pytest.raises(ValueError, match=r"'logits': expected \[2, 'V'\], got \[2\]"):
        GRPOLoss(net)(batch)


def test_prompts_of_a_batch_cost_no_normalised_logits():
    seen = []

    class Counted(torch.nn.Module):
        def forward(self, observation):
            logits = torch.zeros(*observation.shape[:-1], VOCABULARY, requires_grad=True).double()
            logits.register_hook(seen.append)
            return logits

    batch, *_ = packed([(0, [False] * 3 + [True])])
    batch["sample_log_prob"] = torch.full((4,), -1.6)  # no ratio that is clipped
    net = TensorDictModule(Counted(), ["observation"], ["logits"])
    GRPOLoss(net)(TensorDict(batch, batch.batch_size))["loss_objective"].backward()
    assert seen[0].abs().sum(-1).ne(0).tolist() == [False, False, False, True]
