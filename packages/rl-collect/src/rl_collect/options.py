"""The options of a collector, checked before anything is played."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import InteractionType

from rl_collect.arguments import check_count, check_seconds, check_switches_of
from rl_envs import EnvBase


@dataclass(frozen=True, kw_only=True)
class CollectorOptions:
    """The arguments of a `Collector`, which documents them, but environment and policy."""

    frames_per_batch: int
    total_frames: int = -1
    device: Any = None
    env_device: Any = None
    policy_device: Any = None
    storing_device: Any = None
    no_cuda_sync: bool = False
    create_env_kwargs: Mapping[str, Any] | None = None
    init_random_frames: int | None = None
    max_frames_per_traj: int | None = None
    reset_at_each_iter: bool = False
    set_truncated: bool = False
    split_trajs: bool = False
    compact_obs: bool = False
    postproc: Callable[[TensorDictBase], TensorDictBase] | None = None
    pre_collect_hook: Callable[[], Any] | None = None
    post_collect_hook: Callable[[TensorDictBase], Any] | None = None
    track_traj_ids: bool = True
    auto_register_policy_transforms: bool = True
    replay_buffer: Any = None
    extend_buffer: bool = True
    trajs_per_batch: int | None = None
    max_unfinished_frames: int = 1_000_000
    exploration_type: InteractionType = InteractionType.RANDOM
    producer: int | None = None
    progress: bool = False
    profile: bool = False
    shutdown_timeout_s: float = 60.0

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> CollectorOptions:
        """Take the arguments of a call, by their names."""
        return cls(**{field.name: arguments[field.name] for field in fields(cls)})

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
                stacklevel=5,
            )

    @property
    def random_frames(self) -> int:
        """How many steps have random actions."""
        return self.init_random_frames or 0

    @property
    def devices(self) -> dict[str, Any]:
        """The given devices, by the names of the arguments."""
        names = ("device", "env_device", "policy_device", "storing_device")
        return {name: getattr(self, name) for name in names}

    @property
    def named_device(self) -> torch.device | None:
        """The device that batches name as their own; None if none was given."""
        said = self.storing_device if self.storing_device is not None else self.device
        return None if said is None else torch.device(said)

    @property
    def caller_waits(self) -> bool:
        """Whether copies of a batch may be under way when it is returned, as nothing reads it."""
        readers = (self.replay_buffer, self.postproc, self.post_collect_hook, self.trajs_per_batch)
        return self.no_cuda_sync and not self.split_trajs and all(one is None for one in readers)

    @property
    def acting_device(self) -> tuple[Any, str]:
        """The device that the policy acts on, None if not given, and the name of the argument."""
        if self.policy_device is None:
            return self.device, "device"
        return self.policy_device, "policy_device"

    @property
    def cuts_episodes(self) -> bool:
        """Whether trajectories may begin in the middle of an episode."""
        return self.set_truncated or self.trajs_per_batch is not None

    @property
    def alters_batches(self) -> bool:
        """Whether somebody sees or changes what is between steps and a buffer."""
        device = self.named_device
        called = (self.postproc, self.pre_collect_hook, self.post_collect_hook)
        switches = (self.reset_at_each_iter, self.split_trajs, self.compact_obs, self.profile)
        is_moved = device is not None and device.type != "cpu"
        has_calls = any(call is not None for call in called)
        return has_calls or any(switches) or self.cuts_episodes or is_moved

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
                stacklevel=4,
            )
        return num_steps

    def _check_numbers(self) -> None:
        for name in ("frames_per_batch", "max_unfinished_frames"):
            check_count(getattr(self, name), 1, name)
        if self.init_random_frames is not None:
            check_count(self.init_random_frames, 0, "init_random_frames")
        check_seconds(self.shutdown_timeout_s, "shutdown_timeout_s")
        if self.trajs_per_batch is not None:
            check_count(self.trajs_per_batch, 1, "trajs_per_batch")
        if check_count(self.total_frames, -1, "total_frames") == 0:
            msg = "total_frames is too small: expected 1 or more, or -1 for no end, got 0."
            raise ValueError(msg)
        check_switches_of(self)
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
