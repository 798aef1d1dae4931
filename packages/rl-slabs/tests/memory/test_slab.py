import copy
import gc
import multiprocessing
import os
import pickle
import weakref

import pytest
import torch
from tensordict import TensorDict

from rl_slabs import RowSchema, Slab


@pytest.fixture(params=["private", "shared", "mapped"])
def make(request, tmp_path):
    """Makes slabs of one kind."""
    paths = (tmp_path / f"slab {number}" for number in range(9))

    def make(schema, capacity, **options):
        if request.param == "mapped":
            options["path"] = next(paths)
        return getattr(Slab, request.param)(schema, capacity, **options)

    return make


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def test_every_kind_reads_what_was_written(make, schema, numbered):
    with make(schema, 11) as slab:
        slab.write(slice(3, 8), numbered(range(5)))
        found = slab.read(torch.tensor([7, 3, 2]))
        assert found["number"].tolist() == [4, 0, 0]
        assert found["frame"][0].eq(4).all()
        assert len(slab) == slab.capacity == 11


def test_every_kind_begins_with_zeroes_and_no_published_rows(make, schema):
    with make(schema, 6, lanes=3) as slab:
        assert not slab.view()["frame"].any()
        assert slab.words.shape == (3, 8)
        assert not slab.words.any()


SMALL = RowSchema({"number": (torch.int64, ()), "flag": (torch.bool, (1,))})


def test_spare_rows_lie_behind_the_rows_and_one_more_ahead_of_them(make):
    with make(SMALL, 6, lanes=3, spare=4) as slab:
        slab.secure(1, 3, "a test")
        slab.columns()["number"][:] = 5
        slab.spare_rows.columns()["number"][1:3] = 7
        slab.space[0] = 2
        assert slab.space[:, 0].tolist() == [2] + [5] * 6 + [0, 7, 7, 0]
        assert (len(slab), slab.spare, slab.words.shape) == (6, 4, (3, 8))
        assert not slab.words.any()


def test_spare_rows_take_no_memory_before_they_are_secured(tmp_path):
    wide = RowSchema({"wide": (torch.int64, (32,))})
    with Slab.mapped(wide, 100, tmp_path / "a", spare=1 << 32) as slab:

        def used():
            return os.fstat(slab.fileno()).st_blocks * 512

        assert used() < 100 * 256 + 50_000
        slab.secure(1 << 20, (1 << 20) + 400, "a test")
        assert 100 * 256 + 400 * 256 <= used() < 500 * 256 + 100_000
        with pytest.raises(OSError, match=r"everything takes \d+ bytes more, but \d+ are free"):
            slab.secure(0, 1 << 32, "everything")
    assert Slab.open(tmp_path / "a").space.shape == (1 + 100 + (1 << 32), 32)


@pytest.mark.parametrize("kind", ["private", "shared"])
def test_memory_that_is_not_there_is_not_secured(kind):
    slab = getattr(Slab, kind)(SMALL, 5, spare=1 << 40)
    with pytest.raises(OSError, match=r"everything takes .* GiB of memory"):
        slab.secure(0, 1 << 40, "everything")


def test_spare_rows_are_packed_ones_on_the_cpu(make, schema):
    with pytest.raises(ValueError, match=r"spare rows are packed ones: \['frame'\] have arrays"):
        make(schema, 6, spare=1)
    with pytest.raises(ValueError, match="spare rows are on the CPU, got device meta"):
        Slab.private(SMALL, 6, spare=1, device="meta")
    with make(SMALL, 6) as slab, pytest.raises(ValueError, match="make the slab with spare="):
        _ = slab.space


def test_a_closed_slab_is_refused_and_says_so(make, schema, numbered):
    slab = make(schema, 5)
    slab.close()
    slab.close()
    assert slab.closed
    assert repr(slab).startswith("Slab(closed ")
    for use in (
        lambda: slab.read(0),
        lambda: slab.write(0, numbered([1])[0]),
        slab.view,
        slab.columns,
        lambda: slab.space,
        slab.flush,
        slab.fileno,
        lambda: slab.words,
    ):
        with pytest.raises(ValueError, match="this slab is closed: open it again, or keep it"):
            use()


def test_tensors_outlive_their_slab(make, schema, numbered):
    slab = make(schema, 5)
    slab.write(slice(0, 5), numbered(range(5)))
    view = slab.view()
    slab.close()
    assert view["number"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", ["shared", "mapped"])
def test_closing_or_dropping_a_slab_gives_its_descriptors_back(kind, schema, tmp_path):
    before = descriptors()
    for number in range(3):
        options = {"path": tmp_path / str(number)} if kind == "mapped" else {}
        slab = getattr(Slab, kind)(schema, 5, **options)
        slab.close() if number else None
        del slab
    assert descriptors() == before


def test_a_dropped_slab_is_collected_without_a_cycle(schema):
    slab = Slab.shared(schema, 5)
    dropped = weakref.ref(slab)
    gc.disable()
    try:
        del slab
        assert dropped() is None
    finally:
        gc.enable()


def test_a_private_slab_does_not_leave_its_process(schema):
    for leave in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match=r"make it with Slab.shared or Slab.mapped"):
            leave(Slab.private(schema, 5))
    with pytest.raises(ValueError, match="a private slab has no file"):
        Slab.private(schema, 5).fileno()


def test_a_pickled_slab_is_the_same_memory(schema, numbered):
    with Slab.shared(schema, 5, lanes=5) as slab, pickle.loads(pickle.dumps(slab)) as other:
        other.write(4, numbered([7])[0])
        assert slab.read(4)["number"] == 7
        assert (other.kind, other.lanes, other.schema) == ("shared", 5, schema)


def test_a_pickled_slab_whose_sender_closed_it_is_an_error(schema):
    with Slab.shared(schema, 5) as slab:
        sent = pickle.dumps(slab)
    with pytest.raises(FileNotFoundError, match="is gone"):
        pickle.loads(sent)


def test_a_forked_process_uses_the_slab_that_it_inherited(forked, schema, numbered):
    with Slab.shared(schema, 5) as slab:
        child = forked(lambda pipe: pipe.send(slab.write(3, numbered([7])[0])))
        child.receive()
        assert slab.read(3)["number"] == 7


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_other_start_methods_get_it_as_an_argument_or_through_a_pipe(method, schema, numbered):
    """The arguments' slab is closed here before the process has begun; the pipe's stays open."""
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    first, second = Slab.shared(schema, 5), Slab.shared(schema, 4)
    code = """if True:
        first.columns()["number"][3] = 7
        second = pipe.recv()
        second.columns()["number"][2] = first.read(3)["number"].item()
        pipe.send("done")
    """
    process = context.Process(target=exec, args=(code, {"first": first, "pipe": theirs}))
    process.start()
    first.close()
    ours.send(second)
    assert ours.poll(60)
    assert ours.recv() == "done"
    process.join(60)
    assert process.exitcode == 0
    assert second.read(2)["number"] == 7
    second.close()


def test_a_file_is_opened_again_with_rows_and_words(schema, numbered, tmp_path):
    with Slab.mapped(schema, 6, tmp_path / "a", lanes=2) as slab:
        slab.write(5, numbered([7])[0])
        slab.words[1, 6] = 13
        slab.flush()
    with Slab.open(tmp_path / "a") as slab:
        assert slab.read(5)["number"] == 7
        assert slab.words[1, 6] == 13
        assert (slab.capacity, slab.lanes, slab.kind) == (6, 2, "mapped")
        assert slab.path == str(tmp_path / "a")


def test_every_block_of_a_file_is_there_from_the_start(schema, tmp_path):
    with Slab.mapped(schema, 1000, tmp_path / "a"):
        status = (tmp_path / "a").stat()
        assert status.st_blocks * 512 >= status.st_size > 1000 * schema.nbytes


def test_holes_of_a_copied_file_are_filled_when_it_is_opened(schema, tmp_path):
    Slab.mapped(schema, 1000, tmp_path / "a").close()
    content = (tmp_path / "a").read_bytes()
    with (tmp_path / "b").open("wb") as file:
        file.write(content[:4096])
        file.truncate(len(content))
    assert (tmp_path / "b").stat().st_blocks * 512 < len(content)
    Slab.open(tmp_path / "b").close()
    assert (tmp_path / "b").stat().st_blocks * 512 >= len(content)


def test_an_unlinked_file_goes_on_working_and_is_handed_over(schema, numbered, tmp_path):
    slab = Slab.mapped(schema, 5, tmp_path / "a")
    (tmp_path / "a").unlink()
    slab.write(2, numbered([7])[0])
    with pickle.loads(pickle.dumps(slab)) as other:
        assert other.read(2)["number"] == 7
    slab.close()


def test_a_file_that_is_there_is_not_overwritten(schema, tmp_path):
    (tmp_path / "a").write_bytes(b"precious")
    with pytest.raises(FileExistsError, match=r"is there already: open it, or remove it"):
        Slab.mapped(schema, 5, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"precious"


def test_a_foreign_or_truncated_file_is_refused_by_name(schema, tmp_path):
    (tmp_path / "a").write_bytes(b"something else entirely")
    Slab.mapped(schema, 5, tmp_path / "b").close()
    os.truncate(tmp_path / "b", 4200)
    before = descriptors()
    with pytest.raises(ValueError, match=r"/a is no slab"):
        Slab.open(tmp_path / "a")
    with pytest.raises(ValueError, match=r"/b was cut short.*expected \d+ bytes for 5 rows"):
        Slab.open(tmp_path / "b")
    assert descriptors() == before


def test_too_little_space_is_an_error_at_creation_and_leaves_no_file(schema, tmp_path):
    before = descriptors()
    with pytest.raises(OSError, match=r"a slab of \d+ rows of 1096 bytes takes .* are free"):
        Slab.mapped(schema, 10**14, tmp_path / "a")
    assert list(tmp_path.iterdir()) == []
    assert descriptors() == before


@pytest.mark.parametrize("kind", ["private", "shared"])
def test_too_little_memory_is_an_error_at_creation(kind, schema):
    with pytest.raises(OSError, match=r"takes .* GiB of memory, but .* leaves"):
        getattr(Slab, kind)(schema, 10**13)


def test_a_small_shared_memory_file_system_is_an_error_at_creation(schema):
    system = os.statvfs("/dev/shm")
    rows = system.f_blocks * system.f_frsize // schema.nbytes + 1
    with pytest.raises(OSError, match="more on its file system"):
        Slab.mapped(schema, rows, "/dev/shm/rl-slabs-test")
    assert not os.path.exists("/dev/shm/rl-slabs-test")


@pytest.mark.parametrize(
    ("capacity", "lanes"), [(0, 1), (-3, 1), (5, 0), (10, 3)], ids=lambda value: str(value)
)
def test_impossible_sizes_are_refused(make, schema, capacity, lanes):
    with pytest.raises(ValueError, match=r"got -?\d+"):
        make(schema, capacity, lanes=lanes)


def test_slab_refuses_a_wrong_schema(make):
    with pytest.raises(TypeError, match=r"expected a RowSchema, got TensorDict. Use RowSchema"):
        make(TensorDict({"a": torch.zeros(3)}), 5)


@pytest.mark.gpu
def test_a_private_slab_may_live_on_a_device(schema, numbered):
    slab = Slab.private(schema, 5, device="cuda")
    slab.write(slice(0, 2), numbered([7, 8]))
    assert slab.read(1)["number"].is_cuda
    assert slab.read(1, device="cpu")["number"] == 8


def test_a_schema_of_another_slab_can_be_compared(schema):
    other = RowSchema({"number": (torch.int32, ())})
    with pytest.raises(ValueError, match=r"number: int64 \[\], int32 \[\]"):
        Slab.private(schema, 5).schema.require_equal(other)


@pytest.mark.parametrize("file", ["folder", 3, None])
def test_a_slab_over_what_is_no_open_file_names_it(file):
    with pytest.raises(TypeError, match="file: expected an open file"):
        Slab.over(file)
