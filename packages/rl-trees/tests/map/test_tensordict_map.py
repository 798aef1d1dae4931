from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_replay import LazyMemmapStorage, LazyTensorStorage, ListStorage
from rl_trees import HashToInt, QueryModule, RandomProjectionHash, SipHash, TensorDictMap


def keys_of(numbers):
    numbers = torch.tensor(numbers, dtype=torch.int64)
    return TensorDict({"s": torch.stack([numbers // 3, numbers % 3], -1)}, numbers.shape)


def values_of(numbers):
    numbers = torch.tensor(numbers, dtype=torch.float32)
    return TensorDict({"v": numbers, ("n", "w"): numbers[..., None]}, numbers.shape)


def map_of(max_size=100, **options):
    return TensorDictMap(
        query_module=QueryModule("s"), storage=LazyTensorStorage(max_size), **options
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=8), max_size=8), st.booleans())
def test_map_is_a_dict(loops, batches, adds):
    """What was written last counts, or, with `write_fn`, the sum of all that was written."""

    def total(new, old=None):
        return new if old is None else new + old

    map, expected, value = map_of(write_fn=total if adds else None), {}, 0.0
    for batch in batches:
        written = []
        for number in batch:
            value += 1.5
            written.append(value)
            expected[number] = value + (expected.get(number, 0.0) if adds else 0.0)
        map[keys_of(batch)] = values_of(written)
        assert len(map) == len(expected)
        every = [*range(13)]
        assert map.contains(keys_of(every)).tolist() == [n in expected for n in every]
        found = map[keys_of(list(expected))]
        assert found["v"].tolist() == list(expected.values())
        assert found["n", "w"].squeeze(-1).tolist() == list(expected.values())
    assert map.keys().get("s", torch.zeros(0, 2)).tolist() == [[n // 3, n % 3] for n in expected]


def test_new_map_holds_no_key(loops):
    wide = TensorDict({"s": torch.arange(6).reshape(2, 3)}, [2])
    assert not map_of().contains(wide).any()


@pytest.mark.parametrize("hash_module", [lambda x: torch.zeros(len(x), dtype=torch.int64), None])
def test_collisions_cost_time_and_never_truth(loops, hash_module):
    map = TensorDictMap(
        query_module=QueryModule("s", hash_module=hash_module), storage=LazyTensorStorage(500)
    )
    numbers = np.random.default_rng(0).permutation(300).tolist()
    map[keys_of(numbers)] = values_of(numbers)
    assert map[keys_of([*range(300)])]["v"].tolist() == [*range(300)]
    assert not map.contains(keys_of([*range(300, 400)])).any()


def test_unknown_keys_are_errors_that_say_which():
    map = map_of()
    map[keys_of([1, 2])] = values_of([1, 2])
    with pytest.raises(KeyError, match=r"2 of 4 keys are unknown, the first at index \(0, 1\)"):
        map[keys_of([[1, 5], [2, 6]])]
    with pytest.raises(KeyError, match=r"1 of 1 keys are unknown, the first at index \(\)"):
        map[keys_of([7])[0]]


def test_get_fills_unknown_keys_from_the_default():
    map = map_of()
    with pytest.raises(KeyError):
        map.get(keys_of([3]))
    assert map.get(keys_of([3]), values_of(-1.0))["v"].tolist() == [-1.0]
    map[keys_of([1, 2])] = values_of([10, 20])
    default = values_of(-1.0)
    assert map.get(keys_of([2, 3, 1]), default)["v"].tolist() == [20, -1, 10]
    assert map.get(keys_of([2, 1]))["v"].tolist() == [20, 10]
    assert default["v"] == -1


@pytest.mark.parametrize(
    ("default", "message"),
    [
        (values_of([1, 2, 3]), r"default has the batch size \[3\]: expected \[\].* or \[2\]"),
        (
            TensorDict({"v": torch.zeros(2), ("n", "w"): torch.zeros(1)}),
            r"default has 'v' of torch.float32 \[2\], and values of torch.float32 \[\]: cast",
        ),
        (
            TensorDict({"v": torch.zeros(2), ("n", "w"): torch.zeros(2, 3)}, [2]),
            r"default has \('n', 'w'\) of torch.float32 \[3\], and values of torch.float32 \[1\]",
        ),
        (
            TensorDict({"v": torch.tensor(0), ("n", "w"): torch.zeros(1)}),
            r"default has 'v' of torch.int64 \[\], and values of torch.float32 \[\]",
        ),
    ],
)
def test_defaults_of_another_shape_or_dtype_are_named(default, message):
    map = map_of()
    map[keys_of([1, 2])] = values_of([10, 20])
    with pytest.raises(ValueError, match=message):
        map.get(keys_of([1, 9]), default)


@pytest.mark.parametrize("missing", ["z", ("n", "z"), ("v", "z")])
def test_values_without_what_is_stored_are_named(missing):
    map = map_of(out_keys=["v", missing])
    with pytest.raises(KeyError, match=r"out_keys names .*z.*, and value has \('n', 'w'\), v"):
        map[keys_of([1])] = values_of([1])
    assert len(map) == 0


def test_any_batch_shape_and_single_keys():
    map = map_of()
    map[keys_of([[1, 2, 3], [4, 5, 6]])] = values_of([[1, 2, 3], [4, 5, 6]])
    assert map[keys_of([[6], [1]])]["v"].tolist() == [[6], [1]]
    map[keys_of([9])[0]] = values_of([9])[0]
    assert map[keys_of([9])[0]]["v"] == 9
    assert map[keys_of([9])[0]].batch_size == ()
    assert keys_of([9, 1]) in map
    assert keys_of([9, 10]) not in map
    assert map.index(keys_of([2, 9, 11])).tolist() == [1, 6, -1]


def test_inputs_are_not_changed_unless_the_index_is_asked_for():
    keys, values = keys_of([1, 2]), values_of([1, 2])
    map_of()[keys] = values
    assert list(keys.keys()) == ["s"]
    assert set(values.keys()) == {"v", "n"}
    map_of(write_index=True)[keys] = values
    assert keys["_index"].tolist() == [0, 1]
    assert keys["_hash"].shape == (2,)


def test_out_keys_are_all_that_is_stored():
    map = TensorDictMap.from_tensordict_pair(keys_of([1]), values_of([1]), ["s"], ["v"])
    map[keys_of([1])] = values_of([1])
    assert list(map[keys_of([1])].keys(True, True)) == ["v"]
    with pytest.raises(KeyError, match=r"out_keys names 'z', and dest has \('n', 'w'\), v"):
        TensorDictMap.from_tensordict_pair(keys_of([1]), values_of([1]), ["s"], ["z"])


def test_a_pair_fixes_dtypes_and_widths_of_keys():
    map = TensorDictMap.from_tensordict_pair(
        keys_of([1]), values_of([1]), ["s"], hash_module=RandomProjectionHash()
    )
    with pytest.raises(ValueError, match=r"keys are 's' int64 \[2\], as the first ones were"):
        map[TensorDict({"s": torch.zeros(1, 3)}, [1])] = values_of([1])
    with pytest.raises(KeyError, match=r"'q' is missing. There are: s"):
        TensorDictMap.from_tensordict_pair(keys_of([1]), values_of([1]), ["q"])
    assert map.max_size == 1000
    assert len(map) == 0


def test_a_full_map_says_what_to_do_and_writes_nothing():
    map = map_of(max_size=3)
    map[keys_of([1, 2])] = values_of([1, 2])
    message = "2 of at most 3 keys are stored, and 2 of these 3 are new: give max_size=4"
    with pytest.raises(RuntimeError, match=message):
        map[keys_of([2, 3, 4])] = values_of([20, 30, 40])
    assert len(map) == 2
    assert map[keys_of([1, 2])]["v"].tolist() == [1, 2]
    map[keys_of([2, 3])] = values_of([20, 30])
    assert map[keys_of([1, 2, 3])]["v"].tolist() == [1, 20, 30]


def test_values_that_are_refused_leave_no_keys():
    map = map_of()
    map[keys_of([1])] = values_of([1])
    with pytest.raises(KeyError):
        map[keys_of([2, 3])] = values_of([2, 3]).exclude("v")
    with pytest.raises(ValueError, match=r"keys have the batch size \[2\] and values \[1\]"):
        map[keys_of([2, 3])] = values_of([2])
    assert len(map) == 1
    assert not map.contains(keys_of([2, 3])).any()
    map[keys_of([3])] = values_of([3])
    assert map[keys_of([3, 1])]["v"].tolist() == [3, 1]


def test_any_storage_and_collate_function():
    map = TensorDictMap(
        query_module=QueryModule("s"), storage=ListStorage(5), collate_fn=lambda rows: len(rows)
    )
    map[keys_of([1, 2])] = values_of([1, 2])
    assert map[keys_of([2, 1, 1])] == 3


def test_map_without_keys_is_empty_after_clear():
    map = map_of()
    assert map.keys().shape == (0,)
    assert len(map) == 0
    map[keys_of([1, 2])] = values_of([1, 2])
    map.clear()
    assert len(map) == 0
    assert not map.contains(keys_of([1])).any()
    map[keys_of([2])] = values_of([5])
    assert map[keys_of([2])]["v"].tolist() == [5]


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage])
def test_a_dump_restores_keys_and_values_bit_for_bit(tmp_path, storage):
    first, second = (
        TensorDictMap(
            query_module=QueryModule(["x", ("n", "b")]),
            storage=storage(40),
        )
        for _ in range(2)
    )
    keys = TensorDict(
        {"x": torch.randn(20, 3).to(torch.bfloat16), ("n", "b"): torch.rand(20) > 0.5}, [20]
    )
    keys["x"][3, 1], keys["x"][4, 0] = torch.nan, -0.0
    values = TensorDict({"y": torch.randn(20, 2), "k": torch.arange(20)}, [20])
    first[keys] = values
    first.dumps(tmp_path / "map")
    second.loads(tmp_path / "map")
    assert torch.equal(second.keys()["x"].view(torch.int16), keys["x"].view(torch.int16))
    assert torch.equal(second[keys]["y"], values["y"])
    assert len(second) == 20
    assert second.index(keys).tolist() == [*range(20)]
    first[keys] = values.apply(lambda x: x + 1)
    first.dumps(tmp_path / "map")  # in place of the other one
    second.loads(tmp_path / "map")
    assert second[keys]["k"].tolist() == [*range(1, 21)]
    names = sorted(path.name.split("-")[0] for path in (tmp_path / "map").iterdir())
    assert names == ["data", "folder", "manifest.json"]


def test_an_empty_map_is_dumped_and_loaded(tmp_path):
    map_of().dumps(tmp_path)
    map = map_of()
    map[keys_of([1])] = values_of([1])
    map.loads(tmp_path)
    assert len(map) == 0


def test_dumps_that_do_not_fit_are_refused(tmp_path):
    map = map_of()
    map[keys_of([1, 2, 3])] = values_of([1, 2, 3])
    map.dumps(tmp_path)
    small = map_of(max_size=2)
    with pytest.raises(ValueError, match="holds 3 keys, and this map at most 2: make it"):
        small.loads(tmp_path)
    other = TensorDictMap(query_module=QueryModule("q"), storage=LazyTensorStorage(9))
    with pytest.raises(ValueError, match=r"holds keys of \['s'\], and this map is of \['q'\]"):
        other.loads(tmp_path)
    projected = TensorDictMap(
        query_module=QueryModule("s", hash_module=RandomProjectionHash()),
        storage=LazyTensorStorage(9),
    )
    with pytest.raises(ValueError, match="was written with other hashes"):
        projected.loads(tmp_path)
    with pytest.raises(FileNotFoundError, match="holds no dump"):
        map.loads(tmp_path / "elsewhere")


def test_a_map_without_hash_modules_loads_keys_that_were_hashed_in_another_way(tmp_path):
    """As a version with another hash wrote them."""
    other = TensorDictMap(
        query_module=QueryModule("s", hash_module=SipHash()), storage=LazyTensorStorage(9)
    )
    other[keys_of([1, 2, 3])] = values_of([1, 2, 3])
    other.dumps(tmp_path)
    map = map_of()
    map.loads(tmp_path)
    assert map[keys_of([3, 1])]["v"].tolist() == [3, 1]
    map[keys_of([2, 4])] = values_of([5, 6])
    assert map.index(keys_of([4, 2])).tolist() == [3, 1]


def test_maps_of_what_cannot_be_exact_are_refused():
    with pytest.raises(ValueError, match="two keys of one hash would be one key"):
        TensorDictMap(
            query_module=QueryModule("s", hash_to_int=HashToInt()), storage=LazyTensorStorage(3)
        )
    storage = LazyTensorStorage(3)
    storage.extend(values_of([1]))
    with pytest.raises(ValueError, match="storage holds 1 rows and the query module 0 keys"):
        TensorDictMap(query_module=QueryModule("s"), storage=storage)
    with pytest.raises(ValueError, match="storage has 2 dimensions, and a map needs one"):
        TensorDictMap(query_module=QueryModule("s"), storage=LazyTensorStorage(4, ndim=2))


def test_no_keys_at_all_are_a_batch_too():
    map = map_of()
    map[keys_of([1])] = values_of([1])
    map[keys_of([])] = values_of([])
    assert map[keys_of([])].batch_size == (0,)
    assert len(map) == 1


def test_a_write_function_that_fails_says_what_it_was_given():
    map = map_of(write_fn=lambda new, old=None: new if old is None else new + old)
    map[keys_of([1])] = values_of([1])
    with pytest.raises(KeyError) as failed:
        map[keys_of([1])] = TensorDict({"w": torch.ones(1)}, [1])
    assert "new values ['w'], old [" in failed.value.__notes__[0]
    assert map[keys_of([1])]["v"] == 1


def test_a_write_function_that_drops_rows_is_refused():
    map = map_of(write_fn=lambda new, old=None: new[:1])
    for numbers in ([1, 2, 3], [1, 2]):
        with pytest.raises(ValueError, match=r"write_fn: expected values of \d rows, .* got .*1"):
            map[keys_of(numbers)] = values_of(numbers)
        assert len(map) == len(map.storage) == 0
        map[keys_of([numbers[0]])] = values_of([1])
        map.clear()
    with pytest.raises(TypeError, match="write_fn's result: expected a tensordict, got None"):
        map_of(write_fn=lambda new: None)[keys_of([1])] = values_of([1])


def test_what_is_no_tensordict_is_named():
    map = map_of()
    map[keys_of([1])] = values_of([1])
    calls = [map.index, map.contains, map.get, map.__getitem__, map.__contains__]
    for call in calls:
        with pytest.raises(TypeError, match="keys: expected a tensordict, got 3"):
            call(3)
    with pytest.raises(TypeError, match=r"value: expected a tensordict, got 0\.5"):
        map[keys_of([1])] = 0.5
    with pytest.raises(KeyError, match=r"default has .*w.*, and values have .*v.*: give it"):
        map.get(keys_of([1, 9]), TensorDict({"w": torch.tensor(0.0)}))
    with pytest.raises(TypeError, match="default: expected a tensordict, got 0"):
        map.get(keys_of([7]), 0)


def test_parts_of_a_map_that_are_none_are_named():
    storage = LazyTensorStorage(3)
    with pytest.raises(TypeError, match="query_module: expected a QueryModule, got a Identity"):
        TensorDictMap(query_module=torch.nn.Identity(), storage=storage)
    with pytest.raises(TypeError, match=r"storage: expected a storage of rl_replay, got \{\}"):
        TensorDictMap(query_module=QueryModule("s"), storage={})
    with pytest.raises(TypeError, match="out_keys: expected a list of keys, got 'v'"):
        map_of(out_keys="v")


@pytest.mark.parametrize("adds", [True, False])
def test_new_keys_after_a_failed_write_have_their_own_values(tmp_path, adds):
    """A write that fails after its new values leaves them in the storage, without keys."""
    fails = True

    def refusing(new, old=None):
        if fails and old is not None:
            raise OSError("no more changes")
        return new

    map, other = (map_of(write_fn=refusing if adds else None) for _ in range(2))
    map[keys_of([0, 1])] = values_of([0.0, 1.0])
    if adds:
        with pytest.raises(OSError, match="no more changes"):
            map[keys_of([1, 2, 3, 4])] = values_of([9.0, 2.0, 3.0, 4.0])
    else:
        map.storage.extend(values_of([2.0, 3.0, 4.0]))  # as an interrupt leaves it
    fails = False
    assert len(map) == 2
    map.dumps(tmp_path)
    other.loads(tmp_path)
    for each in (map, other):
        each[keys_of([5, 6])] = values_of([5.0, 6.0])  # all of them new
        each[keys_of([7, 0, 8, 10])] = values_of([7.0, 0.5, 8.0, 10.0])
        assert each[keys_of([0, 1, 5, 6, 7, 8, 10])]["v"].tolist() == [0.5, 1, 5, 6, 7, 8, 10]
        assert not each.contains(keys_of([2, 3, 4])).any()


def test_a_load_that_fails_leaves_keys_and_values(tmp_path):
    map, large = map_of(max_size=6), map_of()
    map[keys_of([0, 1])] = values_of([0.0, 1.0])
    large[keys_of([0, 1, 2])] = values_of([5.0, 6.0, 7.0])
    large.storage.extend(values_of([8.0] * 5))  # more rows than the other storage holds
    large.dumps(tmp_path)
    with pytest.raises(ValueError, match="do not fit this storage of 6"):
        map.loads(tmp_path)
    assert map[keys_of([0, 1])]["v"].tolist() == [0, 1]
    map[keys_of([2])] = values_of([2.0])
    assert map[keys_of([0, 1, 2])]["v"].tolist() == [0, 1, 2]
