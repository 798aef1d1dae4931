import pytest
import torch

from rl_specs import Categorical, CategoricalBox, Composite, MultiCategorical, OneHot

MASK = torch.tensor([True, False, True])


def test_members_are_whole_numbers_below_n():
    spec = Categorical(3, dtype=torch.float32)
    assert spec.is_in(torch.tensor(2.0))
    assert not any(spec.is_in(torch.tensor(value)) for value in (3.0, -1.0, 0.5))


def test_a_mask_decides_membership():
    spec = Categorical(3, (2,), mask=MASK)
    assert spec.is_in(torch.tensor([0, 2]))
    assert not spec.is_in(torch.tensor([0, 1]))
    assert not spec.is_in(torch.tensor([0, 7]))


def test_project_finds_the_nearest_allowed_choice():
    spec = Categorical(3, (5,))
    assert spec.project(torch.tensor([-1, 0, 2, 3, 99])).tolist() == [0, 0, 2, 2, 2]
    assert Categorical(3, (2,), mask=MASK).project(torch.tensor([1, 9])).tolist() == [0, 2]


def test_numbers_of_choices_are_checked():
    for wrong in (0, -2):
        with pytest.raises(ValueError, match=f"must be positive, or -1: got {wrong}"):
            Categorical(wrong)
    for wrong in (2.5, "a", None):
        with pytest.raises(TypeError, match="must be an integer"):
            Categorical(wrong)
    with pytest.raises(ValueError, match=r"torch\.uint8 cannot hold 300 choices"):
        Categorical(300, dtype=torch.uint8)


def test_an_unknown_number_of_choices_can_be_set_for_the_time_being():
    spec = Categorical(-1, (5,))
    with pytest.raises(RuntimeError, match="call set_provisional_n"):
        spec.rand()
    assert spec.is_in(torch.full((5,), 99))
    assert not spec.is_in(torch.full((5,), -1))
    spec.set_provisional_n(2)
    assert spec.rand().max() < 2
    assert spec.n == spec.cardinality() == 2
    assert spec.project(torch.full((5,), -3)).tolist() == [0] * 5


def test_a_mask_must_have_as_many_entries_as_there_are_choices():
    spec = Categorical(-1, mask=MASK)
    spec.set_provisional_n(4)
    with pytest.raises(ValueError, match="the mask has 3 entries for 4 choices"):
        spec.rand()
    spec.set_provisional_n(3)
    assert spec.is_in(spec.rand())


def test_enumerate_lists_the_choices():
    assert Categorical(3, (2,)).enumerate().tolist() == [[0, 0], [1, 1], [2, 2]]
    assert Categorical(3, (2,), mask=MASK).enumerate(use_mask=True).tolist() == [[0, 0], [2, 2]]
    assert Categorical(2, dtype=torch.bool).enumerate().tolist() == [False, True]


def test_enumerate_refuses_rows_with_different_masks():
    spec = Categorical(2, (2,), mask=torch.eye(2, dtype=torch.bool))
    assert spec.enumerate().shape == (2, 2)
    with pytest.raises(ValueError, match="unbind the spec"):
        spec.enumerate(use_mask=True)


def test_index_reads_the_chosen_entry():
    spec = Categorical(7, (5,))
    values = torch.rand(5, 7)
    choice = spec.rand()
    assert torch.equal(spec.index(choice, values), values[torch.arange(5), choice])
    assert torch.equal(spec.index(choice, values[0]), values[0][choice])


def test_one_hot_and_back_keeps_the_mask():
    spec = Categorical(3, (5,), mask=MASK)
    assert spec.to_one_hot_spec() == OneHot(3, (5, 3), mask=MASK)
    assert spec.to_one_hot_spec().to_categorical_spec() == spec
    assert spec.to_one_hot(torch.tensor([2, 0])).tolist() == [
        [False, False, True],
        [True, False, False],
    ]
    assert spec.to_categorical_spec() is spec
    assert spec.to_categorical(torch.tensor(2)).item() == 2


def test_conversions_check_where_asked():
    with pytest.raises(AssertionError):
        Categorical(3).to_one_hot(torch.tensor(2.0), safe=True)


def test_space_is_a_categorical_box():
    assert Categorical(3).space == CategoricalBox(3)


@pytest.mark.parametrize(
    ("spec", "dtype"),
    [
        (Categorical(300), torch.uint8),
        (Categorical(3), torch.bool),
        (MultiCategorical([300, 4]), torch.uint8),
        (Composite(a=Categorical(300)), torch.int8),
        (Categorical(4_100), torch.float16),
    ],
)
def test_a_dtype_that_cannot_hold_every_choice_is_refused_of_casts_too(spec, dtype):
    with pytest.raises(ValueError, match=r"cannot hold .* choices"):
        spec.to(dtype)
    assert spec.to(torch.int16).rand() is not None
