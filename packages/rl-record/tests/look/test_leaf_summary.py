import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rl_record.look.leaf_summary import summarise
from rl_record.look.shown_batch import ShownBatch


def summary(value):
    rows = ShownBatch(TensorDict({"leaf": value}, [len(value)]))
    return summarise(rows, rows.leaves[0])


def test_range_mean_and_histogram_by_hand():
    found = summary(torch.tensor([[1.0, 5.0], [3.0, float("nan")], [float("inf"), 3.0]]))
    assert (found.low, found.high) == (1, float("inf"))
    assert (found.mean, found.std) == (3, pytest.approx(np.std([1, 5, 3, 3])))
    assert (found.num_nan, found.num_infinite, found.num_rows) == (1, 1, 3)
    assert found.bins.counts.sum() == 4


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int16, torch.int64, torch.float16, torch.bfloat16]
)
def test_any_dtype_has_a_range(dtype):
    found = summary(torch.tensor([0, 1, 1]).to(dtype))
    assert (found.low, found.high, found.mean) == (0, 1, pytest.approx(2 / 3))


def test_ids_keep_every_digit():
    assert summary(torch.tensor([2**62 + 1, 7])).high == 2**62 + 1


@pytest.mark.parametrize(
    ("value", "low", "bins"),
    [
        (torch.full((3,), float("nan")), None, 0),
        (torch.zeros(3, 0), None, None),
        (torch.ones(1), 1, 1),
        (torch.tensor([-3e38, 3e38]), pytest.approx(-3e38), 40),
    ],
)
def test_odd_values_are_summarised(value, low, bins):
    found = summary(value)
    assert found.low == low
    assert bins is None or len(found.bins.counts) == bins


def test_complex_numbers_are_named_only():
    assert summary(torch.zeros(2, dtype=torch.complex64)).leaf.note == "complex numbers: not shown"


def test_large_leaves_are_read_in_part():
    found = summary(torch.arange(300, dtype=torch.uint8).view(-1, 1).expand(-1, 300_000))
    assert found.num_rows == (64 << 20) // 300_000
    assert (found.low, found.high) == (0, 255)


def test_moments_of_many_values_are_those_of_all_at_once():
    values = torch.arange(700_000, dtype=torch.int32) % 251
    found = summary(values)
    assert found.mean == pytest.approx(values.double().mean().item(), rel=1e-12)
    assert found.std == pytest.approx(values.double().std(correction=0).item(), rel=1e-12)
