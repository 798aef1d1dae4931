import pytest
import torch

from rl_specs import Categorical, Composite, Unbounded


def tree():
    inner = Composite(reward=Unbounded((5, 1)), shape=(5,))
    return Composite(obs=Unbounded((5, 3)), next=inner, anything=None, shape=(5,))


def test_keys_list_one_level_or_all():
    spec = tree()
    assert list(spec.keys()) == ["obs", "next", "anything"] == list(spec)
    assert list(spec.keys(True)) == ["obs", "next", ("next", "reward"), "anything"]
    assert list(spec.keys(True, True)) == ["obs", ("next", "reward"), "anything"]
    assert list(spec.keys(leaves_only=True)) == ["obs", "anything"]
    assert len(spec) == 3


def test_items_and_values_go_with_the_keys():
    spec = tree()
    assert dict(spec.items(True, True))["next", "reward"] is spec["next"]["reward"]
    assert list(spec.values()) == [spec["obs"], spec["next"], None]


def test_is_leaf_decides_what_counts_as_a_leaf():
    assert list(tree().keys(True, True, is_leaf=lambda kind: kind is Composite)) == ["next"]


def test_static_parts_can_be_listed_whole():
    spec = Composite(a=Composite(b=Unbounded(), step_mdp_static=True), c=Unbounded())
    assert list(spec.keys(True, True)) == [("a", "b"), "c"]
    assert list(spec.keys(True, True, step_mdp_static_only=True)) == ["a", "c"]


def test_nested_keys_read_write_and_delete():
    spec = tree()
    spec["agents", "left", "action"] = Categorical(2, (5,))
    assert spec["agents", ("left", "action")].n == 2
    assert spec["agents"].shape == (5,)
    assert ("agents", "left") in spec
    del spec["agents", "left"]
    assert list(spec["agents"]) == []
    assert ("obs",) in spec
    assert 0 not in spec


def test_a_missing_key_is_named_with_what_there_is():
    spec = tree()
    with pytest.raises(KeyError, match=r"no spec for 'x': expected one of \['obs', 'next'"):
        spec["x"]
    with pytest.raises(KeyError, match=r"expected one of \['reward'\] under \('next',\)"):
        spec["next", "x"]
    for key in ("x", ("next", "x"), ("obs", "x")):
        with pytest.raises(KeyError, match="no spec for"):
            del spec[key]


def test_get_and_pop_take_defaults():
    spec = tree()
    assert spec.get("x") is None
    assert spec.get(("next", "x"), 3) == 3
    assert spec.pop("x", None) is None
    assert spec.pop(("next", "reward")).shape == (5, 1)
    assert spec["next"].is_empty()
    with pytest.raises(KeyError):
        spec.pop("x")


def test_set_refuses_what_does_not_belong():
    spec = tree()
    for name in ("shape", "device", "dtype", "space"):
        with pytest.raises(KeyError, match="choose another key"):
            spec[name] = Unbounded((5,))
    with pytest.raises(TypeError, match="a key must be a string"):
        spec[3] = Unbounded((5,))
    with pytest.raises(TypeError, match="expected a spec for 'x': got int"):
        spec["x"] = 3
    with pytest.raises(KeyError, match="'obs' holds a UnboundedContinuous, a leaf"):
        spec["obs", "x"] = Unbounded((5,))


def test_dictionaries_become_trees():
    spec = Composite({"a": {"b": Unbounded((5, 3))}}, shape=(5,))
    assert spec["a"].shape == (5,)
    spec["c"] = {"d": Unbounded((5,))}
    assert list(spec.keys(True, True)) == [("a", "b"), ("c", "d")]


def test_update_merges_nested_trees():
    spec = tree()
    found = spec.update({"next": {"done": Categorical(2, (5, 1))}, "obs": Unbounded((5, 7))})
    assert found is spec
    assert list(spec["next"]) == ["reward", "done"]
    assert spec["obs"].shape == (5, 7)


def test_update_moves_to_the_device():
    spec = Composite(device="meta")
    spec.update(Composite(obs=Unbounded((3,))))
    assert spec["obs"].device.type == "meta"


def test_separates_moves_specs_out():
    spec = tree()
    found = spec.separates("obs", ("next", "reward"), "x")
    assert list(found.keys(True, True)) == ["obs", ("next", "reward")]
    assert found.shape == (5,)
    assert list(spec.keys(True, True)) == ["anything"]
    assert spec.separates("x") is None


def test_is_empty_may_ignore_empty_trees():
    spec = Composite(a=Composite(b=Composite()))
    assert not spec.is_empty()
    assert spec.is_empty(recurse=True)
    assert Composite().is_empty()


def test_names_reach_nested_trees_and_samples():
    spec = tree()
    spec.names = ["batch"]
    assert spec["next"].names == ["batch"] == spec.rand()["next"].names
    assert spec.rand((7,)).names == [None, "batch"]
    with pytest.raises(ValueError, match="expected 1 names"):
        spec.names = ["a", "b"]


def test_names_are_not_given_to_the_specs_of_others():
    inner = Composite(shape=(5, 3))
    spec = Composite(inner=inner, shape=(5,), names=["batch"])
    assert spec["inner"].names == ["batch", None]
    assert inner.names == [None, None]


def test_refine_names_fills_in_what_has_none():
    spec = Composite(shape=(5, 3, 7))
    assert spec.refine_names("a", ..., "c").names == ["a", None, "c"]
    assert spec.refine_names(..., "b", None).names == ["a", "b", None]
    with pytest.raises(ValueError, match="cannot be refined"):
        spec.refine_names("x", None, None)


NAMED_VIEWS = {
    "row": (lambda s: s[0], ["time"]),
    "unsqueeze": (lambda s: s.unsqueeze(1), ["batch", None, "time"]),
    "squeeze": (lambda s: s.unsqueeze(0).squeeze(0), ["batch", "time"]),
    "expand": (lambda s: s.expand(7, 5, 3), [None, "batch", "time"]),
    "unbind": (lambda s: s.unbind(1)[0], ["batch"]),
    "flatten": (lambda s: s.flatten(), [None]),
    "unflatten": (lambda s: s.unflatten(0, (5, 1)), [None, None, None]),
    "index": (lambda s: s[:, None, 1:], ["batch", None, "time"]),
    "select": (lambda s: torch.index_select(s, 1, torch.tensor([0])), ["batch", "time"]),
}


@pytest.mark.parametrize("view", NAMED_VIEWS)
def test_names_follow_their_dimensions(view):
    make, names = NAMED_VIEWS[view]
    assert make(Composite(shape=(5, 3), names=["batch", "time"])).names == names
