"""Tensordict modules as plain calls on tensors, without a tensordict in between.

`TensorDictModule.forward` costs tens of microseconds per key, apart from its network.

- `Call`: a function, the keys of the tensors it takes, and those of the tensors it returns.
- `ModuleCalls`: the calls of one module in their order, made by one admission rule (`_flatten`).
  A part that is not admitted is called on a tensordict, and says why. It holds functions and keys,
  and knows when the module was changed since; it holds no tensors.
- `TensorStep`, `StepSequence`: modules whose `forward` is such calls between reads and writes.
- `VerifiedCalls`: the calls of a policy, compared with the policy on its first step.

A caller fills a dictionary of tensors by key, `run` adds the outputs of each call, and the caller
takes out what it wants. Exact calls compute what the module's `forward` does, by construction; a
`step` that another package offers promises that for acting only, and is to be verified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, Self, TypeAlias

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase, skip_existing
from torch import Tensor, nn

from rl_tensordict.arguments import check_integer, check_type
from rl_tensordict.construction import build
from rl_tensordict.entries import find, require
from rl_tensordict.flatten import leaves, nest
from rl_tensordict.internals import is_stock_module, is_stock_sequence
from rl_tensordict.nested_keys import as_key, as_tuple
from rl_tensordict.tensor_step import TensorStep, is_ordinary, outputs_of, write
from rl_tensordict.torch_internals import modules_of
from rl_tensordict.types import KeyPath

Values: TypeAlias = dict[KeyPath, Any]
KeyedCall: TypeAlias = tuple[Callable[..., Any], Sequence[KeyPath], Sequence[KeyPath]]

DROPPED: KeyPath = ("_",)  # the key of an output that is not written


class Call(NamedTuple):
    """One call of a module: on tensors, or on a tensordict, where `reason` says why."""

    function: Callable[..., Any]
    in_keys: Sequence[KeyPath] | None  # None if it takes and returns a tensordict
    out_keys: Sequence[KeyPath] | None  # ("_",) is dropped
    is_exact: bool = False  # computes what `forward` does in every mode, not only when acting
    reason: str = ""
    # lists the calls that `step` makes, valid until the parts of the module change
    listed: Callable[[], Iterable[tuple[Any, Any, Any]]] | None = None
    module: Any = None  # the module, which is called on a tensordict where the call is not exact

    def listing(self) -> list[Any]:
        """List the calls that `step` makes, as the module does; none if it lists none."""
        return [] if self.listed is None else list(self.listed())

    def steps(self, listing: Iterable[Any] | None = None) -> list[KeyedCall]:
        """List the innermost calls on tensors, with their keys; refused of one on a tensordict."""
        if self.in_keys is None or self.out_keys is None:
            msg = f"a call on a tensordict has no steps on tensors: {self.reason or self.function}"
            raise TypeError(msg)
        if self.listed is None:
            return [(self.function, self.in_keys, self.out_keys)]
        listing = self.listing() if listing is None else listing
        return [(call, _keys(read), _keys(made)) for call, read, made in listing]


class ModuleCalls:
    """The calls of a tensordict module, or of any callable on a tensordict.

    Args:
        module: the module.
        inside: list the calls of the parts of a sequence, whatever options and hooks it has itself,
            for a `forward` that makes them.
        watch: remember what `is_stale` compares with.
        reason: why the module is to be called on a tensordict, where that is known.

    Attributes:
        calls: the calls.
        reason: why the module, or its first part that does, needs a tensordict; or nothing.
        is_flat: whether every call is on tensors.

    Example:
        >>> from tensordict.nn import TensorDictModule
        >>> module = TensorDictModule(nn.Linear(3, 2), ["observation"], ["action"])
        >>> values = {("observation",): torch.zeros(5, 3)}
        >>> ModuleCalls(module).run(values)["action",].shape
        torch.Size([5, 2])
        >>> ModuleCalls(lambda batch: batch).reason
        'function can only be called on a tensordict: it is no tensordict module'
    """

    def __init__(
        self, module: Any, *, inside: bool = False, watch: bool = True, reason: str = ""
    ) -> None:
        visited: list[Any] = []  # the modules that calls go around
        self.calls: list[Call] = []
        parts = children_of(module) if inside else [module]
        if reason:
            self.calls.append(Call(module, None, None, reason=reason, module=module))
        else:
            for part in parts:
                _flatten(part, self.calls, visited)
        self._steps: list[Any] = [call[:3] for call in self.calls]
        self.reason = ""
        for call in reversed(self.calls):
            self.reason = call.reason or self.reason
        self.is_flat = not self.reason
        if watch:
            self._watch(visited, [module, module.module] if inside else [])

    def _watch(self, visited: list[Any], others: list[Any]) -> None:
        # live dictionaries of children; a network that is a function is no child
        live = [modules_of(each) for each in (*visited, *others)]
        self._children = [(each, tuple(each.values())) for each in live]
        parts = [each for each in visited if isinstance(each, TensorDictModuleBase)]
        self._parts = [
            (each, [*each.in_keys], [*each.out_keys], *_options_of(each)) for each in parts
        ]

    @property
    def in_keys(self) -> list[KeyPath] | None:
        """Inputs that the calls do not compute themselves; None if they are unknown."""
        if len(self.calls) == 1:
            only = self.calls[0].in_keys
            return None if only is None else list(dict.fromkeys(only))
        made: set[KeyPath] = set()
        read: dict[KeyPath, None] = {}
        for call in self.calls:
            if call.in_keys is None or call.out_keys is None:
                return None
            read |= dict.fromkeys(key for key in call.in_keys if key not in made)
            made |= set(call.out_keys)
        return list(read)

    @property
    def out_keys(self) -> list[KeyPath] | None:
        """What the calls write; None if that is unknown."""
        written: dict[KeyPath, None] = {}
        for call in self.calls:
            if call.out_keys is None:
                return None
            written |= dict.fromkeys(call.out_keys)
        return [key for key in written if key != DROPPED]

    def is_forward(self) -> bool:
        """Tell whether the calls compute what the module's `forward` does, here and in any mode."""
        for call in self.calls:
            if not call.is_exact:
                return False
        return not skip_existing()

    def bind(self) -> Self:
        """Run the innermost calls from now on, which are valid until `is_stale`.

        Returns:
            The same calls.
        """
        if self.is_flat:
            self._steps = [step for call in self.calls for step in call.steps()]
        return self

    def is_stale(self) -> bool:
        """Tell whether parts, keys or options were changed, or hooks added, since the listing."""
        for now, children in self._children:
            if tuple(now.values()) != children:
                return True
        for part, in_keys, out_keys, read, options, unset, asks in self._parts:
            # first, because a part that has parts of its own lists its keys by them
            state = part.__dict__
            if (
                state["_forward_hooks"]
                or state["_forward_pre_hooks"]
                or state["_backward_hooks"]
                or state["_backward_pre_hooks"]
            ):
                return True
            for name in unset:  # a loop, because torch.compile traces no isdisjoint of dict keys
                if name in state:
                    return True
            try:
                if read(state) != options or (asks and not _takes_tensors(part)):
                    return True
            except KeyError:
                return True
            if [*part.in_keys] != in_keys or [*part.out_keys] != out_keys:
                return True
        return False

    def run(self, values: Values, last: int | None = None) -> Values:
        """Make the calls up to `last`, all if None; their outputs are added to `values`.

        Arguments are not checked; errors of the functions come as they are.

        Args:
            values: tensors by key, at least those of `in_keys`.
            last: how many calls, as the end of a slice.

        Returns:
            The same dictionary.

        Raises:
            ValueError: a network returned more or fewer tensors than it has keys.
        """
        return run_steps(self._steps[:last], values)

    def run_mixed(self, values: Mapping[KeyPath, Any], batch_size: torch.Size) -> Values:
        """Make all calls, those on a tensordict as well.

        Arguments are not checked; errors of the functions come as they are.

        Args:
            values: entries ``[*batch_size, ...]`` by key. They are not changed.
            batch_size: the common leading shape.

        Returns:
            What the calls write.
        """
        scope, made = dict(values), Values()
        for call in self.calls:
            if call.out_keys is None:
                written = through_tensordict(call.function, scope, batch_size)
            else:
                run_steps([call[:3]], scope)
                written = {key: scope[key] for key in call.out_keys if key != DROPPED}
            scope |= written
            made |= written
        return made

    def write(self, tensordict: TensorDictBase, last: int | None = None) -> TensorDictBase:
        """Do what `forward` does, on a tensordict, up to the call `last`, all if None.

        Exact calls are made on its tensors, other modules are called on the tensordict itself.
        Not where `skip_existing` is set.

        Args:
            tensordict: holds the inputs.
            last: how many calls, as the end of a slice.

        Returns:
            The tensordict with what the calls write, or the one that a module returned.

        Raises:
            KeyError: an input is missing.
            TypeError: `last` is no whole number.
        """
        if last is not None:
            check_integer("last", last)
        for call in self.calls[:last]:
            if not call.is_exact or call.in_keys is None or call.out_keys is None:
                tensordict = call_on_tensordict(call.module, tensordict)
                continue
            given = [find(tensordict, key) for key in call.in_keys]
            if any(value is None for value in given):
                given = [require(tensordict, as_key(key)) for key in call.in_keys]
            outputs = outputs_of(call.function(*given), call.out_keys)
            for key, value in zip(call.out_keys, outputs, strict=True):
                if key != DROPPED:
                    write(tensordict, key, value)
        return tensordict

    def find_failure(self, values: Mapping[KeyPath, Any]) -> tuple[Call, Values] | None:
        """Find the call that fails, by making the calls again; for notes on errors.

        Args:
            values: tensors by key. They are not changed.

        Returns:
            The call and its inputs; None if no call on tensors fails.
        """
        check_type("values", values, Mapping, "tensors by key")
        scope = dict(values)
        for call in self.calls:
            if call.in_keys is None:
                return None
            try:
                run_steps([call[:3]], scope)
            except Exception:
                return call, {key: scope[key] for key in call.in_keys if key in scope}
        return None


def run_steps(steps: Iterable[Any], values: Values) -> Values:
    """Make calls one after another; their outputs are added to the values."""
    for function, in_keys, out_keys in steps:
        outputs = function(*[values[key] for key in in_keys])
        if type(outputs) is Tensor and len(out_keys) == 1:
            values[out_keys[0]] = outputs
            continue
        if type(outputs) is not tuple or len(outputs) != len(out_keys):
            outputs = outputs_of(outputs, out_keys)
        values.update(zip(out_keys, outputs))  # noqa: B905 - as many as keys, and quicker
    return values


def through_tensordict(
    function: Callable[..., Any], values: Mapping[KeyPath, Any], batch_size: torch.Size
) -> Values:
    """Call a function on a tensordict of the values; returns what it writes."""
    made = call_on_tensordict(function, build(nest(values), batch_size))
    return {key: value for key, value in leaves(made) if value is not values.get(key, None)}


def call_on_tensordict(function: Callable[..., Any], root: TensorDictBase) -> TensorDictBase:
    """Call a function on a tensordict; returns the one that it returns, or it has written to."""
    made = function(root)
    made = root if made is None else made
    if not isinstance(made, TensorDictBase):
        msg = (
            f"expected a function of a tensordict that returns it with its entries, or None: got "
            f"{type(made).__name__}. Write the entry: tensordict.set('action', ...)."
        )
        raise TypeError(msg)
    return made


class Traits(NamedTuple):
    """What the class of a module says of its calls."""

    obstacle: str  # why its instances can only be called on a tensordict, or nothing
    is_sequence: bool  # a `TensorStep` is asked for its parts
    offers_step: bool
    is_exact: bool
    lists_calls: bool


_traits: dict[type, Traits] = {}


def traits_of(kind: Any) -> Traits:
    """Find out, once for a class, how its instances may be called."""
    found = None if torch.compiler.is_compiling() else _traits.get(kind)
    if found is None:
        found = _find_traits(kind)
        if not torch.compiler.is_compiling():
            _traits[kind] = found
    return found


def _find_traits(kind: Any) -> Traits:
    if not issubclass(kind, TensorDictModuleBase):
        return Traits("it is no tensordict module", False, False, False, False)
    # of the class: an instance hands unknown names on to the module inside
    offers_step = getattr(kind, "has_tensor_step", False) is True
    is_own, is_sequence = issubclass(kind, TensorStep), is_stock_sequence(kind)
    obstacle = ""
    if kind.__call__ is not nn.Module.__call__:
        obstacle = "it has a __call__ of its own"
    elif not (offers_step or is_sequence or is_stock_module(kind)):
        obstacle = "it offers no step"
    return Traits(
        obstacle,
        is_sequence=is_own or (is_sequence and not offers_step),
        offers_step=offers_step,
        is_exact=_steps_forward(kind) if is_own else not offers_step,
        # a `TensorStep` lists its step, unless it says otherwise
        lists_calls=offers_step
        and getattr(kind, "step_calls", TensorStep.step_calls) is not TensorStep.step_calls,
    )


def _steps_forward(kind: type) -> bool:
    """Whether the `forward` of a `TensorStep` is its `step`: none is defined below it."""
    for each in kind.__mro__:
        if "step" in each.__dict__ or "forward" in each.__dict__:
            return "step" in each.__dict__
    return False


def _flatten(module: Any, calls: list[Call], visited: list[Any]) -> None:
    """Add the calls of a module to a list: the one admission rule."""
    traits = traits_of(type(module))
    obstacle = traits.obstacle or _obstacle(module)
    if obstacle:
        reason = f"{type(module).__name__} can only be called on a tensordict: {obstacle}"
        calls.append(Call(module, None, None, reason=reason, module=module))
        return
    visited.append(module)
    parts = _parts(module) if traits.is_sequence else None
    if parts is not None:
        visited.append(module.module)
        for part in parts:
            _flatten(part, calls, visited)
        return
    function = module.step if traits.offers_step else module.module
    listed = module.step_calls if traits.lists_calls else None
    in_keys, out_keys = _keys(module.in_keys), _keys(module.out_keys)
    calls.append(Call(function, in_keys, out_keys, traits.is_exact, "", listed, module))


def _obstacle(module: Any) -> str:
    """Say why an instance can only be called on a tensordict, or nothing."""
    state = module.__dict__
    if (
        state["_forward_hooks"]
        or state["_forward_pre_hooks"]
        or state["_backward_hooks"]
        or state["_backward_pre_hooks"]
    ):
        return "it has hooks"
    if (
        "forward" in state
        or "_call_module" in state
        or "_write_to_tensordict" in state
        or "_run_module" in state
    ):
        return "it has a forward of its own"
    if state.get("_compiled_call_impl"):
        return "it is compiled as a whole"
    if not is_ordinary(module):
        return "it has options of its own"
    if not _takes_tensors(module):
        return "its step needs more than tensors"
    return ""


# what the rule reads of an instance, besides hooks and keys
OPTIONS = (
    *("forward", "_call_module", "_write_to_tensordict", "_run_module", "_compiled_call_impl"),
    *("_kwargs", "method", "method_kwargs", "_get_kwargs", "_select_before_return"),
    *("partial_tolerant", "_out_keys_apparent", "_out_keys", "_requires_sample", "inplace"),
    "module",
)


def _options_of(module: Any) -> tuple[Callable[[Any], Any], Any, tuple[str, ...], bool]:
    """Options that the rule reads: a reader, their values, unset names, whether a step may refuse.

    Lists are copied, as they may be changed in place.
    """
    state = module.__dict__
    # two that every module has, so that several are read
    names = ["_forward_hooks", "_backward_hooks", *[name for name in OPTIONS if name in state]]
    read = itemgetter(*names)
    found = tuple([list(value) if type(value) is list else value for value in read(state)])
    return read, found, tuple([name for name in OPTIONS if name not in state]), _may_refuse(module)


def _may_refuse(module: Any) -> bool:
    ask = getattr(type(module), "takes_tensors", TensorStep.takes_tensors)
    return ask is not TensorStep.takes_tensors and isinstance(module, TensorStep)


def _takes_tensors(module: Any) -> bool:
    """Whether the step of a module needs no more than tensors now."""
    return not _may_refuse(module) or bool(type(module).takes_tensors(module))


def _parts(module: Any) -> Iterable[Any] | None:
    """The modules that a module runs one after another; None for one that is one call."""
    return module.step_parts() if isinstance(module, TensorStep) else children_of(module)


def children_of(sequence: Any) -> list[Any]:
    """List the modules of a sequence, named or not."""
    children = getattr(sequence, "module", None)
    if isinstance(children, nn.ModuleDict):
        return list(children.values())
    if isinstance(children, nn.ModuleList):
        return list(children)
    msg = f"module: expected a sequence of tensordict modules, got a {type(sequence).__name__}"
    raise TypeError(msg)


def _keys(names: Iterable[Any]) -> list[KeyPath]:
    return [as_tuple(name) for name in names]
