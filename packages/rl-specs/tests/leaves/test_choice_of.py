import pytest
import torch
from tensordict import NonTensorData, TensorDict

from rl_specs import Bounded, Categorical, Choice, Composite, NonTensor, OneHot, Unbounded

NARROW = Choice([Bounded(0, 1, (2,)), Bounded(10, 11, (2,))])
WORDS = Choice([NonTensorData(word) for word in "abc"])


def test_members_of_each_choice_are_drawn_for_each_row():
    torch.manual_seed(0)
    drawn = NARROW.rand((40, 5))
    assert drawn.shape == (40, 5, 2)
    low, high = (drawn <= 1).all(-1), (drawn >= 10).all(-1)
    assert (low | high).all()
    assert 60 < low.sum() < 140
    assert NARROW.rand().shape == (2,)
    assert NARROW.rand((0,)).shape == (0, 2)


def test_a_value_is_in_where_each_row_is_in_one_choice():
    assert NARROW.is_in(torch.tensor([[0.5, 0.5], [10.5, 10.5]]))
    assert not NARROW.is_in(torch.tensor([0.5, 10.5]))
    assert not NARROW.is_in(torch.tensor([[0.5, 0.5], [5.0, 5.0]]))
    with pytest.raises(AssertionError):
        NARROW.assert_is_in(torch.tensor([5.0, 5.0]))


def test_objects():
    torch.manual_seed(0)
    found = {WORDS.rand().data for _ in range(40)}
    assert found == {"a", "b", "c"}
    assert WORDS.is_in(NonTensorData("b"))
    assert not WORDS.is_in(NonTensorData("d"))
    assert not WORDS.is_in(torch.zeros(()))
    assert set(WORDS.rand((2, 3)).tolist()[0]) <= set("abc")
    assert WORDS.cardinality() == WORDS.num_choices == 3
    assert WORDS.enumerate().tolist() == ["a", "b", "c"]


def test_members_are_counted_and_listed():
    spec = Choice([Categorical(2), Categorical(3)])
    assert spec.cardinality() == 5
    assert spec.enumerate().tolist() == [0, 1, 0, 1, 2]


def test_views_keep_the_choices():
    assert NARROW.expand(4, 2).is_in(NARROW.rand((4,)))
    assert NARROW.expand(4, 2)[1] == NARROW
    torch.manual_seed(0)
    rows = NARROW.expand(40, 2).rand()
    assert {bool(row[0] > 5) for row in rows} == {True, False}
    assert not NARROW.expand(4, 2).is_in(torch.full((4, 2), 5.0))
    assert not NARROW.expand(4, 2).is_in(NARROW.rand((3,)))
    assert torch.stack([NARROW, NARROW]).shape == (2, 2)
    assert Choice([OneHot(3), OneHot(3)]).expand(5, 3).shape == (5, 3)
    assert NARROW.to(torch.float64).rand().dtype == torch.float64
    assert NARROW.clone() == NARROW != Choice([Bounded(0, 1, (2,))])
    tree = Composite(word=WORDS, number=NARROW, shape=()).expand(3)
    assert tree.is_in(tree.rand())
    assert isinstance(tree.rand(), TensorDict)


def test_choices_of_several_kinds_are_refused():
    with pytest.raises(TypeError, match="one class, got"):
        Choice([Bounded(0, 1, (2,)), Unbounded((2,))])
    with pytest.raises(ValueError, match="one shape, dtype and device"):
        Choice([Bounded(0, 1, (2,)), Bounded(0, 1, (3,))])
    with pytest.raises(ValueError, match="one at least"):
        Choice([])
    with pytest.raises(TypeError, match="specs or NonTensorData, got str"):
        Choice(["a"])
    with pytest.raises(NotImplementedError, match="project onto"):
        NARROW.project(torch.tensor([5.0, 5.0]))
    assert isinstance(WORDS.choices[0], NonTensor)
