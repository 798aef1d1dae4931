import zlib

import pytest
import torch

from rl_layout.testing import trajectories
from rl_record.look.film import FRAMES, PICTURE_BYTES, SIDE, films_of, is_image
from rl_record.look.shown_batch import ShownBatch
from rl_record.look.shown_rows import LeafType
from rl_record.look.trajectories import Trajectories


def films(shape, lengths, **leaves):
    batch = trajectories(lengths)
    count = len(batch)
    frames = torch.arange(count, dtype=torch.uint8).view(-1, *[1] * len(shape))
    batch["pixels"] = frames.expand(-1, *shape)
    return films_of(ShownBatch(batch.update(leaves)), Trajectories.of(batch))


def pixels(picture):
    """The bytes of a PNG without filters, and its width, height and number of channels."""
    width, height = (int.from_bytes(picture[i : i + 4]) for i in (16, 20))
    channels = {0: 1, 2: 3, 6: 4}[picture[25]]
    begin = picture.index(b"IDAT")
    size = int.from_bytes(picture[begin - 4 : begin])
    lines = torch.frombuffer(
        bytearray(zlib.decompress(picture[begin + 4 : begin + 4 + size])), dtype=torch.uint8
    )
    return lines.view(height, 1 + width * channels)[:, 1:], width, height, channels


@pytest.mark.parametrize(
    ("shape", "channels"), [((9, 11, 3), 3), ((3, 9, 11), 3), ((9, 11), 1), ((4, 9, 11), 1)]
)
def test_a_film_holds_the_frames_of_its_rows(shape, channels):
    first, second = films(shape, [3, 2])
    assert (first.rows, second.rows) == ([0, 1, 2], [3, 4])
    found, width, height, number = pixels(second.picture)
    assert (width, height, number) == (11, 18, channels)
    assert found.reshape(2, -1).unique(dim=1).flatten().tolist() == [3, 4]


def test_long_and_large_films_are_made_smaller():
    (film,) = films((300, 200, 3), [FRAMES * 2])
    assert len(film.rows) == FRAMES
    assert (film.rows[0], film.rows[-1]) == (0, 2 * FRAMES - 1)
    assert max(film.width, film.height) <= SIDE


def test_noise_fits_into_the_page():
    count = 120
    noise = torch.randint(256, (count, 128, 128, 3), dtype=torch.uint8)
    made = films((9, 9), [30] * 4, pixels=noise)
    assert len(made) == 4
    assert sum(len(film.picture) for film in made) <= PICTURE_BYTES


def test_frames_under_next_are_shown_where_the_root_has_none():
    batch = trajectories([3])
    batch["next", "view"] = torch.zeros(3, 9, 9, dtype=torch.uint8)
    (film,) = films_of(ShownBatch(batch), None)
    assert film.key == ("next", "view")


@pytest.mark.parametrize(
    ("dtype", "shape", "is_one"),
    [
        (torch.uint8, (84, 84), True),
        (torch.uint8, (64, 64, 3), True),
        (torch.uint8, (12, 64, 64), True),
        (torch.uint8, (4,), False),
        (torch.uint8, (2, 3, 4), False),
        (torch.float32, (64, 64, 3), False),
    ],
)
def test_which_leaves_are_frames(dtype, shape, is_one):
    assert is_image(LeafType(("leaf",), dtype, shape)) == is_one
