from __future__ import annotations

import pytest
import torch
from tensordict import NonTensorData, TensorDict, lazy_stack

from rl_tensordict import (
    copied,
    device_of_data,
    entries,
    entries_of,
    find,
    lies_on,
    names_of,
    put,
    put_group,
    put_leaves,
    require,
)


def source():
    return {"a": torch.zeros(3, 5), "next": {"b": torch.ones(3), "deep": {"c": torch.ones(3, 1)}}}


@pytest.fixture(params=[True, False], ids=["store", "public"], autouse=True)
def way(monkeypatch, request):
    """Run each test with tensordict's own dictionary, and as if this version had none."""
    monkeypatch.setattr(entries, "HAS_STORE", request.param)


@pytest.mark.parametrize("kind", ["plain", "lazy", "locked", "view"])
def test_entries_are_found_as_get_finds_them(kind):
    plain = TensorDict({**source(), "word": NonTensorData("yes", [3])}, [3])
    batch = {
        "plain": plain,
        "lazy": lazy_stack([plain, plain.clone()]),
        "locked": plain.clone().lock_(),
        "view": plain._get_sub_tensordict(slice(0, 2)),  # private: no other makes one
    }[kind]
    for key in (("a",), ("next", "b"), ("next", "deep", "c"), ("next", "no"), ("no", "b"), ("no",)):
        found, expected = find(batch, key), batch.get(key, None)
        assert (found is None) == (expected is None)
        assert found is None or found.equal(expected)
    assert type(find(batch, ("next",))) is type(batch.get("next"))
    word = find(batch, ("word",))
    assert type(word) is type(batch.get("word"))


@pytest.mark.parametrize("key", [("a",), ("new",), ("next", "b"), ("other", "deep", "new")])
def test_entries_are_put_as_set_puts_them(key):
    fast, public = TensorDict(source(), [3]), TensorDict(source(), [3])
    value = torch.randn(3, 7)
    put(fast, key, value)
    assert (fast == public.set(key, value)).all()
    assert fast[key] is value


def test_put_refuses_tensors_as_set_does():
    batch = TensorDict(source(), [3])
    with pytest.raises(RuntimeError, match="batch dimension mismatch"):
        put(batch, ("a",), torch.zeros(2))
    with pytest.raises(RuntimeError, match="lock"):
        put(batch.clone().lock_(), ("next", "b"), torch.zeros(3))
    assert batch["a"].shape == (3, 5)


def test_a_tensor_is_put_on_the_device_of_its_group():
    batch = TensorDict(source(), [3], device="meta")
    put(batch, ("a",), torch.zeros(3))
    assert batch["a"].device.type == "meta"


@pytest.mark.parametrize("key", [("d",), ("next", "d"), ("more", "d"), ("more", "deep", "d")])
def test_compiled_code_takes_note_of_an_entry_that_was_missing_before(key):
    def call(batch):
        return batch["a"] + (1 if find(batch, key) is None else 2)

    compiled = torch.compile(call, backend="eager", fullgraph=True)
    batch = TensorDict(source(), [3])
    assert compiled(batch).eq(1).all()
    assert compiled(batch.clone().set(key, torch.zeros(3))).eq(2).all()
    assert compiled(batch).eq(1).all()


@pytest.mark.parametrize("listed", [entries_of, entries.listed_entries])
def test_entries_of_lists_one_level(listed):
    batch = TensorDict(source(), [3])
    assert listed(batch).keys() == {"a", "next"}
    assert listed(batch)["a"] is batch["a"]


@pytest.mark.parametrize("has_flag", [True, False])
def test_names_of_lists_names_only_where_there_are_some(monkeypatch, has_flag):
    monkeypatch.setattr(entries, "HAS_NAMES_FLAG", has_flag)
    plain = TensorDict({}, [3, 2])
    assert names_of(plain) is None
    assert names_of(lazy_stack([plain, plain.clone()])) is None
    assert names_of(TensorDict({}, [3, 2], names=[None, "time"])) == [None, "time"]


@pytest.mark.parametrize("key", ["no", ("next", "no"), ("a", "no")])
def test_require_lists_what_is_there(key):
    with pytest.raises(KeyError, match="is missing: there are a, "):
        require(TensorDict(source(), [3]), key)


def test_require_offers_leaves_of_that_name_elsewhere():
    steps = TensorDict(
        {"reward": torch.ones(3), "next": {"agents": {"reward": torch.ones(3)}}}, [3]
    )
    said = r"Did you mean 'reward' or \('next', 'agents', 'reward'\)\?"
    with pytest.raises(KeyError, match=said):
        require(steps, ("next", "reward"))


KINDS = {
    "plain": lambda: TensorDict(source(), [3]),
    "named": lambda: TensorDict(source(), [3], names=["time"]),
    "placed": lambda: TensorDict(source(), [3], device="cpu"),
    "objects": lambda: TensorDict({**source(), "word": NonTensorData("yes", [3])}, [3]),
    "lazy": lambda: lazy_stack([TensorDict(source(), [3]) for _ in range(2)]),
    "locked": lambda: TensorDict(source(), [3]).lock_(),
}


def test_a_compiled_copy_keeps_the_names_of_dimensions():
    torch.compiler.reset()
    copy = torch.compile(lambda batch: copied(batch).names, backend="eager", fullgraph=True)
    assert copy(TensorDict({"x": torch.zeros(2, 3)}, [2, 3], names=[None, "time"])) == [
        None,
        "time",
    ]
    assert copy(TensorDict({"x": torch.zeros(2, 3)}, [2, 3])) == [None, None]


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_copies_share_leaves_and_no_structure(make):
    batch = make()
    copy, public = copied(batch), batch.copy()
    assert type(copy) is type(public)
    assert (copy.batch_size, copy.device, copy.names) == (
        public.batch_size,
        public.device,
        public.names,
    )
    assert set(copy.keys(True)) == set(public.keys(True))
    assert not copy.is_locked
    copy["next", "deep", "more"] = torch.zeros(*batch.batch_size)
    copy["more"] = torch.zeros(*batch.batch_size)
    assert set(batch.keys(True)) == set(public.keys(True))
    if type(batch) is TensorDict:
        assert copy["next", "b"] is batch["next", "b"]


@pytest.mark.parametrize("kind", ["plain", "named", "placed", "objects"])
def test_groups_are_put_as_set_puts_them(kind):
    fast, public = KINDS[kind](), KINDS[kind]()
    group = TensorDict({"reward": torch.ones(3, 1)}, [3])
    put_group(fast, "group", group)
    public.set("group", group)
    for one in (fast, public):
        assert torch.equal(one["group", "reward"], group["reward"])
    assert fast["group"].names == public["group"].names
    assert fast["group"].device == public["group"].device


def test_put_group_refuses_a_locked_tensordict():
    with pytest.raises(RuntimeError, match="lock"):
        put_group(KINDS["locked"](), "group", TensorDict({}, [3]))


@pytest.mark.parametrize(
    ("read", "name"),
    [
        (lambda x: find(x, ("a",)), "batch"),
        (lambda x: require(x, "a"), "batch"),
        (copied, "tensordict"),
    ],
    ids=["find", "require", "copied"],
)
def test_what_is_no_tensordict_has_no_entries(read, name):
    with pytest.raises(TypeError, match=f"{name}: expected a tensordict, got a tensor"):
        read(torch.zeros(3))


@pytest.mark.parametrize("kind", ["plain", "there", "lazy", "device"])
def test_leaves_are_put_into_a_group_with_the_names_of_the_batch(kind):
    batch = TensorDict(source(), [3], names=["time"])
    if kind == "there":
        batch["more", "old"] = torch.zeros(3)
    elif kind == "lazy":
        batch = lazy_stack([TensorDict({"a": torch.zeros(5)}) for _ in range(3)])
    elif kind == "device":
        batch = TensorDict(source(), [3], names=["time"], device="cpu")
    row = torch.arange(3)
    put_leaves(batch, "more", {"row": row, "step": row + 1})
    assert torch.equal(batch["more", "row"], row)
    assert torch.equal(batch["more", "step"], row + 1)
    assert batch["more"].names == batch.names
    assert batch["more"].device == batch.device
    assert ("more", "old") in batch.keys(True) or kind != "there"
    with pytest.raises(RuntimeError, match="lock"):
        put_leaves(batch.lock_(), "others", {"row": row})


def test_where_leaves_lie_is_told_of_every_group():
    cpu, meta = torch.device("cpu"), torch.device("meta")
    batch = TensorDict(source(), [3])
    assert lies_on(batch, cpu)
    assert not lies_on(batch, meta)
    assert not lies_on(TensorDict(source(), [3], device="cpu"), cpu)
    batch["next", "deep", "c"] = torch.ones(3, 1, device=meta)
    assert not lies_on(batch, cpu)
    assert not lies_on(lazy_stack([batch]), cpu)


def test_the_device_of_data_is_the_named_one_or_that_of_the_first_tensor_or_the_cpu():
    there = torch.zeros(2, device="meta")
    assert device_of_data(TensorDict({}, [2], device="meta")).type == "meta"
    assert (
        device_of_data(TensorDict({"note": NonTensorData("x"), "a": {"b": there}})).type == "meta"
    )
    ragged = lazy_stack([TensorDict({"a": torch.zeros(n, device="meta")}) for n in (1, 2)])
    assert device_of_data(ragged).type == "meta"
    with torch.device("meta"):
        assert device_of_data(TensorDict({"empty": TensorDict()})).type == "cpu"
