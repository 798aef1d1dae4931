import io

import pytest
import torch

from rl_slabs import RowSchema
from rl_slabs.dtypes import CARRIERS, carrier
from rl_slabs.rows.unpack import build_unpack, unpack_source
from rl_slabs.schema import Field

DTYPES = sorted(set(CARRIERS) - {torch.complex32}, key=str)  # torch warns whenever it makes one
SCHEMA = RowSchema(
    {
        "observation": (torch.float32, (3,)),
        "matrix": (torch.float32, (2, 5)),
        "reward": (torch.float64, ()),
        ("next", "deep", "done"): (torch.bool, (1,)),
        ("next", "count"): (torch.int64, ()),
        "frame": (torch.uint8, (7, 41)),
    }
)


def packed(*batch):
    words = SCHEMA.row_bytes // 8
    return torch.arange(words * torch.Size(batch).numel()).view(*batch, words)


def frames(*batch):
    return [torch.zeros(*batch, 7, 41, dtype=torch.uint8)]


def test_every_leaf_equals_its_bytes_in_the_row():
    rows = packed(4)
    found = build_unpack(SCHEMA.fields, SCHEMA.row_bytes)(rows, frames(4), torch.Size([4]))
    for field in SCHEMA.packed:
        start, stop = field.offset, field.offset + field.nbytes
        piece = rows.view(torch.uint8)[:, start:stop].contiguous()
        expected = piece.view(field.dtype).view(4, *field.shape)
        assert found[field.key].view(expected.dtype).equal(expected)


def test_batch_shapes_are_kept_at_every_level():
    unpack = build_unpack(SCHEMA.fields, SCHEMA.row_bytes)
    for batch in ((), (4,), (2, 3)):
        found = unpack(packed(*batch), frames(*batch), torch.Size(batch))
        assert found.batch_size == found["next", "deep"].batch_size == batch
        assert found["matrix"].shape == (*batch, 2, 5)
        assert found["reward"].shape == batch


def test_the_leaves_are_views_with_their_own_version_counters(versions):
    rows = packed(4)
    found = build_unpack(SCHEMA.fields, SCHEMA.row_bytes)(rows, frames(4), torch.Size([4]))
    leaves = [found[field.key] for field in SCHEMA.packed]
    before = versions(leaves)
    for leaf in leaves:
        leaf.zero_()
    assert versions(leaves) == [version + 1 for version in before]
    assert found["observation"].untyped_storage().data_ptr() == rows.untyped_storage().data_ptr()


def test_a_write_to_one_leaf_does_not_break_the_backward_of_another():
    found = build_unpack(SCHEMA.fields, SCHEMA.row_bytes)(packed(4), frames(4), torch.Size([4]))
    layer = torch.nn.Linear(3, 1)
    loss = layer(found["observation"]).square().sum()
    found["matrix"].mul_(2)
    found["reward"].zero_()
    loss.backward()
    assert layer.weight.grad is not None


def test_contiguous_leaves_have_memory_of_their_own():
    rows = packed(1)
    unpack = build_unpack(SCHEMA.fields, SCHEMA.row_bytes, contiguous=True)
    found = unpack(rows, frames(1), torch.Size([1]))
    found.zero_()
    assert rows.equal(packed(1))
    assert all(found[field.key].is_contiguous() for field in SCHEMA.fields)


def test_leaves_can_be_unpacked_alone():
    fields = SCHEMA.select(["next"])
    found = build_unpack(fields, SCHEMA.row_bytes)(packed(4), [], torch.Size([4]))
    assert set(found.keys(True, True)) == {("next", "count"), ("next", "deep", "done")}
    only = build_unpack(SCHEMA.large, SCHEMA.row_bytes)(None, frames(4), torch.Size([4]))
    assert list(only.keys()) == ["frame"]


def test_keys_that_are_no_identifiers_are_kept():
    key = ("it's", 'a "key"\n')
    schema = RowSchema({key: (torch.float32, (1,)), "def": (torch.bool, (1,))})
    unpack = build_unpack(schema.fields, schema.row_bytes)
    found = unpack(torch.zeros(4, 1, dtype=torch.int64), [], torch.Size([4]))
    assert set(found.keys(True, True)) == {key, "def"}


def test_leaves_without_elements_are_unpacked():
    schema = RowSchema({"empty": (torch.float32, (0, 3)), "a": (torch.bool, (1,))})
    unpack = build_unpack(schema.fields, schema.row_bytes)
    found = unpack(torch.zeros(4, 1, dtype=torch.int64), [], torch.Size([4]))
    assert found["empty"].shape == (4, 0, 3)


def test_the_source_names_one_split_per_dtype():
    source = unpack_source(SCHEMA.fields, SCHEMA.row_bytes)
    assert source.count("unsafe_split_with_sizes") == 2  # float32 and bool


@pytest.mark.parametrize("batch", [(), (4,), (2, 3), (0,)])
@pytest.mark.parametrize("contiguous", [False, True])
def test_views_by_numpy_are_those_by_torch(batch, contiguous):
    shapes = [(), (1,), (3,), (2, 5), (0,)]
    schema = RowSchema({str(d): (d, shapes[n % 5]) for n, d in enumerate(DTYPES)})
    bits = torch.randint(256, (*batch, schema.row_bytes), dtype=torch.uint8)
    for field in schema.fields:
        if field.dtype is torch.bool:
            bits[..., field.offset : field.offset + field.nbytes] &= 1
    rows, size = bits.view(torch.int64), torch.Size(batch)
    slow = build_unpack(schema.fields, schema.row_bytes)(rows, [], size)
    unpack = build_unpack(schema.fields, schema.row_bytes, copied=True, contiguous=contiguous)
    quick = unpack(rows.numpy(), [], size)
    assert quick.batch_size == slow.batch_size
    for key in schema:
        one, two = quick[key], slow[key]
        assert (one.dtype, one.shape) == (two.dtype, two.shape)
        bits_of = [leaf.view(carrier(leaf.dtype)).numpy().tobytes() for leaf in (one, two)]
        assert bits_of[0] == bits_of[1]
        assert one.is_contiguous() or not contiguous


def test_leaves_by_numpy_are_views_with_their_own_version_counters_and_can_be_saved(versions):
    rows = packed(4).numpy().copy()
    found = build_unpack(SCHEMA.fields, SCHEMA.row_bytes, copied=True)(
        rows, frames(4), torch.Size([4])
    )
    leaves = [found[field.key] for field in SCHEMA.packed]
    before = versions(leaves)
    for leaf in leaves:
        leaf.zero_()
    assert versions(leaves) == [version + 1 for version in before]
    assert not rows.view("u1")[:, : sum(field.nbytes for field in SCHEMA.packed)].any()
    file = io.BytesIO()
    torch.save(found.to_dict(), file)
    file.seek(0)
    assert torch.load(file)["next"]["count"].equal(found["next", "count"])


def test_a_leaf_beyond_the_row_is_read_from_the_next_rows():
    width = SCHEMA.row_bytes
    here = SCHEMA["observation"]
    there = Field(("next", "observation"), here.dtype, here.shape, here.offset + width)
    rows, nexts = packed(4).numpy(), packed(4).numpy() + 3
    unpack = build_unpack([here, there], width, copied=True)
    found = unpack(rows, [], torch.Size([4]), nexts)
    alone = build_unpack([here], width, copied=True)
    assert found["observation"].equal(alone(rows, [], torch.Size([4]))["observation"])
    assert found["next", "observation"].equal(alone(nexts, [], torch.Size([4]))["observation"])


def test_a_function_is_made_once_for_all_rows_of_a_schema():
    fields, other = list(SCHEMA.fields), RowSchema.from_dict(SCHEMA.to_dict()).fields
    assert build_unpack(fields, SCHEMA.row_bytes) is build_unpack(other, SCHEMA.row_bytes)
    copied = build_unpack(fields, SCHEMA.row_bytes, copied=True)
    assert copied is not build_unpack(fields, SCHEMA.row_bytes)
