from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rl_tensordict import build, build_flat, construction, insert


def source():
    return {"a": torch.zeros(3, 5), "next": {"b": torch.ones(3), "deep": {"c": torch.ones(3, 1)}}}


def entries():
    nested = TensorDict({"reward": torch.ones(5, 1)}, batch_size=[5])
    return {"observation": torch.zeros(5, 3), "next": nested}


@pytest.mark.parametrize("way", ["private", "public"])
def test_build_makes_what_the_public_constructor_makes(monkeypatch, way):
    if way == "public":
        monkeypatch.setattr(construction, "new_unsafe", None)
    made = build(source(), torch.Size([3]), ["time"], torch.device("cpu"))
    expected = TensorDict(source(), [3], names=["time"], device="cpu")
    assert (made == expected).all()
    assert made.names == ["time"]
    for group in (made, made["next"], made["next", "deep"]):
        assert group.batch_size == (3,)
        assert group.device == torch.device("cpu")


def test_build_takes_finished_groups_and_mappings():
    nested = build({"x": torch.ones(5, 3)}, torch.Size([5]))
    made = build({"obs": torch.zeros(5, 7), "nested": nested}, torch.Size([5]))
    assert made["nested"] is nested


def test_a_built_tensordict_can_be_changed_indexed_and_reshaped():
    made = build(source(), torch.Size([3]))
    assert isinstance(made, TensorDict)
    assert made[1:]["next", "deep", "c"].shape == (2, 1)
    assert made.reshape(3, 1)["a"].shape == (3, 1, 5)
    assert made.set("d", torch.zeros(3)).clone()["d"].shape == (3,)
    with pytest.raises(RuntimeError):
        made["wrong"] = torch.zeros(2)


@pytest.mark.parametrize("way", [build_flat, construction.build], ids=["attributes", "build"])
def test_build_flat_makes_what_the_public_constructor_makes(way):
    made, expected = way(entries(), torch.Size([5])), TensorDict(entries(), [5])
    assert (made == expected).all()
    assert made.batch_size == expected.batch_size
    assert (made.device, made.names, made.is_locked) == (None, [None], False)


@pytest.mark.parametrize("way", [build_flat, construction.build], ids=["attributes", "build"])
def test_build_flat_names_dimensions_as_the_public_constructor_does(way):
    made = way(entries(), torch.Size([5]), ["time"])
    assert made.names == ["time"]
    assert made[None, 1:].names == [None, "time"]


def test_a_flat_tensordict_can_be_changed_indexed_and_stacked():
    made = build_flat(entries(), torch.Size([5]))
    made["next", "done"] = torch.zeros(5, 1, dtype=torch.bool)
    assert torch.stack([made[1:4], made[:3]])["next", "done"].shape == (2, 3, 1)


@pytest.mark.parametrize("has_store", [True, False], ids=["store", "public"])
@pytest.mark.parametrize("key", [("new",), ("next", "b"), ("other", "deep", "new")])
def test_insert_writes_what_set_writes(monkeypatch, key, has_store):
    monkeypatch.setattr(construction, "HAS_STORE", has_store)
    fast, public = TensorDict(source(), [3]), TensorDict(source(), [3])
    value = torch.randn(3, 7)
    insert(fast, key, value)
    assert (fast == public.set(key, value)).all()
    assert fast[key] is value
    assert fast[key[:-1] or "next"].batch_size == (3,)
