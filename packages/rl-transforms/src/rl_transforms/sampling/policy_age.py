"""Leaving out rows of old policies."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import keys
from rl_tensordict import NestedKey, as_key, as_tuple, find
from rl_tensordict.arguments import as_integer, check_flags, check_type, check_whole
from rl_transforms.entries import missing
from rl_transforms.transform import Place, Transform


class PolicyAgeFilter(Transform):
    """Leaves out rows whose policy is too many versions old, when storing and when sampling.

    A batch that loses rows is flat, ``[n]``, and a sample is shorter than asked for; one without a
    row left is not stored at all. Rows that are left keep their markers, so that a gap is seen.
    A buffer with ``prefetch`` filters batches when they are made, by the version of then.

    Args:
        current_version: the version of the weights that learn, or a function that returns it, as
            ``lambda: collector.policy_version``.
        max_policy_lag: the most versions that a row may be old.
        policy_version_key: where the versions are, int64 ``[*B]``.
        strict: refuse data without versions; otherwise they pass.

    Raises:
        TypeError: the version is neither a number nor a function.
        ValueError: the lag is negative.

    Example:
        >>> from tensordict import TensorDict
        >>> versions = torch.tensor([0, 4, 5])
        >>> batch = TensorDict({"collector": {"policy_version": versions}}, [3])
        >>> PolicyAgeFilter(lambda: 5, max_policy_lag=1)(batch)["collector", "policy_version"]
        tensor([4, 5])
    """

    places: frozenset[Place] = frozenset({"buffer"})

    def __init__(
        self,
        current_version: int | Callable[[], int],
        max_policy_lag: int,
        *,
        policy_version_key: NestedKey = keys.POLICY_VERSION,
        strict: bool = False,
    ) -> None:
        super().__init__()
        if not callable(current_version):
            check_whole("current_version", current_version)
        check_whole("max_policy_lag", max_policy_lag, 0)
        check_flags(strict=strict)
        self.current_version, self.max_policy_lag = current_version, max_policy_lag
        self.policy_version_key = as_key(as_tuple(policy_version_key))
        self.strict = strict

    def forward(self, batch: TensorDictBase) -> TensorDictBase:
        """Leave out old rows of a sample.

        Raises:
            KeyError: there are no versions, and `strict` is set.
            TypeError: the function returned no whole number.
        """
        fresh = self._fresh(batch)
        if fresh is None or bool(fresh.all()):
            return batch
        found: TensorDictBase = batch[fresh]
        return found

    def inv(self, batch: TensorDictBase) -> TensorDictBase | None:
        """Leave out old rows of what is stored; None if all are."""
        found = self.forward(batch)
        return found if found is batch or len(found) else None

    def _fresh(self, batch: TensorDictBase) -> Tensor | None:
        """Which rows are recent, bool ``[*B]``; None if nothing says so."""
        versions = find(batch, as_tuple(self.policy_version_key))
        if versions is None:
            if self.strict:
                raise missing(self, self.policy_version_key, batch)
            return None
        given = self.current_version
        current = as_integer(given() if callable(given) else given)
        check_type("current_version", current, int, "a function that returns a whole number")
        assert isinstance(versions, torch.Tensor)
        assert current is not None
        rows = versions.reshape(batch.batch_size)
        return current - rows <= self.max_policy_lag
