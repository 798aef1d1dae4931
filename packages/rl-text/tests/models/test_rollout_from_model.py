"""Rollouts, against a loop over steps."""

import copy
from types import SimpleNamespace

import pytest
import torch

from rl_layout import check_layout, keys
from rl_text import AdaptiveKLController, PromptData, RolloutFromModel, padded, token_lists
from rl_text.testing import TinyModel

EOS, PAD = 1, 0
NEW = 7


@pytest.fixture
def prompts():
    """Prompts of different lengths, with labels after them; one padded on the left."""
    ids = torch.tensor([[5, 6, 7, 9, 0], [8, 3, 4, 0, 0], [0, 0, 10, 11, 12]])
    mask = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 0, 0], [0, 0, 1, 1, 1]])
    return PromptData(ids, mask, torch.tensor([2, 0, 3]), labels=ids, batch_size=[3])


PROMPTS = [[5, 6, 7], [8], [10, 11]]
LABELS = [[5, 6, 7, 9], [8, 3, 4], [10, 11, 12]]


def score(input_ids, attention_mask):
    """How many tokens are above 9, as a tuple of scores of tokens and texts."""
    each = ((input_ids > 9) * attention_mask).float()
    return each, each.sum(-1)


@pytest.fixture
def reference(gpt2):
    other = copy.deepcopy(gpt2)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(torch.randn_like(weight) / 20)
    return other


def by_loop(model, ref, text, prompt, label, coef, clip):
    """Rewards of one completion, a token at a time."""
    rewards = []
    for place in range(len(prompt), len(text)):
        seen = torch.tensor([text[:place]])
        now, before = (
            one(input_ids=seen).logits[0, -1].log_softmax(-1)[text[place]] for one in (model, ref)
        )
        rewards.append(float(-coef * (now - before)))
    value = sum(token > 9 for token in text) - sum(token > 9 for token in label)
    rewards[-1] += max(-clip, min(clip, value))
    return rewards


@torch.no_grad()
@pytest.mark.parametrize("clip", [10.0, 1.5])
def test_rewards_are_those_of_a_loop_over_steps(gpt2, reference, prompts, clip):
    rollouts = RolloutFromModel(gpt2, reference, score, 0.3, NEW, clip)
    generator = torch.Generator().manual_seed(4)
    steps = rollouts.rollout_from_data(prompts, generator=generator)
    flat = rollouts.flat_rollout(prompts, generator=torch.Generator().manual_seed(4))
    texts = token_lists(flat)
    assert steps.batch_size == (3, NEW)
    assert check_layout(steps).ok
    for row, (text, prompt, label) in enumerate(zip(texts, PROMPTS, LABELS, strict=True)):
        assert text[: len(prompt)] == prompt
        count = len(text) - len(prompt)
        found = steps[row]
        assert found["collector", "mask"].tolist() == [True] * count + [False] * (NEW - count)
        assert found["action"][:count].tolist() == text[len(prompt) :]
        wanted = by_loop(gpt2, reference, text, prompt, label, 0.3, clip)
        reward = found["next", "reward"].flatten()
        torch.testing.assert_close(reward[:count], torch.tensor(wanted), rtol=1e-4, atol=1e-4)
        assert reward[count:].eq(0).all()
        for step in range(count):
            known, more = (
                one["input_ids"][step][one["attention_mask"][step]].tolist()
                for one in (found, found["next"])
            )
            assert known == text[: len(prompt) + step]
            assert more == text[: len(prompt) + step + 1]
        is_ended = text[-1] == EOS
        ends = [found["next", name].flatten().tolist() for name in keys.DONE_KEYS]
        last = [step == count - 1 for step in range(NEW)]
        assert ends[0] == last
        assert ends[1] == [flag and is_ended for flag in last]
        assert ends[2] == [flag and not is_ended for flag in last]
    parts = steps["next", "reward_raw"] + steps["next", "reward_kl"]
    assert parts.equal(steps["next", "reward"])


def test_texts_of_steps_are_stored_once(gpt2, prompts):
    steps = RolloutFromModel(gpt2, gpt2, score, max_new_tokens=NEW).rollout_from_data(prompts)
    assert steps["input_ids"].stride(1) == 0
    assert padded(steps).batch_size[0] == 3


def test_model_itself_as_the_reference_costs_nothing(gpt2, prompts):
    rollouts = RolloutFromModel(gpt2, gpt2, score, max_new_tokens=NEW)
    steps = rollouts.rollout_from_data(prompts)
    assert steps["next", "reward_kl"].abs().max() < 1e-5


def test_scores_of_labels_are_not_needed(gpt2, prompts):
    prompts.labels = None
    rollouts = RolloutFromModel(gpt2, gpt2, lambda input_ids, attention_mask: torch.ones(3), 0.0)
    assert rollouts.rollout_from_data(prompts)["next", "reward_raw"].sum() == 3


def test_scheduler_is_told_of_the_divergences(gpt2, reference, prompts):
    control = AdaptiveKLController(init_kl_coef=0.3, target=1e-3, horizon=10)
    rollouts = RolloutFromModel(gpt2, reference, score, 0.3, NEW, 10.0, control, num_steps=2)
    with pytest.raises(ValueError, match="there is no divergence yet"):
        rollouts.step_scheduler()
    for _ in range(3):
        rollouts.rollout_from_data(prompts)
    assert rollouts.step_scheduler() == pytest.approx(0.3 * (1 + 0.2 * 2 / 10))
    assert rollouts.kl_coef == control.kl_coef


def test_config_without_tokens_says_which_to_set(gpt2):
    model = TinyModel(9)
    with pytest.raises(ValueError, match=r"no end token .* Set model\.config\.eos_token_id"):
        RolloutFromModel(model, model, score)
    model.config = SimpleNamespace(eos_token_id=[1, 2], pad_token_id=None)
    with pytest.raises(ValueError, match=r"no pad token .* Set model\.config\.pad_token_id"):
        RolloutFromModel(model, model, score)


@pytest.mark.parametrize("given", [torch.ones(2), "good"])
def test_scores_of_another_count_are_refused(gpt2, prompts, given):
    rollouts = RolloutFromModel(gpt2, gpt2, lambda input_ids, attention_mask: given)
    with pytest.raises(ValueError, match="expected a score for each of 3 texts"):
        rollouts.rollout_from_data(prompts)


@pytest.mark.parametrize("change", [{"max_new_tokens": 0}, {"num_steps": 0}])
def test_numbers_are_checked(gpt2, change):
    with pytest.raises(ValueError, match="expected at least 1"):
        RolloutFromModel(gpt2, gpt2, score, **change)


def number(input_ids, attention_mask):
    return (input_ids * attention_mask).sum(-1).float()


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        ({"score_clip": -1.0}, ValueError, "score_clip: expected 0 or more, got -1"),
        ({"kl_coef": -0.1}, ValueError, "kl_coef: expected 0 or more, got -0.1"),
        ({"kl_coef": float("inf")}, ValueError, "kl_coef: expected a finite number, got inf"),
        ({"kl_coef": float("nan")}, ValueError, "kl_coef: expected a number, got nan"),
        ({"kl_scheduler": 0.1}, TypeError, "kl_scheduler: expected a KLController or None, got 0"),
    ],
)
def test_settings_of_rollouts_are_checked(gpt2, more, error, message):
    with pytest.raises(error, match=message):
        RolloutFromModel(gpt2, gpt2, number, **more)


@pytest.mark.parametrize("scores", [(), {"scores": 1}, None])
def test_reward_models_without_scores_are_named(gpt2, prompts, scores):
    rollouts = RolloutFromModel(gpt2, gpt2, lambda **_: scores, max_new_tokens=2)
    with pytest.raises(ValueError, match="reward_model: expected a score for each of 3 texts, got"):
        rollouts.flat_rollout(prompts)


def test_scores_that_are_not_finite_are_named(gpt2, prompts):
    nan = torch.tensor([1.0, float("nan"), 0.0])
    rollouts = RolloutFromModel(gpt2, gpt2, lambda **_: nan, max_new_tokens=2)
    with pytest.raises(ValueError, match="expected finite numbers, got nan at 1"):
        rollouts.rollout_from_data(prompts)


def test_batches_that_are_no_prompts_are_named(gpt2, prompts):
    rollouts = RolloutFromModel(gpt2, gpt2, number, max_new_tokens=2)
    for batch in (prompts.input_ids, prompts.to_tensordict()):
        with pytest.raises(TypeError, match="batch: expected PromptData, got"):
            rollouts.rollout_from_data(batch)
    prompts.prompt_rindex = torch.ones(3, 1, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"prompt_rindex: expected \[3\], a .* got \[3, 1\]"):
        rollouts.rollout_from_data(prompts)
    prompts.prompt_rindex = torch.tensor([1, 5, 2])
    with pytest.raises(ValueError, match="prompt_rindex: expected places from 0 to 4, got 5 at 1"):
        rollouts.rollout_from_data(prompts)


def test_rollouts_end_with_any_of_the_end_tokens_of_a_config(prompts):
    torch.manual_seed(0)
    model = TinyModel(13)
    model.generation_config = SimpleNamespace(eos_token_id=[1, *range(4, 9)], pad_token_id=0)
    rollouts = RolloutFromModel(model, model, number, max_new_tokens=NEW)
    steps = rollouts.rollout_from_data(prompts)
    last = steps["next", "done"].squeeze(-1)
    is_end = torch.isin(steps["action"], torch.tensor([1, 4, 5, 6, 7, 8]))
    assert torch.equal(steps["next", "terminated"].squeeze(-1), last & is_end)
    assert not (is_end & ~last & steps["collector", "mask"]).any()
