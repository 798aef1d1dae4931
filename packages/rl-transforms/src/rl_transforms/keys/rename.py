"""Giving entries other names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import keys
from rl_layout.keys import next_key
from rl_specs import Composite
from rl_tensordict import NestedKey, as_key, as_tuple, leaves
from rl_transforms.entries import merge_rows, missing, with_entries, without_entries
from rl_transforms.transform import Keys, Transform, without_specs

KeyPairs = Sequence[tuple[NestedKey, NestedKey]]


class RenameTransform(Transform):
    """Gives entries other names, at the root and under ``"next"``.

    Groups can be renamed like leaves, and two names can be swapped.

    Args:
        in_keys: present names.
        out_keys: new names, one each.
        in_keys_inv: names inside the environment or the buffer, written by `inv`.
        out_keys_inv: their names outside, read by `inv`.
        create_copy: keep the entry under its present name too.

    Raises:
        ValueError: there is not one new name per present one, or a name comes up twice.

    Example:
        >>> from rl_layout.testing import trajectories
        >>> batch = RenameTransform(["observation"], [("agent", "view")])(trajectories([3]))
        >>> batch["agent", "view"].shape, batch["next", "agent", "view"].shape
        (torch.Size([3, 2]), torch.Size([3, 2]))
    """

    def __init__(
        self,
        in_keys: Sequence[NestedKey],
        out_keys: Sequence[NestedKey],
        in_keys_inv: Keys = None,
        out_keys_inv: Keys = None,
        create_copy: bool = False,
    ) -> None:
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        self.create_copy = create_copy
        for names in (self.in_keys, self.out_keys, self.in_keys_inv, self.out_keys_inv):
            if len({as_tuple(name) for name in names}) < len(names):
                msg = f"a key comes up twice: {names}. Name each once."
                raise ValueError(msg)

    def forward(self, batch: TensorDictBase) -> TensorDictBase:
        """Rename entries of sampled or rolled-out rows.

        Args:
            batch: rows ``[*B]`` or ``[*B, T]``.

        Returns:
            The rows under their new names.

        Raises:
            KeyError: an in key is neither at the root nor under ``"next"``.
            ValueError: a new name is taken.
        """
        return self._moved_in_both(batch, list(zip(self.in_keys, self.out_keys, strict=True)))

    def inv(self, batch: TensorDictBase) -> TensorDictBase:
        """Give data going in the names that it has inside.

        Args:
            batch: a step's root ``[*B]``, or rows ``[*B]`` or ``[*B, T]``.

        Returns:
            The data under their inner names.

        Raises:
            KeyError: an outer key is neither at the root nor under ``"next"``.
            ValueError: an inner name is taken.
        """
        pairs = list(zip(self.out_keys_inv, self.in_keys_inv, strict=True))
        return self._moved_in_both(batch, pairs)

    def reset(self, root: TensorDictBase, mask: Tensor | None = None) -> TensorDictBase:
        """Rename what a reset returned; rows outside the mask keep what has the new name."""
        pairs = list(zip(self.in_keys, self.out_keys, strict=True))
        present = [(old, new) for old, new in pairs if root.get(old, None) is not None]
        if mask is None:
            return self._moved(root, present)
        moved = {}
        for old, new in present:
            fresh, kept = root.get(old), root.get(new, None)
            moved[new] = fresh if kept is None else _merge(mask, fresh, kept)
        return with_entries(self._emptied(root, present), moved)

    def step(self, root: TensorDictBase, after: TensorDictBase) -> TensorDictBase:
        """Rename what a step returned."""
        pairs = list(zip(self.in_keys, self.out_keys, strict=True))
        present = [(old, new) for old, new in pairs if after.get(old, None) is not None]
        for old, new in pairs:
            # an entry that only resets return is in the root under one of its names
            if (old, new) not in present and root.get(new, root.get(old, None)) is None:
                raise missing(self, old, after)
        return self._moved(after, present)

    def _moved_in_both(self, batch: TensorDictBase, pairs: KeyPairs) -> TensorDictBase:
        present = []
        for old, new in pairs:
            places = [(old, new)]
            if as_tuple(old)[0] != keys.NEXT:
                places.append((next_key(old), next_key(new)))
            found = [pair for pair in places if batch.get(pair[0], None) is not None]
            if not found:
                raise missing(self, old, batch)
            present += found
        return self._moved(batch, present)

    def _moved(self, batch: TensorDictBase, pairs: KeyPairs) -> TensorDictBase:
        # all entries are read before any is dropped, so that two names can be swapped
        moved = {new: batch.get(old) for old, new in pairs}
        kept = self._emptied(batch, pairs)
        # the old names are gone here, so a name that is still taken would be overwritten
        for new in moved:
            if kept.get(new, None) is not None:
                raise _taken(new)
        return with_entries(kept, moved)

    def _emptied(self, batch: TensorDictBase, pairs: KeyPairs) -> TensorDictBase:
        return batch if self.create_copy else without_entries(batch, [old for old, _ in pairs])

    def _outward(self, spec: Composite) -> Composite:
        return self._renamed(spec, zip(self.in_keys, self.out_keys, strict=True))

    def _inward(self, spec: Composite) -> Composite:
        return self._renamed(spec, zip(self.in_keys_inv, self.out_keys_inv, strict=True))

    def _renamed(self, spec: Composite, pairs: Iterable[tuple[NestedKey, NestedKey]]) -> Composite:
        present = [(old, new) for old, new in pairs if old in spec]
        if not present:
            return spec
        # read first, dropped then, for swaps as above
        moved = {new: spec[old] for old, new in present}
        copy = spec.clone() if self.create_copy else without_specs(spec, [o for o, _ in present])
        for new, leaf in moved.items():
            if new in copy:
                raise _taken(new)
            copy.set(new, leaf)
        return copy


def _merge(mask: Tensor, fresh: Any, kept: Any) -> Any:
    if not isinstance(fresh, TensorDictBase):
        return merge_rows(mask, fresh, kept)
    # a group: merged leaf by leaf, new leaves as they are
    pairs = {key: (value, kept.get(key, None)) for key, value in leaves(fresh)}
    merged = {key: merge_rows(mask, *pair) for key, pair in pairs.items() if pair[1] is not None}
    return with_entries(fresh, {as_key(key): value for key, value in merged.items()})


def _taken(key: NestedKey) -> ValueError:
    return ValueError(f"{key!r} is there already: exclude it first, or choose another name.")
