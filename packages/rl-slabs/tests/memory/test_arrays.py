import os
import pickle

import numpy as np
import pytest

from rl_slabs import Arrays, LazyFile

LAYOUT = {
    "words": ("int64", (3, 5)),
    "flags": ("bool", (7,)),
    "none": ("int32", (0, 2)),
    "x": ("float32", (2,)),
}


@pytest.fixture(params=["private", "shared", "sparse", "mapped"])
def arrays(request, tmp_path):
    """Arrays of one kind."""
    if request.param == "mapped":
        return Arrays.mapped(LAYOUT, tmp_path / "a")
    options = {"sparse": True} if request.param == "sparse" else {}
    return getattr(Arrays, request.param.replace("sparse", "shared"))(LAYOUT, **options)


def test_every_array_is_zero_of_its_shape_and_on_a_cache_line_of_its_own(arrays):
    assert {name: (str(a.dtype), a.shape) for name, a in arrays.items()} == LAYOUT
    for number, array in enumerate(arrays.values(), 1):
        assert array.ctypes.data % 64 == 0
        assert not array.any()
        array[:] = number
    assert [array.reshape(-1)[:1].tolist() for array in arrays.values()] == [[1], [True], [], [4]]
    assert (arrays["words"] == 1).all()


def test_arrays_unpickled_elsewhere_are_the_same_memory(arrays):
    if arrays.kind == "private":
        with pytest.raises(TypeError, match=r"make them with Arrays.shared or Arrays.mapped"):
            pickle.dumps(arrays)
        return
    other = pickle.loads(pickle.dumps(arrays))
    other["words"][2, 4] = 7
    assert arrays["words"][2, 4] == 7
    assert (other.kind, list(other)) == (arrays.kind, list(LAYOUT))
    other.close()
    assert arrays["words"][2, 4] == 7


def test_arrays_are_written_to_by_a_child(forked):
    arrays = Arrays.shared(LAYOUT)
    child = forked(lambda pipe: pipe.send(arrays["words"].fill(3)))
    child.receive()
    assert (arrays["words"] == 3).all()


def test_a_file_is_opened_again(tmp_path):
    Arrays.mapped(LAYOUT, tmp_path / "a")["words"][1, 1] = 7
    arrays = Arrays.open(tmp_path / "a")
    assert arrays["words"][1, 1] == 7
    assert arrays.nbytes == os.stat(tmp_path / "a").st_size
    with pytest.raises(FileExistsError, match="is there already"):
        Arrays.mapped(LAYOUT, tmp_path / "a")


def test_a_file_of_something_else_is_refused_by_name(tmp_path):
    (tmp_path / "a").write_bytes(b"something else")
    Arrays.mapped(LAYOUT, tmp_path / "b")
    os.truncate(tmp_path / "b", 4200)
    Arrays.mapped(LAYOUT, tmp_path / "c")
    with (tmp_path / "c").open("r+b") as file:
        file.seek(40)
        file.write(b"?")
    Arrays.mapped(LAYOUT, tmp_path / "d")
    with (tmp_path / "d").open("r+b") as file:
        file.seek(8)
        file.write(b"\x09")
    for name, message in {
        "a": "/a holds no arrays: expected it to begin with b'RL-ARRAY'",
        "b": "/b was cut short or appended to: expected 4352 bytes, got 4200",
        "c": "the head of .*/c was altered",
        "d": "/d has format 9 of arrays, this version reads 1",
    }.items():
        with pytest.raises(ValueError, match=message):
            Arrays.open(tmp_path / name)


def test_one_file_is_filled_once():
    file = LazyFile.shared("a test")
    first, second = (Arrays.in_file(LAYOUT, file) for _ in range(2))
    first["x"][1] = 0.5
    assert second["x"].tolist() == [0, 0.5]
    with pytest.raises(ValueError, match=r"were made as .*ask for the same"):
        Arrays.in_file(LAYOUT | {"x": ("float32", (3,))}, file)


def test_sparse_memory_is_taken_when_it_is_touched():
    blocks = []
    for sparse in (True, False):
        file = LazyFile.shared("a test")
        Arrays.in_file({"table": ("int64", (1 << 20,))}, file, sparse=sparse)["table"][:100] = 1
        blocks.append(os.fstat(file.fileno()).st_blocks * 512)
    assert blocks[0] < 100_000 < 8 << 20 <= blocks[1]


@pytest.mark.parametrize(
    ("layout", "error", "message"),
    [
        ({}, ValueError, "at least one array"),
        ({"a": ("object", (3,))}, TypeError, "array 'a': expected a dtype of plain numbers"),
        ({"a": (">i4", (3,))}, TypeError, "expected a dtype of plain numbers, got '>i4'"),
        ({"a": ("int32", (3, -1))}, ValueError, r"lengths of 0 and more, got \(3, -1\)"),
    ],
)
def test_impossible_arrays_are_refused(layout, error, message, tmp_path):
    for make in (Arrays.private, Arrays.shared, lambda given: Arrays.mapped(given, tmp_path / "a")):
        with pytest.raises(error, match=message):
            make(layout)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("kind", ["private", "shared", "mapped"])
def test_too_little_memory_is_an_error_at_once(kind, tmp_path):
    options = {"path": tmp_path / "a"} if kind == "mapped" else {}
    with pytest.raises(OSError, match=r"a block of the arrays a takes"):
        getattr(Arrays, kind)({"a": ("int64", (10**13,))}, **options)
    assert list(tmp_path.iterdir()) == []


def test_an_array_outlives_its_block():
    array = Arrays.shared({"a": ("int64", (3,))})["a"]
    array[:] = 5
    assert array.tolist() == [5, 5, 5]


def test_arrays_give_their_descriptors_back():
    before = len(os.listdir("/proc/self/fd"))
    arrays = Arrays.shared(LAYOUT)
    other = pickle.loads(pickle.dumps(arrays))
    other.close()
    del arrays, other
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_dtype_may_be_given_as_numpy_has_it():
    arrays = Arrays.private({"a": (np.dtype("uint8").name, [2])})
    assert arrays["a"].tolist() == [0, 0]
