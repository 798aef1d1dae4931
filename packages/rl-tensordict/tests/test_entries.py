from __future__ import annotations

import pytest
import torch
from tensordict import NonTensorData, TensorDict, lazy_stack

from rl_tensordict import entries


def source():
    return {"a": torch.zeros(3, 5), "next": {"b": torch.ones(3), "deep": {"c": torch.ones(3, 1)}}}


def test_the_fast_and_the_public_constructor_agree(monkeypatch):
    fast = entries.build(source(), torch.Size([3]), ["time"])
    monkeypatch.setattr(entries, "_unsafe", None)
    slow = entries.build(source(), torch.Size([3]), ["time"])
    assert fast.names == slow.names == ["time"]
    assert fast["next"].batch_size == slow["next"].batch_size == (3,)
    assert (fast == slow).all()


def test_the_result_behaves_as_any_tensordict():
    made = entries.build(source(), torch.Size([3]))
    assert isinstance(made, TensorDict)
    assert made[1:]["next", "deep", "c"].shape == (2, 1)
    assert made.reshape(3, 1)["a"].shape == (3, 1, 5)
    assert made.set("d", torch.zeros(3)).clone()["d"].shape == (3,)


@pytest.mark.parametrize("kind", ["plain", "lazy", "locked", "view"])
def test_entries_are_found_as_get_finds_them(kind):
    plain = TensorDict({**source(), "word": NonTensorData("yes", [3])}, [3])
    batch = {
        "plain": plain,
        "lazy": lazy_stack([plain, plain.clone()]),
        "locked": plain.clone().lock_(),
        "view": plain._get_sub_tensordict(slice(0, 2)),
    }[kind]
    for key in (("a",), ("next", "b"), ("next", "deep", "c"), ("next", "no"), ("no", "b"), ("no",)):
        found, expected = entries.find(batch, key), batch.get(key, None)
        assert (found is None) == (expected is None)
        assert found is None or found.equal(expected)
    assert type(entries.find(batch, ("next",))) is type(batch.get("next"))
    word = entries.find(batch, ("word",))
    assert type(word) is type(batch.get("word"))


@pytest.mark.parametrize("key", [("a",), ("new",), ("next", "b"), ("other", "deep", "new")])
def test_entries_are_put_as_set_puts_them(key):
    fast, public = TensorDict(source(), [3]), TensorDict(source(), [3])
    value = torch.randn(3, 7)
    entries.put(fast, key, value)
    assert (fast == public.set(key, value)).all()
    assert fast[key] is value


def test_what_does_not_fit_is_refused_as_set_refuses_it():
    batch = TensorDict(source(), [3])
    with pytest.raises(RuntimeError, match="batch dimension mismatch"):
        entries.put(batch, ("a",), torch.zeros(2))
    with pytest.raises(RuntimeError, match="lock"):
        entries.put(batch.clone().lock_(), ("next", "b"), torch.zeros(3))
    assert batch["a"].shape == (3, 5)


def test_a_tensor_is_put_on_the_device_of_its_group():
    batch = TensorDict(source(), [3], device="meta")
    entries.put(batch, ("a",), torch.zeros(3))
    assert batch["a"].device.type == "meta"


@pytest.mark.parametrize("key", [("d",), ("next", "d"), ("more", "d")])
def test_compiled_code_takes_note_of_an_entry_that_was_missing_before(key):
    def call(batch):
        return batch["a"] + (1 if entries.find(batch, key) is None else 2)

    compiled = torch.compile(call, backend="eager", fullgraph=True)
    batch = TensorDict(source(), [3])
    assert compiled(batch).eq(1).all()
    assert compiled(batch.clone().set(key, torch.zeros(3))).eq(2).all()
    assert compiled(batch).eq(1).all()
