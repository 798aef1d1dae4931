import pytest
import torch
from tensordict import TensorDict

from rl_specs import Bounded, Categorical, Composite, NonTensor, OneHot, Unbounded


@pytest.mark.parametrize(
    ("spec", "value", "wanted"),
    [
        (OneHot(3), torch.tensor([0, 1, 0]), torch.tensor([False, True, False])),
        (Categorical(3, (2,), dtype=torch.int32), torch.tensor([0, 2]), torch.tensor([0, 2])),
        (Bounded(-1, 1, (2,)), torch.tensor([0, 1]), torch.tensor([0.0, 1.0])),
        (Unbounded((2,), dtype=torch.float64), torch.tensor([0.1, 0.2]), torch.tensor([0.1, 0.2])),
    ],
)
def test_exact_casts_are_made(spec, value, wanted):
    found = spec.cast(value)
    assert found.dtype == spec.dtype
    assert torch.equal(found, wanted.to(spec.dtype))
    assert spec.cast(found) is found


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        (OneHot(3), torch.tensor([0, 2, 0])),
        (OneHot(3), torch.tensor([0.0, 0.7, 0.3])),
        (Categorical(3, dtype=torch.uint8), torch.tensor(-1)),
        (Categorical(3), torch.tensor(float("inf"))),
        (Unbounded(()), torch.tensor(2**24 + 1)),
        (Unbounded(()), torch.tensor(1j)),
        (Unbounded(()), torch.tensor(1.0, dtype=torch.float64)),
    ],
)
def test_casts_that_change_a_number_are_refused(spec, value):
    with pytest.raises(ValueError, match="cannot hold every number"):
        spec.cast(value)
    with pytest.raises(TypeError, match="expected a plain dense tensor"):
        spec.cast([1, 2])


def test_casts_of_entries_are_made_on_a_copy():
    spec = Composite(action=OneHot(2), text=NonTensor(()), other=Unbounded((1,)))
    given = TensorDict({"action": torch.tensor([0, 1]), "text": "go", "more": torch.ones(1)}, [])
    found = spec.cast(given)
    assert given["action"].dtype == torch.int64
    assert found["action"].tolist() == [False, True]
    assert found["more"] is given["more"]
    assert spec.cast(found) is found


def test_casts_of_stacks_are_made_part_by_part():
    spec = torch.stack([Bounded(0, 1, (2,)), Bounded(0, 2, (2,))])
    found = spec.cast(torch.tensor([[0, 1], [2, 0]]))
    assert spec.is_in(found)
    assert spec.cast(found) is found
