import pytest
import torch

from rl_specs import Categorical, MultiCategorical, MultiOneHot, OneHot
from rl_specs.leaves.choices import choose, hot, largest_choice, nearest_choice, pick

MASK = torch.tensor([False, True, True, False, True])


def test_choose_draws_every_allowed_entry_and_no_other():
    assert choose(MASK, torch.Size((500,))).unique().tolist() == [1, 2, 4]


def test_choose_draws_for_each_row():
    rows = torch.eye(3, dtype=torch.bool)
    assert choose(rows, torch.Size((7, 3))).tolist() == [[0, 1, 2]] * 7


def test_nearest_choice_takes_the_lower_of_two():
    value = torch.tensor([-9.0, 0.0, 2.6, 3.0, 9.0])
    assert nearest_choice(value, MASK).tolist() == [1, 1, 2, 2, 4]


def test_largest_choice_ignores_what_is_forbidden():
    value = torch.tensor([9.0, 1.0, 3.0, 8.0, 2.0])
    assert largest_choice(value, MASK).item() == 2
    assert largest_choice(value, None).item() == 0
    assert largest_choice(torch.full((5,), -torch.inf), MASK).item() == 1
    assert largest_choice(torch.full((5,), torch.nan), MASK).item() == 1


@pytest.mark.parametrize(
    "spec", [Categorical(5), OneHot(5), MultiOneHot([2, 3]), MultiCategorical([2, 3])]
)
def test_update_mask_sets_copies_and_clears(spec):
    given = torch.ones(5, dtype=torch.bool)
    spec.update_mask(given)
    given.fill_(False)
    assert spec.mask.tolist() == [True] * 5
    spec.update_mask(MASK)
    assert spec.is_in(spec.rand((7,)))
    spec.update_mask(None)
    assert spec.mask is None


def test_a_mask_may_have_rows_or_be_a_list():
    assert Categorical(2, (3,), mask=[True, False]).mask.shape == (3, 2)
    assert Categorical(2, (), mask=[[True, False]]).mask.shape == (2,)
    rows = torch.tensor([[True, False], [False, True], [True, True]])
    assert torch.equal(OneHot(2, (5, 3, 2), mask=rows).mask[4], rows)


def test_a_mask_must_be_bool():
    with pytest.raises(ValueError, match=r"Pass mask.bool\(\)"):
        Categorical(3, mask=torch.tensor([1, 0, 1]))


def test_a_mask_must_broadcast():
    with pytest.raises(ValueError, match=r"must broadcast to \(5, 3\): got shape \(4, 3\)"):
        OneHot(3, (5, 3), mask=torch.ones(4, 3, dtype=torch.bool))


def test_a_mask_that_forbids_everything_is_refused_when_it_is_used():
    spec = Categorical(3, (2,), mask=[[True, True, True], [False, False, False]])
    for call in (spec.rand, lambda: spec.project(torch.tensor([7, 7]))):
        with pytest.raises(ValueError, match="forbids every choice of a row"):
            call()
    with pytest.raises(ValueError, match="forbids every choice of a row"):
        OneHot(2, mask=[False, False]).project(torch.zeros(2))


def test_hot_and_pick_are_inverse():
    index = torch.tensor([[2, 0, 1], [1, 1, 0]])
    vectors = hot(index, 4, torch.float32)
    assert torch.equal(vectors.argmax(-1), index)
    assert torch.equal(pick(vectors, index), torch.ones(2, 3))
