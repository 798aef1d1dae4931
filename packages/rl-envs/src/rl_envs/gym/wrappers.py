"""The wrappers that `GymEnv` puts around a Gymnasium environment."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium

from rl_envs.gym.frame_skip import FrameSkipWrapper
from rl_envs.gym.info import InfoKeys, ShowInfo
from rl_envs.gym.pixels import ShowPixels

Env = gymnasium.Env[Any, Any]

STATELESS = (FrameSkipWrapper, ShowPixels, ShowInfo)
"""Wrappers that need not be saved."""


def wrappers_for(
    *,
    frame_skip: int | None = None,
    from_pixels: bool = False,
    pixels_only: bool = True,
    info_keys: InfoKeys | None = None,
) -> list[Callable[[Env], Env]]:
    """List the requested wrappers, the innermost first, as functions that can be pickled."""
    found: list[Callable[[Env], Env]] = []
    if frame_skip is not None:
        found.append(partial(FrameSkipWrapper, num_frames=frame_skip))
    if from_pixels:
        found.append(partial(ShowPixels, pixels_only=pixels_only))
    if info_keys is not None:
        found.append(partial(ShowInfo, info_keys=info_keys))
    return found
