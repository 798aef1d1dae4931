"""Whole groups of completions, drawn from a buffer of tokens."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch

from rl_layout import keys
from rl_replay import Sampler, Storage
from rl_tensordict import CPU, NestedKey, UnfitValue, as_tensor
from rl_tensordict.arguments import check_whole, shown
from rl_tensordict.types import Ints
from rl_text.tokens.names import GROUP_IDS

NOTHING = np.empty(0, np.int64)


class PromptGroupSampler(Sampler):
    """Draws all completions of a prompt together, as many prompts as fit into a batch.

    Each group comes once an epoch, in a new order. The batch size is a number of tokens: groups are
    added as long as they fit, so a batch has at most that many rows, and rows of whole groups
    alone. Groups of which a row was overwritten, or with fewer than `group_size` conversations
    so far, are not drawn.

    With `group_size` a number of a group may come again, as those of `sample_completions` do in
    each call: further conversations are another group. Without, all of one number are one group.

    Args:
        num_groups: the most groups of a batch; None for as many as fit.
        group_size: conversations of a whole group; None takes groups as they are.
        group_key: the group of each row, int64.

    Raises:
        ValueError: a number is below 1.

    Example:
        >>> from rl_replay import LazyTensorStorage, TensorDictReplayBuffer
        >>> from rl_text import flat_tokens
        >>> buffer = TensorDictReplayBuffer(
        ...     storage=LazyTensorStorage(99), sampler=PromptGroupSampler(num_groups=1),
        ...     batch_size=16,
        ... )
        >>> rows = flat_tokens([[1], [1], [2], [2]], [[3], [4, 5], [6], []], groups=[7, 7, 8, 8])
        >>> _ = buffer.extend(rows)
        >>> sorted(buffer.sample()["group_ids"].unique().item() for _ in range(2))
        [7, 8]
    """

    proven: ClassVar[bool] = True

    def __init__(
        self,
        num_groups: int | None = None,
        group_size: int | None = None,
        group_key: NestedKey = GROUP_IDS,
    ) -> None:
        for name, value in (("num_groups", num_groups), ("group_size", group_size)):
            if value is not None:
                check_whole(name, value, 1)
        self.num_groups, self.group_size, self.group_key = num_groups, group_size, group_key
        self.reset()

    def reset(self) -> None:
        """Forget the rows, and begin a new epoch."""
        self.ran_out = False
        self._seen: tuple[Any, ...] = ()
        # runs of neighbouring rows of one conversation: first row, rows, group, conversation
        self._runs: Ints = np.empty((0, 4), np.int64)
        self._groups: list[Ints] = []
        self._order = torch.empty(0, dtype=torch.int64, device=CPU)
        self._place = 0

    def sample(self, storage: Storage, batch_size: int) -> tuple[torch.Tensor, dict[str, Any]]:
        """Draw the next groups of the epoch.

        Args:
            storage: where the rows are.
            batch_size: the most rows.

        Returns:
            Row ids, conversation after conversation.

        Raises:
            ValueError: there is no whole group, or one has more rows than a batch.
            KeyError: rows have no groups.
            TypeError: groups are no whole numbers.
        """
        self._take_in(storage)
        if not self._groups:
            wanted = "" if self.group_size is None else f" of {self.group_size} conversations"
            msg = f"there is no whole group{wanted} to sample: extend the buffer first."
            raise UnfitValue(msg)
        if self._place >= len(self._order):
            self._order = torch.randperm(len(self._groups), generator=self.generator, device=CPU)
            self._place = 0
        chosen: list[Ints] = []
        count = 0
        for place in self._order[self._place :].tolist():
            runs = self._groups[place]
            size = int(runs[:, 1].sum())
            if size > batch_size:
                msg = (
                    f"batch_size: group {int(runs[0, 2])} has {size} tokens, and a batch "
                    f"{batch_size}. Pass a batch_size of {size} or more."
                )
                raise UnfitValue(msg)
            if count + size > batch_size or len(chosen) == self.num_groups:
                break
            chosen.append(runs)
            count += size
        self._place += len(chosen)
        self.ran_out = self._place >= len(self._order)
        runs = np.concatenate(chosen)
        ends = runs[:, 1].cumsum()
        # row j of a run that begins at `ends - rows` of the sample has id first + j
        rows = np.repeat(runs[:, 0] - ends + runs[:, 1], runs[:, 1]) + np.arange(ends[-1])
        return torch.from_numpy(rows), {}

    def stats(self) -> dict[str, float]:
        """How many whole groups there are, and how many an epoch still has."""
        left = max(0, len(self._order) - self._place)
        return {"groups": len(self._groups), "groups_left": left}

    def catch_up(self, storage: Storage) -> None:
        """Read the groups of rows that were not sampled from yet, before the state is saved.

        Args:
            storage: where the rows are.
        """
        self._take_in(storage)

    def state_dict(self) -> dict[str, Any]:
        """The groups, and the remaining ones of the epoch."""
        runs = torch.from_numpy(self._runs)
        state = {"runs": runs, "order": self._order, "place": self._place, "seen": self._seen}
        return state | {"ran_out": self.ran_out}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the epoch of another sampler.

        Args:
            state: what its `state_dict` returned.
        """
        self._runs = as_tensor(state["runs"]).numpy().reshape(-1, 4)
        self._order, self._place = as_tensor(state["order"]), int(state["place"])
        self._seen = tuple(tuple(part) for part in state["seen"])
        self.ran_out = bool(state["ran_out"])
        self._groups = self._whole_groups(self._parts())

    def _take_in(self, storage: Storage) -> None:
        """Read the groups of new rows, forget overwritten ones, and begin an epoch if any were."""
        window = storage.ring.window()
        if (window.first, window.counts) == self._seen:
            return
        lanes = zip(window.first, window.counts, self._known(storage), strict=True)
        pieces = [self._runs]
        for first, count, known in lanes:
            begin = max(first, known)
            if begin < first + count:
                runs = self._runs_of(storage, np.arange(begin, first + count))
                pieces.append(runs if begin == known else self._after_a_gap(storage, runs))
        self._seen = (window.first, window.counts)
        self._runs = np.concatenate(pieces)
        parts = self._parts()
        live = storage.ring.is_live(torch.from_numpy(self._runs[:, 0])).numpy()
        kept = ~np.isin(parts, parts[~live])  # the oldest row of a run is overwritten first
        self._runs = self._runs[kept]
        self._groups = self._whole_groups(parts[kept])
        # places in `_groups` have changed, so the epoch begins anew
        self._order, self._place = self._order[:0], 0

    def _known(self, storage: Storage) -> list[int]:
        """For each lane the first row that was not read yet, overwritten or not."""
        known = list(storage.ring.floors())
        for lane, (first, count) in enumerate(zip(*self._seen, strict=True)):
            known[lane] = max(known[lane], first + count)
        return known

    def _after_a_gap(self, storage: Storage, runs: Ints) -> Ints:
        """Leave out what may belong to a group of which rows before were never read."""
        # the oldest conversations, of one group number
        others = np.flatnonzero(runs[:, 2] != runs[0, 2])
        oldest = runs[: others[0] if len(others) else None]
        if self.group_size is None:
            return runs[len(oldest) :]
        step = storage.leaf_of(torch.from_numpy(runs[:1, 0]), keys.TRAJ_STEP)
        is_cut = step is None or bool(step.reshape(-1)[0] != 0)
        # whole groups are those at the end
        whole = (len(oldest) - is_cut) // self.group_size * self.group_size
        return runs[len(oldest) - whole :]

    def _parts(self) -> Ints:
        """For each run a number that is equal in those of one group, if whole or not."""
        _, first, inverse = np.unique(self._runs[:, 3], return_index=True, return_inverse=True)
        group = self._runs[first, 2]
        if self.group_size is None:
            return self._runs[:, 2]
        order = np.lexsort((first, group))  # conversations of a group as they were written
        is_first = np.diff(group[order], prepend=-1) != 0
        starts = np.maximum.accumulate(np.where(is_first, np.arange(len(order)), 0))
        rank = np.arange(len(order)) - starts
        # a part begins with each group, and after `group_size` conversations
        parts = np.empty(len(order), np.int64)
        parts[order] = np.cumsum(is_first | (rank % self.group_size == 0))
        return parts[inverse]

    def _whole_groups(self, parts: Ints) -> list[Ints]:
        """The runs of each whole group, next to each other as they were written."""
        order = np.argsort(parts, kind="stable")
        cuts = np.flatnonzero(np.diff(parts[order])) + 1
        groups = np.split(self._runs[order], cuts) if len(order) else []
        return [one for one in groups if self._is_whole(one)]

    def _is_whole(self, runs: Ints) -> bool:
        return self.group_size is None or len(np.unique(runs[:, 3])) == self.group_size

    def _runs_of(self, storage: Storage, rows: Ints) -> Ints:
        ids = torch.from_numpy(rows)
        found = []
        for key in (self.group_key, keys.TRAJ_IDS):
            leaf = storage.leaf_of(ids, key)
            if leaf is None:
                msg = f"no leaf {key!r} is stored: rows are tokens as of flat_tokens(groups=...)."
                raise KeyError(msg)
            if leaf.numel() != len(rows) or leaf.is_floating_point() or leaf.dtype == torch.bool:
                msg = f"{key!r}: expected a whole number a row, got {shown(leaf)}."
                raise TypeError(msg)
            found.append(leaf.reshape(len(rows)).cpu().numpy())
        group, conversation = found
        is_first = np.ones(len(rows), bool)
        # a conversation that is written in two calls has two runs
        is_first[1:] = (np.diff(group) != 0) | (np.diff(conversation) != 0)
        starts = np.flatnonzero(is_first)
        lengths = np.diff(starts, append=len(rows))
        return np.stack([rows[starts], lengths, group[starts], conversation[starts]], 1)

    def __repr__(self) -> str:
        return f"PromptGroupSampler(num_groups={self.num_groups}, group_size={self.group_size})"
