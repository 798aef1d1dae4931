"""What a collector was asked for, checked before anything is played."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tensordict import TensorDictBase
from tensordict.nn import InteractionType

from rl_collect.arguments import check_count, check_switches
from rl_envs import EnvBase


@dataclass(frozen=True)
class CollectorOptions:
    """The options of a collector."""

    frames_per_batch: int  # steps in a batch, of all environments together
    total_frames: int = -1  # steps to play in all; -1 for no end
    init_random_frames: int = 0  # actions are drawn at random until so many steps are played
    reset_at_each_iter: bool = False  # reset every environment before each batch
    set_truncated: bool = False  # mark the last step of each batch as truncated
    split_trajs: bool = False  # return padded trajectories [S, L]
    compact_obs: bool = False  # leave the next observations out
    track_traj_ids: bool = True  # write ids and steps
    trajs_per_batch: int | None = None  # return so many whole trajectories at a time
    extend_buffer: bool = True  # write batch by batch; otherwise step by step
    replay_buffer: Any = None  # where batches go instead of to the caller
    postproc: Callable[[TensorDictBase], TensorDictBase] | None = None  # changes each batch
    pre_collect_hook: Callable[[], Any] | None = None  # called before each batch is played
    # called with each batch before it is returned
    post_collect_hook: Callable[[TensorDictBase], Any] | None = None
    exploration_type: InteractionType = InteractionType.RANDOM  # how a probabilistic policy acts
    max_unfinished_frames: int = 1_000_000  # most steps of unfinished trajectories to hold
    profile: bool = False  # name what is done for torch's profiler

    def __post_init__(self) -> None:
        self._check_numbers()
        for name in ("postproc", "pre_collect_hook", "post_collect_hook"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                msg = f"{name} must be callable: got {type(getattr(self, name)).__name__}."
                raise TypeError(msg)
        wanted = "extend" if self.extend_buffer else "add"
        if self.replay_buffer is not None and not hasattr(self.replay_buffer, wanted):
            msg = f"replay_buffer needs {wanted}(): got {type(self.replay_buffer).__name__}."
            raise TypeError(msg)
        for refused, reason in self._exclusions():
            if refused:
                raise ValueError(reason)
        if self.split_trajs:
            warnings.warn(
                "split_trajs pads every batch to its longest trajectory: the flat batch is "
                "smaller, and everything here takes it as it is.",
                stacklevel=4,
            )

    @property
    def cuts_episodes(self) -> bool:
        """Whether trajectories may begin in the middle of an episode."""
        return self.set_truncated or self.trajs_per_batch is not None

    def check_sizes(self, env: EnvBase) -> None:
        """Raise for concatenation of steps of unequal size."""
        spec = env.observation_spec
        found = [key for key in spec.keys(True, True) if -1 in spec[key].shape]
        if found and (self.split_trajs or self.trajs_per_batch is not None):
            msg = (
                f"whole trajectories are in one tensor, and {found} have no one size: leave out "
                "trajs_per_batch and split_trajs, or bring them to one size by a transform."
            )
            raise ValueError(msg)

    def num_steps(self, env: EnvBase) -> int:
        """How many steps each environment plays for a batch."""
        num_envs = max(env.batch_size.numel(), 1)
        num_steps = -(-self.frames_per_batch // num_envs)
        if num_steps * num_envs != self.frames_per_batch:
            warnings.warn(
                f"frames_per_batch={self.frames_per_batch} is no multiple of {num_envs} "
                f"environments: batches have {num_steps * num_envs} frames.",
                stacklevel=3,
            )
        return num_steps

    def _check_numbers(self) -> None:
        for name in ("frames_per_batch", "max_unfinished_frames"):
            check_count(getattr(self, name), 1, name)
        check_count(self.init_random_frames, 0, "init_random_frames")
        if self.trajs_per_batch is not None:
            check_count(self.trajs_per_batch, 1, "trajs_per_batch")
        if check_count(self.total_frames, -1, "total_frames") == 0:
            msg = "total_frames is too small: expected 1 or more, or -1 for no end, got 0."
            raise ValueError(msg)
        names = (
            "reset_at_each_iter",
            "set_truncated",
            "split_trajs",
            "compact_obs",
            "track_traj_ids",
            "extend_buffer",
            "profile",
        )
        check_switches({name: getattr(self, name) for name in names})
        if not isinstance(self.exploration_type, InteractionType):
            msg = (
                "exploration_type must be a tensordict.nn.InteractionType: got "
                f"{self.exploration_type!r:.200}."
            )
            raise TypeError(msg)

    def _exclusions(self) -> list[tuple[bool, str]]:
        has_buffer, by_step = self.replay_buffer is not None, not self.extend_buffer
        return [
            (
                self.split_trajs and not self.track_traj_ids,
                "split_trajs needs track_traj_ids=True, which tells trajectories apart.",
            ),
            (
                self.trajs_per_batch is not None and not self.track_traj_ids,
                "trajs_per_batch needs track_traj_ids=True, which tells trajectories apart.",
            ),
            (
                self.split_trajs and self.trajs_per_batch is not None,
                "split_trajs and trajs_per_batch exclude each other: split what is returned "
                "with rl_layout.split_trajectories.",
            ),
            (by_step and not has_buffer, "extend_buffer=False needs a replay_buffer."),
            (
                by_step
                and (self.split_trajs or self.trajs_per_batch is not None or bool(self.postproc)),
                "extend_buffer=False writes single steps: leave out split_trajs, "
                "trajs_per_batch and postproc.",
            ),
        ]
