import resource

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_slabs import RowSchema, Slab
from rl_slabs.dtypes import CARRIERS
from rl_slabs.rows import copy_loop
from rl_slabs.rows.file_rows import LEAST_BYTES

DTYPES = sorted(set(CARRIERS) - {torch.complex32}, key=str)  # torch warns whenever it makes one
SHAPES = [(), (1,), (3,), (2, 5), (0,)]
SCHEMAS = {
    "packed": RowSchema({f"{n}": (dtype, SHAPES[n % 5]) for n, dtype in enumerate(DTYPES)}),
    "large": RowSchema({"frame": (torch.uint8, (7, 41)), "state": (torch.complex64, (50,))}),
    "both": RowSchema({"done": (torch.bool, (1,)), ("next", "frame"): (torch.int16, (3, 99))}),
}


def random_rows(schema, count, seed, *, apart=1):
    """Rows of random bytes, whose leaves are contiguous or every so many rows of a larger leaf."""
    draws, found = torch.Generator().manual_seed(seed), TensorDict(batch_size=[count])
    for field in schema.fields:
        many = count * apart * field.nbytes
        high = 2 if field.dtype is torch.bool else 256
        held = torch.randint(high, (many,), dtype=torch.uint8, generator=draws)
        found[field.key] = held.view(field.dtype).view(count * apart, *field.shape)[::apart]
    return found


def bytes_of(rows):
    """Every byte of the packed rows and of the own arrays."""
    held = [rows.packed, *rows.arrays.values()]
    return torch.cat([one.reshape(-1).view(torch.uint8) for one in held if one is not None])


def page_faults():
    """Of this process, those for pages in the kernel's cache and those for others."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_minflt + used.ru_majflt


@pytest.fixture(params=["numpy", "compiled"])
def copied(request, monkeypatch):
    """Rows are packed by numpy, or by a loop that is compiled at once."""
    if request.param == "compiled":
        pytest.importorskip("llvmlite")
        monkeypatch.setattr(copy_loop, "ROWS_BEFORE_COMPILING", 0)


@pytest.mark.parametrize("kind", SCHEMAS)
def test_new_rows_of_a_file_are_those_of_memory_byte_for_byte(kind, copied, tmp_path):
    schema = SCHEMAS[kind]
    count = 3 * LEAST_BYTES // schema.nbytes + 5
    with Slab.mapped(schema, 3 * count, tmp_path / "a") as slab:
        plain = Slab.private(schema, 3 * count)
        # new rows, newer ones after a gap, rows that were written, rows by number
        for number, (start, apart) in enumerate([(2, 1), (count + 9, 2), (7, 1)]):
            given = random_rows(schema, count, number, apart=apart)
            for one in (slab, plain):
                one.write(slice(start, start + count), given)
        more = random_rows(schema, count, 5)
        for one in (slab, plain):
            one.write(torch.arange(count).flip(0), more)
        assert torch.equal(bytes_of(slab.rows), bytes_of(plain.rows))
    with Slab.open(tmp_path / "a") as opened:
        assert torch.equal(bytes_of(opened.rows), bytes_of(plain.rows))


@given(st.lists(st.tuples(st.integers(0, 4000), st.integers(1, 3000)), min_size=1, max_size=6))
def test_rows_written_anywhere_are_those_written_last(tmp_path_factory, writes):
    schema = RowSchema({"number": (torch.int64, ()), "flags": (torch.uint8, (57,))})
    with Slab.mapped(schema, 7000, tmp_path_factory.mktemp("slab") / "a") as slab:
        expected = torch.zeros(7000, dtype=torch.int64)
        for number, (start, count) in enumerate(writes, 1):
            leaves = {
                "number": torch.full((count,), number),
                "flags": torch.full((count, 57), number, dtype=torch.uint8),
            }
            slab.write(slice(start, start + count), TensorDict(leaves, [count]))
            expected[start : start + count] = number
        assert torch.equal(slab.view()["number"], expected)
        assert (slab.view()["flags"] == expected.unsqueeze(-1)).all()


def test_new_rows_of_a_file_touch_no_page_of_its_mapping(tmp_path):
    schema = RowSchema({"state": (torch.float64, (20,)), "frame": (torch.uint8, (300,))})
    count = 20_000
    given = random_rows(schema, count, 0)
    with Slab.mapped(schema, 2 * count, tmp_path / "a") as slab:
        slab.write(slice(count, count + 999), given[:999])
        before = page_faults()
        slab.write(slice(count + 999, 2 * count), given[999:])
        faults = page_faults() - before
        assert faults < count * schema.nbytes / resource.getpagesize() / 4


def test_rows_that_outlive_their_slab_are_still_written(tmp_path):
    schema = RowSchema({"number": (torch.int64, ())})
    slab = Slab.mapped(schema, 30_000, tmp_path / "a")
    rows = slab.rows
    slab.close()
    rows.write(slice(0, 30_000), TensorDict({"number": torch.arange(30_000)}, [30_000]))
    with Slab.open(tmp_path / "a") as opened:
        assert torch.equal(opened.view()["number"], torch.arange(30_000))
