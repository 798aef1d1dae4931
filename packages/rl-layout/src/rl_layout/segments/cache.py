"""What was derived from a batch's markers, kept while they live."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar
from weakref import ref

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from rl_layout.segments.markers import FIELDS, Markers, batch_shape
from rl_tensordict import as_tuple, find

Made = TypeVar("Made")
PLACES = [as_tuple(field[0]) for field in FIELDS.values()]


def marker_leaves(batch: TensorDictBase) -> list[Tensor | None]:
    """Read the markers of a batch, unchecked."""
    return [find(batch, place) for place in PLACES]


def _refuse_others(found: Sequence[object]) -> None:
    """Raise for the first marker that is no tensor."""
    for (key, _, _), leaf in zip(FIELDS.values(), found, strict=True):
        if leaf is not None and not isinstance(leaf, Tensor):
            msg = (
                f"{key!r}: expected a tensor, got {type(leaf).__name__}. Store markers as tensors."
            )
            raise TypeError(msg)


def _is_torchs_own(tensor: Tensor) -> bool:
    """Whether only torch writes to a tensor's memory, so that its version counter tells."""
    # Memory that torch may not resize is known elsewhere: to numpy, to a mapped file, to a slab.
    if type(tensor) is not Tensor or tensor.is_inference():
        return False
    if tensor.device.type != "cpu":
        return True
    storage = tensor.untyped_storage()
    return storage.resizable() and not storage.is_shared()


class Memo(Generic[Made]):
    """What was derived from the markers of a batch, kept while they live unchanged."""

    def __init__(self) -> None:
        self._kept: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def get(self, batch: TensorDictBase, make: Callable[[Markers], Made]) -> Made:
        """Return what was made of these markers, or make it."""
        return self.get_of(batch_shape(batch), marker_leaves(batch), make)

    def get_of(
        self, shape: torch.Size, found: Sequence[Tensor | None], make: Callable[[Markers], Made]
    ) -> Made:
        """Return what was made of markers that were read already."""
        tensors = [tensor for tensor in found if tensor is not None]
        anchor = tensors[0] if tensors else None
        kept = None if anchor is None else self._kept.get(anchor)
        try:
            versions = [None if t is None or t.is_inference() else t._version for t in found]
        except AttributeError:
            _refuse_others(found)
            raise
        stamp = (shape, versions, torch.is_inference_mode_enabled())
        if kept is not None and kept[0] == stamp and all(map(_is_torchs_own, tensors)):
            # a version counter says that a tensor is unchanged, identity that it is the same one
            alive = [None if weak is None else weak() for weak in kept[1]]
            if all(now is then for now, then in zip(found, alive, strict=True)):
                made: Made = kept[2]
                return made
        made = make(Markers.of_leaves(shape, found))
        if anchor is not None and all(map(_is_torchs_own, tensors)):
            weaks = [None if t is None else ref(t) for t in found]
            self._kept[anchor] = (stamp, weaks, made)
        return made
