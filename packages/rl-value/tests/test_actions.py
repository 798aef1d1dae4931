"""Log-probabilities, entropies and divergences of stored actions, by hand."""

import math

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)

from rl_value.actions import (
    distribution_of,
    divergence,
    entropies,
    heads,
    log_probability,
    log_probability_key,
    of_action,
    stored_log_probability,
)


def uniform() -> torch.distributions.Categorical:
    return torch.distributions.Categorical(logits=torch.zeros(3, 4))


def actor(out_key: str) -> ProbabilisticTensorDictSequential:
    return ProbabilisticTensorDictSequential(
        TensorDictModule(torch.nn.Linear(2, 4), ["x"], [out_key]),
        ProbabilisticTensorDictModule(
            ["logits"], ["action"], distribution_class=torch.distributions.Categorical
        ),
    )


def test_distribution_is_the_actors_and_the_batch_stays_as_it_is():
    batch, policy = TensorDict({"x": torch.randn(3, 2)}, [3]), actor("logits")
    found = distribution_of(policy, batch).logits
    torch.testing.assert_close(found, policy[0].module(batch["x"]).log_softmax(-1))
    assert list(batch.keys()) == ["x"]


def test_distribution_of_stored_parameters_is_read():
    batch = TensorDict({"x": torch.randn(3, 2), "logits": torch.tensor([[0.0, 1.0]] * 3)}, [3])
    found = distribution_of(actor("hidden"), batch).logits
    torch.testing.assert_close(found, batch["logits"].log_softmax(-1))


def test_distribution_is_asked_of_an_actor_with_a_method_of_its_own():
    class Even(ProbabilisticTensorDictSequential):
        def get_dist(self, tensordict):
            return torch.distributions.Categorical(logits=torch.zeros(*tensordict.shape, 4))

    even = Even(*actor("logits"))
    batch = TensorDict({"x": torch.randn(3, 2)}, [3])
    assert distribution_of(even, batch).probs.tolist() == [[0.25] * 4] * 3


def test_distribution_that_fails_names_the_actor_and_its_inputs(monkeypatch):
    validates = "_validate_args"  # compiled tests switch it off
    monkeypatch.setattr(torch.distributions.Distribution, validates, True)
    with pytest.raises(KeyError, match="x") as caught:
        distribution_of(actor("logits"), TensorDict({"y": torch.ones(3, 2)}, [3]))
    assert "was given 'x'" in caught.value.__notes__[-1]
    with pytest.raises(ValueError, match="logits") as caught:
        distribution_of(actor("logits"), TensorDict({"x": torch.full((3, 2), torch.nan)}, [3]))
    assert "Look for NaN" in caught.value.__notes__[-1]


def test_heads_of_a_plain_distribution_are_the_action():
    assert list(heads(uniform(), "action")) == ["action"]


def test_log_probability_of_uniform_actions_is_the_log_of_their_number():
    batch = TensorDict({"action": torch.tensor([0, 1, 2])}, [3])
    expected = pytest.approx([-math.log(4)] * 3)
    assert log_probability(uniform(), batch, "action").tolist() == expected


def test_an_action_between_two_choices_is_refused_and_a_whole_float_is_taken():
    batch = TensorDict({"action": torch.tensor([0.0, 1.0, 0.5])}, [3])
    with pytest.raises(ValueError, match=r"'action': expected whole numbers from 0 to 3, got 0\.5"):
        log_probability(uniform(), batch, "action")
    batch["action"] = torch.tensor([0.0, 1.0, 3.0])
    assert log_probability(uniform(), batch, "action").exp().tolist() == pytest.approx([0.25] * 3)


def test_stored_log_probability_is_read_under_its_key():
    batch = TensorDict({"sample_log_prob": torch.arange(3.0)}, [3])
    stored = stored_log_probability(uniform(), batch, "action", "sample_log_prob")
    assert stored.tolist() == [0.0, 1.0, 2.0]


def test_log_probability_key_follows_the_action():
    assert log_probability_key("action") == "action_log_prob"


def test_entropy_of_uniform_actions_is_the_log_of_their_number():
    entropy = entropies(uniform(), TensorDict({}, [3]), "action")["action"]
    assert entropy.tolist() == pytest.approx([math.log(4)] * 3)


def test_divergence_of_a_distribution_from_itself_is_zero():
    assert divergence(uniform(), uniform(), TensorDict({}, [3])).tolist() == [0.0] * 3


def test_value_of_an_action_is_taken_by_its_number():
    values = torch.tensor([[1.0, 2.0]])
    assert of_action(values, torch.tensor([[1]]), "action").tolist() == [[2.0]]
    with pytest.raises(IndexError, match="action"):
        of_action(values, torch.tensor([[2]]), "action")
