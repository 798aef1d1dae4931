import torch
from tensordict import TensorDict

from rl_specs import Composite, Unbounded
from rl_transforms import RemoveEmptySpecs


def test_groups_without_entries_go_at_every_depth():
    entries = {"a": {"b": {"c": {}}, "d": torch.zeros(3)}, "e": {"f": {}}, "next": {"e": {}}}
    found = RemoveEmptySpecs()(TensorDict(entries, [3]))
    assert list(found.keys(True, True)) == [("a", "d")]
    assert list(found["a"].keys()) == ["d"]
    assert "e" not in found


def test_specs_lose_the_same_groups_and_the_input_stays():
    spec = Composite(a=Composite(b=Composite(), d=Unbounded((3,))), e=Composite(f=Composite()))
    found = RemoveEmptySpecs().transform_observation_spec(spec)
    assert list(found.keys()) == ["a"]
    assert list(found["a"].keys()) == ["d"]
    assert set(spec.keys()) == {"a", "e"}


def test_what_has_no_empty_group_stays_itself():
    batch = TensorDict({"a": {"b": torch.zeros(3)}}, [3])
    assert RemoveEmptySpecs()(batch) is batch
