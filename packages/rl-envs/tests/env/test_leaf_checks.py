import pytest
import torch
from tensordict import TensorDict

from rl_envs.env.leaf_checks import (
    array_test,
    check_form,
    check_leaves,
    check_value,
    choice_test,
    passes,
)
from rl_specs import Binary, Bounded, Categorical, MultiCategorical, MultiOneHot, OneHot, Unbounded


def test_dynamic_sizes_fit_any():
    spec = Unbounded((3, -1))
    check_form(("a",), spec, torch.zeros(3, 7), torch.Size(), "step")
    with pytest.raises(ValueError, match=r"expected shape \(3, -1\), got \(5, 7\)"):
        check_form(("a",), spec, torch.zeros(5, 7), torch.Size(), "step")


def test_leading_sizes_count():
    check_form(("a",), Unbounded((3,)), torch.zeros(5, 3), torch.Size([5]), "action")
    with pytest.raises(ValueError, match=r"action \('a', 'b'\): expected shape \(5, 3\)"):
        check_form(("a", "b"), Unbounded((3,)), torch.zeros(3), torch.Size([5]), "action")


def test_a_missing_leaf_is_named_with_what_is_there():
    with pytest.raises(KeyError, match=r"'a' is missing, the environment returned \['b'\]"):
        check_leaves([(("a",), Unbounded((3,)))], TensorDict(b=torch.ones(1)), torch.Size(), "step")


def test_long_values_are_summed_up():
    with pytest.raises(ValueError, match=r"got values from 0\.0 to 5\.0"):
        check_value(("a",), Bounded(0, 1, (30,)), torch.arange(30).clamp(max=5).float(), "step")


LOWS = torch.tensor([-1.0, 0.0, 2.0])
SPECS = {
    "flags": Binary(shape=(3,), dtype=torch.bool),
    "bits": Binary(3),
    "floats": Unbounded((3,)),
    "numbers": Unbounded((3,), dtype=torch.int64),
    "discrete floats": Unbounded((3,), dtype=torch.float32, domain="discrete"),
    "halves": Unbounded((3,), dtype=torch.bfloat16),
    "box": Bounded(-1.0, 1.0, (3,)),
    "own bounds": Bounded(LOWS, LOWS + 2),
    "open": Bounded(LOWS, torch.full((3,), torch.inf)),
    "bytes": Bounded(0, 255, (3,), dtype=torch.uint8),
    "bytes to five": Bounded(0, 5, (3,), dtype=torch.uint8),
    "few bytes": Bounded(2, 5, (3,), dtype=torch.uint8),
    "choices": Categorical(3, shape=(3,)),
    "masked": Categorical(3, shape=(3,), mask=torch.tensor([True, False, True])),
    "one hot": OneHot(3),
    "one hot rows": OneHot(3, shape=(5, 3)),
    "masked one hot": OneHot(3, mask=torch.tensor([True, False, True])),
    "one hot numbers": OneHot(3, dtype=torch.int64),
    "several": MultiCategorical([2, 3]),
    "several one hot": MultiOneHot([2, 3]),
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_values_that_pass_a_quick_test_are_in_their_spec_and_no_nan(spec):
    torch.manual_seed(0)
    drawn = [spec.rand() for _ in range(20)]
    near = [value * 2 for value in drawn if value.dtype != torch.bool]
    near += [value.clone().fill_(fill) for value in drawn[:3] for fill in (0, 1, 2, 3, 5)]
    near += [value.clone().zero_().index_fill_(-1, torch.tensor([0]), 1) for value in drawn[:1]]
    if spec.dtype.is_floating_point:
        near += [torch.full_like(drawn[0], torch.nan), torch.full_like(drawn[0], torch.inf)]
    for value in drawn + near:
        refused = not spec.is_in(value) or bool(value.isnan().any())
        assert not (passes(array_test(spec), value) and refused)


@pytest.mark.parametrize(
    "name", ["flags", "floats", "box", "own bounds", "open", "bytes", "choices", "one hot rows"]
)
def test_members_of_the_usual_specs_pass_the_quick_test(name):
    assert all(passes(array_test(SPECS[name]), SPECS[name].rand()) for _ in range(20))


@pytest.mark.parametrize("rows", [(), (1,), (4,), (2000,), (3, 2)])
@pytest.mark.parametrize("name", ["floats", "own bounds", "symmetric", "one hot"])
def test_one_bad_number_among_rows_fails_the_quick_test(name, rows):
    spec = {**SPECS, "symmetric": Bounded(-LOWS.abs() - 1, LOWS.abs() + 1)}[name]
    test, bad = array_test(spec), {"floats": torch.nan, "one hot": 1}.get(name, 50.0)
    torch.manual_seed(0)
    for _ in range(2):
        value = spec.rand(rows)
        assert passes(test, value)
        for place in {0, len(value.view(-1)) - 1, len(value.view(-1)) // 2}:
            wrong = value.clone()
            wrong.view(-1)[place] = bad
            assert passes(test, wrong) == torch.equal(wrong, value)


@pytest.mark.parametrize("name", ["masked", "masked one hot", "one hot", "several", "floats"])
def test_the_quick_test_of_choices_ignores_masks(name):
    spec = SPECS[name]
    given = spec.clone()
    if name.startswith("masked"):
        given.update_mask(None)
    torch.manual_seed(0)
    found = [passes(choice_test(spec), given.rand()) for _ in range(20)]
    assert all(found) == (name != "several")
    two = torch.tensor([True, True, False])
    assert not passes(choice_test(OneHot(3)), two)


def test_a_mask_that_is_set_later_counts():
    spec = Categorical(3, shape=())
    test, one = array_test(spec), torch.tensor(1)
    assert passes(test, one)
    spec.update_mask(torch.tensor([True, False, True]))
    assert not passes(test, one)


def test_choices_of_unknown_number_pass_no_quick_test():
    spec = Categorical(-1, shape=())
    test, one = array_test(spec), torch.tensor(1)
    assert not passes(test, one)
    assert not test(one.numpy())
    spec.set_provisional_n(2)
    assert passes(test, one)


def test_tensors_that_numpy_cannot_read_pass_no_quick_test():
    test = array_test(Unbounded((3,)))
    assert passes(test, torch.ones(3, requires_grad=True))
    assert not passes(test, torch.ones(3).to_sparse())
    assert not passes(test, "text")
