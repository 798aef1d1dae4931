"""Rows in memory: chosen, read, gathered and written."""

import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import LazyStackedTensorDict, TensorDict, tensorclass

from rl_slabs import Rows, RowSchema
from rl_slabs.dtypes import CARRIERS, carrier
from rl_slabs.rows.rows import PARALLEL_ITEMS, take_known_rows, take_rows

DTYPES = sorted(set(CARRIERS) - {torch.complex32}, key=str)  # torch warns whenever it makes one
SHAPES = [(), (1,), (3,), (2, 5)]
MIXED = RowSchema(
    {str(dtype): (dtype, SHAPES[number % 4]) for number, dtype in enumerate(DTYPES)}
    | {("next", "frame"): (torch.uint8, (7, 41)), ("next", "hidden"): (torch.float32, (2, 3, 13))}
)


def noise(*batch, schema=MIXED):
    """Random bits in every leaf: NaN, -0.0 and denormals among the floats."""
    leaves = {}
    for field in schema.fields:
        shape = (*batch, *field.shape)
        if field.dtype is torch.bool:
            leaves[field.key] = torch.rand(shape) < 0.5
        else:
            count = torch.Size(shape).numel() * field.dtype.itemsize
            bits = torch.randint(256, (count,), dtype=torch.uint8)
            leaves[field.key] = bits.view(field.dtype).view(shape)
    found = TensorDict({}, batch_size=batch)
    for key, leaf in leaves.items():
        found[key] = leaf
    return found


def assert_same_bits(found, expected):
    assert found.batch_size == expected.batch_size
    keys = set(expected.keys(True, True))
    assert set(found.keys(True, True)) == keys
    for key in keys:
        assert found[key].dtype is expected[key].dtype
        assert found[key].shape == expected[key].shape
        plain = carrier(expected[key].dtype)
        one, two = (t[key].contiguous().view(plain).numpy().tobytes() for t in (found, expected))
        assert one == two, key


@pytest.mark.parametrize("count", [4, PARALLEL_ITEMS // (MIXED.row_bytes // 8) + 1])
def test_a_block_holds_rows_of_several_memories_in_order(count):
    memories, indices = [Rows.zeros(MIXED, 9) for _ in range(2)], [torch.tensor([7, 0, 3])]
    indices.append(torch.randint(9, (count,)))
    for rows in memories:
        rows.write(slice(0, 9), noise(9))
    block, start = memories[0].block(3 + count), 0
    for rows, index in zip(memories, indices, strict=True):
        rows.gather_into(index, block, start)
        start += len(index)
    parts = [rows.read(index) for rows, index in zip(memories, indices, strict=True)]
    for place, part in zip((slice(0, 3), slice(3, None)), parts, strict=True):
        assert_same_bits(block.tensordict(torch.Size([3 + count]))[place], part)


def test_new_rows_are_zero_in_every_byte():
    rows = Rows.zeros(MIXED, 4)
    assert not rows.packed.any()
    assert not any(array.view(torch.uint8).any() for array in rows.arrays.values())


def test_a_bool_of_zeroed_memory_is_false_and_its_inverse_true():
    flag = Rows.zeros(RowSchema({"done": (torch.bool, (1,))}), 3).read(slice(0, 3))["done"]
    assert not flag.any()
    assert (~flag).all()
    assert flag.sum() == 0


@pytest.mark.parametrize(
    "place",
    [
        3,
        slice(2, 6),
        slice(1, 9, 3),
        torch.tensor([7, 0, 3]),
        torch.tensor([[7, 0, 3], [1, 2, 8]]),
        np.array([5, 4], dtype=np.int32),
        torch.tensor([], dtype=torch.int64),
    ],
    ids=str,
)
def test_rows_come_back_bit_for_bit(place):
    rows = Rows.zeros(MIXED, 9)
    shape = rows.read(place).batch_size
    steps = noise(*shape)
    rows.write(place, steps)
    assert_same_bits(rows.read(place), steps)
    assert_same_bits(rows.read(place, contiguous=True), steps)


def test_a_row_by_a_tensor_without_dimensions_is_the_row_by_its_number():
    rows = Rows.zeros(MIXED, 9)
    rows.write(slice(0, 9), noise(9))
    assert_same_bits(rows.read(torch.tensor(4)), rows.read(4))
    assert_same_bits(rows.read(torch.tensor(4), contiguous=True), rows.read(4))


def test_many_rows_come_back_bit_for_bit():
    rows = Rows.zeros(MIXED, 700)
    steps = noise(700)
    rows.write(slice(0, 300), steps[:300])
    rows.write(torch.arange(699, 299, -1), steps[300:])
    assert_same_bits(rows.read(slice(0, 300)), steps[:300])
    assert_same_bits(rows.read(torch.arange(699, 299, -1)), steps[300:])


def test_rows_beyond_one_block_are_written_whole():
    for count, width in ((9_001, 7), (700, 270)):  # blocks of many and of few rows, and a rest
        schema = RowSchema({f"a{n}": (torch.int32, (width // 10 + 1,)) for n in range(10)})
        rows, steps = Rows.zeros(schema, count + 5), noise(count, schema=schema)
        rows.write(slice(3, count + 3), steps)
        assert_same_bits(rows.read(slice(3, count + 3)), steps)
        assert not rows.packed[:3].any()
        assert not rows.packed[count + 3 :].any()


def test_rows_that_are_known_to_be_there_are_read_alike():
    small = RowSchema({"a": (torch.float32, (3,)), ("next", "done"): (torch.bool, (1,))})
    for schema in (MIXED, small, RowSchema({"frame": (torch.uint8, (7, 41))})):
        rows, index = Rows.zeros(schema, 9), torch.tensor([7, 0, 3, 7])
        rows.write(slice(0, 9), noise(9, schema=schema))
        assert_same_bits(rows.gather(index), rows.read(index))


@pytest.mark.parametrize("place", [slice(2, 7), torch.tensor([8, 0, 3, 4, 1])], ids=str)
def test_leaves_that_are_known_to_fit_are_written_alike(place):
    rows, other, steps = Rows.zeros(MIXED, 9), Rows.zeros(MIXED, 9), noise(5)
    rows.put(place, [steps[field.key] for field in MIXED.fields])
    other.write(place, steps)
    assert_same_bits(rows.read(slice(0, 9)), other.read(slice(0, 9)))


def test_strided_and_expanded_sources_are_written():
    rows = Rows.zeros(MIXED, 300)
    steps = noise(300)
    rows.write(slice(0, 300), steps)
    rows.write(slice(0, 300), rows.read(torch.arange(299, -1, -1)))
    assert_same_bits(rows.read(torch.arange(299, -1, -1)), steps)
    rows.write(slice(0, 300), steps[5].expand(300))
    assert_same_bits(rows.read(299), steps[5])


@given(st.data())
def test_other_rows_stay_as_they_were(data):
    rows, steps = Rows.zeros(MIXED, 11), noise(11)
    rows.write(slice(0, 11), steps)
    places = data.draw(st.lists(st.integers(0, 10), unique=True, max_size=11))
    index = torch.tensor(places, dtype=torch.int64)
    new = noise(len(places))
    rows.write(index, new)
    expected = steps.clone()
    for place, row in zip(places, new.unbind(0), strict=True):
        expected[place] = row
    assert_same_bits(rows.read(slice(0, 11)), expected)


def test_reading_copies():
    rows = Rows.zeros(MIXED, 4)
    for place in (2, slice(0, 4), torch.tensor([2])):
        for leaf in rows.read(place).values(True, True):
            leaf.view(carrier(leaf.dtype)).fill_(1)
    assert not rows.packed.any()
    assert not any(array.view(torch.uint8).any() for array in rows.arrays.values())


def test_a_read_of_rows_keeps_its_leaves_apart_in_autograd():
    rows = Rows.zeros(RowSchema({"a": (torch.float32, (3,)), "b": (torch.float32, (1,))}), 4)
    found = rows.read(torch.tensor([1, 2]))
    layer = torch.nn.Linear(3, 1)
    loss = layer(found["a"]).square().sum()
    found["b"].mul_(2)
    loss.backward()
    assert layer.weight.grad is not None


def test_keys_can_be_read_alone():
    rows, steps = Rows.zeros(MIXED, 5), noise(5)
    rows.write(slice(0, 5), steps)
    keys = [("next", "frame"), "torch.float64"]
    assert_same_bits(rows.read(torch.tensor([4, 1]), keys=keys), steps.select(*keys)[[4, 1]])
    assert_same_bits(rows.read(slice(1, 3), keys=["next"]), steps.select("next")[1:3])


def test_keys_can_be_written_alone():
    rows, steps, new = Rows.zeros(MIXED, 5), noise(5), noise(5)
    rows.write(slice(0, 5), steps)
    rows.write(slice(0, 5), new, keys=[("next", "hidden")])
    steps["next", "hidden"] = new["next", "hidden"]
    assert_same_bits(rows.read(slice(0, 5)), steps)


def test_the_source_is_not_changed():
    rows, steps = Rows.zeros(MIXED, 5), noise(5)
    before = steps.clone()
    rows.write(slice(0, 5), steps)
    rows.view().zero_()
    assert_same_bits(steps, before)


def test_a_refused_write_changes_nothing():
    rows, steps = Rows.zeros(MIXED, 5), noise(5)
    rows.write(slice(0, 5), steps)
    bad = noise(5)
    bad["next", "hidden"] = bad["next", "hidden"].double()
    with pytest.raises(TypeError, match="hidden"):
        rows.write(slice(0, 5), bad)
    with pytest.raises(ValueError, match=r"must be in \[0, 5\), got -1 to 3"):
        rows.write(torch.tensor([3, -1]), noise(2))
    assert_same_bits(rows.read(slice(0, 5)), steps)


@pytest.mark.parametrize("place", [torch.tensor([0, 5]), torch.tensor([-1]), 5, slice(3, 6)])
def test_reading_out_of_range_is_refused(place):
    with pytest.raises(ValueError, match=r"in \[0, 5"):
        Rows.zeros(MIXED, 5).read(place)


def test_unknown_and_empty_keys_are_refused():
    rows = Rows.zeros(MIXED, 5)
    with pytest.raises(KeyError, match=r"no leaf \('reward',\)"):
        rows.read(0, keys=["reward"])
    with pytest.raises(ValueError, match="keys is empty"):
        rows.read(0, keys=[])


def test_views_and_columns_are_live():
    rows = Rows.zeros(MIXED, 5)
    rows.view()["next", "frame"][3] = 7
    rows.columns()["torch.float64"][3] = 2.5
    rows.columns()["torch.bfloat16"][3] = np.array(16256, dtype=np.int16)  # the bits of 1
    found = rows.read(3)
    assert found["next", "frame"].eq(7).all()
    assert found["torch.float64"].eq(2.5).all()
    assert found["torch.bfloat16"].eq(1).all()


def test_rows_over_given_memory_use_only_what_they_say():
    size = Rows.bytes_for(MIXED, 6)
    memory = np.zeros(size + 64, dtype=np.uint8)
    rows, steps = Rows.over(MIXED, 6, memory), noise(6)
    rows.write(slice(0, 6), steps)
    assert_same_bits(rows.read(slice(0, 6)), steps)
    assert not memory[size:].any()


def test_a_schema_of_large_leaves_only_has_no_packed_rows():
    schema = RowSchema({"frame": (torch.uint8, (300,)), "other": (torch.int16, (200,))})
    rows, steps = Rows.zeros(schema, 4), noise(3, schema=schema)
    assert rows.packed is None
    rows.write(slice(0, 3), steps)
    for place in (slice(0, 3), torch.arange(3), torch.arange(3).view(1, 3, 1)):
        assert rows.read(place)["frame"].flatten(0, -2).equal(steps["frame"])
    assert rows.read(2).batch_size == ()


def test_lazy_stacks_and_tensorclasses_are_written():
    @tensorclass
    class Step:
        a: torch.Tensor
        b: torch.Tensor

    steps = Step(a=torch.rand(5, 3), b=torch.ones(5, 1, dtype=torch.bool), batch_size=[5])
    lazy = LazyStackedTensorDict(*[steps[row].to_tensordict() for row in range(5)])
    schema = RowSchema.from_tensordict(steps)
    assert RowSchema.from_tensordict(lazy) == schema
    for source in (steps, lazy):
        rows = Rows.zeros(schema, 5)
        rows.write(slice(0, 5), source)
        assert_same_bits(rows.read(slice(0, 5)), steps.to_tensordict())


def test_rows_of_count_zero_are_refused():
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        Rows.zeros(MIXED, 0)
    with pytest.raises(TypeError, match="count must be an integer, got float"):
        Rows.zeros(MIXED, 2.0)


@pytest.mark.gpu
def test_rows_on_a_device_behave_like_those_on_the_cpu():
    here, there, steps = Rows.zeros(MIXED, 9), Rows.zeros(MIXED, 9, device="cuda"), noise(9)
    index, new = torch.tensor([[7, 0, 3]]), noise(1, 3)
    for rows in (here, there):
        rows.write(slice(0, 9), steps)
        rows.write(index.to(rows.packed.device), new)
    assert_same_bits(there.read(index.cuda()).cpu(), here.read(index))
    assert_same_bits(there.read(slice(0, 9), device="cpu"), here.read(slice(0, 9)))
    assert_same_bits(here.read(4, device="cuda").cpu(), there.read(4).cpu())
    with pytest.raises(TypeError, match="on the CPU only"):
        there.columns()


@pytest.mark.parametrize("count", [5, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.bfloat16])
def test_rows_over_memory_with_gaps_are_written_where_they_lie(count, dtype):
    rooms = {
        "every second": torch.zeros(300, 8, dtype=dtype)[:, ::2],
        "transposed": torch.zeros(300, 4, 6, dtype=dtype).transpose(1, 2),
        "one": torch.zeros(300, 3, dtype=dtype)[:, 1:2],
        "apart": torch.zeros(300, 9, dtype=dtype)[:, 2:5],
    }
    schema = RowSchema(
        {name: (dtype, room.shape[1:]) for name, room in rooms.items()}, packed_bytes=0
    )
    rows = Rows(schema, None, {(field.key,): rooms[field.key] for field in schema.fields})
    batch = noise(count, schema=schema)
    rows.write(slice(0, count), batch)
    assert_same_bits(rows.read(slice(0, count)), batch)
    there = TensorDict({name: room[:count] for name, room in rooms.items()}, [count])
    assert_same_bits(there, batch)


@pytest.mark.parametrize("count", [5, 300, 40_000])
def test_a_batch_that_lies_in_any_way_is_written(count):
    schema = RowSchema(
        {
            "a": (torch.float32, (4,)),
            "b": (torch.bool, (1,)),
            "c": (torch.int16, ()),
            "d": (torch.int64, (2, 3)),
        }
    )
    wide = {
        "a": torch.rand(count, 8)[:, ::2],
        "b": (torch.rand(count, 3) < 0.5)[:, 1:2],
        "c": torch.randint(99, (2 * count,), dtype=torch.int16)[::2],
        "d": torch.randint(99, (count, 3, 2)).transpose(1, 2),
    }
    rows, batch = Rows.zeros(schema, count + 3), TensorDict(wide, [count])
    rows.write(slice(2, count + 2), batch)
    assert_same_bits(rows.read(slice(2, count + 2)), batch)
    assert not rows.packed[:2].any()
    assert not rows.packed[count + 2 :].any()


def test_an_interrupt_while_some_leaves_are_looked_up_leaves_no_half_of_it():
    rows = Rows.zeros(RowSchema({"a": (torch.float32, (2,)), "b": (torch.int64, ())}), 3)

    def interrupt(frame, event, argument):
        if frame.f_code.co_name == "attach":
            raise KeyboardInterrupt
        return interrupt

    cells = TensorDict({"a": torch.ones(3, 2)}, [3])
    former = sys.gettrace()
    sys.settrace(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            rows.write(slice(0, 3), cells, keys=["a"])
    finally:
        sys.settrace(former)
    rows.write(slice(0, 3), cells, keys=["a"])
    assert (rows.read(slice(0, 3))["a"] == 1).all()


WORDS = np.arange(70).reshape(10, 7)


@pytest.mark.parametrize("index", [3, slice(2, 9, 3), torch.tensor([9, 0, 9]), torch.arange(0)])
def test_rows_are_copied(index):
    found = take_rows(WORDS, index)
    expected = WORDS[index.numpy() if isinstance(index, torch.Tensor) else index]
    assert np.array_equal(found, expected)
    assert not np.shares_memory(found, WORDS)


@pytest.mark.parametrize("count", [1, 3, PARALLEL_ITEMS // 7 + 5])
@pytest.mark.parametrize("bad", [-1, -10, 10])
def test_a_row_out_of_range_is_refused_however_many_there_are(count, bad):
    index = torch.zeros(count, dtype=torch.int64)
    index[count // 2] = bad
    with pytest.raises(ValueError, match=rf"rows must be in \[0, 10\), got .*{bad}"):
        take_rows(WORDS, index)


def test_many_rows_are_those_that_few_are():
    places = np.random.default_rng(0).integers(0, 10, PARALLEL_ITEMS // 7 + 5)
    assert np.array_equal(take_known_rows(WORDS, places), WORDS.take(places, 0))
