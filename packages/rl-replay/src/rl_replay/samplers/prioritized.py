"""Samplers that draw rows in proportion to their priorities."""

from __future__ import annotations

import warnings
import weakref
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from rl_layout import keys
from rl_replay.edges import edge
from rl_replay.priorities.memory import PriorityMemory
from rl_replay.priorities.reduction import PriorityReduction, as_priorities, reduced
from rl_replay.priorities.row_priorities import RowPriorities
from rl_replay.priorities.saved import Saved
from rl_replay.samplers.sampler import Sampler
from rl_replay.storages.positions import whole_numbers
from rl_slabs import Window
from rl_slabs.internals import positive
from rl_tensordict import CPU
from rl_tensordict.arguments import check_state
from rl_tensordict.types import Floats, Ints

if TYPE_CHECKING:
    from rl_replay.storages.storage import Storage

Normalize = Literal["batch", "buffer"]

PROBABILITY = "probability"
ROOM_FOR_COLUMNS = 1 << 16


class PrioritizedSampler(Sampler):
    """Draws rows in proportion to ``(priority + eps) ** alpha``, and weighs them for it.

    The weight of a row is ``(N * P) ** -beta``, where N is the number of rows and P the probability
    with which it was drawn. A new row has the highest priority that any row had; where
    rows are written with the buffer's `priority_key`, it has that one.

    Priorities are in a tree of sums: a draw costs much the same in a buffer of any size. Writers do
    nothing for it: a process that samples takes in what they wrote. With numba installed a draw
    takes half of the time, and gives the same rows.

    Args:
        max_capacity: The capacity of the storage, in rows.
        alpha: How much priorities matter: 0 draws uniformly.
        beta: How far weights make up for it: 1 makes means over samples unbiased.
        eps: What is added to each priority, so that no row is left out.
        dtype: The dtype of weights.
        reduction: How priorities with more dimensions than rows become one a row: "max", "min",
            "median" or "mean".
        max_priority_within_buffer: New rows have the highest priority of the rows that are stored,
            not of all there ever were. This reads all priorities after each write.
        stratified: Draw one row from each of N equal parts of the sum, in rising order of index:
            the same probabilities and less variance. Otherwise independently of each other.
        normalize: Divide weights by the largest one of the "batch", or by the largest one of the
            "buffer", or not at all (None).
        private_priorities: In a shared buffer, keep priorities of this process alone. Otherwise all
            processes draw by the same ones.
        probabilities: Also tell the probability of each row, under `"probability"`.

    Attributes:
        alpha: May be changed at any time; all weights are computed again then.
        beta: May be changed at any time.

    Raises:
        ValueError: A negative alpha, beta or eps, or an unknown reduction or normalisation.

    Source:
        Schaul et al., Prioritized experience replay, ICLR 2016, https://arxiv.org/abs/1511.05952

    Example:
        >>> from rl_replay import LazyTensorStorage, ReplayBuffer
        >>> sampler = PrioritizedSampler(4, alpha=1.0, beta=1.0)
        >>> buffer = ReplayBuffer(storage=LazyTensorStorage(4), sampler=sampler, batch_size=8)
        >>> index = buffer.extend(torch.arange(4))
        >>> buffer.update_priority(index, torch.tensor([0.0, 0.0, 1.0, 3.0]))
        >>> buffer.sample().tolist()
        [2, 2, 3, 3, 3, 3, 3, 3]
    """

    proven: ClassVar[bool] = True
    weighs_rows: ClassVar[bool] = True

    def __init__(  # noqa: PLR0913 - the arguments that the seed names, and two of ours
        self,
        max_capacity: int,
        alpha: float,
        beta: float,
        eps: float = 1e-8,
        dtype: torch.dtype = torch.float,
        reduction: PriorityReduction = "max",
        max_priority_within_buffer: bool = False,
        *,
        stratified: bool = True,
        normalize: Normalize | None = "batch",
        probabilities: bool = False,
        private_priorities: bool = False,
    ) -> None:
        if normalize is not None and normalize not in get_args(Normalize):
            raise ValueError(f'normalize is "batch", "buffer" or None, got {normalize!r}.')
        if reduction not in get_args(PriorityReduction):
            raise ValueError(
                f"reduction is one of {get_args(PriorityReduction)}, got {reduction!r}."
            )
        self.max_capacity = positive(max_capacity, "max_capacity")
        self.beta = beta
        self.eps = at_least_zero(eps, "eps")
        self.dtype = dtype
        self.reduction: PriorityReduction = reduction
        self.max_priority_within_buffer = max_priority_within_buffer
        self.stratified = stratified
        self.normalize = normalize
        self.probabilities = probabilities
        self.private_priorities = private_priorities
        alpha = at_least_zero(alpha, "alpha")
        self._home: weakref.ref[Storage] | None = None  # whose rows the priorities are of
        self._capacity = 0  # of that storage
        self._without_leaf: Any = None  # rows and a key under which they hold no priorities
        self._warned = False
        self._fractions: Floats = np.empty(0)  # where random numbers are drawn into
        self._drawn_into = torch.empty(0, device=CPU)  # the same memory
        self._rows = RowPriorities(PriorityMemory(self.max_capacity, alpha=alpha, eps=self.eps))

    @property
    def alpha(self) -> float:
        """How much priorities matter: 0 draws uniformly."""
        return self._rows.memory.alpha

    @alpha.setter
    def alpha(self, alpha: float) -> None:
        self._rows.set_alpha(at_least_zero(alpha, "alpha"))

    @property
    def beta(self) -> float:
        """How far weights make up for priorities."""
        return self._beta

    @beta.setter
    def beta(self, beta: float) -> None:
        self._beta = at_least_zero(beta, "beta")

    @property
    def default_priority(self) -> float:
        """The priority of a new row."""
        return self._rows.memory.highest

    @edge
    def sample(self, storage: Storage, batch_size: int) -> tuple[torch.Tensor, dict[str, Any]]:
        """Draw rows.

        Args:
            storage: Where the rows are.
            batch_size: How many rows.

        Returns:
            Their row ids, int64 `[N]`, and under `"probability"` the probability of
            each, float64 `[N]`.

        Raises:
            ValueError: The storage is empty, or no row has a priority above 0.
        """
        rows = self._caught_up(storage)
        if not len(storage.ring.window()):
            raise ValueError("there are no rows to sample yet: extend the buffer first.")
        drawn = rows.draw(storage.ring, batch_size, self._uniform, strata=self.stratified)
        return torch.from_numpy(drawn.row_ids), {PROBABILITY: torch.from_numpy(drawn.probabilities)}

    def complete(self, storage: Storage, info: dict[str, Any]) -> dict[str, Any]:
        """Adds the weights of the rows of a batch.

        Args:
            storage: Where the rows are.
            info: What `sample` said of them.

        Returns:
            The same, `"priority_weight"` `[N]`, and whose rows they are, `[N]`.
        """
        weights = self._weights(storage, info[PROBABILITY].numpy())
        made: dict[Any, Any] = info | {keys.PRIORITY_WEIGHT: self._leaf(weights)}
        made[keys.STORAGE_ID] = storage.identity.leaf(len(weights))
        if not self.probabilities:
            del made[PROBABILITY]
        return made

    @edge
    def update_priority(
        self, storage: Storage, row_ids: torch.Tensor, priority: torch.Tensor | float
    ) -> None:
        """Sets the priorities of some rows; those of rows that were overwritten are dropped.

        Args:
            storage: Where the rows are.
            row_ids: int64 `[N]`.
            priority: One for all, or one for each, `[N]`.

        Raises:
            ValueError: A priority that is negative or not finite, too many or too few of them, or
                a row that was never written.
            TypeError: Row ids that are no whole numbers.
        """
        rows = self._caught_up(storage)
        found: Ints = whole_numbers(row_ids).numpy()
        rows.update(storage.ring, found, as_priorities(priority, len(found)))

    def reduce(self, priority: torch.Tensor, rows: int) -> torch.Tensor:
        """One priority a row, of a tensor `[rows, ...]`.

        Args:
            priority: The priorities.
            rows: How many rows.
        """
        return reduced(priority, rows, self.reduction)

    def reset(self) -> None:
        """Forgets all priorities, because there are other rows."""
        self._rows.load(None)

    def share(self, storage: Storage) -> None:
        """Lets processes that are given the sampler draw by the same priorities.

        Args:
            storage: Where the rows are.
        """
        if not (self._rows.memory.is_shared or self.private_priorities):
            # untouched memory takes no room, and columns may round the capacity up
            self._rows = self._rows.moved(storage.max_size + ROOM_FOR_COLUMNS, shared=True)

    def renumbered(self, storage: Storage) -> None:
        """Takes priorities over to the rows of a storage of another size.

        Args:
            storage: Where the rows are now.
        """
        saved, window = self._rows.save(), storage.ring.window()
        if saved is None or len(saved.window.first) > 1 or len(window.first) > 1:
            self.reset()
            return
        kept = saved.priorities[-len(window) :]
        first = window.first[0] + len(window) - len(kept)
        self._rows.load(Saved(Window((first,), (len(kept),)), kept, saved.highest))

    def replaced(self, storage: Storage, positions: torch.Tensor) -> None:
        """Gives rows that replaced others the priorities of new ones; the others keep theirs.

        Args:
            storage: Where the rows are.
            positions: Those of the new rows, int64 `[n]`.
        """
        row_ids = storage.ring.numbers_at(positions)
        given = self._written_with(storage, row_ids)
        self._rows.replace(storage.ring, row_ids.numpy(), given)
        if self.max_priority_within_buffer:
            self._rows.forget_highest()

    def moved(self, storage: Storage, origins: torch.Tensor) -> None:
        """Takes priorities to where the rows are now.

        Args:
            storage: Where the rows are.
            origins: The former positions of the first rows, int64 `[n]`; rows after them are new.
        """
        first, memory = storage.ring.window().first[0], self._rows.memory
        kept = memory.priorities[origins.numpy()]
        self._rows.load(Saved(Window((first,), (len(kept),)), kept, memory.highest))

    def stats(self) -> dict[str, float]:
        """The highest priority, and how many came back after their row was overwritten."""
        return {"highest_priority": self._rows.memory.highest, "stale_priorities": self._rows.stale}

    def progress(self) -> dict[str, Any]:
        """Nothing: rows are drawn independently of those before."""
        return {}

    def catch_up(self, storage: Storage) -> None:
        """Takes in the rows that were written since the last draw.

        Args:
            storage: Where the rows are.
        """
        self._caught_up(storage)

    def state_dict(self) -> dict[str, Any]:
        """The priorities of all rows, alpha and beta."""
        state = {"alpha": self.alpha, "beta": self.beta}
        saved = self._rows.save()
        if saved is None:
            return state
        return state | {
            "first": list(saved.window.first),
            "counts": list(saved.window.counts),
            "priorities": torch.from_numpy(saved.priorities),
            "highest": saved.highest,
        }

    @edge
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues with the priorities of another sampler.

        Args:
            state: What its `state_dict` returned.

        Raises:
            ValueError: A negative alpha or beta, or the state of a sampler of another kind.
        """
        if not state:
            return
        check_state(type(self).__name__, state, ("alpha", "beta"))
        if "first" in state:
            check_state(type(self).__name__, state, ("counts", "priorities", "highest"))
        self.alpha, self.beta = float(state["alpha"]), float(state["beta"])
        if "first" not in state:
            self._rows.load(None)
            return
        window = Window(tuple(state["first"]), tuple(state["counts"]))
        kept = as_priorities(torch.as_tensor(state["priorities"], device=CPU), len(window))
        self._rows.load(Saved(window, kept, float(state["highest"])))

    def _caught_up(self, storage: Storage) -> RowPriorities:
        """The priorities, after the rows that were written since the last call."""
        home = None if self._home is None else self._home()
        ring = storage.ring
        if home is not storage or self._capacity != ring.capacity:
            self._settle(storage, home)
        rows = self._rows
        if ring.window() is rows.seen and not rows.memory.is_shared:  # most often, at a glance
            return rows
        rows.catch_up(
            ring,
            self._epoch_of(storage),
            lambda begin, end: self._written_with(storage, range(begin, end)),
            highest_of_stored=self.max_priority_within_buffer,
        )
        return rows

    def _epoch_of(self, storage: Storage) -> int:
        """A number that changes where all priorities begin anew."""
        return storage.replacements

    def _settle(self, storage: Storage, former: Storage | None) -> None:
        """Makes room for the rows of a storage, instead of those of the former one."""
        if self.max_capacity not in (storage.max_size, storage.session.asked):
            raise ValueError(
                f"the sampler has room for {self.max_capacity} rows and the storage for "
                f"{storage.max_size}: give both the same capacity."
            )
        if former is not None and former is not storage:
            self._rows.load(None)  # rows of the same ids
        self._home = weakref.ref(storage)
        self._capacity = storage.max_size
        if self._rows.memory.room < storage.max_size:  # rounded up to whole rows of columns
            self._rows = self._rows.moved(storage.max_size, shared=False)

    def _written_with(
        self, storage: Storage, row_ids: torch.Tensor | range
    ) -> NDArray[np.float32] | None:
        """The priorities that rows were written with; None if they have none."""
        rows = (storage.session.table, self.priority_key)
        if self.priority_key is None or rows == self._without_leaf:
            return None
        if isinstance(row_ids, range):  # a tensor only if there is a leaf to look for
            row_ids = torch.arange(row_ids.start, row_ids.stop, device=CPU)
        leaf = storage.leaf_of(row_ids, self.priority_key)
        if leaf is None:
            self._without_leaf = rows
            return None
        found: NDArray[np.float32] = self.reduce(leaf, len(row_ids)).float().cpu().numpy()
        good = (found >= 0) & (found < np.inf)
        if good.all():
            return found
        if not self._warned:
            warnings.warn(
                f"{len(good) - int(good.sum())} rows are stored with a {self.priority_key!r} that "
                "is negative or not finite, and have the highest priority instead: store "
                "td_error.abs().",
                stacklevel=2,
            )
            self._warned = True
        highest = max(self.default_priority, float(found[good].max(initial=0.0)))
        return np.where(good, found, np.float32(highest))

    def _uniform(self, count: int) -> Floats:
        """Random numbers in [0, 1), `[count]`, which stay until the next call."""
        if len(self._fractions) != count:
            self._fractions = np.empty(count)
            with torch.inference_mode(mode=False):  # such tensors may be written in either mode
                self._drawn_into = torch.from_numpy(self._fractions)
        self._drawn_into.uniform_(generator=self.generator)
        return self._fractions

    def _weights(self, storage: Storage, probabilities: Floats) -> Floats:
        if self.normalize is None:
            weights: Floats = probabilities * len(storage.ring.window())
        else:
            # the largest weight is that of the lowest probability, whatever N is
            lowest = np.minimum.reduce(probabilities)
            if self.normalize == "buffer":
                # a row that was drawn before a lower one came has the probability of then
                lowest = min(lowest, self._rows.lowest_probability(storage.ring))
            weights = probabilities / lowest
        weights **= -self._beta
        return weights

    def _leaf(self, weights: Floats) -> torch.Tensor:
        """Weights as samples have them."""
        if self.dtype is torch.float32:  # numpy takes a quarter of torch's time
            return torch.from_numpy(weights.astype(np.float32))
        return torch.from_numpy(weights).to(self.dtype)

    def __getstate__(self) -> dict[str, Any]:
        own = {"_home": None, "_without_leaf": None, "_fractions": np.empty(0)}
        return self.__dict__ | own

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.max_capacity}, alpha={self.alpha}, beta={self.beta})"


def at_least_zero(value: float, name: str, most: float = float("inf")) -> float:
    """A number that is not negative, checked."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r}.")
    if not 0 <= value <= most or value == float("inf"):
        bounds = "at least 0 and finite" if most == float("inf") else f"in [0, {most}]"
        raise ValueError(f"{name} must be {bounds}, got {value}.")
    return float(value)
