"""What the leaves of a tensordict do not hold: names of dimensions, and sizes of groups in it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from tensordict import TensorDictBase, is_non_tensor

from rl_tensordict.nested_keys import as_tuple


class Group(NamedTuple):
    """The dimensions that a nested tensordict has after those of its batch, as of agents."""

    key: tuple[str, ...]
    sizes: list[int]
    names: list[str | None]


class Dimensions(NamedTuple):
    """Names of the dimensions of a batch, and the dimensions of its groups.

    A batch that is made again from leaves, as of rows of shared memory, has neither.

    Attributes:
        names: one for each dimension of the batch.
        groups: what nested tensordicts have of their own.

    Example:
        >>> from tensordict import TensorDict
        >>> agents = TensorDict({"seen": torch.ones(4, 3)}, [4, 3])
        >>> batch = TensorDict({"agents": agents}, [4])
        >>> again = TensorDict(batch.to_dict(), [4])
        >>> Dimensions.of(batch).give(again)["agents"].batch_size
        torch.Size([4, 3])
    """

    names: list[str | None]
    groups: list[Group]

    @classmethod
    def of(cls, batch: TensorDictBase) -> Dimensions:
        """Read them from a batch.

        Args:
            batch: any tensordict.

        Returns:
            Its names, and the groups that have dimensions of their own.
        """
        groups, leaves = [], set(batch.keys(True, True))
        for key in batch.keys(True):
            if key in leaves:  # not read: those of a lazy stack may differ in shape
                continue
            group = batch.get(key)
            if group.ndim > batch.ndim and not is_non_tensor(group):
                sizes, names = group.batch_size[batch.ndim :], group.names[batch.ndim :]
                groups.append(Group(as_tuple(key), list(sizes), names))
        return cls(batch.names, groups)

    def give(self, batch: TensorDictBase) -> TensorDictBase:
        """Give them to a batch, in place.

        Args:
            batch: with as many dimensions as there are names. Groups that it lacks are left out.

        Returns:
            The batch.

        Raises:
            RuntimeError: leaves of a group have other sizes.
            ValueError: it has other dimensions than there are names.
        """
        batch.names = self.names
        return self.give_groups(batch)

    def give_groups(self, batch: TensorDictBase) -> TensorDictBase:
        """Give the dimensions of the groups to a batch of any shape, in place.

        Args:
            batch: groups that it lacks are left out.

        Returns:
            The batch.

        Raises:
            RuntimeError: leaves of a group have other sizes.
        """
        # what is set on a group is set on those inside it too: outer ones come first
        for key, sizes, names in sorted(self.groups, key=lambda group: len(group[0])):
            group = batch.get(key, None)
            if group is not None:
                group.batch_size = torch.Size([*batch.batch_size, *sizes])
                group.names = [*batch.names, *names]
        return batch
