"""Where the files of a run lie, and values as they are written to them."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from numbers import Integral, Real
from os import PathLike
from pathlib import Path, PurePosixPath
from typing import Any

import torch

from rl_record.loggers.event import Histogram, Video
from rl_record.video.encoder import encode
from rl_tensordict.arguments import check_type

LONGEST = 200  # characters: with what is added, file systems take 255 bytes


def run_folder(log_dir: Path | str, exp_name: str, file: str, *, resume: bool) -> Path:
    """Make the folder of a run; an older run is gone on with if that is wanted, never mixed in."""
    check_inside("exp_name", exp_name)
    check_type("log_dir", log_dir, str | PathLike, "the folder of runs")
    folder = Path(log_dir) / exp_name
    if (folder / file).exists() and not resume:
        msg = (
            f"{folder / file} holds an older run. Go on with it by resume=True, or choose another "
        )
        raise FileExistsError(msg + "exp_name or log_dir.")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def check_inside(argument: str, name: str) -> None:
    """Raise where a file of that name would lie outside its folder, or could not be."""
    check_type(argument, name, str, "a name")
    parts = Path(name).parts
    is_outside = PurePosixPath(name).is_absolute() or Path(name).is_absolute() or ".." in parts
    if not parts or is_outside or "\0" in name or max(map(len, parts)) > LONGEST:
        msg = f"{argument}: expected a name, or names with '/' between, got {name!r}."
        raise ValueError(msg)


def ends_within_a_line(path: Path) -> bool:
    """Whether a killed process could not finish the last line of a file."""
    if not path.exists() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read() != b"\n"


def video_file(folder: Path, video: Video) -> Path:
    """The file of a video: as it was given, or encoded in the folder of the run."""
    if isinstance(video.frames, Path):
        return video.frames
    return encode(video.frames, folder / "videos" / f"{video.name}-{video.step}", video.fps)


def counted(event: Histogram) -> tuple[list[int], list[float]]:
    """How many finite numbers lie in each interval, and the ends of the intervals."""
    data = event.data.double().flatten().cpu()
    finite = data[data.isfinite()]
    low, high = (finite.min(), finite.max()) if len(finite) else (0.0, 1.0)
    counts, edges = torch.histogram(finite, event.bins, range=(float(low), float(high)))
    return counts.long().tolist(), edges.tolist()


def written(value: Any) -> Any:
    """A value as JSON can hold it: numbers that are not finite as text, others as their repr."""
    if isinstance(value, bool | str | None):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        number = float(value)
        return number if isfinite(number) else str(number)
    if isinstance(value, Mapping):
        return {str(key): written(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [written(item) for item in value]
    return repr(value)
