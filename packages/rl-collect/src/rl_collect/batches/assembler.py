"""From steps to marked batches: what a collector makes, before it goes anywhere."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_collect.batches.complete_trajectories import (
    TrajectoryQueue,
    WholeTrajectories,
    truncate_rows,
)
from rl_collect.batches.markers import GroupStarts, TrajectoryIds, compact, ends_of, insert_markers
from rl_collect.env_runner import EnvRunner
from rl_collect.episode_stats import Episodes
from rl_collect.multi.concat import cat
from rl_collect.options import CollectorOptions
from rl_envs import PolicyPlan
from rl_layout import keys
from rl_tensordict import CPU, find
from rl_tensordict.arguments import check_state
from rl_tensordict.types import Array, Flags, KeyPath

F = TypeVar("F", bound=Callable[..., Any])
Take: TypeAlias = Callable[[Mapping[KeyPath, Array], int], bool]
"""Stores the steps of a batch from arrays `[T, ...]` by key; False where it has not."""

PIECES = 16
"""How often a batch under way asks whether it is enough."""


class BatchAssembler:
    """Plays batches, marks them, and puts whole trajectories together."""

    def __init__(
        self,
        runner: EnvRunner,
        options: CollectorOptions,
        store: Callable[[TensorDictBase], TensorDictBase],
        storing: torch.device,
    ) -> None:
        env = runner.env
        self._env, self._runner, self._options = env, runner, options
        is_profiled = options.profile
        self._play = in_range("rl_collect.rollout", runner.play, is_on=is_profiled)
        self._mark = in_range("rl_collect.marks", self._marked, is_on=is_profiled)
        self._move, self._random_frames = store, options.random_frames
        self._stays = storing.type == "cpu"  # where columns are copied
        self._stored = in_range("rl_collect.store", self._moved, is_on=is_profiled)
        self.num_steps = options.num_steps(env)
        self._with_ids = options.track_traj_ids
        self._cuts_episodes = options.cuts_episodes
        self._reward_keys = [(keys.NEXT, *keys.as_tuple(key)) for key in env.reward_keys]
        self._every_row = (slice(None),) * len(env.batch_size)
        self._ids = TrajectoryIds(env.batch_size, options.producer)
        self._groups = GroupStarts(env.done_groups)
        done = env.full_done_spec.get(keys.DONE) if () in env.done_groups else None
        self._has_done = done is not None and done.shape == (*env.batch_size, 1)
        # whether a batch of one environment is its columns and markers, and nothing is done to it
        self._is_plain = (
            not env.batch_size
            and self._has_done
            and self._with_ids
            and self._stays
            and len(self._reward_keys) == 1
            and not (self._groups.are_there or options.alters_batches)
        )
        # whose next step begins a trajectory in the middle of an episode
        self._mid_episode = torch.zeros(env.batch_size, dtype=torch.bool, device=CPU)
        num_envs = max(env.batch_size.numel(), 1)
        self._whole = WholeTrajectories(num_envs, options.max_unfinished_frames)
        self._queue = TrajectoryQueue()
        self.episodes = Episodes(env.batch_size)
        self.frames = self.policy_version = 0
        self.is_enough: Callable[[], bool] | None = None
        self.refresh: Callable[[], None] | None = None
        self._has_warned = False

    @property
    def producer(self) -> int:
        """High bits of the trajectory ids."""
        return self._ids.producer

    @property
    def plan(self) -> PolicyPlan | None:
        """The calls of the policy; None without one."""
        return self._runner.plan

    def explain(self) -> str:
        """Say how steps are taken and the policy is called, and why in no faster way."""
        stats = None if self.plan is None else self.plan.stats()
        if stats is None:
            policy = "none, actions are drawn at random for a whole batch"
        elif stats["fallback"]:
            policy = f"called as it is, because its parts differ from it: {stats['fallback']}"
        elif stats["flat"]:
            policy = f"flattened into {stats['calls']} calls on tensors"
        else:
            policy = f"called through tensordicts: {stats['reason']}"
        return f"steps: {self._runner.explain(self.num_steps)}\npolicy: {policy}"

    @property
    def unfinished(self) -> int:
        """How many steps of unfinished trajectories are held."""
        return self._whole.held

    @property
    def waiting(self) -> int:
        """How many whole trajectories wait to be returned."""
        return self._queue.count

    def play(self) -> TensorDictBase:
        """Play a batch."""
        return self._stored(self._played()[0])

    def play_into(self, take: Take) -> TensorDictBase | None:
        """Play a batch, and let its arrays be taken; the batch itself if they are not."""
        is_decided_within = self.refresh is not None or self.is_enough is not None
        if not self._is_plain or is_decided_within:
            return self.play()
        self.cut_if_moved()
        try:
            steps = self._runner.play_in_columns(self.num_steps)
        except BaseException:
            self.reset()  # as in `_steps`
            raise
        if steps is None:
            return self.play()
        arrays, count = dict(steps), self.num_steps
        over: Flags = arrays[keys.NEXT_DONE][:, 0].copy()
        markers = self._markers(over)
        self.frames += count
        self.episodes.add(arrays[self._reward_keys[0]], over)
        arrays.update(markers)
        if take(arrays, count):
            return None
        batch = self._runner.copy_columns(count)
        insert_markers(batch, markers)
        return batch

    def play_by_step(self) -> Iterator[TensorDictBase]:
        """Play a batch step by step."""
        self._begin()
        for number in range(1, self.num_steps + 1):
            batch, over = self._steps(1)
            if number == self.num_steps and self._options.set_truncated:
                self._end(batch, over)
            yield self._stored(batch)[..., 0]

    def play_trajectories(self) -> None:
        """Play a batch, and let the trajectories that it completes wait."""
        batch, over = self._played()
        self._queue.push(self._whole.take(self._stored(batch), torch.from_numpy(over)))
        too_long = self._whole.over_bound()
        if bool(too_long.any()):
            self._queue.push(self._whole.cut(too_long))
            self._begin_trajectories(too_long.reshape(self._env.batch_size))

    def pop(self, count: int | None = None) -> TensorDictBase | None:
        """Return trajectories that wait."""
        return self._queue.pop(count)

    def cut_unfinished(self) -> None:
        """Let the pieces of trajectories that have not ended wait as well, as truncations."""
        if self._options.trajs_per_batch is not None:
            self._queue.push(self._whole.cut())

    def finish(self) -> None:
        """Let them wait as truncations; the environments continue, and begin new trajectories."""
        unfinished = self._whole.lengths > 0
        if bool(unfinished.any()):
            self.cut_unfinished()
            self._begin_trajectories(unfinished.reshape(self._env.batch_size))

    def reset(self) -> None:
        """Reset every environment before the next step; what follows are new trajectories."""
        self.cut_unfinished()
        self._runner.reset()
        self._ids.cut()
        self._mid_episode = torch.zeros_like(self._mid_episode)
        self.episodes.forget()

    def cut_if_moved(self) -> None:
        """Begin new trajectories where somebody else has moved the environment; say so, once."""
        if not self._runner.env_was_moved:
            return
        self.reset()
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"{self._env!r} was stepped, reset or given a state by somebody else since this "
                "collector last played it: the trajectories under way are cut, and it is reset. "
                "Give evaluations and other collectors an environment of their own.",
                stacklevel=2,
            )

    def note_moves(self) -> None:
        """Note that the environment was brought to where the next batch begins."""
        self._runner.note_moves()

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next batch depends on, but environment and policy."""
        return {
            "frames": self.frames,
            "policy_version": self.policy_version,
            "player": self._runner.state_dict(),
            "ids": self._ids.state_dict(),
            "groups": self._groups.state_dict(),
            "mid_episode": self._mid_episode.clone(),
            "whole": self._whole.state_dict(),
            "finished": self._queue.state_dict(),
            "episodes": self.episodes.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a saved one stopped."""
        check_state("a Collector", state, self.state_dict())
        self._ids.load_state_dict(state["ids"])
        self._groups.load_state_dict(state["groups"])
        self._mid_episode = state["mid_episode"].clone()
        self.frames, self.policy_version = state["frames"], state["policy_version"]
        self._runner.load_state_dict(state["player"])
        self._whole.load_state_dict(state["whole"])
        self._queue.load_state_dict(state["finished"])
        self.episodes.load_state_dict(state["episodes"])

    def _played(self) -> tuple[TensorDictBase, Flags]:
        """A batch with its markers, and the steps in it that end a trajectory."""
        self._begin()
        batch, over = self._steps(self._piece())
        pieces, left = [(batch, over)], self.num_steps - over.shape[-1]
        while left and not (self.is_enough is not None and self.is_enough()):
            pieces.append(self._steps(min(left, self._piece())))
            left -= pieces[-1][1].shape[-1]
        if len(pieces) > 1:
            batch = cat([one for one, _ in pieces], -1)
            over = np.concatenate([one for _, one in pieces], -1)
        return batch, self._end(batch, over) if self._options.set_truncated else over

    def _piece(self) -> int:
        """How many steps to play before something is decided again."""
        most = self.num_steps if self.is_enough is None else -(-self.num_steps // PIECES)
        left_at_random = self._random_frames - self.frames
        if left_at_random > 0:  # those after them are the policy's, wherever batches end
            most = min(most, -(-left_at_random // max(self._env.batch_size.numel(), 1)))
        return most

    def _begin(self) -> None:
        if self._options.pre_collect_hook is not None:
            self._options.pre_collect_hook()
        if self.refresh is not None:
            self.refresh()
        if self._options.reset_at_each_iter:
            self.reset()

    def _steps(self, num_steps: int) -> tuple[TensorDictBase, Flags]:
        self.cut_if_moved()
        try:
            batch = self._play(num_steps, at_random=self.frames < self._random_frames)
        except BaseException:
            self.reset()  # the environment has moved past the last known root
            raise
        return batch, self._mark(batch)

    def _marked(self, batch: TensorDictBase) -> Flags:
        """Write the markers, in place, and count; returns the steps that end a trajectory."""
        columns = self._runner.columns
        if columns and self._has_done:
            over: Flags = columns[keys.NEXT_DONE][..., : batch.batch_size[-1], 0].copy()
        else:
            over = ends_of(batch)
        insert_markers(batch, self._markers(over), None if columns else self._env.device)
        if self._groups.are_there:
            self._groups.mark(batch)
        self.frames += over.size
        self.episodes.add(self._rewards(batch, columns), over)
        return over

    def _markers(self, over: Flags) -> dict[KeyPath, Array]:
        """The markers of the next steps, `[*B, T]`, by key."""
        found, version = self._ids.mark(over), np.empty(over.shape, np.int64)
        version[...] = self.policy_version
        markers: dict[KeyPath, Array] = {
            (keys.IS_INIT,): found.is_init[..., None],
            keys.POLICY_VERSION: version,
        }
        if self._with_ids:
            markers[keys.TRAJ_IDS], markers[keys.TRAJ_STEP] = found.ids, found.steps
        if self._cuts_episodes:
            markers[keys.MID_EPISODE] = self._first_mid_episode(over.shape)
        return markers

    def _rewards(self, batch: TensorDictBase, columns: Mapping[KeyPath, Array]) -> Any:
        """What each step gained, `[*B, T, ...]`: of all groups and agents together."""
        if len(self._reward_keys) == 1:
            key = self._reward_keys[0]
            if columns:
                return columns[key][(*self._every_row, slice(batch.batch_size[-1]))]
            return find(batch, key).cpu().numpy()
        found = [find(batch, key).cpu() for key in self._reward_keys]
        return torch.cat([one.flatten(batch.ndim) for one in found], -1).numpy()

    def _end(self, batch: TensorDictBase, over: Flags) -> Flags:
        """Truncate the last steps, and say which steps end then."""
        last = np.zeros_like(over)
        last[..., -1] = True
        truncate_rows(batch, torch.from_numpy(last))
        self._begin_trajectories(torch.from_numpy(np.logical_not(over[..., -1:]))[..., 0])
        return over | last

    def _begin_trajectories(self, rows: Tensor) -> None:
        """Let what follows begin new trajectories in some environments, which continue."""
        self._mid_episode = self._mid_episode | rows
        self._ids.cut(rows.numpy())
        self._runner.mark_first(rows)

    def _first_mid_episode(self, shape: tuple[int, ...]) -> Flags:
        """The first steps after cuts of environments that continued, bool `[*B, T]`."""
        found = np.zeros(shape, dtype=np.bool_)
        found[..., 0] = self._mid_episode.numpy()
        self._mid_episode = torch.zeros_like(self._mid_episode)
        return found

    def _moved(self, batch: TensorDictBase) -> TensorDictBase:
        if self._options.compact_obs:
            batch = compact(batch, list(self._env.observation_spec.keys(True, True)))
        if self._stays and self._runner.has_copied:
            return batch
        return self._move(batch)


def in_range(name: str, call: F, *, is_on: bool) -> F:
    """Name what a function does for torch's profiler, where that is switched on."""
    return torch.profiler.record_function(name)(call) if is_on else call
