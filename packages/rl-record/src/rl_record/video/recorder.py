"""Keeps frames while an environment is played, and logs them as a video."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_record.loggers.logger import Logger
from rl_tensordict import NestedKey, as_tuple, find
from rl_tensordict.arguments import check_type, check_whole
from rl_transforms import Place, Transform


class VideoRecorder(Transform):
    """Keeps the last frames of an environment; `dump` hands them to a logger as a video.

    It changes no data. Frames come from an entry, or are rendered where `render` is given, which
    keeps them out of the data. Of a vector one row is recorded.

    Args:
        logger: gets the video.
        name: its name there.
        in_keys: one key, of frames uint8 ``[*B, H, W, C]`` or ``[*B, C, H, W]``; ``["pixels"]`` by
            default.
        render: returns the frames, as `GymEnv.render` does; nothing is read then.
        skip: record one frame of so many.
        max_frames: how many frames are kept; older ones are dropped.
        row: which row of the environment's flattened batch is recorded.
        fps: frames a second of the video.

    Raises:
        ValueError: a number is below its least, or there is more than one key.

    Example:
        >>> import tempfile
        >>> from rl_envs import TransformedEnv
        >>> from rl_envs.testing import CountingEnv
        >>> from rl_record import JSONLLogger, read_run
        >>> folder, env = tempfile.mkdtemp(), CountingEnv()
        >>> def render():  # or the environment's own, as GymEnv(..., render_mode="rgb_array") has
        ...     return torch.randint(256, (48, 64, 3), dtype=torch.uint8)
        >>> with JSONLLogger("run", folder) as logger:
        ...     recorder = VideoRecorder(logger, "play", render=render)
        ...     batch = TransformedEnv(env, recorder).rollout(5)
        ...     num_frames = recorder.dump(step=100)
        >>> read_run(f"{folder}/run").videos[0]["file"]
        'videos/play-100.png'
    """

    places = frozenset[Place]({"environment"})

    def __init__(  # noqa: PLR0913 - independent options of one recording
        self,
        logger: Logger,
        name: str = "video",
        in_keys: list[NestedKey] | None = None,
        *,
        render: Callable[[], Tensor] | None = None,
        skip: int = 1,
        max_frames: int = 1000,
        row: int = 0,
        fps: float = 30.0,
    ) -> None:
        super().__init__(["pixels"] if in_keys is None else in_keys)
        if len(self.in_keys) != 1:
            msg = f"in_keys: expected one key of frames, got {self.in_keys}: make a recorder each."
            raise ValueError(msg)
        check_type("logger", logger, Logger, "a logger")
        for argument, value in (("skip", skip), ("max_frames", max_frames)):
            check_whole(argument, value, 1)
        check_whole("row", row, 0)
        self.logger, self.name, self.render = logger, name, render
        self.skip, self.row, self.fps = skip, row, fps
        self.frames: deque[Tensor] = deque(maxlen=int(max_frames))  # uint8 [C, H, W] each
        self.num_seen = 0

    def reset(self, root: TensorDictBase, mask: Tensor | None = None) -> TensorDictBase:
        """Record what a reset shows.

        Args:
            root: ``[*B]``, after the reset.
            mask: bool ``[*B]``, the rows that were reset; None if all were.

        Returns:
            The same root.
        """
        if mask is None or bool(mask.flatten()[self.row]):
            self._record(root)
        return root

    def step(self, root: TensorDictBase, after: TensorDictBase) -> TensorDictBase:
        """Record what a step shows.

        Args:
            root: ``[*B]``, the root of the step.
            after: ``[*B]``, the entries under ``"next"``.

        Returns:
            The same entries.
        """
        self._record(after)
        return after

    def dump(self, step: int | None = None) -> int:
        """Log the frames as a video, and forget them.

        Args:
            step: step of the log entry.

        Returns:
            How many frames it has; without any, nothing is logged.
        """
        count = len(self.frames)
        if count:
            video = list(self.frames)  # not copied: that takes a second for 500 large frames
            self.frames.clear()
            self.logger.log_video(self.name, video, step, fps=self.fps)
        return count

    def _record(self, seen: TensorDictBase) -> None:
        self.num_seen += 1
        if (self.num_seen - 1) % self.skip:
            return
        frames: Any = self._shown(seen) if self.render is None else self.render()
        batch = seen.batch_size if frames.ndim > 3 else torch.Size([])
        rows = frames.flatten(0, len(batch) - 1) if len(batch) else frames.unsqueeze(0)
        if self.row >= len(rows):
            msg = f"row {self.row} is not there: the environment has {len(rows)} rows."
            raise IndexError(msg)
        self.frames.append(_channels_first(rows[self.row]).clone())

    def _shown(self, seen: TensorDictBase) -> Tensor:
        key = self.in_keys[0]
        frames = find(seen, as_tuple(key))
        if frames is None:
            msg = f"{key!r} is not there: name the entry of frames, or pass render=env.render."
            raise KeyError(msg)
        found: Tensor = frames
        return found


def _channels_first(frame: Tensor) -> Tensor:
    """One frame ``[C, H, W]``."""
    if frame.dtype != torch.uint8 or frame.ndim != 3:
        msg = (
            f"expected frames uint8 [H, W, C] or [C, H, W], got {frame.dtype} {list(frame.shape)}."
        )
        raise ValueError(msg)
    return frame.permute(2, 0, 1) if frame.shape[-1] in (1, 3, 4) else frame
