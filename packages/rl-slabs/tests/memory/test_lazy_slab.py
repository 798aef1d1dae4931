import multiprocessing
import os
import pickle

import pytest
import torch

from rl_slabs import Lanes, LazyFile, LazySlab, RowSchema, Slab

OTHER = RowSchema({"number": (torch.int32, ())})


@pytest.fixture(params=["shared", "mapped"])
def handle(request, tmp_path):
    """A handle to a slab of two lanes that is not created yet."""
    options = {"path": tmp_path / "a"} if request.param == "mapped" else {}
    return getattr(LazySlab, request.param)(lanes=2, **options)


def test_the_first_one_makes_it_and_the_others_get_it(handle, schema, numbered):
    with_handle = pickle.loads(pickle.dumps(handle))
    assert handle.get() is with_handle.get() is None
    made = handle.make(schema, 6)
    made.write(5, numbered([7])[0])
    assert with_handle.get().read(5)["number"] == 7
    assert with_handle.make(schema, 6) is with_handle.get()
    assert (made.kind, made.lanes, made.capacity) == (handle.get().kind, 2, 6)
    assert Lanes(made).claim().number == 0


def test_another_shape_than_it_was_made_with_is_refused(handle, schema):
    handle.make(schema, 6)
    other = pickle.loads(pickle.dumps(handle))
    with pytest.raises(ValueError, match="made with 6 rows in 2 lanes, not 8 in 2"):
        other.make(schema, 8)
    with pytest.raises(ValueError, match=r"number: int64 \[\], int32 \[\]"):
        other.make(OTHER, 6)
    with pytest.raises(ValueError, match="multiple of lanes: got 7 and 2"):
        other.make(schema, 7)
    assert other.make(schema, 6).capacity == 6


def test_spare_rows_are_made_with_the_slab(handle):
    made = handle.make(OTHER, 6, spare=4)
    made.secure(0, 4, "a test")
    made.spare_rows.columns()["number"][3] = 7
    other = pickle.loads(pickle.dumps(handle))
    assert other.get().space[:, 0].tolist() == [0] * 10 + [7]
    with pytest.raises(ValueError, match="made with 4 spare rows, not 0"):
        other.make(OTHER, 6)


def race(pipe, handle, schema, number):
    pipe.recv()
    slab = handle.make(schema, 6)
    slab.columns()["number"][number] = number + 1
    pipe.send(slab.capacity)


def test_processes_that_make_it_at_once_have_one_slab(handle, forked, schema):
    children = [forked(race, handle, schema, number) for number in range(6)]
    for child in children:
        child.pipe.send("go")
    assert [child.receive() for child in children] == [6] * 6
    assert handle.get().columns()["number"].tolist() == [1, 2, 3, 4, 5, 6]


def die_in_the_middle(pipe, handle, schema, writes):
    """Makes the slab and stops before one of the two writes of its head."""
    write = os.pwrite

    def stop(*args):
        nonlocal writes
        if not writes:
            pipe.send("in the middle")
            pipe.recv()
        writes -= 1
        return write(*args)

    os.pwrite = stop
    handle.make(schema, 60)


@pytest.mark.parametrize("writes", [0, 1])
def test_a_maker_that_is_killed_leaves_no_half_slab(handle, forked, schema, numbered, writes):
    child = forked(die_in_the_middle, handle, schema, writes)
    child.receive()
    assert handle.get() is None
    child.kill()
    assert handle.get() is None
    slab = handle.make(schema, 6)
    assert slab.capacity == 6
    assert not slab.words.any()
    assert not slab.view()["frame"].any()
    assert os.fstat(slab.fileno()).st_size < 60 * schema.nbytes


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_other_start_methods_get_the_handle_as_an_argument(method, schema):
    handle = LazySlab.shared()
    context = multiprocessing.get_context(method)
    code = "handle.make(schema, 6).columns()['number'][3] = 7"
    process = context.Process(target=exec, args=(code, {"handle": handle, "schema": schema}))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert handle.get().read(3)["number"] == 7


def test_a_file_to_come_is_found_by_its_path(schema, tmp_path):
    first = LazySlab.mapped(tmp_path / "a")
    with pytest.raises(FileExistsError, match="is there already: open it, or remove it"):
        LazySlab.mapped(tmp_path / "a")
    with pytest.raises(ValueError, match="/a is no slab"):
        Slab.open(tmp_path / "a")
    second = LazySlab.open(tmp_path / "a")
    assert second.get() is None
    first.make(schema, 5)
    assert second.get().path == str(tmp_path / "a")
    assert Slab.open(tmp_path / "a").capacity == 5


def test_too_little_memory_is_an_error_and_it_can_be_made_smaller(handle, schema):
    with pytest.raises(OSError, match=r"a slab of \d+ rows of 1096 bytes takes"):
        handle.make(schema, 10**13)
    assert handle.get() is None
    assert handle.make(schema, 6).capacity == 6


def test_handles_give_their_descriptors_back(schema):
    before = len(os.listdir("/proc/self/fd"))
    for number in range(4):
        handle = LazySlab.shared()
        if number % 2:
            handle.make(schema, 5)
        if number > 1:
            handle.close()
        del handle
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_closed_handle_says_so(schema):
    handle = LazySlab.shared()
    handle.close()
    with pytest.raises(ValueError, match="this file is closed"):
        handle.make(schema, 5)
    with pytest.raises(ValueError, match="this file is closed"):
        pickle.dumps(LazyFile.shared("a").close() or handle)


def test_about_text_is_read_by_other_processes(schema, tmp_path):
    handle = LazySlab.mapped(tmp_path / "a")
    handle.make(schema, 5, about="steps of a game")
    assert LazySlab.open(tmp_path / "a").get().about == "steps of a game"
    with pytest.raises(ValueError, match="made for 'steps of a game', not for ''"):
        handle.make(schema, 5)
