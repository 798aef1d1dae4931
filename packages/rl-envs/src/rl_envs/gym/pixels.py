"""Rendered frames as observations of a Gymnasium environment."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rl_tensordict.types import Array

PIXELS = "pixels"


class ShowPixels(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds rendered frames, uint8 `[H, W, 3]`, to the observations, as `"pixels"`."""

    def __init__(self, env: gymnasium.Env[Any, Any], pixels_only: bool = True) -> None:
        super().__init__(env)
        check_renders(env)
        self._pixels_only = pixels_only
        seen = env.observation_space
        parts: dict[str, Any] = {"observation": seen}
        if isinstance(seen, spaces.Dict):
            parts = dict(seen.spaces)
        if PIXELS in parts and not pixels_only:
            msg = "there is an observation named 'pixels' already: leave out from_pixels."
            raise ValueError(msg)
        env.reset()  # to see the size of a frame
        frame = spaces.Box(0, 255, self._frame().shape, np.uint8)
        shown: dict[str, Any] = {PIXELS: frame} if pixels_only else {**parts, PIXELS: frame}
        self.observation_space = spaces.Dict(shown)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        observation, info = self.env.reset(**kwargs)
        return self._shown(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take one step."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._shown(observation), reward, terminated, truncated, info

    def _shown(self, observation: Any) -> dict[str, Any]:
        if self._pixels_only:
            return {PIXELS: self._frame()}
        parts = observation if isinstance(observation, dict) else {"observation": observation}
        return {**parts, PIXELS: self._frame()}

    def _frame(self) -> Array:
        return np.asarray(self.env.render(), np.uint8)


def check_renders(env: Any) -> None:
    """Raise for an environment that does not render frames as arrays."""
    if env.render_mode != "rgb_array":
        msg = f"pixels need render_mode='rgb_array': this environment has {env.render_mode!r}."
        raise ValueError(msg)
