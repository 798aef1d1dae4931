"""Priorities as callers give them, and what is drawn by them."""

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rl_replay import LazyTensorStorage, TensorDictPrioritizedReplayBuffer
from rl_replay.priorities.reduction import as_priorities, reduced

HEADS = torch.tensor([[1.0, 2, 6], [0.5, 0.5, 0.5], [9.0, 9, 0]])
REDUCED = {"max": [6, 0.5, 9], "min": [1, 0.5, 0], "median": [2, 0.5, 9], "mean": [3, 0.5, 6]}


def buffer_of(count, **options):
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=1.0,
        beta=0.4,
        eps=0.0,
        storage=LazyTensorStorage(count),
        generator=torch.Generator().manual_seed(0),
        **options,
    )
    index = buffer.extend(TensorDict({"number": torch.arange(count)}, [count]))
    return buffer, index


def test_zeros_of_either_sign_are_priorities():
    buffer, index = buffer_of(4, batch_size=6)
    buffer.update_priority(index, torch.tensor([-0.0, 0.0, 1.0, 2.0]))
    assert buffer.sample()["number"].bincount().tolist() == [0, 0, 2, 4]


@pytest.mark.parametrize("reduction", REDUCED)
def test_priorities_of_several_heads_are_reduced(reduction):
    buffer, _ = buffer_of(3, reduction=reduction, batch_size=10_000)
    named = {"row": torch.arange(3), "storage_id": buffer.storage.identity.leaf(3)}
    sample = buffer[:].set("collector", named)
    buffer.update_tensordict_priority(sample.set("td_error", HEADS))
    wanted = np.array(REDUCED[reduction])
    found = buffer.sample()["number"].bincount(minlength=3).numpy() / 10_000
    np.testing.assert_allclose(found, wanted / wanted.sum(), atol=2e-4)


@pytest.mark.parametrize("reduction", REDUCED)
@pytest.mark.parametrize("shape", [(3, 3), (3, 1, 3)])
def test_heads_are_reduced_row_by_row(reduction, shape):
    assert reduced(HEADS.view(shape), 3, reduction).tolist() == REDUCED[reduction]
    assert reduced(HEADS[:, :1], 3, reduction).tolist() == [1.0, 0.5, 9.0]


@pytest.mark.parametrize("given", [torch.tensor([[1.0], [2.0]]), [1, 2], np.array([1.0, 2.0])])
def test_one_priority_a_row_may_have_a_last_dimension_or_be_no_tensor(given):
    found = as_priorities(given, 2)
    assert found.dtype == np.float32
    assert found.tolist() == [1.0, 2.0]
    assert as_priorities(3, 2).tolist() == [3.0, 3.0]


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_priority_out_of_range_is_named(bad, dtype):
    with pytest.raises(ValueError, match=r"priority 1 is (-1.0|nan|inf): priorities are at least"):
        as_priorities(torch.tensor([0.5, bad, -2.0], dtype=dtype), 3)
