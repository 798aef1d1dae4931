import torch

from rl_slabs import RowSchema
from rl_slabs.unpacking import unpacking, unpacking_source

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
    found = unpacking(SCHEMA.fields, SCHEMA.row_bytes)(rows, frames(4), torch.Size([4]))
    for field in SCHEMA.packed:
        start, stop = field.offset, field.offset + field.nbytes
        piece = rows.view(torch.uint8)[:, start:stop].contiguous()
        expected = piece.view(field.dtype).view(4, *field.shape)
        assert found[field.key].view(expected.dtype).equal(expected)


def test_any_batch_shape_is_kept_at_every_level():
    unpack = unpacking(SCHEMA.fields, SCHEMA.row_bytes)
    for batch in ((), (4,), (2, 3)):
        found = unpack(packed(*batch), frames(*batch), torch.Size(batch))
        assert found.batch_size == found["next", "deep"].batch_size == batch
        assert found["matrix"].shape == (*batch, 2, 5)
        assert found["reward"].shape == batch


def test_the_leaves_are_views_with_their_own_version_counters():
    rows = packed(4)
    found = unpacking(SCHEMA.fields, SCHEMA.row_bytes)(rows, frames(4), torch.Size([4]))
    leaves = [found[field.key] for field in SCHEMA.packed]
    before = [leaf._version for leaf in leaves]
    for leaf in leaves:
        leaf.zero_()
    assert [leaf._version for leaf in leaves] == [version + 1 for version in before]
    assert found["observation"].untyped_storage().data_ptr() == rows.untyped_storage().data_ptr()


def test_a_write_to_one_leaf_does_not_break_the_backward_of_another():
    found = unpacking(SCHEMA.fields, SCHEMA.row_bytes)(packed(4), frames(4), torch.Size([4]))
    layer = torch.nn.Linear(3, 1)
    loss = layer(found["observation"]).square().sum()
    found["matrix"].mul_(2)
    found["reward"].zero_()
    loss.backward()
    assert layer.weight.grad is not None


def test_contiguous_leaves_have_memory_of_their_own():
    rows = packed(1)
    unpack = unpacking(SCHEMA.fields, SCHEMA.row_bytes, contiguous=True)
    found = unpack(rows, frames(1), torch.Size([1]))
    found.zero_()
    assert rows.equal(packed(1))
    assert all(found[field.key].is_contiguous() for field in SCHEMA.fields)


def test_some_leaves_alone_can_be_handed_out():
    fields = SCHEMA.select(["next"])
    found = unpacking(fields, SCHEMA.row_bytes)(packed(4), [], torch.Size([4]))
    assert set(found.keys(True, True)) == {("next", "count"), ("next", "deep", "done")}
    only = unpacking(SCHEMA.large, SCHEMA.row_bytes)(None, frames(4), torch.Size([4]))
    assert list(only.keys()) == ["frame"]


def test_keys_that_are_no_identifiers_are_kept():
    key = ("it's", 'a "key"\n')
    schema = RowSchema({key: (torch.float32, (1,)), "def": (torch.bool, (1,))})
    unpack = unpacking(schema.fields, schema.row_bytes)
    found = unpack(torch.zeros(4, 1, dtype=torch.int64), [], torch.Size([4]))
    assert set(found.keys(True, True)) == {key, "def"}


def test_leaves_without_elements_are_handed_out():
    schema = RowSchema({"empty": (torch.float32, (0, 3)), "a": (torch.bool, (1,))})
    unpack = unpacking(schema.fields, schema.row_bytes)
    found = unpack(torch.zeros(4, 1, dtype=torch.int64), [], torch.Size([4]))
    assert found["empty"].shape == (4, 0, 3)


def test_the_source_names_one_split_per_dtype():
    source = unpacking_source(SCHEMA.fields, SCHEMA.row_bytes)
    assert source.count("unsafe_split_with_sizes") == 2  # float32 and bool
