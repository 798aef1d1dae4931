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


def buffer_of(capacity=200, batch_size=40, shared=False, **options):
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(capacity),
        sampler=PromptGroupSampler(**options),
        batch_size=batch_size,
        shared=shared,
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


def drawn_groups(buffer, count):
    return [buffer.sample()["input_ids"][0].item() for _ in range(count)]


def test_epoch_goes_on_where_a_dump_left_it(tmp_path):
    buffer, resumed = (buffer_of(num_groups=1) for _ in range(2))
    buffer.set_rng(torch.Generator().manual_seed(5))
    buffer.extend(rows_of([[1], [2], [3], [1, 1], [0, 2]]))
    before = drawn_groups(buffer, 2)
    buffer.dumps(tmp_path)
    resumed.loads(tmp_path)
    assert resumed.sampler.stats() == {"groups": 5, "groups_left": 3}
    after = drawn_groups(resumed, 8)
    assert sorted(before + after[:3]) == [0, 1, 2, 3, 4]
    assert after == drawn_groups(buffer, 8)


def test_epoch_goes_on_where_a_state_left_it():
    buffer, resumed = (buffer_of(num_groups=1) for _ in range(2))
    buffer.extend(rows_of([[1], [2], [3]]))
    before = drawn_groups(buffer, 1)
    resumed.load_state_dict(buffer.state_dict())
    assert sorted(before + drawn_groups(resumed, 2)) == [0, 1, 2]


def test_groups_of_dropped_prefetched_batches_still_come():
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(99),
        sampler=PromptGroupSampler(num_groups=1),
        batch_size=9,
        prefetch=2,
    )
    buffer.extend(rows_of([[1], [2], [3], [1, 1]]))
    first = buffer.sample()["input_ids"][0].item()
    drawn = [buffer.sample(8 + place)["input_ids"][0].item() for place in range(3)]
    assert sorted([first, *drawn]) == [0, 1, 2, 3]


@pytest.mark.parametrize("group_size", [None, 2])
@pytest.mark.parametrize("capacity", range(9, 16))
def test_groups_that_were_overwritten_before_they_were_seen_are_not_drawn(capacity, group_size):
    buffer = buffer_of(capacity, group_size=group_size)
    buffer.extend(rows_of([[2, 1], [0, 2]], first=4))  # groups of 5 and 4 rows
    buffer.extend(rows_of([[1, 1], [1, 0]], first=6))  # of 4 and 3
    whole = [group for group, before in ((4, 16), (5, 11), (6, 7), (7, 3)) if before <= capacity]
    drawn = buffer.sample()["group_ids"].unique().tolist()
    # without a size, nothing says that the oldest group that can be read is whole
    assert drawn in ([whole] if group_size else [whole, whole[1:]])
    lengths = dict(zip([4, 5, 6, 7], [5, 4, 4, 3], strict=True))
    assert len(buffer.sample()) == sum(lengths[group] for group in drawn)


def test_dump_of_an_overwritten_group_gives_no_group(tmp_path):
    buffer, resumed = (buffer_of(9) for _ in range(2))
    buffer.extend(rows_of([[2, 1], [0, 2]], first=4))
    buffer.extend(rows_of([[1]], first=6))  # over two rows of the first group
    buffer.dumps(tmp_path)
    resumed.loads(tmp_path)
    assert resumed.sample()["group_ids"].unique().tolist() == [5, 6]


@pytest.mark.parametrize(("capacity", "shared"), [(4, False), (32, True)])  # of 8 lanes of 4
def test_emptied_buffers_have_the_groups_that_were_written_since(capacity, shared):
    buffer = buffer_of(capacity, shared=shared)
    for first in (0, 5, 9):
        buffer.extend(rows_of([[1], [1]], first=first))
        assert buffer.sample()["group_ids"].unique().tolist() == [first, first + 1]
        buffer.empty()


def test_number_that_comes_again_is_another_group():
    buffer = buffer_of(group_size=2)
    buffer.extend(rows_of([[1, 2], [1]]))
    buffer.extend(rows_of([[0, 1], [1, 3], [2, 2]]))
    buffer.sampler.num_groups, sizes = 1, []
    while not buffer.sampler.ran_out:
        sizes.append(len(buffer.sample()))
    # of group 1, the first conversation of the second write completes the one of the first
    assert sorted(sizes) == [3, 4, 5, 6]
    assert buffer.sampler.stats()["groups"] == 4


def test_overwriting_an_old_group_leaves_the_new_one_of_its_number():
    buffer = buffer_of(13, group_size=2)
    for rows in ([5, 3], [5, 6]):
        buffer.extend(rows_of([[1, 2], [0, 1]]))  # of 5 and 3 rows
        assert buffer.sample()["group_ids"].bincount().tolist() == rows
    assert buffer.sampler.stats()["groups"] == 3


@pytest.mark.parametrize(
    "groups", [torch.rand(6), torch.zeros(6, 2).long(), torch.zeros(6, dtype=torch.bool)]
)
def test_groups_that_are_no_numbers_of_rows_are_refused(groups):
    buffer = buffer_of()
    buffer.extend(rows_of([[1, 2, 0]]).set("group_ids", groups))
    with pytest.raises(TypeError, match="'group_ids': expected a whole number a row, got"):
        buffer.sample()
