"""Entries that a reset adds: the first state of a recurrent policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_specs import Composite, TensorSpec
from rl_tensordict import NestedKey, UnfitValue, as_key, as_tuple, leaves
from rl_tensordict.arguments import shown
from rl_transforms.entries import merge_rows, not_reset, with_entries
from rl_transforms.transform import Transform, with_specs

RESET = "_reset"


class TensorDictPrimer(Transform):
    """Adds entries at every reset, and carries them through a step where the policy wrote none.

    Rows that were not reset keep what they hold. At a step ``("next", key)`` is the policy's where
    it wrote one, and the root's otherwise. On sampled rows it adds what is missing.

    Args:
        primers: spec of each entry, by key; nested keys are welcome.
        random: draw from the specs instead of writing defaults.
        default_value: a number, a tensor, or a callable that makes a tensor: for every entry, or by
            key in a mapping, nested or not. 0 by default. A value lacks the batch dimensions
            or has them.
        reset_key: the key of the mask of reset rows. A transform is handed one mask for the rows of
            the batch, so only ``"_reset"`` is possible, and means the same as None.
        expand_specs: put the batch size of the environment before specs that lack it. Without it
            such specs are refused.
        single_default_value: `default_value` is a callable that makes all entries at once, by key.
        call_before_env_reset: add the entries to what the environment resets from, so that its
            reset can read them, as a goal. The environment must hand them back.
        **kwargs: named specs, instead of `primers`.

    Raises:
        TypeError: there are no specs, or both kinds; or an argument is of the wrong type.
        ValueError: `random` comes with a default, or `reset_key` is another key.
        KeyError: there is a default for an entry that is not primed.

    Example:
        >>> from rl_specs import Unbounded
        >>> from tensordict import TensorDict
        >>> primer = TensorDictPrimer(hidden=Unbounded((7,)), expand_specs=True, default_value=1.0)
        >>> root = primer.reset(TensorDict({}, [3]))
        >>> root["hidden"].shape, root["hidden"].unique()
        (torch.Size([3, 7]), tensor([1.]))
    """

    def __init__(  # noqa: PLR0913 - the arguments are the field's
        self,
        primers: Mapping[str, Any] | Composite | None = None,
        random: bool = False,
        default_value: Any = None,
        reset_key: NestedKey | None = None,
        expand_specs: bool = False,
        single_default_value: bool = False,
        call_before_env_reset: bool = False,
        **kwargs: TensorSpec,
    ) -> None:
        super().__init__()
        if (primers is None) == (not kwargs):
            msg = f"expected primers or named specs, one of the two: got {primers} and {kwargs}."
            raise TypeError(msg)
        if random and default_value is not None:
            msg = f"random draws the entries: leave default_value={default_value!r} out."
            raise ValueError(msg)
        if single_default_value and not callable(default_value):
            msg = f"single_default_value needs a callable: got default_value={default_value!r}."
            raise TypeError(msg)
        if not isinstance(reset_key, str | tuple | None) or reset_key not in (
            None,
            RESET,
            (RESET,),
        ):
            msg = f"reset_key: expected {RESET!r} or None, got {reset_key!r}. A group's own resets "
            raise ValueError(msg + "do not reach transforms: prime its entries for whole rows.")
        given = kwargs if primers is None else primers
        if not isinstance(given, Mapping | Composite) or not all(
            isinstance(spec, TensorSpec | Mapping) for spec in given.values()
        ):
            msg = f"primers: expected specs by key, as a Composite or a dict: got {shown(given)}."
            raise TypeError(msg)
        self.primers = given if isinstance(given, Composite) else Composite(dict(given))
        self.random = random
        self.expand_specs = expand_specs
        self.single_default_value = single_default_value
        self.call_before_env_reset = call_before_env_reset
        self.default_value: Any = 0.0 if default_value is None else default_value
        self.primed_keys = [*self.primers.keys(include_nested=True, leaves_only=True)]
        # the specs expanded to a batch size, and that size
        self._fitted: tuple[torch.Size, Composite] | None = None
        if isinstance(self.default_value, Mapping):
            self._check_names(_flat(self.default_value))

    def forward(self, batch: TensorDictBase) -> TensorDictBase:
        """Add what is missing to sampled or rolled-out rows.

        Args:
            batch: rows ``[*B]`` or ``[*B, T]``.

        Returns:
            The rows with every primed entry at the root.

        Raises:
            ValueError: a spec does not fit the batch size.
        """
        # stored states are never replaced: rows may start in mid-trajectory
        gone = [name for name in self.primed_keys if batch.get(name, None) is None]
        if not gone:
            return batch
        made = self._made(batch)
        return with_entries(batch, {name: made[name] for name in gone})

    def before_reset(self, request: TensorDictBase, mask: Tensor | None = None) -> TensorDictBase:
        """Add the entries to what the environment resets from, where that was asked for.

        Args:
            request: ``[*B]``.
            mask: bool ``[*B]``, the rows to be reset; None if all are.

        Returns:
            The request with every primed entry; rows outside the mask keep theirs.

        Raises:
            ValueError: as for `reset`.
            TypeError: as for `reset`.
            KeyError: as for `reset`.
        """
        return self._primed(request, mask) if self.call_before_env_reset else request

    def reset(self, root: TensorDictBase, mask: Tensor | None = None) -> TensorDictBase:
        """Add the entries in the rows that were reset.

        Args:
            root: ``[*B]``, after the reset.
            mask: bool ``[*B]``, the rows that were reset; None if all were.

        Returns:
            The root with every primed entry; rows outside the mask keep theirs.

        Raises:
            ValueError: a spec does not fit the batch size, or a default its spec.
            TypeError: a default has another dtype than its spec.
            KeyError: the callable that makes all entries left one out; or
                `call_before_env_reset` is set and an entry did not come back.
        """
        if not self.call_before_env_reset:
            return self._primed(root, mask)
        for name in self.primed_keys:
            if root.get(name, None) is None:
                msg = (
                    f"{name!r} did not come back from the reset: call_before_env_reset needs an "
                    "environment that calls before_reset and returns its request."
                )
                raise KeyError(msg)
        return root

    def _primed(self, root: TensorDictBase, mask: Tensor | None) -> TensorDictBase:
        made = self._made(root)
        if mask is not None:
            carried = {name: root.get(name, None) for name in self.primed_keys}
            for name, kept in carried.items():
                if kept is not None:
                    made[name] = merge_rows(mask, made[name], kept)
        return with_entries(root, made)

    def step(self, root: TensorDictBase, after: TensorDictBase) -> TensorDictBase:
        """Carry the entries on that the policy did not write.

        Args:
            root: ``[*B]``, with the entries.
            after: ``[*B]``, the entries under ``"next"``.

        Returns:
            The new ``after``, with every primed entry.

        Raises:
            KeyError: the root lacks one: `reset` was not called.
        """
        carried = {}
        for name in self.primed_keys:
            if after.get(name, None) is None:
                value = root.get(name, None)
                if value is None:
                    raise not_reset(self, name, root)
                carried[name] = value
        return with_entries(after, carried) if carried else after

    @property
    def carried(self) -> list[NestedKey]:
        """The entries."""
        return self.primed_keys

    def transform_observation_spec(self, spec: Composite) -> Composite:
        """Add the entries to what an environment returns.

        Raises:
            ValueError: a spec does not fit the batch size.
        """
        return self._added(spec)

    def transform_state_spec(self, spec: Composite) -> Composite:
        """Add the entries to what an environment takes.

        Raises:
            ValueError: a spec does not fit the batch size.
        """
        return self._added(spec)

    def _added(self, spec: Composite) -> Composite:
        fitted = self._fit(spec.shape)
        return with_specs(spec, {name: fitted[name] for name in self.primed_keys})

    def _fit(self, batch: torch.Size) -> Composite:
        """The specs with the batch size in front, kept until it changes."""
        if self._fitted is None or self._fitted[0] != batch:
            fitted = Composite(shape=batch)
            for name in self.primed_keys:
                fitted.set(name, self._fit_leaf(name, self.primers[name], batch))
            self._fitted = (batch, fitted)
        return self._fitted[1]

    def _fit_leaf(self, name: NestedKey, leaf: TensorSpec, batch: torch.Size) -> TensorSpec:
        has_batch = leaf.shape[: len(batch)] == batch
        if self.expand_specs and not (has_batch and self.primers.shape == batch):
            expanded: TensorSpec = leaf.expand(*batch, *leaf.shape)
            return expanded
        if not has_batch:
            msg = (
                f"the primer of {name!r} has shape {list(leaf.shape)}, the batch {list(batch)}: "
                f"put the batch size in front, or pass expand_specs=True."
            )
            raise UnfitValue(msg)
        return leaf

    def _made(self, batch: TensorDictBase) -> dict[NestedKey, Tensor]:
        specs = self._fit(batch.batch_size)
        device = batch.device
        if self.random:
            return {name: specs[name].rand().to(device) for name in self.primed_keys}
        if self.single_default_value:
            values = _flat(self.default_value())
            self._check_names(values)
            for name in self.primed_keys:
                if as_tuple(name) not in values:
                    msg = f"default_value() made no {name!r}: it made {list(values)}."
                    raise KeyError(msg)
        elif isinstance(self.default_value, Mapping):
            values = _flat(self.default_value)
        else:
            values = {as_tuple(name): self.default_value for name in self.primed_keys}
        return {
            name: _filled(name, specs[name], values.get(as_tuple(name), 0.0), batch)
            for name in self.primed_keys
        }

    def _check_names(self, values: Mapping[tuple[str, ...], Any]) -> None:
        primed = {as_tuple(name) for name in self.primed_keys}
        for name in values:
            if name not in primed:
                msg = (
                    f"a default for {as_key(name)!r}, which is not primed: {self.primed_keys} are."
                )
                raise KeyError(msg)


def _filled(name: NestedKey, spec: TensorSpec, value: Any, batch: TensorDictBase) -> Tensor:
    """One entry of a spec that has the batch size, from a number, a tensor or a callable."""
    made = value() if isinstance(value, Callable) else value  # type: ignore[arg-type]
    device = spec.device if batch.device is None else batch.device
    if not isinstance(made, Tensor):
        return torch.full(spec.shape, made, dtype=spec.dtype, device=device)
    # a default has the shape of one row or of the whole batch
    inner = spec.shape[batch.ndim :]
    if made.shape not in (spec.shape, inner):
        msg = f"the default of {name!r}: expected shape {list(spec.shape)} or {list(inner)}, "
        msg += f"got {list(made.shape)}. Reshape it."
        raise ValueError(msg)
    if made.dtype != spec.dtype:
        msg = f"the default of {name!r}: expected {spec.dtype}, got {made.dtype}. Cast it."
        raise TypeError(msg)
    # cloned, so that no reset shares memory with the default or another reset
    return made.to(device).expand(spec.shape).clone()


def _flat(values: Any) -> dict[tuple[str, ...], Any]:
    """Values by the full path of their keys, from a mapping or a tensordict."""
    if isinstance(values, TensorDictBase):
        return dict(leaves(values))
    flat: dict[tuple[str, ...], Any] = {}
    for key, value in values.items():
        # a group: its key goes in front of those inside
        if isinstance(value, Mapping | TensorDictBase):
            inner = _flat(value).items()
            flat.update({(*as_tuple(key), *rest): leaf for rest, leaf in inner})
        else:
            flat[as_tuple(key)] = value
    return flat
