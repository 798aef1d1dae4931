"""What public edges are given by mistake is refused with a message of this package."""

import re

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rl_specs import (
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    Stacked,
    StackedComposite,
    Unbounded,
    consolidate_spec,
)

HELD = Composite(a=Unbounded((3,)))
MULTI = MultiCategorical([2, 3])


CASES = [
    (lambda: Unbounded((3, 4)).unbind("a"), TypeError, "a dimension must be an integer: got"),
    (lambda: Unbounded((3, 4)).index_select(0, 1), TypeError, "expected positions as int64"),
    (lambda: Unbounded((3, 4))[[1, 2], [[3], 4]], TypeError, "cannot be indexed with"),
    (lambda: Unbounded((2.5,)), TypeError, "a shape must be integers"),
    (lambda: Unbounded((2**70,)), ValueError, "sizes must be below 2 ** 62"),
    (lambda: Unbounded((3,)).rand((-1,)), ValueError, "must not be negative: got (-1,)"),
    (lambda: Unbounded((3,)).to([]), TypeError, "expected a device of torch"),
    (lambda: Unbounded((3,)).encode([[1, 2], [3]]), ValueError, "rows of one length"),
    (lambda: Bounded("a", 1, (3,)), TypeError, "expected a bound as a number"),
    (lambda: Bounded(1j, 1, (3,)), TypeError, "expected a bound as a number"),
    (lambda: Categorical(3).to_one_hot(torch.tensor(7)), ValueError, "choices from 0 to 2"),
    (lambda: Categorical(3).index(torch.tensor(1), "a"), ValueError, "expected entries"),
    (lambda: Categorical(3, mask={}), TypeError, "a mask must be a tensor"),
    (lambda: OneHot(float("inf")), TypeError, "must be an integer: got inf"),
    (lambda: OneHot(3).to_categorical([0, 1]), TypeError, "expected a plain dense tensor"),
    (lambda: OneHot(3).to_categorical(torch.zeros(4)), ValueError, "expected shape (3,)"),
    (lambda: MultiCategorical(object()), TypeError, "nvec must be numbers of choices"),
    (lambda: MultiOneHot(1.5), TypeError, "nvec must be numbers of choices"),
    (lambda: MULTI.index(MULTI.zero(), torch.zeros(4)), ValueError, "with 5 entries"),
    (lambda: MULTI.to_one_hot(torch.zeros(3)), ValueError, "expected shape (2,)"),
    (lambda: HELD.rand_update(torch.zeros(3)), TypeError, "a dictionary or a tensordict"),
    (lambda: HELD.cast([1]), TypeError, "a dictionary or a tensordict: got list"),
    (lambda: HELD.update(3), TypeError, "a dictionary of specs: got int"),
    (lambda: HELD.type_check(torch.zeros(3)), TypeError, "pass key, one of ['a']"),
    (lambda: HELD.separates(["a"]), TypeError, "a key must be a string"),
    (lambda: Stacked(Unbounded(), "a", dim=0), TypeError, "a stack holds specs"),
    (lambda: StackedComposite(Unbounded(), dim=0), TypeError, "expected composites"),
    (lambda: torch.stack([HELD, HELD]).update(3), TypeError, "a dictionary of specs: got int"),
    (lambda: consolidate_spec("a"), TypeError, "expected a spec: got str"),
]


@pytest.mark.parametrize(("call", "error", "message"), CASES, ids=map(str, range(len(CASES))))
def test_bad_input_is_named(call, error, message):
    with pytest.raises(error, match=re.escape(message)):
        call()


def test_a_registered_choice_without_a_value_is_named():
    spec = OneHot(3, use_register=True)
    spec.encode("a")
    with pytest.raises(ValueError, match="choice 2 has no value yet: 1 were encoded"):
        spec.to_numpy(torch.tensor([False, False, True]))


def test_updates_write_into_dictionaries_too():
    assert HELD.zeros_update({})["a"].tolist() == [0, 0, 0]
    given = TensorDict({}, [])
    assert HELD.ones_update(given) is given
    assert np.all(given["a"].numpy() == 1)
