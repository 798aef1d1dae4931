"""Groups come whole, each once an epoch, whatever was written and overwritten."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_layout import Segments, check_layout
from rl_replay import LazyTensorStorage, TensorDictReplayBuffer
from rl_text import PromptGroupSampler, flat_tokens, token_lists

# for each group, the lengths of its completions
WRITES = st.lists(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), min_size=1, max_size=3),
    min_size=1,
    max_size=5,
)


def buffer_of(capacity=200, batch_size=40, **options):
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(capacity),
        sampler=PromptGroupSampler(**options),
        batch_size=batch_size,
    )


def rows_of(groups, first=0):
    """Tokens of some groups: each conversation begins with the number of its group."""
    numbers = [first + place for place, lengths in enumerate(groups) for _ in lengths]
    written = [[9] * length for lengths in groups for length in lengths]
    return flat_tokens([[number] for number in numbers], written, groups=numbers)


@settings(max_examples=40)
@given(writes=WRITES, num_groups=st.sampled_from([None, 1, 2]), capacity=st.sampled_from([60, 200]))
def test_epochs_have_every_live_group_once_and_whole(writes, num_groups, capacity):
    buffer = buffer_of(capacity, num_groups=num_groups)
    model, first = {}, 0  # of each group its conversations; the oldest leaves first
    written = []
    for groups in writes:
        rows = rows_of(groups, first)
        buffer.extend(rows)
        for place, lengths in enumerate(groups):
            model[first + place] = sorted([first + place] + [9] * n for n in lengths)
            written += [first + place] * sum(1 + n for n in lengths)
        first += len(groups)
        dead = set(written[: max(0, len(written) - capacity)])
        live = {group: texts for group, texts in model.items() if group not in dead}
        found = {}
        while True:
            sample = buffer.sample()
            assert len(sample) <= 40
            assert check_layout(sample).ok
            texts = token_lists(sample)
            drawn = {text[0] for text in texts}
            assert num_groups is None or len(drawn) <= num_groups
            assert not drawn & set(found)
            for group in drawn:
                found[group] = sorted(text for text in texts if text[0] == group)
            if buffer.sampler.ran_out:
                break
        assert found == live


def test_incomplete_groups_wait_for_their_conversations():
    buffer = buffer_of(group_size=2)
    buffer.extend(flat_tokens([[1], [1], [2]], groups=[1, 1, 2]))
    assert buffer.sample()["group_ids"].unique().tolist() == [1]
    buffer.extend(flat_tokens([[2]], groups=[2]))
    assert buffer.sample()["group_ids"].unique().tolist() == [1, 2]
    assert buffer.sampler.stats() == {"groups": 2, "groups_left": 0}


def test_iterating_is_an_epoch():
    buffer = buffer_of(batch_size=6)
    buffer.extend(rows_of([[2, 2], [1], [2]]))
    drawn = [token for batch in buffer for token in batch["input_ids"].tolist() if token != 9]
    assert sorted(drawn) == [0, 0, 1, 2]


def test_same_generator_draws_the_same_groups():
    drawn = []
    for _ in range(2):
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(99),
            sampler=PromptGroupSampler(num_groups=1),
            batch_size=9,
            generator=torch.Generator().manual_seed(3),
        )
        buffer.extend(rows_of([[1], [2], [3], [1, 1]]))
        drawn.append([buffer.sample()["input_ids"][0].item() for _ in range(4)])
    assert drawn[0] == drawn[1]


def test_groups_keep_their_own_segments():
    buffer = buffer_of()
    buffer.extend(rows_of([[1, 2, 0]]))
    sample = buffer.sample()
    assert Segments.of(sample).lengths.tolist() == [2, 3, 1]


def test_group_of_more_tokens_than_a_batch_is_refused():
    buffer = buffer_of(batch_size=3)
    buffer.extend(rows_of([[1, 2]]))
    with pytest.raises(
        ValueError, match=r"group 0 has 5 tokens, and a batch 3\. Pass a batch_size"
    ):
        buffer.sample()


def test_buffer_without_a_whole_group_is_refused():
    buffer = buffer_of(group_size=4)
    buffer.extend(rows_of([[1, 2]]))
    with pytest.raises(ValueError, match="no whole group of 4 conversations to sample"):
        buffer.sample()


def test_rows_without_groups_are_refused():
    buffer = buffer_of()
    buffer.extend(flat_tokens([[1, 2]]))
    with pytest.raises(KeyError, match="no leaf 'group_ids' is stored"):
        buffer.sample()


@pytest.mark.parametrize("name", ["num_groups", "group_size"])
def test_numbers_are_checked(name):
    with pytest.raises(ValueError, match=f"{name}: expected at least 1"):
        PromptGroupSampler(**{name: 0})
