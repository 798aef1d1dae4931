import multiprocessing
import os
import pickle

import pytest
import torch

from rl_slabs import Lanes, LazyFile, RowSchema, Slab

OTHER = RowSchema({"number": (torch.int32, ())})


@pytest.fixture(params=["shared", "mapped"])
def file(request, tmp_path):
    """A file that holds no slab yet."""
    return getattr(LazyFile, request.param)(tmp_path / "a")


def test_the_first_one_makes_it_and_the_others_get_it(file, schema, numbered):
    copy = pickle.loads(pickle.dumps(file))
    assert not copy.filled
    made = Slab.in_file(file, schema, 6, lanes=2)
    made.write(5, numbered([7])[0])
    assert Slab.over(copy).read(5)["number"] == 7
    assert Slab.in_file(copy, schema, 6, lanes=2).read(5)["number"] == 7
    assert (made.kind, made.lanes, made.capacity) == (file.kind, 2, 6)
    assert Lanes(made).claim().number == 0


def test_another_shape_than_it_was_made_with_is_refused(file, schema):
    Slab.in_file(file, schema, 6, lanes=2)
    other = pickle.loads(pickle.dumps(file))
    with pytest.raises(ValueError, match="made with 6 rows in 2 lanes, not 8 in 2"):
        Slab.in_file(other, schema, 8, lanes=2)
    with pytest.raises(ValueError, match="made with 6 rows in 2 lanes, not 6 in 1"):
        Slab.in_file(other, schema, 6)
    with pytest.raises(ValueError, match=r"number: int64 \[\], int32 \[\]"):
        Slab.in_file(other, OTHER, 6, lanes=2)
    with pytest.raises(ValueError, match="multiple of lanes: got 7 and 2"):
        Slab.in_file(other, schema, 7, lanes=2)
    assert Slab.in_file(other, schema, 6, lanes=2).capacity == 6


def test_spare_rows_are_made_with_the_slab(file):
    made = Slab.in_file(file, OTHER, 6, spare=4)
    made.secure(0, 4, "a test")
    made.spare_rows.columns()["number"][3] = 7
    other = pickle.loads(pickle.dumps(file))
    assert Slab.over(other).space[:, 0].tolist() == [0] * 10 + [7]
    with pytest.raises(ValueError, match="made with 4 spare rows, not 0"):
        Slab.in_file(other, OTHER, 6)


def race(pipe, file, schema, number):
    pipe.recv()
    slab = Slab.in_file(file, schema, 6)
    slab.columns()["number"][number] = number + 1
    pipe.send(slab.capacity)


def test_processes_that_make_it_at_once_have_one_slab(file, forked, schema):
    children = [forked(race, file, schema, number) for number in range(6)]
    for child in children:
        child.pipe.send("go")
    assert [child.receive() for child in children] == [6] * 6
    assert Slab.over(file).columns()["number"].tolist() == [1, 2, 3, 4, 5, 6]


def test_a_file_that_is_refused_stays_open_for_another_try(file, schema):
    with pytest.raises(ValueError, match="is no slab"):
        Slab.over(file)
    assert Slab.in_file(file, schema, 6).capacity == 6


def die_in_the_middle(pipe, file, schema, writes):
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
    Slab.in_file(file, schema, 60)


@pytest.mark.parametrize("writes", [0, 1])
def test_a_maker_that_is_killed_leaves_no_half_slab(file, forked, schema, numbered, writes):
    child = forked(die_in_the_middle, file, schema, writes)
    child.receive()
    assert not file.filled
    child.kill()
    assert not file.filled
    slab = Slab.in_file(file, schema, 6)
    assert slab.capacity == 6
    assert not slab.words.any()
    assert not slab.view()["frame"].any()
    assert os.fstat(slab.fileno()).st_size < 60 * schema.nbytes


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_other_start_methods_get_the_file_as_an_argument(method, schema):
    file = LazyFile.shared("a test")
    context = multiprocessing.get_context(method)
    code = "Slab.in_file(file, schema, 6).columns()['number'][3] = 7"
    names = {"file": file, "schema": schema, "Slab": Slab}
    process = context.Process(target=exec, args=(code, names))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert Slab.over(file).read(3)["number"] == 7


def test_a_file_to_come_is_found_by_its_path(schema, tmp_path):
    first = LazyFile.mapped(tmp_path / "a")
    with pytest.raises(ValueError, match="/a is no slab"):
        Slab.open(tmp_path / "a")
    second = LazyFile.open(tmp_path / "a")
    Slab.in_file(first, schema, 5)
    assert Slab.over(second).path == str(tmp_path / "a")
    assert Slab.open(tmp_path / "a").capacity == 5


def test_too_little_memory_is_an_error_and_it_can_be_made_smaller(file, schema):
    with pytest.raises(OSError, match=r"a slab of \d+ rows of 1096 bytes takes"):
        Slab.in_file(file, schema, 10**13)
    assert not file.filled
    assert Slab.in_file(file, schema, 6).capacity == 6


def test_a_closed_slab_closes_its_file(schema):
    before = len(os.listdir("/proc/self/fd"))
    file = LazyFile.shared("a test")
    Slab.in_file(file, schema, 5).close()
    with pytest.raises(ValueError, match="this file is closed"):
        Slab.in_file(file, schema, 5)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("is_made", [True, False])
def test_a_slab_and_a_file_that_nobody_holds_give_their_descriptors_back(schema, is_made):
    before = len(os.listdir("/proc/self/fd"))
    file = LazyFile.shared("a test")
    slab = Slab.in_file(file, schema, 5) if is_made else None
    assert len(os.listdir("/proc/self/fd")) > before
    del file, slab
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_closed_file_does_not_travel():
    file = LazyFile.shared("a test")
    file.close()
    with pytest.raises(ValueError, match="this file is closed: keep it open while"):
        pickle.dumps(file)


def test_about_text_is_read_by_other_processes(schema, tmp_path):
    file = LazyFile.mapped(tmp_path / "a")
    Slab.in_file(file, schema, 5, about="steps of a game")
    assert Slab.open(tmp_path / "a").about == "steps of a game"
    with pytest.raises(ValueError, match="made for 'steps of a game', not for ''"):
        Slab.in_file(file, schema, 5)
