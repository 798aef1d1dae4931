"""Gymnasium environments, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any

import gymnasium
import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_envs.env.arrays import RowArrays
from rl_envs.env.binding import OneColumn, RowBinding
from rl_envs.env.checks import check_open
from rl_envs.env.env import EnvBase
from rl_envs.env.foreign import require_env
from rl_envs.env.forwarding import is_own
from rl_envs.env.interface import Binding
from rl_envs.env.rendering import frame_of
from rl_envs.gym import simulator_state
from rl_envs.gym.info import InfoKeys
from rl_envs.gym.missions import with_texts
from rl_envs.gym.pixels import check_renders
from rl_envs.gym.spaces.specs import spec_under
from rl_envs.gym.spaces.tree import Space, assemble, check_keys, leaves_of_space, value_at
from rl_envs.gym.spaces.values import batch_reader_of_space, is_copied, writer_of_space
from rl_envs.gym.text import Alphabet
from rl_envs.gym.wrappers import wrappers_for
from rl_tensordict import build, nest
from rl_tensordict.types import Array


class GymEnv(EnvBase):
    """A Gymnasium environment.

    Observations are under `"observation"`, those of a `Dict` space under their own names, and
    choices among them are int64 numbers. Texts, missions of MiniGrid too, are the numbers of their
    characters: `Alphabet(env.observation_space["mission"]).text_of(...)` reads them. The action is
    under `"action"`: one-hot bool, or numbers on request. Rewards are float32 `[1]`. The final
    observation of an episode is always the real one.

    Args:
        env: an id that `gymnasium.make` knows, or an environment already made.
        categorical_action_encoding: take choices as int64 numbers instead of one-hot vectors.
        frame_skip: how many frames each action is taken for; the rewards are added up.
        from_pixels: show rendered frames as `"pixels"`, uint8 `[H, W, 3]`.
        pixels_only: show no other observation then.
        info_keys: entries of `info` to add to the observations: names (a tuple for an
            entry of a dictionary), or a spec by name. Zeros where an `info` lacks one. For names
            alone the environment is reset and stepped once, to find shapes and dtypes.
        device: of the data.
        kwargs: passed on to `gymnasium.make`.

    Raises:
        KeyError: `info` has no such entry.
        TypeError: it is no environment of Gymnasium, a space has no data of a fixed shape, an entry
            of `info` holds no numbers, or `kwargs` come with a made environment.
        ValueError: `frame_skip` is less than 1, a name is taken, or a made environment gives no
            pixels.

    Example:
        >>> env = GymEnv("CartPole-v1")
        >>> _ = env.set_seed(0)
        >>> env.rollout(5)["observation"].shape
        torch.Size([5, 4])
    """

    def __init__(  # noqa: PLR0913 - the arguments are the field's
        self,
        env: str | gymnasium.Env[Any, Any],
        *,
        categorical_action_encoding: bool = False,
        frame_skip: int | None = None,
        from_pixels: bool = False,
        pixels_only: bool = True,
        info_keys: InfoKeys | None = None,
        device: torch.device | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(device=device)
        self._own_rows = self._has_steps_of(GymEnv)
        self._set_native(self.device)
        if from_pixels and isinstance(env, str):
            kwargs.setdefault("render_mode", "rgb_array")
        self.env = _made(env, kwargs)
        for wrap in wrappers_for(
            frame_skip=frame_skip,
            from_pixels=from_pixels,
            pixels_only=pixels_only,
            info_keys=info_keys,
        ):
            self.env = wrap(self.env)
        self._seed: int | None = None
        self._is_over = False
        one_hot = not categorical_action_encoding
        seen, acted = with_texts(self.env.observation_space), self.env.action_space
        self.observation_space = seen
        shown, taken = leaves_of_space(seen, "observation"), leaves_of_space(acted, "action")
        check_keys(shown, taken)
        self.observation_spec = spec_under("observation", seen)
        self.action_spec = spec_under("action", acted, one_hot=one_hot)
        self._writers = [(one.key, one.path, writer_of_space(one.space, one.key)) for one in shown]
        self._copied = {one.key for one in shown if is_copied(one.space)}
        self._readers = [(one.key, reader_of_space(one.space, one_hot=one_hot)) for one in taken]
        self._one_action = len(taken) == 1 and not taken[0].path
        self._blank = {
            key: (tuple(leaf.shape), torch.empty(0, dtype=leaf.dtype, device="cpu").numpy().dtype)
            for key, leaf in self.layout.observation
        }

    @property
    def stepped_objects(self) -> Iterator[object]:
        """The environment of Gymnasium, without its wrappers."""
        yield self.env.unwrapped

    def __getattr__(self, name: str) -> Any:
        if is_own(self, name) or "env" not in vars(self):
            return object.__getattribute__(self, name)
        return self.env.get_wrapper_attr(name)

    def render(self) -> Tensor:
        """Draw the environment: a frame uint8 `[H, W, 3]`. It needs `render_mode="rgb_array"`."""
        check_renders(self.env)
        return frame_of(self.env.render())

    def bind(self, root: RowArrays, after: RowArrays) -> Binding:
        """Bind the columns `[T, ...]` of a batch."""
        by_rows = self._own_rows and not self.has_steps_set()
        return GymBinding(self, root, after) if by_rows else RowBinding(self, root, after)

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        return self._as_tensordict(self._restart(**kwargs))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._one_column.step(tensordict)

    def _steps_by_rows(self, root: TensorDictBase) -> bool:
        return self._own_rows and not self.has_steps_set()

    @cached_property
    def _one_column(self) -> OneColumn:
        # another `_step` calls this one through it, which needs the rows
        bind = None if type(self).bind is not GymEnv.bind else partial(GymBinding, self)
        return OneColumn(self, bind, actions_only=True)

    def _set_native(self, device: torch.device) -> None:
        self.native_rows = self.reads_actions_only = self._own_rows and device.type == "cpu"

    def _to(self, device: torch.device) -> None:
        self._set_native(device)

    def _set_seed(self, seed: int) -> None:
        self._seed = seed

    def _get_state(self) -> dict[str, Any]:
        return {
            "gym": simulator_state.get_state(self.env),
            "seed": self._seed,
            "is_over": self._is_over,
        }

    def _set_state(self, state: Mapping[str, Any]) -> None:
        simulator_state.set_state(self.env, state["gym"])
        self._seed, self._is_over = state["seed"], state["is_over"]

    def _close(self) -> None:
        self.env.close()

    def _restart(self, **kwargs: Any) -> Any:
        """Start an episode; the first one after `set_seed` has that seed."""
        check_open(self)
        self._num_moves += 1
        kwargs.setdefault("seed", self._seed)
        try:
            parts = self.env.reset(**kwargs)
        except TypeError as error:
            error.add_note(f"reset of {self.env} is called with seed= and options= of Gymnasium.")
            raise
        observation, info = self._expect(parts, 2, "reset")
        if not isinstance(info, Mapping):  # an observation of two numbers
            raise self._wrong_parts(parts, 2, "reset")
        self._seed, self._is_over, self.is_started = None, False, True
        return observation

    def _read_action(self, root: Mapping[Any, Array]) -> Any:
        self._require_ready()
        if self._one_action:
            key, read = self._readers[0]
            return read(root[key])
        values = (read(root[key]) for key, read in self._readers)
        return assemble(self.env.action_space, values)

    def _take(self, action: Any) -> tuple[Any, Any, bool, bool]:
        self._require_ready()
        self._num_moves += 1
        found = self.env.step(action)
        if type(found) is not tuple or len(found) != 5 or found[0] is None:
            self._expect(found, 5, "step")
        observation, reward, terminated, truncated, _ = found
        self._is_over = terminated or truncated
        if not isinstance(reward, float):  # one of numpy's is
            reward = self._number(reward)
        return observation, reward, terminated, truncated

    def _number(self, reward: Any) -> float:
        found = np.asarray(reward)
        if found.size != 1 or found.dtype.kind not in "biuf":
            what = f"shape {list(found.shape)}" if found.size != 1 else type(reward).__name__
            msg = f"the reward of {self.env} must be one number: got {what}, {reward!r:.200}."
            raise TypeError(msg)
        return float(found.item())

    def _expect(self, found: Any, count: int, name: str) -> Any:
        """Raise unless the environment inside has returned as many parts as Gymnasium says."""
        if isinstance(found, tuple | list) and len(found) == count and found[0] is not None:
            return found
        raise self._wrong_parts(found, count, name)

    def _wrong_parts(self, found: Any, count: int, name: str) -> TypeError:
        """The error for parts that Gymnasium does not say."""
        parts = {2: "(observation, info)", 5: "(observation, reward, terminated, truncated, info)"}
        what = "None" if found is None else f"{type(found).__name__}: {found!r:.200}"
        return TypeError(f"{name} of {self.env} must return {parts[count]}: got {what}.")

    def _require_ready(self) -> None:
        if not self.is_started or self._is_over or self.is_closed:
            raise RuntimeError(self._reason_not_ready())

    def _reason_not_ready(self) -> str:
        if self.is_closed:
            return "this GymEnv is closed: make a new one."
        if not self.is_started:
            return "this GymEnv was not reset yet: call reset() first."
        return "the episode of this GymEnv is over: call reset() before the next step."

    def _write(self, rows: RowArrays, observation: Any) -> None:
        for key, path, write in self._writers:
            if key in rows:
                write(rows[key], value_at(observation, path))

    def _as_tensordict(self, observation: Any) -> TensorDictBase:
        rows = {key: np.empty(*form) for key, form in self._blank.items()}
        self._write(rows, observation)
        leaves = {key: torch.from_numpy(row).to(self.device) for key, row in rows.items()}
        return build(nest(leaves), self.batch_size)

    def __repr__(self) -> str:
        return f"GymEnv({self.env})"


class GymBinding:
    """A `GymEnv` bound to the columns of a batch."""

    def __init__(self, env: GymEnv, root: RowArrays, after: RowArrays) -> None:
        self.env = env
        self._action_at = _reader(env, root)
        copied = env._copied & after.keys()
        forms = {key: (after[key].shape[1:], after[key].dtype) for key in copied}
        self._seen = [
            (root[key], after[key], path, write, forms.get(key))
            for key, path, write in env._writers
            if key in root and key in after
        ]
        # entries without a column go into a spare one: cheaper than a test at every step
        spare = np.zeros(max(len(column) for column in (*root.values(), *after.values())))
        names = ("reward", "terminated", "truncated", "done")
        flags = [after.get((name,), spare).reshape(-1) for name in names]
        self._reward, self._terminated, self._truncated, self._done = flags

    def start(self, mask: Array | None = None) -> None:
        """Reset the environment and write column 0 of the root."""
        if mask is None or mask.any():
            self._restart(0)

    def step(self, t: int) -> bool:
        """Step from column t of the root into column t of `"next"`; say whether it is done."""
        observation, reward, terminated, truncated = self.env._take(self._action_at(t))
        for _, column, path, write, form in self._seen:
            value = value_at(observation, path) if path else observation
            if type(value) is np.ndarray and (value.shape, value.dtype) == form:
                column[t] = value
            else:  # converted, or refused
                write(column[t, ...], value)
        over = bool(terminated or truncated)
        self._reward[t], self._terminated[t], self._truncated[t] = reward, terminated, truncated
        self._done[t] = over
        return over

    def advance(self, t: int) -> None:
        """Write column t + 1 of the root, after a reset where the episode is over."""
        if self._done[t]:
            self._restart(t + 1)
            return
        for before, column, _, _, _ in self._seen:
            before[t + 1] = column[t]

    def set_policy_next_keys(self, names: set[tuple[str, ...]]) -> None:
        """Nothing changes: what is under `"next"` is no input of the environment."""

    def _restart(self, t: int) -> None:
        observation = self.env._restart()
        for column, _, path, write, _ in self._seen:
            write(column[t, ...], value_at(observation, path))


def _reader(env: GymEnv, root: RowArrays) -> Callable[[int], Any]:
    """Return a function that reads the action of a step from its columns."""
    if env._one_action:
        key, read = env._readers[0]
        column = root.get(key)
        if column is not None:
            return lambda t: read(column[t, ...])  # the ellipsis keeps a number an array
    columns = {key: root[key] for key, _ in env._readers if key in root}
    return lambda t: env._read_action({key: column[t, ...] for key, column in columns.items()})


def reader_of_space(space: Space, *, one_hot: bool) -> Callable[[Array], Any]:
    """Return a function that converts a row into a value of a leaf space."""
    # always a copy, because environments keep actions
    if isinstance(space, gymnasium.spaces.Discrete):
        start = int(space.start)
        if one_hot:
            return lambda row: int(row.argmax()) + start
        return lambda row: int(row) + start
    if isinstance(space, gymnasium.spaces.Text):
        return Alphabet(space).text_of
    return batch_reader_of_space(space, one_hot=one_hot)


def _made(env: Any, kwargs: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    if isinstance(env, str):
        # check_env_specs checks more, once, and its messages name keys
        return gymnasium.make(env, **{"disable_env_checker": True, **kwargs})
    require_env(env, gymnasium.Env, "expected an id or a gymnasium.Env")
    made: gymnasium.Env[Any, Any] = env
    if kwargs:
        msg = f"{sorted(kwargs)} go to gymnasium.make, but the environment is already made."
        raise TypeError(msg)
    return made
