import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rl_replay.data.bits import same_bits, same_rows


@given(st.integers(0, 140), st.sampled_from("Bfd"), st.integers(0, 1 << 20))
def test_rows_are_equal_where_their_bytes_are(width, kind, seed):
    rng = np.random.default_rng(seed)
    menu = np.array([0.0, -0.0, np.nan, 1.0] if kind != "B" else [0, 1], dtype=kind)
    one = menu[rng.integers(0, len(menu), (9, width))]
    two = np.where(rng.random((9, width)) < 0.5 / (1 + width), one[::-1], one)
    expected = [a.tobytes() == b.tobytes() for a, b in zip(one, two, strict=True)]
    assert same_bits(one, two).tolist() == expected


def test_rows_of_every_size_are_compared_to_the_last_byte():
    for nbytes in (0, 1, 2, 3, 4, 6, 7, 8, 12, 24, 56, 63, 64, 65, 129, 1024, 4104):
        one = np.zeros((5, nbytes), dtype=np.uint8)
        two = one.copy()
        if nbytes:
            two[1, 0] = two[3, -1] = 1
        expected = [True, not nbytes, True, not nbytes, True]
        assert same_bits(one, two).tolist() == expected
        assert same_bits(one[:, ::-1], two[:, ::-1]).tolist() == expected


def test_rows_without_dimensions_are_compared():
    one, two = np.array([1, 2, 3]), np.array([1, 0, 3])
    assert same_bits(one, two).tolist() == [True, False, True]


def test_rows_gathered_in_pieces_are_all_compared():
    frames = np.zeros((9, 1 << 18), dtype=np.uint8)  # four to a piece
    others = frames.copy()
    others[7, -1] = 1
    rows = np.arange(9)
    assert same_rows(frames, rows, others, rows).tolist() == [True] * 7 + [False, True]
