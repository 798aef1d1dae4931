"""Sampled completions: their tokens, their log-probabilities, their ends."""

import numpy as np
import pytest
import torch

from rl_layout import Segments, check_layout
from rl_text import (
    LanguageModel,
    flat_tokens,
    place_rewards,
    sample_completions,
    shift,
    token_lists,
)
from rl_text.testing import Output, TinyModel
from rl_value import GRPOLoss

PROMPTS = [[5, 6, 7], [8], [9, 10]]


def completions(rows):
    """The actions that count of each conversation."""
    segments = Segments.of(rows)
    pieces = rows["action"].split(segments.lengths.tolist())
    masks = rows["loss_mask"].split(segments.lengths.tolist())
    return [piece[mask].tolist() for piece, mask in zip(pieces, masks, strict=True)]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probabilities_are_those_of_the_model_that_learns(gpt2, temperature):
    rows = sample_completions(
        gpt2, PROMPTS, max_new_tokens=6, eos_token_id=1, num_samples=3, temperature=temperature
    )
    actor = LanguageModel(gpt2, temperature=temperature)
    now = GRPOLoss(actor).log_prob(rows, rows["loss_mask"])
    torch.testing.assert_close(now, rows["sample_log_prob"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("which", ["with a cache", "without"])
def test_prompts_are_kept_and_completions_end_with_the_end_token(gpt2, which):
    model = gpt2 if which == "with a cache" else TinyModel(20)
    rows = sample_completions(model, PROMPTS, max_new_tokens=9, eos_token_id=1, num_samples=8)
    assert check_layout(rows).ok
    found = token_lists(rows)
    assert [tokens[: len(PROMPTS[place // 8])] for place, tokens in enumerate(found)] == [
        prompt for prompt in PROMPTS for _ in range(8)
    ]
    written = completions(rows)
    assert all(1 not in one[:-1] and 1 <= len(one) <= 9 for one in written)
    assert any(one[-1] == 1 and len(one) < 9 for one in written)
    assert Segments.of(rows).first(rows["group_ids"]).tolist() == [0] * 8 + [1] * 8 + [2] * 8
    assert rows["sample_log_prob"][~rows["loss_mask"]].eq(0).all()


def test_tokens_are_drawn_by_the_chances_of_the_model():
    model = TinyModel(4)
    rows = sample_completions(model, [[1, 2]], max_new_tokens=1, num_samples=4000)
    counts = torch.bincount(rows["action"][rows["loss_mask"]], minlength=4) / 4000
    chances = model(torch.tensor([[1, 2]])).logits[0, -1].softmax(-1)
    assert (counts - chances).abs().max() < 0.04  # five deviations


def test_same_generator_draws_the_same_tokens():
    model = TinyModel(9)
    drawn = [
        sample_completions(
            model, [[1]], max_new_tokens=9, generator=torch.Generator().manual_seed(3)
        )["action"].tolist()
        for _ in range(2)
    ]
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(
    ("prompts", "more", "message"),
    [
        ([], {}, "prompts: expected prompts of at least one token"),
        ([[1], []], {"num_samples": 2}, "number 1 is empty"),
        ([[1]], {"max_new_tokens": 0}, "max_new_tokens: expected at least 1, got 0"),
        ([[1]], {"num_samples": 0}, "num_samples: expected at least 1, got 0"),
    ],
)
def test_prompts_without_an_answer_are_refused(prompts, more, message):
    with pytest.raises(ValueError, match=message):
        sample_completions(TinyModel(9), prompts, **{"max_new_tokens": 3, **more})


def test_rewards_are_at_the_last_action_or_the_last_row():
    rows = shift(flat_tokens([[5], [7, 8], [9]], [[1, 2], [], [3]]))
    found = place_rewards(rows, [1.0, 2.0, 3.0])["next", "reward"].flatten()
    assert found.tolist() == [0, 1, 0, 0, 2, 3, 0]
    assert ("next", "reward") not in rows.keys(True)


def test_rewards_of_another_count_are_refused():
    with pytest.raises(ValueError, match=r"one for each of 2 conversations, got \[3\]"):
        place_rewards(shift(flat_tokens([[5], [7]])), [1.0, 2.0, 3.0])


@pytest.mark.parametrize("prompts", [3, "ab", ["ab"], [3], [[1.5]], [[1], None], torch.tensor(3)])
def test_prompts_that_are_no_tokens_are_named(prompts):
    with pytest.raises(TypeError, match="prompts: expected lists of numbers of tokens, got"):
        sample_completions(TinyModel(9), prompts, max_new_tokens=2)


def test_prompts_may_be_tensors_arrays_and_generators():
    kinds = (torch.tensor([[1, 2]]), np.array([[1, 2]]), [torch.tensor([1, 2])], iter([(1, 2)]))
    for prompts in kinds:
        rows = sample_completions(TinyModel(9), prompts, max_new_tokens=2)
        assert rows["input_ids"][:2].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("rewards", "error", "message"),
    [
        ([1.0, float("nan")], ValueError, "rewards: expected finite numbers, got nan at 1"),
        ([float("-inf"), 1.0], ValueError, "rewards: expected finite numbers, got -inf at 0"),
        (
            torch.tensor([1.0, 1e300], dtype=torch.float64),
            ValueError,
            r"finite numbers, got 1e\+300 at 1",
        ),
        ([10**400, 0], TypeError, "rewards: expected a number for each"),
        (["a", "b"], TypeError, "rewards: expected a number for each conversation, got"),
        (None, TypeError, "rewards: expected a number for each conversation, got None"),
        ({0: 1.0}, TypeError, "rewards: expected a number for each conversation, got {0: 1.0}"),
        (torch.ones(2, dtype=torch.complex64), TypeError, r"got a tensor \[2\] of torch.complex64"),
    ],
)
def test_rewards_that_are_no_finite_numbers_are_refused(rewards, error, message):
    with pytest.raises(error, match=message):
        place_rewards(shift(flat_tokens([[5], [7]])), rewards)


def test_rewards_may_be_flags_numbers_and_tensors():
    rows = shift(flat_tokens([[5], [7]]))
    for rewards in ([True, False], [1, 0], np.array([1.0, 0.0]), torch.tensor([1, 0])):
        assert place_rewards(rows, rewards)["next", "reward"].flatten().tolist() == [1, 0]


def test_rewards_have_no_gradient():
    rewards = torch.ones(2, requires_grad=True)
    assert not place_rewards(shift(flat_tokens([[5], [7]])), rewards)["next"].requires_grad


def test_rewards_of_tokens_that_decide_nothing_are_refused():
    with pytest.raises(KeyError, match="'action' is missing"):
        place_rewards(flat_tokens([[5], [7]]), [1.0, 2.0])
    with pytest.raises(KeyError, match="'loss_mask' is missing"):
        place_rewards(shift(flat_tokens([[5], [7]])).exclude("loss_mask"), [1.0, 2.0])


@pytest.mark.parametrize("ends", [[1, 2], (2, 1), torch.tensor([1, 2])])
def test_completions_end_with_any_of_several_end_tokens(ends):
    rows = sample_completions(
        TinyModel(4), [[3]], max_new_tokens=30, eos_token_id=ends, num_samples=40
    )
    last = {one[-1] for one in completions(rows)}
    assert last == {1, 2}
    assert not any({1, 2} & set(one[:-1]) for one in completions(rows))


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        ({"eos_token_id": "x"}, TypeError, "eos_token_id: expected the number of a token, or"),
        ({"eos_token_id": [1, None]}, TypeError, "eos_token_id: expected the number of a token"),
        ({"eos_token_id": 1.0}, TypeError, "eos_token_id: expected the number of a token"),
        ({"eos_token_id": -1}, ValueError, "eos_token_id: expected numbers of tokens, got -1"),
        ({"temperature": 0}, ValueError, "temperature: expected more than 0, got 0"),
        ({"generator": 5}, TypeError, r"generator: expected a torch.Generator or None, got 5"),
        ({"groups": [1]}, ValueError, "groups: expected one for each of 2 prompts, got 1"),
        ({"groups": [1, 0.5]}, TypeError, "groups: expected whole numbers"),
        ({"groups": ["a", "b"]}, TypeError, "groups: expected whole numbers"),
    ],
)
def test_settings_of_samples_are_checked(more, error, message):
    with pytest.raises(error, match=message):
        sample_completions(TinyModel(9), [[1], [2]], max_new_tokens=3, **more)


def test_groups_are_numbered_by_the_caller():
    rows = sample_completions(
        TinyModel(9), [[1], [2, 3]], max_new_tokens=2, num_samples=2, groups=torch.tensor([7, 5])
    )
    assert Segments.of(rows).first(rows["group_ids"]).tolist() == [7, 7, 5, 5]


def test_model_that_gives_no_chances_is_named():
    def broken(input_ids):
        return Output(torch.full((*input_ids.shape, 5), float("nan")))

    with pytest.raises(ValueError, match="model: expected finite logits, got NaN after prompt 0"):
        sample_completions(broken, [[1], [2]], max_new_tokens=3)


def test_tokens_and_places_that_a_model_does_not_have_are_named(gpt2):
    known = "its config knows 20 tokens and 64 places"
    with pytest.raises(IndexError, match=f"tokens from 0 to 99, up to 2 in a row; {known}"):
        sample_completions(gpt2, [[3], [5, 99]], max_new_tokens=3)
    with pytest.raises(IndexError, match=f"up to 65 in a row; {known}"):
        sample_completions(gpt2, [[3], [5] * 63], max_new_tokens=9)
    with pytest.raises(IndexError, match=f"up to 65 in a row; {known}"):
        LanguageModel(gpt2)(flat_tokens([[1] * 65]))
    with pytest.raises(IndexError, match="tokens from 1 to 99, up to 2 in a row"):
        LanguageModel(TinyModel(9))(flat_tokens([[1, 99]]))
