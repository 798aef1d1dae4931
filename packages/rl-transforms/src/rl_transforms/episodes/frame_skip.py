"""Action repeat: one action for several frames."""

from __future__ import annotations

from tensordict import TensorDictBase

from rl_specs import Bounded, Composite
from rl_tensordict import NestedKey
from rl_tensordict.arguments import check_whole
from rl_transforms.entries import with_entries
from rl_transforms.episodes.env_driver import Driven, Driver
from rl_transforms.transform import with_specs


class FrameSkip(Driver):
    """Repeats each action for several frames, and sums the rewards.

    The observation is that of the last frame. An episode that ends earlier skips the remaining
    frames. Transforms ahead of this one see every frame, for example a `TimeMaxPool` against
    flicker, and limits there count frames; transforms after it see one step.

    A Gymnasium environment skips faster by ``GymEnv(..., frame_skip=)``.

    Args:
        frame_skip: frames per action, at least 1.

    Raises:
        ValueError: `frame_skip` is less than 1.

    Example:
        >>> FrameSkip(4).frame_skip
        4
    """

    drives = "step"

    def __init__(self, frame_skip: int = 1) -> None:
        super().__init__()
        check_whole("frame_skip", frame_skip, 1)
        self.frame_skip = frame_skip

    def drive_step(self, env: Driven, root: TensorDictBase) -> TensorDictBase:
        """Take the action of a root for several frames.

        Args:
            env: the environment.
            root: ``[*B]``, with actions.

        Returns:
            What the last frame of each row gave, with the sums of the rewards.
        """
        after = env.step_rows(root)
        for _ in range(self.frame_skip - 1):
            going = ~env.over(after)
            if not bool(going.any()):
                break
            acted = env.following(root, after)
            root = with_entries(
                acted, {k: root.get(k) for k in env.full_action_spec.keys(True, True)}
            )
            frame = env.step_rows(root, going)
            sums = {key: after.get(key) + frame.get(key) for key in env.reward_keys}
            after = env.merge(after, with_entries(frame, sums), going)
        return after

    def transform_reward_spec(self, spec: Composite) -> Composite:
        """Describe sums of up to `frame_skip` rewards."""
        changes: dict[NestedKey, Bounded] = {}
        for key in spec.keys(include_nested=True, leaves_only=True):
            leaf = spec[key]
            if isinstance(leaf, Bounded):
                low = leaf.low.minimum(leaf.low * self.frame_skip)
                high = leaf.high.maximum(leaf.high * self.frame_skip)
                changes[key] = Bounded(low, high, dtype=leaf.dtype, device=leaf.device)
        return with_specs(spec, changes)

    def extra_repr(self) -> str:
        """Say how many frames."""
        return f"frame_skip={self.frame_skip}"
