import lzma

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_datasets.xz_file import unpacked_size


@given(st.lists(st.tuples(st.integers(0, 70_000), st.integers(0, 3)), min_size=1, max_size=4))
def test_the_size_is_that_of_what_is_unpacked(tmp_path_factory, streams):
    path = tmp_path_factory.mktemp("one") / "file.xz"
    content = [lzma.compress(bytes(size)) + bytes(4 * padding) for size, padding in streams]
    path.write_bytes(b"".join(content))
    assert unpacked_size(path) == sum(size for size, _ in streams)


@pytest.mark.parametrize("kept", [3, 11, 30, -1, -8])
def test_a_file_that_was_cut_short_is_refused(tmp_path, kept):
    path = tmp_path / "file.xz"
    path.write_bytes(lzma.compress(b"x" * 5_000)[:kept])
    with pytest.raises(ValueError, match=r"file\.xz is damaged, or ends too early"):
        unpacked_size(path)
