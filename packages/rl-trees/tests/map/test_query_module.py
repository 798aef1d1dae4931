from __future__ import annotations

import re

import pytest
import torch
from tensordict import TensorDict

from rl_trees import HashToInt, QueryModule, RandomProjectionHash, SipHash


def keys_of(*pairs):
    first, second = zip(*pairs, strict=True)
    return TensorDict({"a": torch.tensor(first), ("b", "c"): torch.tensor(second)}, [len(pairs)])


class EqualHashes(torch.nn.Module):
    """The worst hash there is."""

    def forward(self, x):
        return torch.zeros(len(x), dtype=torch.int64)


@pytest.mark.parametrize("hash_module", [None, SipHash(), EqualHashes()])
def test_equal_rows_have_equal_numbers(loops, hash_module):
    query = QueryModule(["a", ("b", "c")], "i", hash_module=hash_module)
    assert query(keys_of((1, 2), (2, 1), (1, 2), (1, 1)))["i"].tolist() == [0, 1, 0, 2]
    assert query(keys_of((1, 1), (3, 3)), extend=True)["i"].tolist() == [2, 3]


def test_numbers_have_the_batch_shape_and_hashes_can_be_left_out():
    query = QueryModule("a")
    batch = TensorDict({"a": torch.arange(12).reshape(2, 3, 2)}, [2, 3])
    out = query(batch, clone=True)
    assert out["_index"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert out["_hash"].shape == (2, 3)
    assert list(batch.keys()) == ["a"]
    query(batch, write_hash=False)
    assert set(batch.keys()) == {"a", "_index"}


def test_hashes_of_entries_are_hashed_once_more():
    keys = keys_of((1, 2), (3, 4))
    expected = SipHash()(torch.stack([SipHash()(keys["a"]), SipHash()(keys["b", "c"])], -1))
    modules = [SipHash(), SipHash()]
    for query in (
        QueryModule(["a", ("b", "c")], hash_module=modules),
        QueryModule(["a", ("b", "c")], aggregator=SipHash()),
    ):
        assert torch.equal(query(keys, clone=True)["_hash"], expected)


def test_unknown_keys_are_an_error_without_extend():
    query = QueryModule(["a"])
    query(TensorDict({"a": torch.arange(3)}, [3]))
    with pytest.raises(KeyError, match=r"1 of 4 keys are unknown, the first at index \(1, 0\)"):
        query(TensorDict({"a": torch.tensor([[0, 1], [7, 2]])}, [2, 2]), extend=False)


def test_numbers_of_hashes_alone_merge_keys_of_one_hash():
    query = QueryModule(["a"], hash_module=EqualHashes(), hash_to_int=HashToInt())
    assert query(TensorDict({"a": torch.arange(3)}, [3]))["_index"].tolist() == [0, 0, 0]
    assert not query.compares_keys


def test_bytes_decide_unless_keys_are_canonical():
    rows = TensorDict({"a": torch.tensor([0.0, -0.0, torch.nan, -torch.nan])}, [4])
    assert QueryModule("a")(rows, clone=True)["_index"].tolist() == [0, 1, 2, 3]
    assert QueryModule("a", canonical=True)(rows, clone=True)["_index"].tolist() == [0, 0, 1, 1]
    assert rows["a"].signbit().tolist() == [False, True, False, True]


def test_state_dict_restores_numbers_layout_and_directions():
    modules = (RandomProjectionHash(init_method=torch.nn.init.normal_), RandomProjectionHash())
    query, other = (QueryModule("a", hash_module=module) for module in modules)
    rows = TensorDict({"a": torch.randn(5, 20)}, [5])
    query(rows, clone=True)
    other.load_state_dict(query.state_dict())
    again = other(rows[[3, 0]], extend=False)
    assert again["_index"].tolist() == [3, 0]


def test_a_state_whose_keys_were_hashed_in_another_way_is_loaded():
    query, other = QueryModule("a"), QueryModule("a")
    rows = TensorDict({"a": torch.randn(5, 3)}, [5])
    query(rows, clone=True)
    state = query.state_dict()
    state["_extra_state"]["hashes"] += 1
    other.load_state_dict(state)
    assert other(rows[[3, 0]], extend=False)["_index"].tolist() == [3, 0]


def test_names_and_modules_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="in_keys is empty"):
        QueryModule([])
    with pytest.raises(ValueError, match="1 hash modules were given for 2 entries"):
        QueryModule(["a", "b"], hash_module=[SipHash()])
    with pytest.raises(KeyError, match=r"made of \['z'\], and 'z' is missing. There are: a"):
        QueryModule(["z"])(TensorDict({"a": torch.zeros(1)}, [1]))
    with pytest.raises(ValueError, match=r"hashes must be int64 \[2\], one for each row, got \[1"):
        QueryModule("a", hash_module=lambda x: x[:1])(TensorDict({"a": torch.arange(2)}, [2]))


@pytest.mark.parametrize(
    ("other", "given"),
    [
        (torch.zeros(2, 3, dtype=torch.float64), "'a' float64 [3]"),
        (torch.zeros(2, 4), "'a' float32 [4]"),
    ],
)
def test_keys_of_another_dtype_or_width_are_refused(other, given):
    query = QueryModule("a")
    query(TensorDict({"a": torch.zeros(2, 3)}, [2]))
    expected = f"keys are 'a' float32 [3], as the first ones were, got {given}: cast or reshape"
    with pytest.raises(ValueError, match=re.escape(expected)):
        query(TensorDict({"a": other}, [2]))
