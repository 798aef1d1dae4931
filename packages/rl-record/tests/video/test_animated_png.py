import struct
import sys
import zlib

import pytest
import torch

from rl_record import JSONLLogger, read_run
from rl_record.video.animated_png import write_animation
from rl_record.video.encoder import encode


def chunks(path):
    """Kind and content of each chunk, its checksum compared."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    found, at = [], 8
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        kind, content = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        (check,) = struct.unpack(">I", data[at + 8 + size : at + 12 + size])
        assert check == zlib.crc32(kind + content)
        found.append((kind, content))
        at += 12 + size
    return found


def pixels(content, channels, height, width):
    rows = torch.frombuffer(bytearray(zlib.decompress(content)), dtype=torch.uint8)
    rows = rows.view(height, 1 + width * channels)
    assert not rows[:, 0].any()  # no filter
    return rows[:, 1:].view(height, width, channels).permute(2, 0, 1)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_frames_come_back_bit_for_bit(tmp_path, channels):
    frames = torch.randint(256, (3, channels, 5, 7), dtype=torch.uint8)
    path = tmp_path / "a.png"
    write_animation(path, frames, fps=25)
    found = chunks(path)
    kinds = [kind for kind, _ in found]
    order = [b"IHDR", b"acTL", b"fcTL", b"IDAT", *[b"fcTL", b"fdAT"] * 2, b"IEND"]
    assert kinds == order
    assert struct.unpack(">II", found[1][1]) == (3, 0)
    numbers = [c[:4] for kind, c in found if kind in (b"fcTL", b"fdAT")]
    assert [struct.unpack(">I", number)[0] for number in numbers] == [0, 1, 2, 3, 4]
    data = [c if kind == b"IDAT" else c[4:] for kind, c in found if kind in (b"IDAT", b"fdAT")]
    for frame, content in zip(frames, data, strict=True):
        assert torch.equal(pixels(content, channels, 5, 7), frame)


@pytest.mark.parametrize("fps", [0.001, 0.3, 1.0, 29.97, 30.0, 66.0, 120.0, 1e6])
def test_rates_of_every_size_are_written(tmp_path, fps):
    path = tmp_path / "a.png"
    write_animation(path, torch.zeros(2, 1, 2, 2, dtype=torch.uint8), fps)
    shown = [content for kind, content in chunks(path) if kind == b"fcTL"]
    for content in shown:
        above, below = struct.unpack(">HH", content[20:24])
        expected = min(max(1 / fps, 1 / 65535), 65)
        assert above / below == pytest.approx(expected, rel=1e-3)


def test_another_reader_sees_the_frames_and_their_time(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    image = pytest.importorskip("PIL.Image", reason="pillow comes with matplotlib")
    frames = torch.randint(256, (3, 3, 5, 7), dtype=torch.uint8)
    path = encode(frames, tmp_path / "videos" / "play-10", fps=25)
    with image.open(path) as file:
        assert (file.n_frames, file.size, file.info["duration"]) == (3, (7, 5), 40)
        for t in range(3):
            file.seek(t)
            seen = torch.frombuffer(bytearray(file.convert("RGB").tobytes()), dtype=torch.uint8)
            assert torch.equal(seen.view(5, 7, 3).permute(2, 0, 1), frames[t])
    assert [p.name for p in path.parent.iterdir()] == ["play-10.png"]


def test_frames_are_an_animated_png_where_the_encoder_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    path = encode(torch.zeros(2, 3, 4, 4, dtype=torch.uint8), tmp_path / "play", fps=25)
    assert path == tmp_path / "play.png"
    assert path.read_bytes()[:4] == b"\x89PNG"


def test_video_is_logged_as_a_file_of_the_run(tmp_path):
    frames = torch.zeros(2, 1, 4, 4, dtype=torch.uint8)
    with JSONLLogger("run", tmp_path) as logger:
        logger.log_video("eval/play", frames, 7)
        made = tmp_path / "made.mp4"
        made.write_bytes(b"x")
        logger.log_video("other", made, 8)
    inside, outside = read_run(tmp_path / "run").videos
    assert (tmp_path / "run" / inside["file"]).is_file()
    assert outside["file"] == str(made)
