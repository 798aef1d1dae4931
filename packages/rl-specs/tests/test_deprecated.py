import pytest

import rl_specs
from rl_specs import Categorical, Composite, CompositeSpec, DiscreteTensorSpec, Unbounded

LEAF = Unbounded((3,))
FORMER = {
    "BinaryDiscreteTensorSpec": ("Binary", (3,), {}),
    "BoundedTensorSpec": ("Bounded", (0, 1, (3,)), {}),
    "CompositeSpec": ("Composite", (), {"a": LEAF}),
    "DiscreteTensorSpec": ("Categorical", (3,), {}),
    "LazyStackedCompositeSpec": ("StackedComposite", (Composite(a=LEAF),), {"dim": 0}),
    "LazyStackedTensorSpec": ("Stacked", (LEAF,), {"dim": 0}),
    "MultiDiscreteTensorSpec": ("MultiCategorical", ([2, 3],), {}),
    "MultiOneHotDiscreteTensorSpec": ("MultiOneHot", ([2, 3],), {}),
    "NonTensorSpec": ("NonTensor", ((3,),), {}),
    "OneHotDiscreteTensorSpec": ("OneHot", (3,), {}),
    "UnboundedContinuousTensorSpec": ("UnboundedContinuous", ((3,),), {}),
    "UnboundedDiscreteTensorSpec": ("UnboundedDiscrete", ((3,),), {}),
}


@pytest.mark.parametrize("name", FORMER)
def test_a_former_name_warns_and_makes_the_new_class(name):
    new, args, kwargs = FORMER[name]
    former = getattr(rl_specs, name)
    with pytest.warns(DeprecationWarning, match=f"{name} is deprecated: it is called {new} now"):
        spec = former(*args, **kwargs)
    expected = getattr(rl_specs, new)(*args, **kwargs)
    assert spec == expected
    assert type(spec) is type(expected)
    assert isinstance(expected, former)


def test_instances_of_other_classes_are_told_apart():
    assert not isinstance(LEAF, DiscreteTensorSpec)
    assert isinstance(Categorical(3), DiscreteTensorSpec)


def test_a_subclass_of_a_former_name_stays_one():
    class Mine(CompositeSpec):
        pass

    spec = Mine(a=LEAF)
    assert type(spec) is Mine
    assert isinstance(spec, Mine)
    assert not isinstance(Composite(), Mine)
