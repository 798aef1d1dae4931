"""One action for several frames of a Gymnasium environment."""

from __future__ import annotations

from typing import Any

import gymnasium

from rl_tensordict.arguments import check_whole


class FrameSkipWrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Takes the same action several times, and adds up the rewards."""

    # the last observation is returned; the frame that ends an episode is the last one. Step limits
    # inside, such as those of gymnasium.make, count frames

    def __init__(self, env: gymnasium.Env[Any, Any], num_frames: int) -> None:
        super().__init__(env)
        check_whole("frame_skip", num_frames, 1)
        self.num_frames = num_frames

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take an action for several frames; returns the last results, with the summed reward."""
        total = 0.0
        for _ in range(self.num_frames):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info
