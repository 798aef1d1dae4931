"""What every spec promises, whatever its family, its mask, its dimensions or its nesting."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_specs import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    NonTensor,
    OneHot,
    Stacked,
    Unbounded,
)

INF = math.inf

MASK = torch.tensor([True, False, True])

MASK5 = torch.tensor([False, True, True, False, True])

ROWS = torch.tensor([[True, True, False], [False, True, True], [True, False, False]])


def _nested():
    inner = Composite(action=OneHot(3, (5, 3), mask=MASK), shape=(5,))
    return Composite(obs=Bounded(-1, 2, (5, 7)), agent=inner, shape=(5,), names=["batch"])


def _different():
    one = Composite(obs=Bounded(0, 1, (3,)), only=Categorical(4))
    return torch.stack([one, Composite(obs=Bounded(0, 2, (7,)))])


SPECS = {
    "bounded": lambda: Bounded(-1, 2, (5, 3)),
    "bounded varying": lambda: Bounded(
        torch.tensor([-1.0, 0.0, 4.0]), torch.tensor([1.0, 0.5, 7.0])
    ),
    "bounded half": lambda: Bounded(-1, 2, (5, 3), dtype=torch.bfloat16),
    "bounded widest": lambda: Bounded(-3e38, 3e38, (5, 3)),
    "bounded infinite": lambda: Bounded(-INF, INF, (5,)),
    "bounded partly infinite": lambda: Bounded([-INF, 0.0, -INF, 2.0], [INF, INF, 1.0, 3.0]),
    "bounded dynamic": lambda: Bounded(1, 2, (-1, 3)),
    "bounded ints": lambda: Bounded(-2, 1, (5, 3), dtype=torch.int32),
    "bounded bytes": lambda: Bounded(0, 255, (5,), dtype=torch.uint8),
    "bounded ints varying": lambda: Bounded([0, -3], [2, -1], dtype=torch.int64),
    "bounded all ints": lambda: Bounded(-INF, INF, (5,), dtype=torch.int64),
    "bounded bools": lambda: Bounded(0, 1, (5,), dtype=torch.bool),
    "unbounded": lambda: Unbounded((5, 3)),
    "unbounded ints": lambda: Unbounded((5,), dtype=torch.int8),
    "unbounded bools": lambda: Unbounded((5,), dtype=torch.bool),
    "unbounded dynamic": lambda: Unbounded((5, -1)),
    "categorical": lambda: Categorical(3, (5,)),
    "categorical float": lambda: Categorical(3, (5,), dtype=torch.float32),
    "categorical bool": lambda: Categorical(2, (5,), dtype=torch.bool),
    "categorical masked": lambda: Categorical(3, (5,), mask=MASK),
    "categorical rows masked": lambda: Categorical(3, (3,), mask=ROWS),
    "categorical dynamic": lambda: Categorical(3, (-1,), mask=MASK),
    "one-hot": lambda: OneHot(3, (5, 3)),
    "one-hot ints": lambda: OneHot(3, dtype=torch.int64),
    "one-hot masked": lambda: OneHot(3, (5, 3), mask=MASK),
    "one-hot rows masked": lambda: OneHot(3, (3, 3), mask=ROWS),
    "multi one-hot": lambda: MultiOneHot([2, 3], (7, 5)),
    "multi one-hot masked": lambda: MultiOneHot([2, 3], (7, 5), mask=MASK5),
    "multi-categorical": lambda: MultiCategorical([2, 3], (7, 2)),
    "multi-categorical rows": lambda: MultiCategorical([[2, 3, 4], [5, 6, 7]]),
    "multi-categorical masked": lambda: MultiCategorical([2, 3], (7, 2), mask=MASK5),
    "binary": lambda: Binary(4, (5, 4)),
    "non-tensor": lambda: NonTensor((5,), example_data="go"),
    "non-tensor batched": lambda: NonTensor((5,), example_data="go", batched=True),
    "composite": _nested,
    "composite dynamic": lambda: Composite(obs=Unbounded((-1, 3)), shape=(-1,)),
    "composite empty": lambda: Composite(shape=(5,)),
    "stacked": lambda: torch.stack([Bounded(0, 1, (5,)), Bounded(0, 2, (5,))], 1),
    "stacked ragged": lambda: torch.stack([Bounded(0, 1, (5,)), Bounded(0, 2, (3,))]),
    "stacked masked": lambda: torch.stack([OneHot(3, mask=MASK), OneHot(3, mask=~MASK)]),
    "stacked composite": _different,
}

RAGGED = {"stacked ragged"}

OBJECTS = {name for name in SPECS if name.startswith("non-tensor")}

TENSORS = set(SPECS) - OBJECTS


def every(names=frozenset(SPECS)):
    return pytest.mark.parametrize("make", [pytest.param(SPECS[n], id=n) for n in sorted(names)])


def leaves(value):
    """All tensors of a value."""
    if isinstance(value, Tensor):
        return list(value.unbind()) if value.is_nested else [value]
    if isinstance(value, TensorDictBase) and hasattr(value, "tensordicts"):
        return [leaf for part in value.tensordicts for leaf in leaves(part)]
    return [leaf for entry in value.values() for leaf in leaves(entry)]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(leaves(one), leaves(other), strict=True))


def spoilt(value, by):
    """The value, with other numbers in its tensors."""
    if isinstance(value, Tensor):
        if value.is_nested:
            return [spoilt(part, by) for part in value.unbind()]
        return torch.full(value.shape, by, dtype=torch.float32)
    return value.apply(lambda leaf: spoilt(leaf, by))


@every()
def test_samples_are_members(make):
    spec = make()
    assert all(spec.is_in(spec.rand()) for _ in range(20))


@every(set(SPECS) - RAGGED)
def test_rand_puts_sizes_before_the_shape(make):
    spec = make()
    for shape in ((7,), [2, 7], torch.Size([7]), ()):
        sample = spec.rand(shape)
        assert sample.shape[len(shape) :] == spec.zero().shape
        assert tuple(sample.shape[: len(shape)]) == tuple(shape)
        assert spec.is_in(sample)


@every(TENSORS)
def test_rand_is_seeded_by_torch(make):
    spec = make()
    torch.manual_seed(3)
    first = spec.rand()
    torch.manual_seed(3)
    assert same(first, spec.rand())


@every(TENSORS)
def test_samples_are_finite(make):
    spec = make()
    assert all(leaf.isfinite().all() for _ in range(100) for leaf in leaves(spec.rand()))


@every(TENSORS - {"composite empty"})
@pytest.mark.parametrize("by", [0.0, 0.4, -1e30, 1e30, INF, -INF, math.nan])
def test_project_lands_in_the_domain_and_stays(make, by):
    spec = make()
    value = spoilt(spec.rand(), by)
    found = spec.project(value)
    assert spec.is_in(found)
    assert spec.project(found) is found


@every(TENSORS - {"composite empty"})
def test_project_does_not_touch_its_input(make):
    spec = make()
    value = spoilt(spec.rand(), 0.4)
    kept = copy.deepcopy(value)
    spec.project(value)
    for one, other in zip(*(v if isinstance(v, list) else [v] for v in (value, kept)), strict=True):
        assert same(one, other)
        assert one.shape == other.shape


@every(TENSORS)
def test_project_leaves_members_alone(make):
    spec = make()
    sample = spec.rand()
    assert spec.project(sample) is sample


@every(TENSORS)
def test_encode_undoes_to_numpy(make):
    spec = make()
    sample = spec.rand()
    assert same(spec.encode(spec.to_numpy(sample)), sample)


@every(TENSORS - RAGGED - {"composite empty", "stacked", "stacked masked", "stacked composite"})
def test_encode_undoes_to_numpy_on_batches(make):
    spec = make()
    sample = spec.rand((7,))
    back = spec.encode(spec.to_numpy(sample))
    assert same(back, sample)
    assert back.shape == sample.shape


JUNK = [
    None, 1, -0.5, "a", b"a", (), [], [1], {}, {"obs": 1}, object(), np.zeros(3), int,
    torch.zeros(()), torch.zeros(11, 13), torch.zeros(5, 3, dtype=torch.complex64),
    torch.zeros(3, device="meta"), torch.eye(3).to_sparse(), torch.full((4, 3), math.nan),
    TensorDict({}, []), TensorDict({"obs": torch.zeros(5, 7)}, [5]), Categorical(3),
]  # fmt: skip


@every()
def test_is_in_answers_for_any_input(make):
    spec = make()
    assert [type(spec.is_in(value)) for value in JUNK] == [bool] * len(JUNK)


@every(TENSORS - {"composite empty"})
def test_is_in_refuses_what_is_no_member(make):
    spec = make()
    assert [value for value in JUNK if spec.is_in(value)] == []


@every(TENSORS - RAGGED - {"composite empty", "stacked composite", "categorical dynamic"})
def test_is_in_wants_the_shape_and_the_dtype(make):
    spec = make()
    sample = spec.rand()
    wrong = [sample[..., None], sample.reshape(-1)[:0], sample[None, None]]
    answers = [type(spec.is_in(value)) for value in wrong] + [spec.is_in(sample[None, None])]
    assert answers == [bool, bool, bool, True]
    if isinstance(sample, Tensor):
        assert not spec.is_in(sample.to(torch.complex64))
        assert not spec.is_in(sample.unsqueeze(-1).expand(*sample.shape, 11))


@every(set(SPECS) - {"composite empty"})
def test_assert_is_in_says_what_is_wrong(make):
    spec = make()
    spec.assert_is_in(spec.rand())
    with pytest.raises(AssertionError, match=r"(?s)is not in .*expected"):
        spec.assert_is_in(torch.zeros(11, 13))


@every()
def test_copies_are_equal(make):
    spec = make()
    assert spec.clone() == spec
    assert copy.deepcopy(spec) == spec
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert spec.to(spec.device) is spec


@every()
def test_copies_sample_alike(make):
    spec = make()
    for other in (spec.clone(), pickle.loads(pickle.dumps(spec))):
        assert spec.is_in(other.rand())


@every()
def test_families_differ(make):
    spec = make()
    equal = [name for name, other in SPECS.items() if other() == spec]
    assert len(equal) == 1


@every()
def test_repr_names_class_and_shape(make):
    spec = make()
    text = repr(spec)
    assert text.startswith(type(spec).__name__ + "(")
    assert f"shape={tuple(spec.shape)}" in text
    assert len(text) < 900


@every(set(SPECS) - RAGGED)
def test_zero_and_one_have_the_shape(make):
    spec = make()
    for value in (spec.zero((7,)), spec.one((7,)), spec.zeros((7,)), spec.ones((7,))):
        assert value.shape == spec.rand((7,)).shape


HOLDS_ZERO = {
    "bounded", "bounded half", "bounded widest", "bounded infinite", "bounded ints",
    "bounded bytes", "bounded all ints", "bounded bools", "unbounded", "unbounded ints",
    "unbounded bools", "unbounded dynamic", "categorical", "categorical float",
    "categorical bool", "categorical masked", "categorical dynamic", "multi-categorical",
    "multi-categorical rows", "binary", "non-tensor", "non-tensor batched", "composite dynamic",
    "composite empty", "stacked", "stacked ragged", "stacked composite",
}  # fmt: skip


@every()
def test_zero_is_a_member_where_the_domain_holds_it(make, request):
    name = request.node.callspec.id
    spec = make()
    assert spec.is_in(spec.zero()) is (name in HOLDS_ZERO)


VIEWS = {
    "expand": (lambda v: v.expand(2, *v.shape), lambda s: s.expand(2, *s.shape)),
    "unsqueeze": (lambda v: v.unsqueeze(0), lambda s: s.unsqueeze(0)),
    "squeeze": (lambda v: v.unsqueeze(0).squeeze(0), lambda s: s.unsqueeze(0).squeeze(0)),
    "row": (lambda v: v[0], lambda s: s[0]),
    "negative": (lambda v: v[-1], lambda s: s[-1]),
    "rows": (lambda v: v[1:3], lambda s: s[1:3]),
    "new axis": (lambda v: v[None], lambda s: s[None]),
    "all": (lambda v: v[...], lambda s: s[...]),
    "list": (lambda v: v[[2, 0]], lambda s: s[[2, 0]]),
    "tensor": (lambda v: v[torch.tensor([[1], [0]])], lambda s: s[torch.tensor([[1], [0]])]),
    "unbind": (lambda v: v.unbind(0)[1], lambda s: s.unbind(0)[1]),
    "unflatten": (lambda v: v.reshape(1, *v.shape), lambda s: s.unflatten(0, (1, s.shape[0]))),
    "reshape": (lambda v: v.reshape(1, *v.shape), lambda s: s.reshape(1, *s.shape)),
    "twice": (lambda v: v.expand(2, *v.shape)[:, 1], lambda s: s.expand(2, *s.shape)[:, 1]),
}

STATIC = {
    name
    for name in SPECS
    if not any(word in name for word in ("dynamic", "ragged", "empty"))
    and len(SPECS[name]().shape) > 0
}

SHORT = {"one-hot ints", "bounded ints varying", "multi-categorical rows", "stacked masked"}


@every(
    STATIC - SHORT - {"stacked", "stacked composite", "bounded varying", "bounded partly infinite"}
)
@pytest.mark.parametrize("view", VIEWS)
def test_a_viewed_spec_describes_viewed_data(make, view):
    of_value, of_spec = VIEWS[view]
    spec = make()
    viewed = of_spec(spec)
    sample = of_value(spec.rand())
    assert viewed.is_in(sample)
    assert viewed.shape == sample.shape
    assert viewed.is_in(viewed.rand())


@every({"stacked", "stacked masked", "stacked composite"})
@pytest.mark.parametrize(
    "view", ["expand", "unsqueeze", "squeeze", "row", "new axis", "all", "unbind", "reshape"]
)
def test_a_viewed_stack_is_still_a_spec(make, view):
    viewed = VIEWS[view][1](make())
    sample = viewed.rand()
    assert viewed.is_in(sample)
    assert viewed.shape == sample.shape


MASKED = {name for name in SPECS if "masked" in name} | {"composite"}


def only(spec):
    """The mask of a leaf, or of the one masked leaf of a composite."""
    return (spec["agent", "action"] if isinstance(spec, Composite) else spec).mask


@every(MASKED - {"stacked masked"})
@pytest.mark.parametrize("view", VIEWS)
def test_a_mask_survives_views(make, view):
    spec = make()
    mask = only(spec)
    viewed = only(VIEWS[view][1](spec))
    assert viewed.dtype == torch.bool
    assert torch.equal(viewed, VIEWS[view][0](mask))


@every(MASKED - {"stacked masked"})
def test_a_mask_survives_stacking_moving_and_casting(make):
    spec = make()
    mask = only(spec)
    assert torch.equal(only(torch.stack([spec, spec])), torch.stack([mask, mask]))
    assert only(spec.to("meta")).device.type == "meta"
    assert only(spec.to("meta")).shape == mask.shape
    assert torch.equal(only(spec.to(torch.float64)), mask)
    assert torch.equal(only(spec.clone()), mask)


def test_masks_survive_a_stack_of_specs_that_differ():
    spec = torch.stack([OneHot(3, mask=MASK), OneHot(3, mask=~MASK)])
    assert isinstance(spec, Stacked)
    assert torch.equal(spec[1].mask, ~MASK)
    assert torch.equal(spec.expand(2, 2, 3)[0, 1].mask, ~MASK)
