"""Returns and lengths of finished episodes, however batches cut them."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_collect.arguments import as_array, as_flags, check_sizes
from rl_collect.batches.markers import has_flags
from rl_tensordict.arguments import check_state

RECENT = 100
"""Of how many episodes the means are taken."""

SHORT, MANY = 64, 64
"""Batches of so few steps wait until so many are there, or somebody asks: added up at once."""


class Episodes:
    """Adds up the rewards of episodes under way, and remembers the last ones that ended.

    Args:
        batch_size: the sizes `[*B]` of the environments that play side by side.

    Attributes:
        finished: how many episodes have ended.

    Example:
        >>> episodes = Episodes(())
        >>> episodes.add(np.ones((5, 1)), np.array([False, True, False, False, True]))
        >>> episodes.finished, episodes.mean_return, episodes.mean_length
        (2, 2.5, 2.5)
    """

    def __init__(self, batch_size: tuple[int, ...]) -> None:
        batch_size = check_sizes(batch_size, "batch_size")
        self._batch_size, self._finished = batch_size, 0
        self._return: NDArray[np.float64] = np.zeros(int(np.prod(batch_size)))
        self._length: NDArray[np.int64] = np.zeros(self._return.shape, dtype=np.int64)
        self._recent: deque[tuple[float, int]] = deque(maxlen=RECENT)
        self._waiting: list[tuple[NDArray[Any], NDArray[np.bool_]]] = []

    @property
    def finished(self) -> int:
        """How many episodes have ended."""
        self._settle()
        return self._finished

    @property
    def mean_return(self) -> float:
        """The mean return of the last finished episodes; NaN before any has ended."""
        self._settle()
        return float(np.mean([one for one, _ in self._recent])) if self._recent else float("nan")

    @property
    def mean_length(self) -> float:
        """The mean length of the last finished episodes; NaN before any has ended."""
        self._settle()
        return float(np.mean([one for _, one in self._recent])) if self._recent else float("nan")

    def add(self, reward: NDArray[Any], over: NDArray[np.bool_]) -> None:
        """Count the steps that follow the last ones.

        Args:
            reward: `[*B, T, ...]`; further dimensions are added up.
            over: bool `[*B, T]`, the steps that end an episode.

        Raises:
            TypeError: they are no numbers, or no bool flags.
            ValueError: a shape is another one.
        """
        if not has_flags(over, self._batch_size):
            over = as_flags(over, (*self._batch_size, -1), "over")
        reward = _rewards(reward, over.shape)
        if self._waiting and self._waiting[0][0].shape[over.ndim :] != reward.shape[over.ndim :]:
            self._settle()
        self._waiting.append((reward, over))
        if over.size > SHORT or len(self._waiting) >= MANY:
            self._settle()
        else:  # the caller may change its arrays
            self._waiting[-1] = reward.copy(), over.copy()

    def _settle(self) -> None:
        """Add up the batches that wait."""
        if self._waiting:
            rewards, flags = zip(*self._waiting, strict=True)
            self._waiting, time = [], len(self._batch_size)
            self._add(np.concatenate(rewards, time), np.concatenate(flags, time))

    def _add(self, reward: NDArray[Any], over: NDArray[np.bool_]) -> None:
        flags = over.reshape(-1, over.shape[-1])
        gained = reward.reshape(*flags.shape, -1).sum(-1, dtype=np.float64)
        if not flags.any():  # nothing ended: the sums are all there is to keep
            self._return = gained.cumsum(1)[:, -1] + self._return
            self._length = self._length + flags.shape[1]
            return
        total = gained.cumsum(1) + self._return[:, None]
        steps = np.arange(1, flags.shape[1] + 1) + self._length[:, None]
        env, place = np.nonzero(flags)
        # what had been counted when the episode before it ended, in the same environment
        first = np.ones(len(env), dtype=bool)
        first[1:] = env[1:] != env[:-1]
        ended = np.stack([total[env, place], steps[env, place]])
        before = np.where(first, 0, np.roll(ended, 1, axis=1))
        by_time = np.argsort(place, kind="stable")
        for one, length in (ended - before)[:, by_time].T.tolist():
            self._recent.append((one, int(length)))
        self._finished += len(env)
        self._return, self._length = total[:, -1].copy(), steps[:, -1].copy()
        last = np.roll(first, -1)  # the episode that ended last in its environment
        self._return[env[last]] -= ended[0, last]
        self._length[env[last]] -= ended[1, last].astype(np.int64)

    def forget(self, rows: NDArray[np.bool_] | None = None) -> None:
        """Drop the episodes under way, as a reset does.

        Args:
            rows: bool `[*B]`, of which environments; of all unless given.
        """
        self._settle()
        chosen: Any = slice(None)
        if rows is not None:
            chosen = as_flags(rows, self._batch_size, "rows").reshape(-1)
        self._return[chosen], self._length[chosen] = 0, 0

    def state_dict(self) -> dict[str, Any]:
        """All of it.

        Returns:
            Numbers, lists and tensors.
        """
        self._settle()
        return {
            "finished": self._finished,
            "return": torch.from_numpy(self._return.copy()),
            "length": torch.from_numpy(self._length.copy()),
            "recent": [list(one) for one in self._recent],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where a saved one stopped.

        Args:
            state: what `state_dict` returned.
        """
        check_state(type(self).__name__, state, ("finished", "return", "length", "recent"))
        total, length = (np.asarray(state[name]).copy() for name in ("return", "length"))
        if not total.shape == length.shape == self._return.shape:
            msg = (
                f"the state is of {len(total)} environments: expected {len(self._return)}. Load it "
                "where as many play."
            )
            raise ValueError(msg)
        self._finished, self._return, self._length = state["finished"], total, length
        self._waiting.clear()
        self._recent.clear()
        self._recent.extend((float(one), int(length)) for one, length in state["recent"])


def _rewards(reward: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """Rewards `[*B, T, ...]` as an array of numbers."""
    found = reward if type(reward) is np.ndarray else as_array(reward)
    if found.dtype.kind not in "fiub":
        msg = f"reward must be numbers, as an array or a tensor: got {reward!r:.200}."
        raise TypeError(msg)
    if found.shape[: len(shape)] != shape:
        msg = f"reward must begin with the shape of over, {shape}: got {found.shape}."
        raise ValueError(msg)
    return found
