import pytest
import torch

from rl_specs import (
    Bounded,
    Categorical,
    Composite,
    NonTensor,
    OneHot,
    StackedComposite,
    Unbounded,
    check_no_exclusive_keys,
    consolidate_spec,
    contains_lazy_spec,
)


def make(**extra):
    one = Composite(obs=Unbounded((5, 3)), act=OneHot(4, (5, 4)), shape=(5,))
    two = Composite(obs=Unbounded((5, 7)), lidar=Bounded(1, 2, (5, 2)), shape=(5,), **extra)
    return torch.stack([one, two])


def test_missing_specs_are_filled_in_with_size_zero():
    found = consolidate_spec(make())
    assert found[0]["lidar"] == Bounded(1, 2, (5, 0))
    assert found[1]["act"].shape == (5, 0)
    assert found[1]["act"].dtype == torch.bool
    assert set(found.keys()) == {"obs", "act", "lidar"}
    assert found.is_in(found.rand())


def test_the_input_is_not_changed():
    spec = make()
    consolidate_spec(spec)
    assert spec == make()
    assert not check_no_exclusive_keys(spec)


def test_sizes_that_differ_become_zero():
    parts = [Composite(a=Unbounded((5, 3))), Composite(a=Unbounded((5, 7))), Composite()]
    found = consolidate_spec(torch.stack(parts))
    assert found[2]["a"].shape == (5, 0)


def test_nested_stacks_are_filled_in_too():
    spec = Composite(agents=make(), shape=())
    assert check_no_exclusive_keys(consolidate_spec(spec))
    assert not check_no_exclusive_keys(consolidate_spec(spec, recurse_through_entries=False))
    outer = torch.stack([Composite(a=make()), Composite(a=make(), b=None)])
    assert check_no_exclusive_keys(consolidate_spec(outer)["a"])


def test_trees_and_objects_are_filled_in():
    extra = Composite(inner=Unbounded((5, 1)), shape=(5,))
    found = consolidate_spec(make(extra=extra, text=NonTensor((5, 2))))
    assert found[0]["extra"].is_empty()
    assert found[0]["text"].shape == (5, 0)


def test_one_key_must_mean_one_thing():
    parts = [Composite(a=Unbounded((3,))), Composite(a=Categorical(3, (3,))), Composite()]
    with pytest.raises(ValueError, match="the specs of 'a' need one class"):
        consolidate_spec(StackedComposite(*parts, dim=0))


def test_leaves_are_returned_as_they_are():
    assert consolidate_spec(Unbounded((3,))) == Unbounded((3,))
    assert check_no_exclusive_keys(Unbounded((3,)))


def test_check_no_exclusive_keys_may_stay_on_one_level():
    spec = Composite(agents=make())
    assert not check_no_exclusive_keys(spec)
    assert check_no_exclusive_keys(spec, recurse=False)


def test_contains_lazy_spec_looks_at_any_depth():
    assert contains_lazy_spec(Composite(a=Composite(b=make())))
    assert contains_lazy_spec(torch.stack([Categorical(2), Categorical(3)]))
    assert not contains_lazy_spec(Composite(a=Unbounded(), b=None))
