"""Gymnasium's vector environments: many copies of one environment as a batch."""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from tensordict import TensorDictBase
from torch import Tensor

from rl_envs.env.arrays import RowArrays
from rl_envs.env.binding import OneColumn, RowBinding
from rl_envs.env.done import RESET
from rl_envs.env.env import EnvBase
from rl_envs.env.foreign import require_env
from rl_envs.env.interface import Binding
from rl_envs.env.rendering import frame_of
from rl_envs.env.seeds import next_seed
from rl_envs.gym.final_observations import MissingObservations
from rl_envs.gym.info import InfoKeys, ShowVectorInfo
from rl_envs.gym.pixels import check_renders
from rl_envs.gym.spaces.specs import spec_under
from rl_envs.gym.spaces.tree import assemble, check_keys, leaves_of_space, value_at
from rl_envs.gym.spaces.values import batch_reader_of_space, writer_of_space
from rl_envs.gym.wrappers import wrappers_for
from rl_layout import keys
from rl_specs import Composite
from rl_tensordict.types import Array

DISABLED = AutoresetMode.DISABLED
FLAGS = {(name,) for name in keys.DONE_KEYS}


class GymVectorEnv(EnvBase):
    """Copies of a Gymnasium environment, `[num_envs]`, stepped by `gymnasium.vector`.

    Keys and dtypes are those of `GymEnv`, and seeds are chained as in a `SerialEnv`. In every
    autoreset mode the final observation of an episode is the real one and no reset counts as a
    step: rows are reset by mask, or, where Gymnasium resets in the same step, continue from the
    observation after its reset.

    Vector environments of their own (`vectorization_mode="vector_entry_point"`) reset a row only
    while the others step. A rollout of them continues until every row has all its steps, and leaves
    out the rows in which Gymnasium has reset. Surplus steps of a row are kept: a rollout with
    `auto_reset=False` (and without a root) begins with them. A callback sees the steps of all rows,
    with `("collector", "mask")` False in rows that were only reset.
    They cannot reset single rows by hand, be put into another batch, or save their state. Any
    vector environment of its own has one seed for all rows, the first of the chain.

    Args:
        env: an id that `gymnasium.make_vec` knows, or a vector environment already made.
        num_envs: how many copies.
        vectorization_mode: `"sync"`, `"async"`, or `"vector_entry_point"`.
        autoreset_mode: what Gymnasium does with rows that are done; a vector environment of its own
            has its own.
        categorical_action_encoding: take choices as int64 numbers instead of one-hot vectors.
        from_pixels: show rendered frames as `"pixels"`, as `GymEnv` does.
        pixels_only: show no other observation then.
        info_keys: entries of `info` to show, as for `GymEnv`.
        kwargs: passed on to `gymnasium.make_vec`.

    Raises:
        KeyError: `info` has no such entry.
        TypeError: a space has no data of a fixed shape, or `kwargs` come with a made environment.
        ValueError: there is no number of copies, a mode is unknown, or a vector environment of its
            own is asked for pixels.

    Example:
        >>> env = GymVectorEnv("CartPole-v1", 3)
        >>> env.rollout(4)["observation"].shape
        torch.Size([3, 4, 4])
        >>> env.close()
    """

    def __init__(  # noqa: PLR0913 - the arguments are the field's
        self,
        env: str | VectorEnv[Any, Any, Any],
        num_envs: int | None = None,
        *,
        vectorization_mode: str = "sync",
        autoreset_mode: AutoresetMode = DISABLED,
        categorical_action_encoding: bool = False,
        from_pixels: bool = False,
        pixels_only: bool = True,
        info_keys: InfoKeys | None = None,
        **kwargs: Any,
    ) -> None:
        is_whole = not isinstance(env, str) or vectorization_mode == "vector_entry_point"
        if from_pixels and is_whole:
            msg = (
                "from_pixels wraps each environment of a vector, so give the environment "
                "by its id, with vectorization_mode='sync' or 'async'."
            )
            raise ValueError(msg)
        if isinstance(env, str):
            if from_pixels:
                kwargs.setdefault("render_mode", "rgb_array")
            if not is_whole:
                wrappers = wrappers_for(
                    from_pixels=from_pixels, pixels_only=pixels_only, info_keys=info_keys
                )
                kwargs["wrappers"] = [*kwargs.get("wrappers", ()), *wrappers]
            env = _made(env, num_envs, vectorization_mode, autoreset_mode, kwargs)
        elif kwargs or num_envs is not None:
            msg = "num_envs and kwargs go to gymnasium.make_vec, but the environment is made."
            raise TypeError(msg)
        require_env(env, VectorEnv, "expected an id or a vector environment of gymnasium.vector")
        if info_keys is not None and is_whole:
            env = ShowVectorInfo(env, info_keys)
        super().__init__(batch_size=(env.num_envs,))
        self.env = env
        mode = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        # Gymnasium's own take masks and a seed for each row; others have one seed, as
        # VectorEnv.reset says, and may give no last observations
        self._is_gymnasiums = isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        self._keeps_final = mode == AutoresetMode.SAME_STEP
        self.resets_by_stepping = mode == AutoresetMode.NEXT_STEP and not self._is_gymnasiums
        self.marks_missing = self._keeps_final and not self._is_gymnasiums
        self.missing = MissingObservations(type(env.unwrapped).__name__)
        # rows that are only reset are told from steps by a binding alone
        self._own_rows = self._has_steps_of(GymVectorEnv) or self.resets_by_stepping
        self.native_rows = self.reads_actions_only = self._own_rows
        self._seeds: list[int | None] = [None] * env.num_envs
        # rows that are done and not reset yet, bool [num_envs]
        self.over_rows = np.zeros(env.num_envs, bool)
        self._shown: Any = None
        self._has_failed = False
        self._describe(one_hot=not categorical_action_encoding)

    def _describe(self, one_hot: bool) -> None:
        seen, acted = self.env.single_observation_space, self.env.single_action_space
        shown, taken = leaves_of_space(seen, "observation"), leaves_of_space(acted, "action")
        check_keys(shown, taken)
        self.observation_spec = self._many(spec_under("observation", seen))
        self.action_spec = self._many(spec_under("action", acted, one_hot=one_hot))
        self.writers = [(one.key, one.path, writer_of_space(one.space, one.key)) for one in shown]
        self.readers = [
            (one.key, batch_reader_of_space(one.space, one_hot=one_hot)) for one in taken
        ]

    @property
    def num_envs(self) -> int:
        """The number of copies."""
        return int(self.batch_size[0])

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed the copies, each from the one before, or all alike."""
        super().set_seed(seed, static_seed)
        for i in range(len(self._seeds)):
            self._seeds[i] = seed
            seed = seed if static_seed else next_seed(seed)
        return seed

    def render(self) -> Tensor:
        """Draw every copy: frames uint8 `[num_envs, H, W, 3]`; needs `render_mode="rgb_array"`."""
        check_renders(self.env)
        return frame_of(self.env.render())

    def bind(self, root: RowArrays, after: RowArrays) -> Binding:
        """Bind the columns `[num_envs, T, ...]` of a batch."""
        if self.resets_by_stepping:
            self._refuse_steps_unlike(GymVectorEnv)
            return NextStepBinding(self, root, after)
        return GymVectorEnv.bind_step(self, root, after)

    def bind_step(self, root: RowArrays, after: RowArrays) -> Binding:
        """Bind columns of one step, which resets no row."""
        by_rows = self._own_rows and not self.has_steps_set()
        return VectorBinding(self, root, after) if by_rows else RowBinding(self, root, after)

    def _restart(self, which: Array | None) -> None:
        self._check_alive()
        if which is not None:
            self._refuse_reset(which)
        self.leftover = None
        self._num_moves += 1
        try:
            if self._is_reset_already(which):
                pass
            elif which is None:
                seeds: Any = self._seeds if self._is_gymnasiums else self._seeds[0]
                self._shown, _ = self.env.reset(seed=seeds)
            else:
                self._shown, _ = self.env.reset(options={"reset_mask": which.copy()})
        except Exception as error:
            self._blame(error)
            raise
        if which is None:
            self._seeds, self.over_rows = [None] * len(self._seeds), np.zeros_like(self.over_rows)
        else:
            self.over_rows = self.over_rows & ~which
        self.is_started = True

    def _is_reset_already(self, which: Array | None) -> bool:
        """Whether Gymnasium has reset these rows in their last step, and no new seed is given."""
        if which is not None or not self._keeps_final:
            return bool(self._keeps_final)
        return bool(self.over_rows.all()) and not any(seed is not None for seed in self._seeds)

    def _refuse_reset(self, which: Array) -> None:
        if self.resets_by_stepping:
            msg = (
                f"{type(self.env.unwrapped).__name__} resets single rows only while the others "
                f"step: use rollout, without a root, or bind; or vectorization_mode='sync'."
            )
            raise RuntimeError(msg)
        if self._keeps_final and (which & ~self.over_rows).any():
            rows = np.flatnonzero(which & ~self.over_rows).tolist()
            msg = (
                f"rows {rows} continue: with same-step autoreset only rows that are done are "
                f"reset. Where a transform ends them, let Gymnasium do it (max_episode_steps), or "
                f"take another autoreset_mode."
            )
            raise RuntimeError(msg)

    def _refuse_over(self) -> None:
        if self.over_rows.any():
            rows = np.flatnonzero(self.over_rows).tolist()
            msg = f"rows {rows} of this GymVectorEnv are over: reset them before the next step."
            if self.resets_by_stepping:
                msg = (
                    f"rows {rows} of this GymVectorEnv are over, and its next step would only "
                    f"reset them: call reset() for all rows, or use rollout or bind."
                )
            raise RuntimeError(msg)

    def _blame(self, error: Exception) -> None:
        """Say what Gymnasium does not, and note that its processes are gone."""
        self._has_failed = isinstance(self.env.unwrapped, AsyncVectorEnv)
        error.add_note(
            f"raised in GymVectorEnv: each observation must fit "
            f"{self.env.single_observation_space}, each action {self.env.single_action_space}."
        )

    def _check_alive(self) -> None:
        if self.is_closed or self._has_failed:
            what = "closed" if self.is_closed else "broken: one of its environments has failed"
            msg = f"this GymVectorEnv is {what}: make a new one."
            raise RuntimeError(msg)

    def _take(self, root: RowArrays) -> tuple[Array, Array, Array, Any]:
        self._check_alive()
        if not self.is_started:
            msg = "this GymVectorEnv was not reset yet: call reset() first."
            raise RuntimeError(msg)
        self.leftover = None  # surplus steps are out of date after a step by hand
        self._num_moves += 1
        values = (read(root[key]) for key, read in self.readers)
        action = assemble(self.env.single_action_space, values)
        try:
            self._shown, reward, terminated, truncated, info = self.env.step(action)
        except Exception as error:
            self._blame(error)
            raise
        self.over_rows = terminated | truncated
        return reward, terminated, truncated, info

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        return self._one_column.reset(None if tensordict is None else tensordict.get(RESET).numpy())

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._one_column.step(tensordict)

    def _steps_by_rows(self, root: TensorDictBase) -> bool:
        return self._own_rows and not self.has_steps_set()

    @cached_property
    def _one_column(self) -> OneColumn:
        own, kind = GymVectorEnv, type(self)
        is_plain = kind.bind is own.bind and kind.bind_step is own.bind_step
        bind = partial(VectorBinding, self) if is_plain else None
        return OneColumn(self, bind, actions_only=True)

    def _set_seed(self, seed: int) -> None:
        """Every copy has a seed of its own, for the next whole reset."""

    def _close(self) -> None:
        self.env.close()

    def _many(self, spec: Composite) -> Composite:
        many: Composite = spec.expand(*self.batch_size, *spec.shape)
        return many


class VectorBinding(RowBinding):
    """A vector environment bound to the columns of a batch."""

    env: GymVectorEnv

    def __init__(self, env: GymVectorEnv, root: RowArrays, after: RowArrays) -> None:
        super().__init__(env, root, after)
        self._inputs = {key: root[key] for key, _ in env.readers if key in root}
        self._seen = [(root.get(k), after.get(k), path, write) for k, path, write in env.writers]
        self._shown = {key: column for key, column in self._shown.items() if key not in FLAGS}
        # entries without a column go into a spare one: cheaper than a test at every step
        num_steps = max(column.shape[1] for column in (*root.values(), *after.values()))
        self._spare = np.zeros((env.num_envs, num_steps, 1))
        names = ("reward", "terminated", "truncated", "done")
        flags = [np.moveaxis(after.get((name,), self._spare)[:, :, 0], 1, 0) for name in names]
        self._reward, self._terminated, self._truncated, self._done = flags
        missing = root.get(keys.NEXT_MISSING)
        self._missing = None if missing is None else np.moveaxis(missing, 1, 0)

    def reset(self, t: int, mask: Array | None) -> None:
        """Reset the rows of a mask, or all, and write column t of the root."""
        which = np.ones(self.env.num_envs, bool) if mask is None else mask.reshape(-1)
        if not which.any():
            return
        is_whole = bool(which.all())
        self.env._restart(None if is_whole else which)
        for column, _, path, write in self._seen:
            if column is None:
                continue
            fresh = value_at(self.env._shown, path)
            if is_whole:
                write(column[:, t], fresh)
            else:
                rows = np.empty_like(column[:, t])
                write(rows, fresh)
                column[which, t] = rows[which]

    def step(self, t: int) -> bool:
        """Step from column t of the root into column t of `"next"`; say whether a row is done."""
        self.env._refuse_over()
        info, is_over = self._take(t)
        if self.env._keeps_final:
            self._write_final(t, info)
        return is_over

    def _take(self, t: int) -> tuple[Any, bool]:
        """Take step t and write its results; returns its info, and whether a row is done."""
        env = self.env
        rows = {key: column[:, t] for key, column in self._inputs.items()}
        self._reward[t], self._terminated[t], self._truncated[t], info = env._take(rows)
        for _, column, path, write in self._seen:
            if column is not None:
                write(column[:, t], value_at(env._shown, path))
        self._done[t] = env.over_rows
        return info, 1 in env.over_rows.tobytes()  # any() takes ten times as long

    def _write_final(self, t: int, info: Any) -> None:
        """Write the real last observations, where the vector has put those after its resets."""
        if self._missing is not None:
            self._missing[t] = False
        over = np.flatnonzero(self.env.over_rows)
        if not over.size:
            return
        given, has_given = info.get("final_obs"), info.get("_final_obs")
        is_there = [
            given is not None and given[i] is not None and (has_given is None or bool(has_given[i]))
            for i in over
        ]
        for root, column, path, write in self._seen:
            for i, is_known in zip(over, is_there, strict=True):
                if is_known and column is not None:
                    write(column[i, t, ...], value_at(given[i], path))
                elif root is not None and column is not None:
                    column[i, t] = root[i, t]  # no observation of the next episode
        missing = over[np.logical_not(is_there)]
        if self._missing is not None:
            self._missing[t, missing] = True
        if missing.size:
            self.env.missing.note(missing, are_marked=self._missing is not None)


class NextStepBinding(VectorBinding):
    """A vector environment that resets rows while others step, bound to the columns of a batch."""

    # every column is one step of the whole batch; the root's ("collector", "mask") is False in
    # rows that were only reset, which is no transition

    def __init__(self, env: GymVectorEnv, root: RowArrays, after: RowArrays) -> None:
        super().__init__(env, root, after)
        self._real = np.moveaxis(root.get(keys.MASK, self._spare[:, :, 0]), 1, 0)

    def step(self, t: int) -> bool:
        """Step from column t of the root into column t of `"next"`; say whether a row is done."""
        np.logical_not(self.env.over_rows, out=self._real[t])
        return self._take(t)[1]

    def advance(self, t: int) -> None:
        """Write column t + 1 of the root; rows that are done reset in the step to come."""
        for key, column in self._shown.items():
            column[:, t + 1] = self.after[key][:, t]


def _made(
    name: str, num_envs: int | None, vectorization: str, autoreset: AutoresetMode, kwargs: Any
) -> VectorEnv[Any, Any, Any]:
    if num_envs is None or num_envs < 1:
        msg = f"num_envs must be at least 1: got {num_envs}."
        raise ValueError(msg)
    modes = ("sync", "async", "vector_entry_point")
    if vectorization not in modes:
        msg = f"vectorization_mode must be one of {modes}: got {vectorization!r}."
        raise ValueError(msg)
    given = dict(kwargs.pop("vector_kwargs", {}))
    if vectorization != "vector_entry_point":
        given["autoreset_mode"] = autoreset
    made: VectorEnv[Any, Any, Any] = gymnasium.make_vec(
        name, num_envs, vectorization_mode=vectorization, vector_kwargs=given, **kwargs
    )
    return made
