import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorDict, tensorclass

from rl_specs import Bounded, Categorical, Composite, NonTensor, OneHot, Unbounded


def make():
    inner = Composite(reward=Bounded(0, 1, (5, 1)), shape=(5,))
    return Composite(obs=Bounded(-1, 2, (5, 3)), next=inner, shape=(5,))


@tensorclass
class Step:
    obs: torch.Tensor


def test_samples_are_tensordicts_of_the_shape():
    sample = make().rand((7,))
    assert sample.batch_size == sample["next"].batch_size == (7, 5)
    assert sample["next", "reward"].shape == (7, 5, 1)
    assert make().one()["obs"].eq(1).all()
    assert make().zero()["next", "reward"].eq(0).all()


def test_nothing_is_drawn_where_anything_will_do():
    spec = Composite(obs=Unbounded((3,)), anything=None)
    assert list(spec.rand().keys()) == ["obs"]
    assert spec.is_in({"obs": torch.zeros(3)})
    assert spec.clone() == spec.expand(5)[0] == spec


def test_a_member_holds_every_entry_and_may_hold_more():
    spec, sample = make(), make().rand()
    assert spec.is_in(sample.set("more", torch.zeros(5)))
    assert spec.is_in(sample.to_dict())
    assert not spec.is_in(sample.exclude("obs"))
    assert not spec.is_in(sample.exclude(("next", "reward")))
    assert not spec.is_in(TensorDict(sample.to_dict()))


def test_a_lazy_stack_that_does_not_stack_is_no_member():
    spec = Composite(obs=Unbounded((2, 3)), shape=(2,))
    parts = [TensorDict({"obs": torch.zeros(n)}) for n in (3, 7)]
    assert not spec.is_in(LazyStackedTensorDict(*parts))
    assert spec.is_in(LazyStackedTensorDict(parts[0], parts[0]))
    with pytest.raises(AssertionError):
        spec.assert_is_in(LazyStackedTensorDict(*parts))


def test_an_empty_nested_spec_needs_no_entry():
    assert Composite(info=Composite()).is_in({})


def test_assert_is_in_names_the_entry():
    with pytest.raises(
        AssertionError, match=r"entry 'next': expected an entry 'reward', found only"
    ):
        make().assert_is_in(make().rand().exclude(("next", "reward")))
    with pytest.raises(AssertionError, match=r"entry 'obs': not every value is in BoundedC"):
        make().assert_is_in(make().rand().set("obs", torch.full((5, 3), 9.0)))
    with pytest.raises(AssertionError, match=r"expected batch size \(5,\), got \(\)"):
        make().assert_is_in(TensorDict(make().rand().to_dict()))


def test_project_changes_a_copy():
    spec, sample = make(), make().rand()
    sample["next", "reward"] = torch.full((5, 1), 9.0)
    kept = sample["next"]
    found = spec.project(sample)
    assert found["next", "reward"].eq(1).all()
    assert kept["reward"].eq(9).all()
    assert found["obs"] is sample["obs"]


def test_project_works_on_dictionaries_and_locked_tensordicts():
    spec = Composite(obs=Bounded(0, 1, (3,)))
    value = {"obs": torch.full((3,), 9.0), "more": 1}
    assert spec.project(value)["obs"].tolist() == [1, 1, 1]
    assert value["obs"].tolist() == [9, 9, 9]
    assert spec.is_in(spec.project(TensorDict(obs=torch.full((3,), 9.0)).lock_()))


def test_project_refuses_what_it_cannot_mend():
    with pytest.raises(KeyError, match="the entry 'obs' is missing"):
        make().project(TensorDict({}, [5]))
    with pytest.raises(ValueError, match=r"expected batch size \(5,\)"):
        make().project(TensorDict({}, []))
    with pytest.raises(TypeError, match="expected a dictionary or a tensordict"):
        make().project(torch.zeros(5))


def test_encode_takes_nested_dictionaries():
    spec = Composite(action=OneHot(3), text=NonTensor(()), next=Composite(obs=Unbounded((3,))))
    found = spec.encode({"action": 1, "text": None, "next": {"obs": [1, 2, 3]}})
    assert found["action"].tolist() == [False, True, False]
    assert found["next", "obs"].tolist() == [1, 2, 3]
    assert spec.is_in(found)


def test_encode_keeps_leading_dimensions():
    spec = Composite(obs=Unbounded((5, 3)), shape=(5,))
    assert spec.encode({"obs": torch.zeros(7, 5, 3).numpy()}).batch_size == (7, 5)
    assert spec.encode(TensorDict(obs=torch.zeros(5, 3), batch_size=[5])).batch_size == (5,)
    assert spec.encode({}).batch_size == (5,)


def test_encode_names_the_entry_that_does_not_fit():
    spec = Composite(a=Composite(obs=Unbounded((3,))), free=None)
    with pytest.raises(ValueError, match="entry 'a': entry 'obs': expected shape"):
        spec.encode({"a": {"obs": [1, 2]}})
    with pytest.raises(KeyError, match=r"no spec for the entry 'b': expected some of \['a'"):
        spec.encode({"b": 1})
    with pytest.raises(ValueError, match="is None: leave it out"):
        spec.encode({"a": None})
    with pytest.raises(TypeError, match="expected a dictionary"):
        spec.encode([1])
    assert spec.encode({"free": 3})["free"] == 3


def test_to_numpy_gives_nested_dictionaries():
    spec = Composite(action=OneHot(3), next=Composite(obs=Unbounded((3,))), free=None)
    value = spec.encode({"action": 2, "next": {"obs": [1, 2, 3]}, "free": 4})
    found = spec.to_numpy(value)
    assert (found["action"], found["free"], found["next"]["obs"].tolist()) == (2, 4, [1, 2, 3])
    with pytest.raises(KeyError, match="no spec for 'more'"):
        spec.to_numpy(value.set("more", torch.zeros(1)))


def test_type_check_checks_all_or_some():
    spec, sample = make(), make().rand().to(torch.float64)
    with pytest.raises(TypeError, match="for 'obs'"):
        spec.type_check(sample)
    with pytest.raises(TypeError, match="for 'reward'"):
        spec.type_check(sample, ["next"])
    spec.type_check(make().rand())
    spec.type_check(torch.zeros(5, 3), "obs")


def test_updates_write_into_a_tensordict():
    spec, value = make(), TensorDict({}, [5])
    assert spec.zeros_update(value) is value
    assert value["obs"].eq(0).all()
    assert spec.ones_update(value)["obs"].eq(1).all()
    assert spec.is_in(spec.rand_update(value))


def test_every_spec_begins_with_the_shape():
    with pytest.raises(ValueError, match=r"'obs' must begin with \(5,\): got \(3,\)"):
        Composite(obs=Unbounded((3,)), shape=(5,))
    assert Composite(obs=Unbounded((5,)), batch_size=[5]).batch_size == (5,)
    with pytest.raises(TypeError, match="not both"):
        Composite(shape=(5,), batch_size=(5,))


def test_nested_specs_are_lifted_on_a_copy():
    inner = Composite(obs=Unbounded((5, 3)))
    spec = Composite(inner=inner, text=NonTensor(()), shape=(5,))
    assert spec["inner"].shape == spec["text"].shape == (5,)
    assert inner.shape == ()


def test_the_shape_can_be_set():
    spec = Composite(obs=Unbounded((5, 3)), inner=Composite(x=Unbounded((5, 7))))
    spec.shape = (5,)
    assert spec["inner"].shape == spec.rand().batch_size == (5,)
    with pytest.raises(ValueError, match="must begin with"):
        spec.batch_size = (5, 3)


def test_specs_without_a_device_get_ours_and_others_are_refused():
    assert Composite(text=NonTensor(()), device="cpu")["text"].device == torch.device("cpu")
    with pytest.raises(ValueError, match=r"is on meta, this one on cpu: pass spec.to\('cpu'\)"):
        Composite(obs=Unbounded((3,), device="meta"), device="cpu")


def test_moving_reaches_every_leaf():
    spec = make().to("meta")
    assert spec.device.type == spec["next", "reward"].device.type == "meta"
    assert make().to(torch.float64)["next", "reward"].dtype == torch.float64
    assert spec.clear_device_().device is None
    assert spec.to(None) is spec


def test_views_act_on_the_batch_dimensions_only():
    spec = make()
    assert spec.expand(7, 5)["next", "reward"].shape == (7, 5, 1)
    assert spec.unsqueeze(-1)["obs"].shape == (5, 1, 3)
    assert spec[..., 0]["obs"].shape == (3,)
    assert len(spec.unbind()) == 5
    assert spec.make_neg_dim(0).is_in(spec.rand((9,)))


def test_making_a_dimension_dynamic_leaves_other_specs_alone():
    leaf = Unbounded((5, 3))
    spec = Composite(obs=leaf, shape=(5,)).make_neg_dim(0)
    assert spec["obs"].shape == (-1, 3)
    assert leaf.shape == (5, 3)


def test_enumerate_lists_all_combinations_of_a_row():
    spec = Composite(a=Categorical(2, (5,)), b=OneHot(3, (5, 3)), shape=(5,))
    found = spec.enumerate()
    assert found.batch_size == (6, 5)
    assert spec.cardinality() == 6
    pairs = set(
        zip(found["a"][:, 4].tolist(), found["b"][:, 4].int().argmax(-1).tolist(), strict=True)
    )
    assert len(pairs) == 6
    assert Composite(shape=(5,)).enumerate().batch_size == (1, 5)


def test_index_is_for_leaves():
    with pytest.raises(NotImplementedError, match="index with one leaf"):
        make().index(0, torch.zeros(3))


def test_a_data_class_makes_and_demands_its_instances():
    spec = Composite(obs=Bounded(1, 2, (5, 3)), shape=(5,), data_cls=Step)
    assert isinstance(spec.rand(), Step)
    assert spec.is_in(spec.rand())
    assert not spec.is_in(spec.rand().to_tensordict())
    assert isinstance(spec.project(spec.zero()), Step)
    assert isinstance(spec.encode({"obs": torch.ones(5, 3)}), Step)
    assert "data_cls=Step" in repr(spec)
    with pytest.raises(AssertionError, match="expected a Step, got a TensorDict"):
        spec.assert_is_in(spec.rand().to_tensordict())


def test_arguments_are_checked():
    for args in ((3,), ({}, {})):
        with pytest.raises(TypeError, match="at most one dictionary of specs"):
            Composite(*args)
    assert Composite(make(), shape=(5,)) == make()


def test_empty_keeps_everything_but_the_specs():
    spec = Composite(obs=Unbounded((5,)), shape=(5,), device="cpu").empty()
    assert (spec.shape, spec.device.type, len(spec)) == ((5,), "cpu", 0)


def test_equality_compares_specs_and_not_their_order():
    one = Composite(a=Unbounded(), b=Categorical(3))
    assert one == Composite(b=Categorical(3), a=Unbounded())
    assert one != Composite(a=Unbounded())
    assert one != Composite(a=Unbounded(), b=Categorical(3), shape=()).to("cpu")
    assert one != {"a": Unbounded()}


def test_names_of_dimensions_count_where_composites_are_compared():
    def spec(**options):
        return Composite(a=Unbounded((3,)), shape=(3,), **options)

    assert spec(names=["time"]) == spec(names=["time"])
    assert spec(names=["time"]) != spec()
    assert spec(names=[None]) == spec()


def test_samples_are_ordinary_tensordicts():
    sample = Composite(obs=Unbounded((5, 3)), shape=(5,)).rand()
    sample["more"] = torch.zeros(5)
    assert sample[1:3].reshape(2, 1)["obs"].shape == (2, 1, 3)
    with pytest.raises(RuntimeError):
        sample["wrong"] = torch.zeros(3)
