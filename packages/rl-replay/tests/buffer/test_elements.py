"""Lists whose elements are rows, of any kind."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict, lazy_stack

from rl_replay import (
    LazyTensorStorage,
    ReplayBuffer,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)

ROW = TensorDict({"a": torch.tensor(0), "b": torch.zeros(1)})


def test_extend_takes_a_list_for_elements_and_a_tuple_for_a_tree(steps) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(9))
    buffer.extend([torch.zeros(3), torch.ones(3)])
    assert len(buffer) == 2
    buffer.empty()
    buffer.extend((torch.zeros(4), torch.ones(4, 2)))
    assert len(buffer) == 4
    buffer.empty()
    buffer.extend([(torch.zeros(()), torch.ones(2)), (torch.ones(()), torch.ones(2))])
    assert buffer[:][0].tolist() == [0, 1]
    buffer.empty()
    assert buffer.extend([steps(1)[0], steps(2)[1]]).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("elements", "error", "message"),
    [
        ([{"a": torch.zeros(3)}, {"b": torch.zeros(3)}], TypeError, "element 1 is {'b': ...}"),
        ([torch.zeros(3), None], TypeError, "holds tensors, got NoneType"),
        ([torch.zeros(3), (torch.zeros(3),)], TypeError, "first is a tensor, element 1 is"),
        ([torch.zeros(3), torch.zeros(4)], ValueError, "element 1 has .4.. Pad them"),
        ([{"a": torch.zeros(3)}, {"a": torch.zeros(4)}], ValueError, "first has .3. at"),
        ([ROW, 3], TypeError, "element 1 is a int"),
        ([ROW, ROW.exclude("a")], ValueError, "the same keys and shapes"),
        ([], ValueError, "got an empty list"),
    ],
)
def test_extend_refuses_a_list_of_elements_that_differ(elements, error, message) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(9))
    with pytest.raises(error, match=message):
        buffer.extend(elements)
    assert len(buffer) == 0


def test_lists_hold_objects_of_any_kind_in_any_order(steps) -> None:
    mixed = [torch.zeros(2), None, "a", torch.zeros(3), steps(1)[0], {"a": 1}]
    for order in (mixed, mixed[::-1], mixed[3:] + mixed[:3]):
        buffer = ReplayBuffer()
        buffer.extend(order)
        assert all(one is two for one, two in zip(buffer[:], order, strict=True))
        buffer.sample(20)


@pytest.mark.parametrize("ahead", [None, 2])
def test_samples_of_tensordicts_in_a_list_say_which_rows_they_are(ahead):
    buffer = TensorDictPrioritizedReplayBuffer(alpha=1.0, beta=1.0, batch_size=4, prefetch=ahead)
    for at in range(5):
        buffer.add(TensorDict({"number": torch.tensor(at)}))
    sample = buffer.sample()
    assert torch.equal(sample["index"], sample["number"])
    assert torch.equal(sample["collector", "row"], sample["number"])
    assert sample["priority_weight"].shape == (4,)


def test_priorities_of_tensordicts_in_a_list_are_drawn_by():
    buffer = TensorDictPrioritizedReplayBuffer(alpha=1.0, beta=1.0, batch_size=8)
    for at in range(5):
        buffer.add(TensorDict({"number": torch.tensor(at)}))
    sample = buffer.sample()
    sample["td_error"] = (sample["number"] == 3).float() * 1e9
    buffer.update_tensordict_priority(sample)  # stratified: all five were drawn
    assert (buffer.sample()["number"] == 3).all()


def test_elements_of_a_list_that_differ_in_shape_are_named_too():
    buffer = TensorDictReplayBuffer(batch_size=9, collate_fn=lazy_stack)
    for size in (1, 2):
        buffer.add(TensorDict({"word": torch.zeros(size)}))
    sample = buffer.sample()
    assert [len(one["word"]) - 1 for one in sample.unbind(0)] == sample["index"].tolist()


@pytest.mark.parametrize(
    "again", [lambda rows: rows, lambda rows: list(rows.unbind(0))], ids=["whole", "rows"]
)
def test_a_sample_of_a_list_that_is_stored_again_is_like_the_other_rows(again):
    buffer = TensorDictReplayBuffer(batch_size=3)
    for at in range(4):
        buffer.add(TensorDict({"number": torch.tensor(at)}))
    buffer.extend(again(buffer.sample()))
    assert {str(set(item.keys(True))) for item in buffer.storage.items} == {"{'number'}"}
    assert buffer.sample(7).shape == (7,)
