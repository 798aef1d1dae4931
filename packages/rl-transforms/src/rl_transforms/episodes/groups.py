"""The groups that have done flags of their own, and transforms that write one leaf for each."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import keys
from rl_specs import Composite, TensorSpec, Unbounded
from rl_tensordict import NestedKey, as_key, as_tuple, leaves
from rl_transforms.entries import check_mask, missing
from rl_transforms.transform import Transform, with_specs

GroupPath = tuple[str, ...]


class GroupTransform(Transform):
    """A transform that writes one leaf of its own at the root and in every done group.

    A done group is a nested tensordict with a done flag, as ``("agents", "done")`` makes
    ``("agents",)`` one. The groups are learned from the done spec, or at a full reset.

    Args:
        name: the last part of the leaves' keys.
        dtype: what they hold.

    Raises:
        TypeError: the name is no string.

    Example:
        >>> tracker = GroupTransform("seen", torch.int64)
        >>> from rl_specs import Categorical
        >>> done = Categorical(2, (3, 1), dtype=torch.bool)
        >>> _ = tracker.transform_done_spec(Composite(agents={"done": done}, shape=(3,)))
        >>> spec = tracker.transform_observation_spec(Composite(shape=(3,)))
        >>> spec["seen"].shape, spec["agents", "seen"].shape
        (torch.Size([3, 1]), torch.Size([3, 1]))
    """

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        super().__init__()
        check_last_part("the leaves' key", name)
        self.name = name
        self.dtype = dtype
        self._groups: dict[GroupPath, torch.Size] | None = None

    def transform_done_spec(self, spec: Composite) -> Composite:
        """Learn the done groups; the spec itself stays as it is."""
        named = spec.keys(include_nested=True, leaves_only=True)
        self._groups = _groups({as_tuple(key): spec[key].shape for key in named}.items())
        return spec

    def transform_observation_spec(self, spec: Composite) -> Composite:
        """Add the leaves that this transform writes."""
        groups = self._with_root(self._groups or {}, spec.shape)
        return with_specs(
            spec, {self._key(g): self._own_spec(shape) for g, shape in groups.items()}
        )

    def _own_spec(self, shape: torch.Size) -> TensorSpec:
        return Unbounded(shape, dtype=self.dtype)

    def _with_root(
        self, groups: dict[GroupPath, torch.Size], batch: torch.Size
    ) -> dict[GroupPath, torch.Size]:
        """The groups to write to, always including the root."""
        # the root comes first, and a group of that path replaces it
        return {(): torch.Size((*batch, 1)), **groups}

    def _key(self, group: GroupPath) -> NestedKey:
        return as_key((*group, self.name))

    def _learned(self, batch: TensorDictBase, again: bool) -> dict[GroupPath, torch.Size]:
        """Shape of the done flag of the root and of every group."""
        if self._groups is None or again:
            self._groups = {**(self._groups or {}), **_groups_at_root(batch)} or None
        return self._with_root(self._groups or {}, batch.batch_size)

    def _groups_of_rows(self, batch: TensorDictBase) -> list[GroupPath]:
        """The root and every group; shapes of finished rows, which have time too, are not kept."""
        groups = {**(self._groups or {}), **_groups_at_root(batch)}
        return list(self._with_root(groups, batch.batch_size))


def check_last_part(what: str, name: object) -> None:
    """Raise unless a name is a string, the last part of a nested key."""
    if not isinstance(name, str):
        msg = f"{what}: expected the last part of a key, a string: got {name!r}. Groups are found."
        raise TypeError(msg)


def group_mask(mask: Tensor | None, shape: torch.Size, device: torch.device) -> Tensor:
    """Expand a mask ``[*B]`` of reset rows to a group's flag ``[*B, ..., 1]``."""
    if mask is None:
        return torch.ones(shape, dtype=torch.bool, device=device)
    check_mask(mask, shape)
    # a reset resets every agent of a row
    return mask.reshape(*mask.shape, *[1] * (len(shape) - mask.ndim)).expand(shape)


def next_done(who: object, batch: TensorDictBase, group: tuple[str, ...]) -> Tensor:
    """Read whether a step ended the trajectory of a group, bool ``[*B, ..., 1]``."""
    flags = [batch.get((keys.NEXT, *group, name), None) for name in keys.DONE_KEYS]
    found = [flag for flag in flags if flag is not None]
    if not found:
        raise missing(who, (keys.NEXT, *group, keys.DONE), batch)
    return torch.stack(found).any(0) if len(found) > 1 else found[0]


def _groups_at_root(batch: TensorDictBase) -> dict[GroupPath, torch.Size]:
    return _groups((key, leaf.shape) for key, leaf in leaves(batch) if key[0] != keys.NEXT)


def _groups(flags: Iterable[tuple[GroupPath, torch.Size]]) -> dict[GroupPath, torch.Size]:
    return {key[:-1]: shape for key, shape in flags if key[-1] in keys.DONE_KEYS}
