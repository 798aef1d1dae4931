import pytest
import torch
from tensordict import LazyStackedTensorDict

from rl_specs import Bounded, Composite, OneHot, Stacked, StackedComposite, Unbounded


def make():
    one = Composite(obs=Bounded(0, 1, (5, 3)), act=OneHot(4, (5, 4)), shape=(5,))
    two = Composite(obs=Bounded(1, 2, (5, 7)), lidar=Unbounded((5, 2)), shape=(5,))
    return StackedComposite(one, two, dim=0)


def test_samples_are_lazy_stacks():
    sample = make().rand((7,))
    assert isinstance(sample, LazyStackedTensorDict)
    assert sample.batch_size == (7, 2, 5)
    assert sample[:, 1]["lidar"].shape == (7, 5, 2)
    assert make().is_in(sample)


def test_keys_are_those_of_all():
    spec = make()
    assert list(spec.keys()) == ["obs"] == list(spec)
    assert list(spec.rand().keys()) == ["obs"]
    assert isinstance(spec["obs"], Stacked)
    assert spec["obs"].shape == (2, 5, -1)
    assert spec[1]["lidar"].shape == (5, 2)
    with pytest.raises(KeyError):
        spec["lidar"]


def test_classes_may_differ_under_one_key():
    spec = torch.stack([Composite(a=Unbounded((3,))), Composite(a=Bounded(0, 1, (3,)))])
    assert isinstance(spec["a"], Stacked)
    assert spec.is_in(spec.rand())


def test_set_takes_a_spec_apart():
    spec = make()
    spec["reward"] = Bounded(torch.tensor([[0.0], [1.0]]).expand(2, 5), 3)
    spec.set(("next", "obs"), Unbounded((2, 5, 3)))
    spec["free"] = None
    assert [part["reward"].low[0].item() for part in spec.specs] == [0, 1]
    assert spec["next", "obs"].shape == (2, 5, 3)
    assert spec["free"] is None
    with pytest.raises(ValueError, match="needs size 2 in dimension 0"):
        spec["x"] = Unbounded((3, 5))


def test_delete_reaches_whoever_has_the_key():
    spec = make()
    del spec["lidar"]
    assert "lidar" not in spec.specs[1]
    with pytest.raises(KeyError, match="in any of the stacked ones"):
        del spec["lidar"]


def test_update_merges():
    spec = make()
    spec.update({"next": Composite(a=Unbounded((2, 5)), shape=(2, 5))})
    spec.update({"next": Composite(b=Unbounded((2, 5)), shape=(2, 5))})
    assert set(spec["next"].keys()) == {"a", "b"}
    spec.update(
        StackedComposite(Composite(shape=(5,)), Composite(c=Unbounded((5,)), shape=(5,)), dim=0)
    )
    assert "c" in spec.specs[1]


def test_encode_takes_one_dictionary_for_each():
    spec = make()
    plain = spec.to_numpy(spec.rand())
    assert [set(part) for part in plain] == [{"obs", "act"}, {"obs", "lidar"}]
    assert spec.is_in(spec.encode(plain))
    for wrong in ({"obs": 1}, plain[:1]):
        with pytest.raises(ValueError, match="expected 2 dictionaries"):
            spec.encode(wrong)


def test_locks_reach_the_stacked_specs():
    spec = make().lock_()
    for change in (lambda: spec.specs[0].set("x", None), lambda: spec.set("x", None)):
        with pytest.raises(RuntimeError, match="locked"):
            change()
    spec.unlock_()
    assert not spec.specs[0].is_locked


def test_a_stack_can_be_nested():
    spec = Composite(agents=make().unsqueeze(0), shape=(1,))
    assert spec.is_in(spec.rand((3,)))
    assert spec.expand(7)["agents"].shape == (7, 2, 5)
    assert ("agents", "obs") in spec.keys(True, True)


def test_shape_and_names_follow_from_the_parts():
    spec = make()
    assert spec.names == [None, None]
    for name, value in (("shape", (2,)), ("names", ["a", "b"])):
        with pytest.raises(NotImplementedError):
            setattr(spec, name, value)
    with pytest.raises(ValueError, match="need one shape"):
        StackedComposite(Composite(shape=(5,)), Composite(shape=(3,)), dim=0)


def test_empty_stacks_become_one():
    assert make().empty() == Composite(shape=(2, 5))
