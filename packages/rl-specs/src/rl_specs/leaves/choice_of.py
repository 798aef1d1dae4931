"""One of several specs, or of several objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from tensordict import NonTensorData, is_non_tensor, is_tensor_collection, lazy_stack
from torch import Tensor

from rl_specs.core.sizes import TensorView
from rl_specs.core.tensor_spec import TensorSpec
from rl_specs.leaves.non_tensor import NonTensor


class Choice(TensorSpec):
    """Data that fits one of several specs, or is one of several objects.

    Dimensions in front of a choice's own are rows, each with its own choice: the dimensions of a
    sample, and the ones that `expand` adds.

    Args:
        choices: specs of one class, shape, dtype and device; or `NonTensorData`.

    Attributes:
        choices: the specs; an object is a `NonTensor` with that example.

    Raises:
        TypeError: a choice is neither, or they are of several classes.
        ValueError: there is none, or they differ in shape, dtype or device.

    Example:
        >>> from rl_specs import Bounded
        >>> spec = Choice([Bounded(0, 1, (1,)), Bounded(10, 11, (1,))])
        >>> spec.is_in(torch.tensor([10.5])), spec.is_in(torch.tensor([5.0]))
        (True, False)
    """

    choices: tuple[Any, ...]

    def __init__(self, choices: Sequence[Any]) -> None:
        specs = tuple(_as_spec(choice) for choice in choices)
        if not specs:
            msg = "choices: expected one at least, got none."
            raise ValueError(msg)
        first = specs[0]
        if any(type(spec) is not type(first) for spec in specs):
            msg = f"choices: expected one class, got {[type(spec).__name__ for spec in specs]}."
            raise TypeError(msg)
        forms = [(tuple(spec.shape), spec.dtype, spec.device) for spec in specs]
        if any(form != forms[0] for form in forms):
            msg = f"choices: expected one shape, dtype and device, got {forms}."
            raise ValueError(msg)
        self.choices = specs
        object.__setattr__(self, "domain_dims", first.domain_dims)
        self._own_ndim = first.ndim
        super().__init__(first.shape, None, first.device, first.dtype, first.domain)

    @property
    def num_choices(self) -> int:
        """How many choices there are."""
        return len(self.choices)

    def rand(self, shape: Any = None) -> Any:
        """Draw a choice, and a member of it; for each row of its own."""
        full, single = self._full(shape), self._single()
        lead = full[: len(full) - single[0].ndim]
        if not lead.numel():
            return self.choices[0].rand(shape)
        drawn = torch.randint(len(single), (lead.numel(),), device="cpu").tolist()
        members = [single[number].rand() for number in drawn]
        if not lead:
            return members[0]
        return _stacked(members, lead)

    def zero(self, shape: Any = None) -> Any:
        """Make what the first choice makes."""
        return self.choices[0].zero(shape)

    def one(self, shape: Any = None) -> Any:
        """Make what the first choice makes."""
        return self.choices[0].one(shape)

    def is_in(self, val: Any) -> bool:
        """Tell whether every row of a value is a member of a choice."""
        single = self._single()
        lead = len(getattr(val, "shape", single[0].shape)) - single[0].ndim
        rows = [val] if lead <= 0 else list(val.flatten(0, lead - 1).unbind(0))
        fits = self._matches(getattr(val, "shape", self.shape))
        return fits and all(any(_has(spec, row) for spec in single) for row in rows)

    def _single(self) -> Sequence[Any]:
        """The choices of one row."""
        first = (0,) * max(self.ndim - self._own_ndim, 0)
        return [spec[first] for spec in self.choices] if first else self.choices

    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        """Write a plain value as the first choice writes it."""
        return self.choices[0].encode(val, ignore_device=ignore_device)

    def cast(self, val: Any) -> Any:
        """Write a tensor in the dtype of the choices."""
        return self.choices[0].cast(val)

    def to_numpy(self, val: Any, safe: bool | None = None) -> Any:
        """Write a value as a numpy array, or unwrap an object."""
        if safe:
            self.assert_is_in(val)
        return self.choices[0].to_numpy(val, safe=False)

    def type_check(self, value: Any, key: Any = None) -> None:
        """Check the dtype of a value."""
        self.choices[0].type_check(value, key)

    def cardinality(self) -> float:
        """Count the objects, or the members of all choices."""
        if isinstance(self.choices[0], NonTensor):
            return float(len(self.choices))
        return float(sum(spec.cardinality() for spec in self.choices))

    def enumerate(self, use_mask: bool = False) -> Any:
        """List the objects, or the members of one choice after another."""
        if isinstance(self.choices[0], NonTensor):
            return lazy_stack([spec.rand() for spec in self.choices])
        return torch.cat([spec.enumerate(use_mask) for spec in self.choices])

    def to(self, dest: Any) -> Self:
        """Move or cast every choice."""
        return self._each(lambda spec: spec.to(dest))

    def clone(self) -> Self:
        """Copy the spec, with all that it holds."""
        return self._each(lambda spec: spec.clone())

    def clear_device_(self) -> Self:
        """Forget the device, in place, where the choices can be without one."""
        for spec in self.choices:
            spec.clear_device_()
        self._device = self.choices[0].device
        return self

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.choices == other.choices

    def __repr__(self) -> str:
        return f"Choice([{', '.join(map(repr, self.choices))}])"

    def _each(self, change: Callable[[Any], Any]) -> Self:
        made = type(self)([change(spec) for spec in self.choices])
        made._own_ndim = self._own_ndim
        return made

    def _project(self, val: Any) -> Any:
        return self._cannot("project onto", "project onto one of its choices")

    def _mismatch(self, val: Any) -> str:
        return f"not every value is in one of {list(self.choices)}: got {val}."

    def _carry(self, view: TensorView, ndim: int) -> Self:
        return self._each(lambda spec: spec._carry(view, ndim))

    def _make_dynamic(self, dim: int) -> None:
        for spec in self.choices:
            spec._make_dynamic(dim)
        self.__dict__.update(self._replace(_shape=self.choices[0].shape).__dict__)


def _as_spec(choice: Any) -> TensorSpec:
    if isinstance(choice, TensorSpec):
        return choice
    if isinstance(choice, NonTensorData):
        return NonTensor(choice.batch_size, choice.device, example_data=choice.data)
    msg = f"choices: expected specs or NonTensorData, got {type(choice).__name__}."
    raise TypeError(msg)


def _has(spec: TensorSpec, row: Any) -> bool:
    """Whether one value is a member of one choice; an object is only if it is equal."""
    if not isinstance(spec, NonTensor):
        return spec.is_in(row)
    held = row.data if is_tensor_collection(row) and is_non_tensor(row) else row
    return not isinstance(row, Tensor) and spec == spec._replace(example_data=held)


def _stacked(members: list[Any], lead: torch.Size) -> Any:
    if isinstance(members[0], Tensor):
        return torch.stack(members).unflatten(0, lead)
    if len(lead) == 1:
        return lazy_stack(members)
    rows = len(members) // lead[0]
    parts = [members[i * rows : (i + 1) * rows] for i in range(lead[0])]
    return lazy_stack([_stacked(part, lead[1:]) for part in parts])
