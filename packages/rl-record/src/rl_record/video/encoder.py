"""Frames to a file, by the best encoder that is installed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from rl_record.video.animated_png import write_animation


def encode(frames: Tensor, path: Path, fps: float) -> Path:
    """Write frames, uint8 ``[T, C, H, W]``, and return the file."""
    # H.264 in mp4 where imageio-ffmpeg is installed, else an animated PNG. The file is written
    # under another name and renamed, so that a file that is there can be played.
    path.parent.mkdir(parents=True, exist_ok=True)
    is_mp4 = find_spec("imageio_ffmpeg") is not None
    # appended, since a name may hold a dot
    made = path.with_name(path.name + (".mp4" if is_mp4 else ".png"))
    partial = made.with_name(f"partial-{made.name}")
    (_write_mp4 if is_mp4 else write_animation)(partial, frames, fps)
    return partial.replace(made)


def _write_mp4(path: Path, frames: Tensor, fps: float) -> None:
    import imageio_ffmpeg

    even = _even(frames[:, :3].expand(-1, 3, -1, -1)).permute(0, 2, 3, 1).contiguous().cpu()
    size = (even.shape[2], even.shape[1])
    writer = imageio_ffmpeg.write_frames(str(path), size, fps=fps, macro_block_size=1)
    writer.send(None)  # starts the encoder
    for frame in even:
        writer.send(frame.numpy().tobytes())
    writer.close()


def _even(frames: Tensor) -> Tensor:
    """Frames with an even height and width, which the codec needs: the last line is repeated."""
    height, width = frames.shape[-2:]
    if height % 2:
        frames = torch.cat([frames, frames[..., -1:, :]], -2)
    return torch.cat([frames, frames[..., -1:]], -1) if width % 2 else frames
