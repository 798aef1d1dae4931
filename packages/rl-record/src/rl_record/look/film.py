"""Frames of some trajectories, as one picture each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rl_layout import keys
from rl_record.look.shown_rows import LeafType, ShownRows, spread_rows
from rl_record.look.trajectories import Trajectories
from rl_record.video.animated_png import still_png
from rl_tensordict import CPU

FILMS, FRAMES, SIDE = 4, 48, 128
PICTURE_BYTES = 3 << 19  # of all films: base64 adds a third
COLOURS = (1, 3, 4)
LEAST = 8  # pixels of a side


@dataclass(frozen=True)
class Film:
    """Frames of one trajectory, one below the other in a PNG."""

    key: tuple[str, ...]  # the leaf
    rows: list[int]  # the flat row of each frame
    label: str  # which trajectory
    width: int  # pixels of a frame
    height: int  # pixels of a frame
    picture: bytes  # the PNG
    note: str  # what was left out of each frame


def films_of(rows: ShownRows, trajectories: Trajectories | None) -> list[Film]:
    """Films of the leaves that hold frames, no more in all than a page takes."""
    leaves = [leaf for leaf in rows.leaves if is_image(leaf)]
    roots = {leaf.key for leaf in leaves}
    # what is at the root is seen there
    leaves = [one for one in leaves if one.key[0] != keys.NEXT or one.key[1:] not in roots]
    scenes = _scenes(rows, trajectories)
    wanted = [(leaf, label, some) for leaf in leaves for label, some in scenes]
    made, left = [], PICTURE_BYTES
    for number, (leaf, label, some) in enumerate(wanted):
        # what one leaves the others may take
        film = _film(rows, leaf, label, some, left // (len(wanted) - number))
        left -= len(film.picture)
        made.append(film)
    return made


def is_image(leaf: LeafType) -> bool:
    """Whether a leaf holds frames: bytes ``[H, W]``, ``[H, W, C]`` or ``[C, H, W]``."""
    if leaf.dtype != torch.uint8 or len(leaf.shape) not in (2, 3):
        return False
    if len(leaf.shape) == 2:
        return min(leaf.shape) >= LEAST
    first, middle, last = leaf.shape
    return min(middle, last) >= LEAST or (last in COLOURS and min(first, middle) >= LEAST)


def _scenes(rows: ShownRows, trajectories: Trajectories | None) -> list[tuple[str, list[int]]]:
    """A label and the flat rows of each film: of trajectories that are evenly spaced."""
    if trajectories is None or not len(trajectories):
        some = spread_rows(rows.batch.batch_size.numel(), FRAMES)
        return [("rows, evenly spaced", some.tolist())]
    scenes = []
    for number in spread_rows(len(trajectories), FILMS).tolist():
        pieces = (trajectories.owners == number).nonzero()[0]
        runs = [
            np.arange(
                trajectories.starts[p], trajectories.starts[p] + trajectories.piece_lengths[p]
            )
            for p in pieces
        ]
        every = np.concatenate(runs)
        ids = trajectories.ids
        label = f"trajectory {number}" if ids is None else f"trajectory of id {ids[number]}"
        scenes.append((label, every[spread_rows(len(every), FRAMES).numpy()].tolist()))
    return scenes


def _film(rows: ShownRows, leaf: LeafType, label: str, some: list[int], most_bytes: int) -> Film:
    """A film of at most so many bytes, if one frame fits; fewer frames, then smaller ones."""
    side = SIDE
    while True:
        frames, note = _pixels(rows.read(leaf.key, torch.tensor(some, device=CPU)))
        frames = _smaller(frames, side)
        count, channels, height, width = frames.shape
        strip = frames.permute(1, 0, 2, 3).reshape(channels, count * height, width)
        picture = still_png(strip)
        if len(picture) <= most_bytes or (len(some) == 1 and side <= LEAST):
            return Film(leaf.key, some, label, width, height, picture, note)
        if len(some) > 8:
            some = [some[i] for i in spread_rows(len(some), len(some) // 2).tolist()]
        elif side > LEAST:
            side //= 2
        else:
            some = some[: max(1, len(some) // 2)]


def _pixels(frames: Tensor) -> tuple[Tensor, str]:
    """Frames ``[T, C, H, W]`` with 1, 3 or 4 channels, and what was left out."""
    if frames.ndim == 3:
        return frames.unsqueeze(1), ""
    if frames.shape[-1] in COLOURS and min(frames.shape[1:3]) >= LEAST:
        return frames.permute(0, 3, 1, 2), ""
    # four channels in front are a stack of frames, not a colour with its opacity
    if frames.shape[1] in (1, 3):
        return frames, ""
    return frames[:, -1:], f"the last of {frames.shape[1]} channels"


def _smaller(frames: Tensor, side: int) -> Tensor:
    """Frames whose longer side has at most so many pixels, each the mean of those it covers."""
    factor = -(-max(frames.shape[-2:]) // side)
    if factor <= 1:
        return frames
    kernel = [min(factor, size) for size in frames.shape[-2:]]
    means = torch.nn.functional.avg_pool2d(frames.float(), kernel, ceil_mode=True)
    return means.round().to(torch.uint8)
