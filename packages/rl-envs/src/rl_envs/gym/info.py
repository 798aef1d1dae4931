"""Entries of `info` as observations."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv, VectorWrapper

from rl_envs.gym.spaces.specs import DTYPES, space_of_spec
from rl_envs.gym.spaces.tree import Space
from rl_layout import keys
from rl_specs import TensorSpec
from rl_tensordict import nest
from rl_tensordict.types import Array, KeyPath

InfoKeys = Sequence[keys.NestedKey] | Mapping[keys.NestedKey, TensorSpec]
Find = Callable[[Any, KeyPath], Any]


class ShowInfo(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds entries of `info` to the observations."""

    # zeros where an info lacks an entry, as many do after a reset; one warning for an entry that
    # no step of a whole episode had

    def __init__(self, env: gymnasium.Env[Any, Any], info_keys: InfoKeys) -> None:
        super().__init__(env)
        self._part = InfoPart(info_keys, lambda: _infos_of(env), entry_of)
        self.observation_space = self._part.add_to(env.observation_space)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        observation, info = self.env.reset(**kwargs)
        return self._part.shown(observation, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take one step."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        shown = self._part.shown(observation, info)
        if terminated or truncated:
            self._part.warn_of_unseen(info)
        return shown, reward, terminated, truncated, info


class ShowVectorInfo(VectorWrapper[Any, Any, Any, Any, Any]):
    """Adds entries of `info` to the observations of a vector."""

    # zeros in the rows that lack an entry, by Gymnasium's mask "_name"

    def __init__(self, env: VectorEnv[Any, Any, Any], info_keys: InfoKeys) -> None:
        super().__init__(env)
        self._part = InfoPart(info_keys, lambda: _infos_of(env), batch_entry_of, env.num_envs)
        self.single_observation_space = self._part.add_to(env.single_observation_space)
        self.observation_space = gymnasium.vector.utils.batch_space(
            self.single_observation_space, env.num_envs
        )

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Start episodes."""
        observation, info = self.env.reset(**kwargs)
        return self._part.shown(observation, info), info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take one step."""
        observation, reward, terminated, truncated, info = self.env.step(actions)
        shown, over = self._part.shown(observation, info), terminated | truncated
        if "final_obs" in info:  # of rows that were reset in the same step
            info = {**info, "final_obs": self._final(info, np.flatnonzero(over))}
        if over.any():
            self._part.warn_of_unseen(info)
        return shown, reward, terminated, truncated, info

    def _final(self, info: Mapping[str, Any], rows: Array) -> Array:
        shown = self._part.shown({}, info["final_info"])
        final = np.full(self.num_envs, None, object)
        for i in rows:
            row = {path: entry_of(shown, path)[i] for path in self._part.spaces}
            seen = info["final_obs"][i]
            final[i] = {**(seen if isinstance(seen, dict) else {"observation": seen}), **nest(row)}
        return final


class InfoPart:
    """The selected entries of `info`, with a space for each."""

    # look samples infos, and is called only where specs are lacking; find reads an entry of an
    # info, with its mask of rows for a vector (num_rows), or returns None

    def __init__(
        self,
        info_keys: InfoKeys,
        look: Callable[[], list[Any]],
        find: Find,
        num_rows: int | None = None,
    ) -> None:
        self._find = find
        rows = () if num_rows is None else (num_rows,)
        if isinstance(info_keys, Mapping):
            named = {keys.as_tuple(key): spec for key, spec in info_keys.items()}
            self.spaces: dict[Any, Any] = {
                path: space_of_spec(spec) for path, spec in named.items()
            }
        else:
            names = [info_keys] if isinstance(info_keys, str) else info_keys
            infos = look()
            paths = [keys.as_tuple(key) for key in names]
            self.spaces = {path: _space_of(path, infos, find, len(rows)) for path in paths}
        self._blank = {
            path: np.zeros((*rows, *_shape(space)), space.dtype)
            for path, space in self.spaces.items()
        }
        self._unseen = set(self.spaces)

    def add_to(self, seen: Space) -> spaces.Dict:
        """The space of observations with these entries added."""
        parts: dict[str, Any] = {"observation": seen}
        if isinstance(seen, spaces.Dict):
            parts = dict(seen.spaces)
        taken = [path[0] for path in self.spaces if path[0] in parts]
        if taken:
            msg = f"info keys {taken} are names of observations: rename them by a wrapper."
            raise ValueError(msg)
        return spaces.Dict({**parts, **{n: _tree(one) for n, one in nest(self.spaces).items()}})

    def shown(self, observation: Any, info: Any) -> dict[str, Any]:
        """Add the entries to an observation."""
        parts = observation if isinstance(observation, dict) else {"observation": observation}
        entries = {path: self._entry(path, info) for path in self.spaces}
        return {**parts, **nest(entries)}

    def warn_of_unseen(self, info: Mapping[str, Any]) -> None:
        """Warn, once, of entries that no info has had."""
        if self._unseen:
            names = sorted(str(keys.as_key(path)) for path in self._unseen)
            msg = f"info had no {names} in a whole episode, so they are zeros: it has {[*info]}."
            self._unseen = set()
            warnings.warn(msg, stacklevel=2)

    def _entry(self, path: KeyPath, info: Any) -> Any:
        value, blank = self._find(info, path), self._blank[path]
        if value is None:
            return blank
        self._unseen.discard(path)
        value, mask = value if isinstance(value, tuple) else (value, None)
        value = np.asarray(value)
        if not np.can_cast(value.dtype, blank.dtype, "same_kind"):
            msg = (
                f"info {keys.as_key(path)!r}: expected {blank.dtype}, got {value.dtype}. Give its "
                f"spec: info_keys={{{keys.as_key(path)!r}: Unbounded(...)}}."
            )
            raise TypeError(msg)
        if mask is None or mask.all() or value.shape != blank.shape:  # the last is refused later
            return value.astype(blank.dtype)
        rows = mask.reshape(-1, *(1,) * (value.ndim - 1))
        return np.where(rows, value, blank).astype(blank.dtype)


def entry_of(info: Any, path: KeyPath) -> Any:
    """Read an entry of nested dictionaries; None if it is missing."""
    for name in path:
        if not isinstance(info, Mapping) or name not in info:
            return None
        info = info[name]
    return info


def batch_entry_of(info: Any, path: KeyPath) -> Any:
    """Read an entry `[B, ...]` of a vector's info, and its mask `[B]`; None if no row has it."""
    # the mask is None if all rows have the entry
    entry = entry_of(info, path)
    return None if entry is None else (entry, entry_of(info, (*path[:-1], f"_{path[-1]}")))


def _infos_of(env: Any) -> list[Any]:
    _, first = env.reset()
    return [first, env.step(env.action_space.sample())[-1]]


def _space_of(path: KeyPath, infos: list[Any], find: Find, num_dims: int) -> Space:
    """Derive the space of an entry from sampled infos, a step's before a reset's."""
    came = [value for value in (find(info, path) for info in reversed(infos)) if value is not None]
    key = keys.as_key(path)
    if not came:
        names = sorted({name for info in infos for name in info})
        msg = (
            f"info {key!r} came neither with a reset nor with a step, only {names}. If it comes "
            f"later, give its spec: info_keys={{{key!r}: Unbounded(...)}}."
        )
        raise KeyError(msg)
    value = np.asarray(came[0][0] if isinstance(came[0], tuple) else came[0])
    if value.dtype.name not in DTYPES:
        msg = f"info {key!r} holds no numbers but {came[0]!r}: it cannot be shown."
        raise TypeError(msg)
    shape = value.shape[num_dims:]
    if value.dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, shape, value.dtype.type)
    if value.dtype.kind == "b":
        return spaces.Box(0, 1, shape, value.dtype.type)
    limits = np.iinfo(value.dtype)
    return spaces.Box(int(limits.min), int(limits.max), shape, value.dtype.type)


def _shape(space: Space) -> tuple[int, ...]:
    if space.shape is None:
        msg = f"info is shown as arrays, so that {space} cannot be its space."
        raise TypeError(msg)
    return space.shape


def _tree(part: Any) -> Space:
    if isinstance(part, Mapping):
        return spaces.Dict({name: _tree(inner) for name, inner in part.items()})
    space: Space = part
    return space
