"""Frames of environments and of rollouts."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_envs.env.interface import Environment
from rl_tensordict.arguments import check_type


class Renderable:
    """Adds `render` to environments; a wrapper renders the environment inside."""

    def render(self) -> Tensor:
        """Render the current state.

        Returns:
            A frame uint8 `[*B, H, W, 3]`, on the CPU.

        Raises:
            NotImplementedError: this class of environments has no frames.
            ValueError: it was not made to render.
        """
        inner = vars(self).get("base_env")
        if inner is None:
            msg = f"{type(self).__name__} has no frames: give it a method render."
            raise NotImplementedError(msg)
        frame: Tensor = inner.render()
        return frame


def frame_of(rendered: Any) -> Tensor:
    """Copy what Gymnasium renders into a tensor."""
    frame = np.array(rendered)
    if frame.dtype != np.uint8 or frame.ndim < 3:
        msg = f"expected frames of bytes [H, W, 3]: got {frame.dtype} of shape {frame.shape}."
        raise ValueError(msg)
    return torch.from_numpy(frame)


class FrameRecorder:
    """Keeps a frame of every step of a rollout, as the step left the environment.

    Pass it as the callback of `rollout`. Frame t shows what `"next"` of step t does.

    Example:
        >>> recorder = FrameRecorder()
        >>> batch = env.rollout(50, callback=recorder)  # doctest: +SKIP
        >>> recorder.frames.shape  # doctest: +SKIP
        torch.Size([50, 400, 600, 3])
    """

    def __init__(self) -> None:
        self._frames: list[Tensor] = []
        self._time = 0

    def __call__(self, env: Environment, step: TensorDictBase) -> None:
        """Keep one more frame.

        Args:
            env: what was stepped.
            step: not looked at.
        """
        self._time = len(env.batch_size)
        self._frames.append(env.render())

    @property
    def frames(self) -> Tensor:
        """All frames, uint8 `[*B, T, H, W, 3]`.

        Raises:
            RuntimeError: there is none yet.
        """
        if not self._frames:
            msg = "no step was recorded yet: pass the recorder as callback to rollout."
            raise RuntimeError(msg)
        return torch.stack(self._frames, self._time)

    def clear(self) -> None:
        """Forget all frames."""
        self._frames.clear()


def write_gif(frames: Tensor, path: str | Path, *, fps: float = 30.0) -> None:
    """Write frames as an animated GIF, which repeats. Needs Pillow: `pip install rl-envs[video]`.

    Args:
        frames: uint8 `[T, H, W, 3]`.
        path: of the file, which is overwritten.
        fps: frames each second, up to 50.

    Raises:
        ImportError: Pillow is not installed.
        ValueError: these are no frames, or `fps` is not in its range.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_gif(torch.zeros(3, 5, 7, 3, dtype=torch.uint8), f"{folder}/black.gif")
    """
    check_type("path", path, str | PathLike, "a path")
    folder = Path(path).parent
    if not folder.is_dir():
        msg = f"the folder {str(folder)!r} is not there: make it first."
        raise FileNotFoundError(msg)
    check_type("frames", frames, Tensor, "frames uint8 [T, H, W, 3]")
    if not 0 < fps <= 50:
        msg = f"fps must be above 0 and at most 50, which GIF can show: got {fps}."
        raise ValueError(msg)
    if frames.dtype != torch.uint8 or frames.shape[3:] != (3,) or not len(frames):
        msg = (
            f"expected frames uint8 [T, H, W, 3]: got {frames.dtype} {tuple(frames.shape)}. Of a "
            f"batch, write one row: frames[0]."
        )
        raise ValueError(msg)
    try:
        from PIL import Image
    except ImportError as error:
        msg = "write_gif needs Pillow: pip install rl-envs[video]."
        raise ImportError(msg) from error
    first, *others = (Image.fromarray(frame.numpy()) for frame in frames.cpu())
    first.save(path, "GIF", save_all=True, append_images=others, duration=1000 / fps, loop=0)
