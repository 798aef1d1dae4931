import json
import pickle

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_slabs import Rows, RowSchema, Slab
from rl_slabs.dtypes import CARRIERS


def steps():
    return TensorDict(
        {
            "observation": torch.zeros(5, 3, 8),
            "collector": {"traj_ids": torch.zeros(5, 3, dtype=torch.int64)},
            "next": {"done": torch.zeros(5, 3, 1, dtype=torch.bool)},
            "frame": torch.zeros(5, 3, 65, dtype=torch.float32),
        },
        batch_size=[5, 3],
    )


def test_batch_dimensions_are_dropped():
    schema = RowSchema.from_tensordict(steps())
    assert schema["observation"].shape == (8,)
    assert schema["collector", "traj_ids"].shape == ()


def test_fields_lie_by_falling_item_size_and_the_row_is_padded_to_eight():
    schema = RowSchema.from_tensordict(steps())
    assert [(field.key, field.offset) for field in schema.packed] == [
        (("collector", "traj_ids"), 0),
        ("observation", 8),
        (("next", "done"), 40),
    ]
    assert schema.row_bytes == 48


def test_a_leaf_of_more_than_256_bytes_has_its_own_array():
    schema = RowSchema({"at": (torch.float32, (64,)), "above": (torch.float32, (65,))})
    assert [field.key for field in schema.packed] == ["at"]
    assert [field.key for field in schema.large] == ["above"]
    assert (schema.row_bytes, schema.nbytes) == (256, 516)


def test_complex128_pads_the_row_to_sixteen():
    schema = RowSchema({"a": (torch.complex128, (1,)), "b": (torch.bool, ())})
    assert schema.row_bytes == 32


@pytest.mark.parametrize("dtype", [torch.complex128, torch.complex64, torch.bool])
@pytest.mark.parametrize("shape", [(0,), (2, 0)])
def test_a_row_of_empty_leaves_can_be_allocated(dtype, shape):
    slab = Slab.private(RowSchema({"nothing": (dtype, shape)}), 5)
    assert slab.read(torch.arange(3))["nothing"].shape == (3, *shape)
    slab.write(slice(0, 2), TensorDict({"nothing": torch.zeros(2, *shape, dtype=dtype)}, [2]))


def test_the_order_in_which_leaves_are_given_does_not_matter():
    leaves = {"b": (torch.float32, (2,)), "a": (torch.float32, (3,)), "c": (torch.bool, ())}
    backwards = dict(reversed(leaves.items()))
    assert RowSchema(leaves) == RowSchema(backwards)
    assert hash(RowSchema(leaves)) == hash(RowSchema(backwards))


leaves = st.dictionaries(
    st.lists(st.text("abc", min_size=1, max_size=2), min_size=1, max_size=3).map(tuple),
    st.tuples(st.sampled_from(sorted(CARRIERS, key=str)), st.lists(st.integers(0, 9), max_size=3)),
    min_size=1,
    max_size=9,
).filter(lambda given: not any(a != b and a == b[: len(a)] for a in given for b in given))


@given(leaves)
@example({("a",): (torch.complex128, [0])})
def test_every_field_is_aligned_and_no_two_overlap(given_leaves):
    schema = RowSchema(given_leaves)
    end = 0
    for field in schema.packed:
        assert field.offset % field.dtype.itemsize == 0
        assert field.offset >= end
        end = field.offset + field.nbytes
    assert end <= schema.row_bytes < max(end, 1) + 16  # a row of nothing has an address too


@given(leaves)
def test_json_and_pickle_lead_back_to_an_equal_schema(given_leaves):
    schema = RowSchema(given_leaves)
    assert RowSchema.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema
    assert pickle.loads(pickle.dumps(schema)) == schema


def test_a_spec_is_anything_whose_zero_is_a_tensordict():
    class Spec:
        def zero(self):
            return steps()

    assert RowSchema.from_spec(Spec()) == RowSchema.from_tensordict(steps())


def test_objects_without_zero_are_no_spec():
    with pytest.raises(TypeError, match=r"got dict without a zero\(\) method"):
        RowSchema.from_spec({})


def test_a_dict_is_no_tensordict():
    with pytest.raises(TypeError, match="expected a tensordict of rows, got dict"):
        RowSchema.from_tensordict({"a": torch.zeros(3)})


def test_a_non_tensor_leaf_is_refused_by_name():
    batch = TensorDict({"info": {"text": "hello"}, "a": torch.zeros(())})
    with pytest.raises(TypeError, match=r"\('info', 'text'\) is a NonTensorData: rows hold"):
        RowSchema.from_tensordict(batch)


def test_a_sparse_leaf_is_refused_by_name():
    batch = TensorDict({"a": torch.eye(3).to_sparse()}, batch_size=[3])
    with pytest.raises(TypeError, match=r"\('a',\) is a nested or sparse tensor"):
        RowSchema.from_tensordict(batch)


@pytest.mark.parametrize(
    ("leaves", "said"),
    [
        ({}, "at least one leaf"),
        ({"a": (torch.bool, (-1,))}, r"shape \[-1\].*Replace the -1"),
        ({"a": (torch.bool, ()), ("a", "b"): (torch.bool, ())}, "below another leaf's key"),
        ({"a": (torch.bool, ()), ("a",): (torch.bool, ())}, "given twice"),
    ],
)
def test_leaves_that_cannot_be_a_row_are_refused(leaves, said):
    with pytest.raises(ValueError, match=said):
        RowSchema(leaves)


def test_a_key_that_is_no_string_is_refused():
    with pytest.raises(KeyError, match="expected a string or a tuple of strings"):
        RowSchema({(): (torch.bool, ())})


def test_schema_refuses_wrong_pairs_and_dtypes():
    with pytest.raises(TypeError, match="expected a dtype and a shape for each key"):
        RowSchema({"a": torch.float32})
    with pytest.raises(TypeError, match="a row cannot hold 'float32'"):
        RowSchema({"a": ("float32", (3,))})


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_is_refused_by_name():
    for layout in (torch.jagged, torch.strided):
        ragged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)
        with pytest.raises(TypeError, match=r"\('a',\) is a nested or sparse tensor"):
            RowSchema.from_tensordict(TensorDict({"a": ragged}))


def test_two_schemas_that_differ_are_told_apart_leaf_by_leaf():
    mine = RowSchema({"a": (torch.float32, (3,)), "b": (torch.bool, ())})
    theirs = RowSchema({"a": (torch.float64, (3,)), "c": (torch.bool, ())})
    with pytest.raises(ValueError, match="the schemas differ") as caught:
        mine.require_equal(theirs)
    said = str(caught.value)
    assert "a: float32 [3], float64 [3]" in said
    assert "b: bool [], no such leaf" in said
    assert "c: no such leaf, bool []" in said
    with pytest.raises(TypeError, match="expected a RowSchema, got dict"):
        mine.require_equal({})
    mine.require_equal(RowSchema({"b": (torch.bool, ()), "a": (torch.float32, (3,))}))


def test_an_unknown_key_names_the_known_ones():
    schema = RowSchema({("next", "done"): (torch.bool, ())})
    with pytest.raises(KeyError, match=r"no leaf 'done'.*\('next', 'done'\)"):
        schema["done"]
    with pytest.raises(KeyError, match=r"no leaf \('done',\)"):
        schema.select(["next", "done"])
    with pytest.raises(TypeError, match=r"use \['next'\]"):
        schema.select("next")
    assert "done" not in schema
    assert ("next", "done") in schema


def test_a_group_key_selects_all_below_it():
    schema = RowSchema.from_tensordict(steps())
    assert [field.key for field in schema.select(["next", "frame"])] == [("next", "done"), "frame"]


def test_an_altered_dict_is_refused():
    plain = RowSchema({"a": (torch.float32, (3,))}).to_dict()
    plain["fields"][0]["offset"] = 4
    with pytest.raises(ValueError, match="the places of the leaves differ"):
        RowSchema.from_dict(plain)
    with pytest.raises(ValueError, match="not a row schema"):
        RowSchema.from_dict({"fields": 3})


def test_the_repr_is_a_table_with_the_bytes():
    assert repr(RowSchema.from_tensordict(steps())).splitlines() == [
        "RowSchema: 4 leaves, 308 bytes a row",
        "  offset  bytes  leaf",
        "       0      8  collector.traj_ids: int64 []",
        "       8     32  observation: float32 [8]",
        "      40      1  next.done: bool [1]",
        "     own    260  frame: float32 [65]",
    ]


def test_leaves_without_packing_have_their_own_arrays_also_after_a_trip_through_json() -> None:
    leaves = {"a": (torch.float32, (3,)), "b": (torch.bool, ()), "c": (torch.int8, (0,))}
    schema = RowSchema(leaves, packed_bytes=0)
    assert schema.packed == ()
    assert schema.row_bytes == 0
    assert RowSchema.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema
    assert schema != RowSchema(leaves)


def test_rows_stand_over_tensors_made_elsewhere() -> None:
    schema = RowSchema({"a": (torch.float32, (3,)), "b": (torch.bool, ())}, packed_bytes=0)
    mine = {("a",): torch.zeros(5, 3), ("b",): torch.zeros(5, dtype=torch.bool)}
    rows = Rows(schema, None, mine)
    rows.write(slice(1, 3), TensorDict({"a": torch.ones(2, 3), "b": torch.ones(2).bool()}))
    assert mine["a",].sum() == 6
    assert rows.read(torch.tensor([2, 4]))["b"].tolist() == [True, False]
