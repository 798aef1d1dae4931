"""Draws by the age of the policy that acted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from rl_layout import keys
from rl_replay.edges import edge
from rl_replay.samplers.arrivals import Arrivals
from rl_replay.samplers.sampler import Sampler
from rl_slabs import Window
from rl_tensordict import CPU, NestedKey, UnfitValue, as_key, as_tuple
from rl_tensordict.arguments import check_calls, check_state, check_type, check_whole, shown
from rl_tensordict.types import Ints

if TYPE_CHECKING:
    from rl_replay.storages.storage import Storage

Weigh = Callable[[torch.Tensor], torch.Tensor]
NOTHING = np.empty(0, np.int64)


class StalenessAwareSampler(Sampler):
    """Draws rows of recent policies more often, and leaves out those of old ones.

    The staleness of a row is `consumer_version` less the version that is stored with it, which
    collectors write under `("collector", "policy_version")`. A row is drawn in proportion to a
    weight of its staleness. The cost of a draw depends on the batch, the new rows and the number
    of versions that are stored, not on the capacity. Versions are read once, when rows have come.

    Args:
        max_staleness: Rows that are staler are left out; -1 for none.
        staleness_weight_fn: From a staleness, int64 `[V]`, to weights of 0 or more, `[V]`;
            1 / (staleness + 1) unless given, and 1 for rows of the future.
        version_key: Where the versions are.

    Attributes:
        consumer_version: The version of the weights that learn; the training loop sets it. Batches
            that were prefetched before go by the former one.
        max_staleness: May be changed at any time.

    Raises:
        ValueError: A `max_staleness` below -1.

    Example:
        >>> from tensordict import TensorDict
        >>> from rl_replay import LazyTensorStorage, ReplayBuffer
        >>> sampler = StalenessAwareSampler(max_staleness=1)
        >>> buffer = ReplayBuffer(storage=LazyTensorStorage(9), sampler=sampler)
        >>> versions = torch.tensor([0, 0, 1, 2, 2])
        >>> _ = buffer.extend(TensorDict({"collector": {"policy_version": versions}}, [5]))
        >>> sampler.consumer_version = 2
        >>> set(buffer.sample(64)["collector", "policy_version"].tolist())
        {1, 2}
    """

    proven: ClassVar[bool] = True

    def __init__(
        self,
        max_staleness: int = -1,
        staleness_weight_fn: Weigh | None = None,
        version_key: NestedKey = keys.POLICY_VERSION,
    ) -> None:
        check_whole("max_staleness", max_staleness, -1)
        check_calls(staleness_weight_fn=staleness_weight_fn)
        self.max_staleness = max_staleness
        self.consumer_version = 0
        self._weigh = staleness_weight_fn or _one_over
        self._key = as_key(as_tuple(version_key))
        self.reset()

    def increment_consumer_version(self) -> None:
        """Count one more update of the weights that learn."""
        self.consumer_version += 1

    def reset(self) -> None:
        """Forget what is known of the rows."""
        self._arrivals = Arrivals()
        self._runs: dict[int, _Runs] = {}

    @edge
    def sample(self, storage: Storage, batch_size: int) -> tuple[torch.Tensor, dict[str, Any]]:
        """Draw rows by the weights of their staleness, with replacement.

        Raises:
            ValueError: No row is fresh enough, or weights that are negative or not finite; it is
                a `RuntimeError` too. A `max_staleness` below -1.
            KeyError: No versions are stored.
            TypeError: Versions, or an attribute, are no whole numbers, or weights are no tensor.
        """
        check_whole("max_staleness", self.max_staleness, -1)
        check_whole("consumer_version", self.consumer_version)
        window = storage.ring.window()
        self._take_in(storage, window)
        firsts, counts, versions = (
            np.concatenate([getattr(runs, name) for runs in self._runs.values()] or [NOTHING])
            for name in ("firsts", "counts", "versions")
        )
        weights = self._weights(versions)
        # one entry a run of rows of one version: [runs]; rows of a run weigh the same
        mass = counts * weights
        if not mass.sum() > 0:
            newest = f", the newest of version {versions.max()}" if len(versions) else ""
            raise UnfitValue(
                f"no row can be drawn by {self!r}: {len(window)} rows are stored{newest}. Write "
                "fresh rows, raise max_staleness, or give old ones weights above 0."
            )
        ends = mass.cumsum()
        drawn = torch.rand(
            batch_size, generator=self.generator, dtype=torch.float64, device=CPU
        ).numpy()
        # the cumulated mass is a line on which runs follow each other: a point finds run and row
        drawn *= ends[-1]
        run = np.minimum(ends.searchsorted(drawn, "right"), np.flatnonzero(mass)[-1])
        place = (drawn - (ends - mass)[run]) / weights[run]
        # rounding may put a point at the end of its run
        inside = np.minimum(place.astype(np.int64), counts[run] - 1)
        return torch.from_numpy(firsts[run] + inside), {}

    def progress(self) -> dict[str, Any]:
        """Nothing: rows are drawn independently of those before."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """The version of the consumer."""
        return {"consumer_version": self.consumer_version}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from the version of another sampler.

        Args:
            state: What its `state_dict` returned.

        Raises:
            ValueError: It lacks entries, as the state of a sampler of another kind.
        """
        if state:
            check_state(type(self).__name__, state, ("consumer_version",))
            self.reset()  # rows that are restored with it may have the ids of former ones
            self.consumer_version = int(state["consumer_version"])

    def stats(self) -> dict[str, float]:
        """How many runs of rows of one version are stored."""
        return {"version_runs": sum(len(runs.counts) for runs in self._runs.values())}

    def _weights(self, versions: Ints) -> NDArray[np.float64]:
        """A weight for each run, 0 if it is too stale."""
        staleness = self.consumer_version - versions
        given = self._weigh(torch.from_numpy(staleness))
        check_type("staleness_weight_fn", given, torch.Tensor, "a function that returns a tensor")
        weights = given.detach().double().numpy().copy()
        if weights.shape != staleness.shape or not (weights >= 0).all() or np.isinf(weights).any():
            raise UnfitValue(
                f"staleness_weight_fn: expected a number of 0 or more for each of {len(staleness)}"
                f" values, got {weights.tolist()[:8]}."
            )
        if self.max_staleness >= 0:
            weights[staleness > self.max_staleness] = 0
        return weights

    def _take_in(self, storage: Storage, window: Window) -> None:
        """Reads the versions of new rows, and forgets the versions of overwritten rows."""
        if self._arrivals.begin_anew(storage):
            self._runs = {}
        for lane, numbers in self._arrivals.take(window):
            leaf = storage.leaf_of(torch.from_numpy(numbers), self._key)
            if leaf is None:
                raise KeyError(
                    f"a {storage!r} has no leaf {self._key!r}, which says what policy acted: store "
                    "what collectors write in a LazyTensorStorage, as a ListStorage has no leaves, "
                    "or name another leaf by version_key."
                )
            found = leaf.reshape(-1).cpu().numpy()
            if len(found) != len(numbers) or found.dtype.kind not in "iu":
                raise TypeError(
                    f"{self._key!r}: expected a whole number for each of {len(numbers)} rows, got "
                    f"{shown(leaf)}. Store int64 [N], or name another leaf by version_key."
                )
            self._runs.setdefault(lane, _Runs()).append(numbers, found)
        for lane, runs in self._runs.items():
            runs.drop_before(window.first[lane] if window.counts[lane] else None)

    def __repr__(self) -> str:
        return (
            f"StalenessAwareSampler(max_staleness={self.max_staleness}, "
            f"consumer_version={self.consumer_version})"
        )


class _Runs:
    """Rows of one lane, in runs of one version each."""

    def __init__(self) -> None:
        self.firsts, self.counts, self.versions = NOTHING, NOTHING, NOTHING

    def append(self, numbers: Ints, versions: Ints) -> None:
        """Add rows with consecutive ids."""
        # a run begins at row 0 and wherever the version changes
        cuts = np.flatnonzero(np.diff(versions)) + 1
        begins = np.concatenate([[0], cuts])
        counts = np.diff(np.append(begins, len(numbers)))
        firsts, kinds = numbers[begins], versions[begins].astype(np.int64)
        last = len(self.firsts) - 1
        follows = last >= 0 and self.firsts[last] + self.counts[last] == firsts[0]
        if follows and self.versions[last] == kinds[0]:  # the last run continues
            self.counts[last] += counts[0]
            firsts, counts, kinds = firsts[1:], counts[1:], kinds[1:]
        self.firsts = np.concatenate([self.firsts, firsts])
        self.counts = np.concatenate([self.counts, counts])
        self.versions = np.concatenate([self.versions, kinds])

    def drop_before(self, first: int | None) -> None:
        """Drop rows of lower ids; all where None."""
        ends = self.firsts + self.counts
        # `first` inside a run shortens it; a run that ends before has begin == end, and goes
        begins = ends if first is None else np.clip(first, self.firsts, ends)
        kept = begins < ends
        self.firsts, self.counts = begins[kept], (ends - begins)[kept]
        self.versions = self.versions[kept]


def _one_over(staleness: torch.Tensor) -> torch.Tensor:
    return 1 / (staleness.clamp_min(0).double() + 1)
