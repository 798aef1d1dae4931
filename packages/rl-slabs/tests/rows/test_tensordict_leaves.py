import pytest
import torch
from tensordict import LazyStackedTensorDict, MemoryMappedTensor, TensorDict, tensorclass

from rl_slabs import Rows, RowSchema
from rl_slabs.rows.tensordict_leaves import TensordictReader

SCHEMA = RowSchema(
    {
        "a": (torch.float32, (3,)),
        ("next", "b"): (torch.bool, (1,)),
        ("next", "c"): (torch.int64, ()),
    }
)
PLAIN = TensordictReader(SCHEMA)


def batch(count=5, **changed):
    leaves = {
        "a": torch.rand(count, 3),
        "b": torch.rand(count, 1) < 0.5,
        "c": torch.arange(count),
    } | changed
    return TensorDict({"a": leaves.pop("a"), "next": leaves}, [count])


def test_leaves_are_the_callers_own_memory_by_key():
    data = batch()
    known = PLAIN.of(data, 1)
    assert known.keys() == {"a", ("next", "b"), ("next", "c")}
    for key, array in known.items():
        assert array.ctypes.data == data[key].data_ptr()
        assert array.shape == data[key].shape
    assert PLAIN.of(data[2], 0)["next", "c"] == 2


@pytest.mark.parametrize(
    "changed",
    [
        {"a": torch.ones(5, 4)},
        {"a": torch.ones(5, 3, dtype=torch.float64)},
        {"b": torch.ones(5, dtype=torch.bool)},
        {"d": torch.ones(5)},
        {"c": TensorDict({"d": torch.arange(5)}, [5])},
        {"a": torch.ones(5, 3, requires_grad=True)},
        {"a": torch.ones(5, 3, dtype=torch.complex64).conj().imag},  # negated when it is read
        {"a": torch.zeros(5, 3).to_sparse()},
    ],
)
def test_reader_leaves_other_rows_to_the_checked_path(changed):
    assert PLAIN.of(batch(**changed), 1) is None


def test_tensors_come_in_the_order_of_the_schema():
    data = batch().select(("next", "c"), ("next", "b"), "a")
    leaves = PLAIN.tensors(data, 1)
    assert [leaf.data_ptr() for leaf in leaves] == [data[key].data_ptr() for key in SCHEMA]
    assert len(PLAIN.tensors(data[2], 0)) == 3
    assert PLAIN.tensors(data, 0) is None
    assert PLAIN.tensors(batch(a=torch.ones(5, 3, requires_grad=True)), 1) is None


def test_other_types_and_numbers_of_dimensions_are_left_to_the_long_way(tmp_path):
    @tensorclass
    class Step:
        a: torch.Tensor

    data = batch()
    missing = data.exclude(("next", "c"))
    mapped = batch(a=MemoryMappedTensor.from_tensor(torch.ones(5, 3), filename=tmp_path / "a"))
    lazy = LazyStackedTensorDict(*data.unbind(0))
    several = data.reshape(5, 1)
    for other in (missing, mapped, lazy, several, Step(a=data["a"], batch_size=[5]), "rows", None):
        assert PLAIN.of(other, 1) is None
    assert PLAIN.of(data, 0) is None


def test_dtypes_that_numpy_lacks_are_left_to_the_long_way():
    schema = RowSchema({"a": (torch.bfloat16, (2,))})
    plain = TensordictReader(schema)
    assert plain.of(TensorDict({"a": torch.ones(5, 2, dtype=torch.bfloat16)}, [5]), 1) is None
    # the same bits under another name are no such leaf either
    assert plain.of(TensorDict({"a": torch.ones(5, 2, dtype=torch.int16)}, [5]), 1) is None


@pytest.mark.parametrize("count", [1, 5, 255, 256, 40_000])
def test_known_leaves_are_written_as_others_are(count):
    data = batch(count)
    ours, theirs = (Rows.zeros(SCHEMA, count + 7) for _ in range(2))
    ours.write(slice(3, 3 + count), PLAIN.of(data, 1))
    theirs.write(slice(3, 3 + count), data)
    assert torch.equal(ours.packed, theirs.packed)
    order = torch.randperm(count + 7)[:count]
    ours.write(order, PLAIN.of(data, 1))
    assert (ours.read(order) == data).all()
