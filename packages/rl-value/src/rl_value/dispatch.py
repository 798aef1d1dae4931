"""Modules that are called with a tensordict, or with what it would hold."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Self

import torch
from tensordict import TensorDictBase, TensorDictParams
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl_layout import keys
from rl_tensordict import NestedKey, as_tuple, build, nest, require
from rl_tensordict.arguments import check_type

MARKERS: tuple[NestedKey, ...] = (
    keys.IS_INIT,
    keys.NEXT_TRUNCATED,
    keys.STEPS_TO_NEXT_OBS,
    keys.TRAJ_IDS,
    keys.TRAJ_STEP,
    keys.MASK,
    keys.NEXT_MISSING,
    keys.HISTORY_MISSING,
)


class NamedModule(TensorDictModuleBase):  # type: ignore[misc]
    """A tensordict module that may be called by arguments, and whose outputs may be selected."""

    _selected: list[NestedKey] | None = None

    @property
    @abstractmethod
    def outputs(self) -> list[NestedKey]:
        """Keys of the tensors that `forward` returns when it is called with tensors."""

    @property
    def optional_keys(self) -> list[NestedKey]:
        """Optional inputs that may be passed as keywords, in addition to `in_keys`."""
        return list(MARKERS)

    @property
    def out_keys(self) -> list[NestedKey]:
        """The keys that `forward` returns: all `outputs`, or the selected ones."""
        return self.outputs if self._selected is None else list(self._selected)

    @out_keys.setter
    def out_keys(self, wanted: list[NestedKey]) -> None:
        self.select_out_keys(*wanted)

    @property
    def out_keys_source(self) -> list[NestedKey]:
        """The keys before any was selected."""
        return self.outputs

    def select_out_keys(self, *out_keys: NestedKey) -> Self:
        """Give some outputs only, in this order; entries of the input stay.

        Args:
            out_keys: some of `out_keys`.

        Returns:
            The module itself.

        Raises:
            ValueError: one of them is no output.
        """
        known = {as_tuple(key): key for key in self.outputs}
        for key in out_keys:
            if not isinstance(key, str | tuple) or as_tuple(key) not in known:
                msg = f"{key!r} is no output of {type(self).__name__}: it gives {self.outputs}."
                raise ValueError(msg)
        self._selected = [known[as_tuple(key)] for key in out_keys]
        return self

    def reset_out_keys(self) -> Self:
        """Give all outputs again.

        Returns:
            The module itself.
        """
        self._selected = None
        return self

    def by_names(self, args: tuple[Any, ...], given: Mapping[str, Any], **settings: Any) -> Any:
        """Call `forward` with inputs in the place of a tensordict.

        ``("next", "reward")`` is called ``next_reward``.

        Args:
            args: tensors in the order of `in_keys`.
            given: tensors by name.
            settings: arguments of `forward` itself.

        Returns:
            One tensor for each of `out_keys`; a single one by itself.

        Raises:
            TypeError: an input is no tensor, unknown, or given twice; or there is none.
        """
        check_type("args", args, tuple | list, "a tuple of tensors, in the order of in_keys")
        check_type("given", given, Mapping, "a dictionary of tensors by name")
        made = self.forward(self._of_arguments(tuple(args), given, tuple(settings)), **settings)
        found = tuple(require(made, key) for key in self.out_keys)
        return found[0] if len(found) == 1 else found

    def _of_arguments(
        self, args: tuple[Any, ...], given: Mapping[str, Any], others: tuple[str, ...]
    ) -> TensorDictBase:
        """The tensordict that arguments represent; `others` are arguments of `forward` itself."""
        args = args[1:] if args[:1] == (None,) else args  # nothing in the place of a tensordict
        names = {_name_of(key): as_tuple(key) for key in self.in_keys}
        more = {_name_of(key): as_tuple(key) for key in self.optional_keys}
        if len(args) > len(names):
            listed = ", ".join(names)
            msg = f"expected a tensordict, or at most {len(names)} tensors ({listed}): "
            msg += f"got {len(args)} arguments."
            raise TypeError(msg)
        if not args and not given:
            msg = (
                f"expected a tensordict, or tensors as keywords ({', '.join(names)}): got nothing."
            )
            raise TypeError(msg)
        found = dict(zip(names, args, strict=False))
        for name, value in given.items():
            if name in found:
                msg = f"{name!r} is given twice: by its place and by its name. Pass it once."
                raise TypeError(msg)
            if name not in names and name not in more:
                listed = ", ".join([*names, *others])
                msg = f"unexpected argument {name!r}: {type(self).__name__} takes {listed}."
                raise TypeError(msg)
            found[name] = value
        leaves = {}
        for name, value in found.items():
            if not isinstance(value, Tensor):
                msg = f"{name}: expected a tensor, got {type(value).__name__}. Pass a tensordict, "
                msg += "or one tensor for each of in_keys."
                raise TypeError(msg)
            leaves[(names | more)[name]] = value
        return build(nest(leaves), _shared_shape(leaves))


def check_parameters(**given: object) -> None:
    """Raise for parameters that are no tensordict."""
    for name, other in given.items():
        if other is not None and not isinstance(other, TensorDictBase | TensorDictParams):
            msg = f"{name}: expected a tensordict of parameters, got {type(other).__name__}. "
            msg += "Call TensorDict.from_module(network)."
            raise TypeError(msg)


def check_tensordict(batch: object) -> None:
    """Raise where something is no tensordict."""
    if not isinstance(batch, TensorDictBase):
        msg = f"expected a tensordict of steps, got {type(batch).__name__}."
        raise TypeError(msg)


def _name_of(key: NestedKey) -> str:
    return "_".join(as_tuple(key))


def _shared_shape(leaves: Mapping[tuple[str, ...], Tensor]) -> torch.Size:
    """The leading dimensions that all have; a flag or a reward ends in one of its own."""
    shapes = [
        value.shape[:-1] if key[-1] in (keys.REWARD, *keys.DONE_KEYS, keys.IS_INIT) else value.shape
        for key, value in leaves.items()
    ]
    shared = 0
    for sizes in zip(*shapes, strict=False):
        if len(set(sizes)) > 1:
            break
        shared += 1
    return torch.Size(shapes[0][:shared]) if shapes else torch.Size([])
