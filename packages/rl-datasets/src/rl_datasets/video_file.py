"""Files of videos, of which single frames are decoded."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rl_tensordict.types import Array, Ints

OPEN_FILES = 8  # that are kept, with a decoder each


def import_av() -> Any:
    """PyAV, or what to install."""
    try:
        import av
    except ModuleNotFoundError as error:
        raise ImportError(
            "this dataset has videos and PyAV is not installed: pip install 'rl-datasets[video]', "
            "or leave them out with decode_video=False."
        ) from error
    return av


class VideoFile:
    """A file with one video, whose frames are known by the times at which they are shown.

    Opening reads where the frames are, and decodes none.

    Args:
        path: The file, of any kind that FFmpeg reads.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is damaged, or has no video.
    """

    def __init__(self, path: Path) -> None:
        av = import_av()
        self.path, self._errors = path, av.FFmpegError
        try:
            self._container = av.open(str(path))
            self._stream = self._container.streams.video[0]
            packets = [p for p in self._container.demux(self._stream) if p.pts is not None]
        except FileNotFoundError:
            raise FileNotFoundError(f"there is no video at {path}.") from None
        except (av.FFmpegError, IndexError) as error:
            raise _damaged(path, str(error)) from error
        if not packets:
            raise _damaged(path, "it has no frame")
        self._shown = np.sort([packet.pts for packet in packets])
        self._keyframes = np.sort([packet.pts for packet in packets if packet.is_keyframe])
        self.times: Array = self._shown * float(self._stream.time_base)  # seconds
        self._decoded: Iterator[Any] = iter(())
        self._place = len(self._shown)  # of the frame that was decoded last; none yet

    def places(self, times: Array, tolerance: float) -> Ints:
        """Which frames are shown at some times: the nearest ones.

        Raises:
            ValueError: There is none within the tolerance.
        """
        after = np.searchsorted(self.times, times).clip(1, max(1, len(self.times) - 1))
        before = after - 1
        after = np.minimum(after, len(self.times) - 1)
        is_later = self.times[after] - times < times - self.times[before]
        found: Ints = np.where(is_later, after, before)
        wrong = np.abs(self.times[found] - times) > tolerance
        if wrong.any():
            raise ValueError(
                f"{self.path} has no frame at {times[wrong][0]:.4f} s, but {len(self.times)} from "
                f"{self.times[0]:.4f} to {self.times[-1]:.4f} s: the file is cut, or another one."
            )
        return found

    def read(self, places: Ints) -> Array:
        """Frames by their places, which rise; uint8 `[n, height, width, 3]`.

        Raises:
            ValueError: The file is damaged.
        """
        try:
            return np.stack([self._frame(place) for place in places.tolist()])
        except self._errors as error:
            raise _damaged(self.path, str(error)) from error

    def close(self) -> None:
        """Closes the file."""
        self._container.close()

    def _frame(self, place: int) -> Array:
        wanted = self._shown[place]
        keyframe = self._keyframes[max(0, np.searchsorted(self._keyframes, wanted, "right") - 1)]
        # the decoder continues from its place unless a keyframe comes before the wanted frame
        if self._place >= place or self._shown[self._place] < keyframe:
            self._container.seek(int(keyframe), stream=self._stream)
            self._decoded = self._container.decode(self._stream)
        for frame in self._decoded:
            if frame.pts == wanted:
                self._place = place
                found: Array = frame.to_ndarray(format="rgb24")
                return found
        self._place = len(self._shown)
        raise _damaged(self.path, f"frame {place} is not in it")


class VideoFiles:
    """Files of videos, a few of which stay open with their decoders; for any thread.

    Args:
        limit: How many stay open.
    """

    def __init__(self, limit: int = OPEN_FILES) -> None:
        self.limit = limit
        self._clear()

    def frames(self, path: Path, times: Array, tolerance: float) -> Array:
        """The frames that are shown at some times `[n]`, in any order; each is decoded once.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: It is damaged, or has no frame at such a time.
        """
        if self._process != os.getpid():  # a decoder is of one process
            self._clear()
        with self._lock:
            file = self._opened(path)
            places, inverse = np.unique(file.places(times, tolerance), return_inverse=True)
            found: Array = file.read(places)[inverse]
            return found

    def _opened(self, path: Path) -> VideoFile:
        file = self._open.pop(path, None) or VideoFile(path)
        self._open[path] = file  # the last one used
        while len(self._open) > self.limit:
            self._open.popitem(last=False)[1].close()
        return file

    def _clear(self) -> None:
        self._process, self._lock = os.getpid(), threading.Lock()
        self._open: OrderedDict[Path, VideoFile] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def __getstate__(self) -> dict[str, Any]:
        return {"limit": self.limit}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.limit = state["limit"]
        self._clear()


def _damaged(path: Path, why: str) -> ValueError:
    return ValueError(
        f"{path} is damaged, or ends too early, before byte {path.stat().st_size} ({why})."
    )
