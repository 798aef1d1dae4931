"""Argument checks of environments, and their error messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_envs.env.arguments import check_kind
from rl_envs.env.device_sync import can_sync
from rl_envs.env.done import Prefix, complete_done
from rl_envs.env.interface import Environment
from rl_envs.env.partial_reset import fit_mask
from rl_envs.env.specs import SpecLeaves, leaves_of, matches
from rl_envs.rollouts.arrays import Array
from rl_layout import keys
from rl_specs import Bounded, Categorical, NonTensor, OneHot, StackedComposite, TensorSpec
from rl_transforms import StepCounter, Transform


def check_open(env: Environment) -> None:
    """Raise for a closed environment."""
    if env.is_closed:
        msg = f"this {type(env).__name__} is closed: make a new one."
        raise RuntimeError(msg)


def leading_sizes(env: Environment, tensordict: TensorDictBase) -> torch.Size:
    """The batch sizes of a tensordict before the environment's own."""
    return torch.Size(tensordict.batch_size[: tensordict.ndim - len(env.batch_size)])


def check_request(masks: Any, kwargs: Any) -> None:
    """Raise unless these are the masks of a reset by group, and its further arguments by name."""
    check_kind(masks, Mapping, "the masks of a reset by group")
    if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
        msg = f"expected a dictionary of further arguments of reset by name: got {kwargs!r}."
        raise TypeError(msg)


def check_root(env: Environment, root: Any) -> None:
    """Raise unless `root` is a tensordict of the environment's batch size."""
    if root is None:
        msg = "expected a tensordict, as reset returns it: got None."
        raise TypeError(msg)
    check_batch(env, root)


def check_started(env: Environment) -> None:
    """Raise for an environment that was never reset."""
    # one that is not batch-locked keeps its state in the root, and can step from any
    if env.batch_locked and not env._is_started:
        msg = f"this {type(env).__name__} was not reset yet: call reset() first."
        raise RuntimeError(msg)


def check_step(env: Environment, root: TensorDictBase) -> None:
    """Raise for a closed environment, one that was never reset, or a root of another batch size."""
    check_open(env)
    check_started(env)
    if root is None:
        msg = "expected a tensordict with the action: got None."
        raise TypeError(msg)
    check_batch(env, root)


@contextmanager
def restore_on_error(env: Environment, state: Mapping[str, Any]) -> Iterator[None]:
    """Check a saved state, and restore the state before if loading it fails halfway."""
    check_open(env)
    check_kind(state, dict, "what state_dict() has returned")
    missing = [name for name in ("is_started", "state") if name not in state]
    if missing:
        msg = f"expected what state_dict() has returned: {missing} are missing in {list(state)}."
        raise KeyError(msg)
    before, names = deepcopy(env.state_dict()["state"]), list(state["state"])
    if not before.keys() <= set(names):
        msg = (
            f"the state is of another environment: it holds {names}, and {env!r} has "
            f"{list(before)}. Make the same environment, with the same transforms."
        )
        raise ValueError(msg)
    try:
        yield
    except BaseException:
        env._set_state(before)
        raise


def check_start(env: Environment, root: TensorDictBase | None) -> None:
    """Check where a rollout without a reset starts: at a root, or at surplus steps."""
    # an environment that resets rows while others step keeps its own root, and takes no other
    if not env.resets_by_stepping:
        if root is None:
            msg = "auto_reset=False needs a root to start from: pass tensordict=env.reset()."
            raise RuntimeError(msg)
        check_started(env)
        check_batch(env, root)
        return
    if root is not None:
        msg = (
            f"this {type(env).__name__} continues where its last rollout has ended: leave "
            f"tensordict out."
        )
        raise RuntimeError(msg)
    if env.leftover is None:
        msg = (
            f"this {type(env).__name__} has nothing to continue: it continues after a rollout "
            f"only, not after a reset or a step. Start with auto_reset=True."
        )
        raise RuntimeError(msg)


def check_masks(env: Environment) -> None:
    """Raise for an environment that cannot reset single rows on request."""
    if env.resets_by_stepping:
        msg = (
            f"this {type(env).__name__} resets rows only while others step, so it cannot be "
            f"batched: raise its num_envs, or use vectorization_mode='sync' or 'async'."
        )
        raise ValueError(msg)


def check_limits(transforms: Iterable[Transform]) -> None:
    """Raise for a step limit in a transform, whose rows only the environment itself can reset."""
    for one in transforms:
        if isinstance(one, StepCounter) and one.max_steps is not None and one.update_done:
            msg = (
                f"StepCounter(max_steps={one.max_steps}) ends rows that a vector environment of "
                f"its own cannot reset: pass max_episode_steps={one.max_steps} to GymVectorEnv."
            )
            raise ValueError(msg)


def check_ends(over: Array, truly: Array) -> None:
    """Raise for rows that only a transform has ended; both flags are bool `[B]`."""
    if (over & ~truly).any():
        rows = (over & ~truly).nonzero()[0].tolist()
        msg = (
            f"a transform ended rows {rows}, which continue: a vector of its own cannot "
            f"reset them. Use a limit of the environment, or vectorization_mode='sync'."
        )
        raise RuntimeError(msg)


def check_batch(env: Environment, tensordict: TensorDictBase | None) -> None:
    """Raise for a tensordict of another batch size."""
    if tensordict is None:
        return
    if not isinstance(tensordict, TensorDictBase):
        msg = f"expected a tensordict: got {type(tensordict).__name__}."
        raise TypeError(msg)
    sizes, expected = tensordict.batch_size, env.batch_size
    if not env.batch_locked and len(expected):
        sizes = sizes[-len(expected) :]
    if sizes != expected and (env.batch_locked or len(expected)):
        msg = (
            f"expected batch size {tuple(expected)}, or more dimensions before it where an "
            f"environment is not batch-locked: got {tuple(tensordict.batch_size)}."
        )
        raise ValueError(msg)


def check_returned(env: Environment, returned: Any, what: str) -> TensorDictBase:
    """Raise unless `_reset` or `_step` returned a tensordict of the environment's batch size."""
    name = f"{type(env).__name__}._{what}"
    if not isinstance(returned, TensorDictBase):
        entries = "observations" if what == "reset" else "observations, rewards and done flags"
        msg = (
            f"{name} must return a tensordict of batch size {tuple(env.batch_size)} with "
            f"{entries}: got {'None' if returned is None else type(returned).__name__}."
        )
        raise TypeError(msg)
    sizes, expected = returned.batch_size, env.batch_size
    if sizes != expected and (env.batch_locked or sizes[len(sizes) - len(expected) :] != expected):
        msg = f"{name} must return batch size {tuple(expected)}: got {tuple(sizes)}."
        raise ValueError(msg)
    return returned


def cast_actions(env: Environment, tensordict: TensorDictBase) -> TensorDictBase:
    """Cast actions to the dtype of their specs; raise where that would change a number."""
    # the input stays as it is: a copy is made as soon as one action has to be cast
    lead, out = leading_sizes(env, tensordict), tensordict
    for key, spec in env.action_leaves:
        value = tensordict.get(key, None)
        if value is None:
            names = [keys.as_key(name) for name, _ in keys.leaves(tensordict)]
            msg = (
                f"the action {keys.as_key(key)!r} is missing: the policy left {names}. "
                f"Let it write the action, or use rand_action()."
            )
            raise KeyError(msg)
        if isinstance(spec, StackedComposite):
            for part, leaves in _parts(key, spec, value):
                check_leaves(leaves, part, lead, "action")
            continue
        if isinstance(value, Tensor) and value.dtype != spec.dtype:
            value = cast_action(key, spec, value)
            out = tensordict.copy() if out is tensordict else out
            out.set(key, value)
        check_form(key, spec, value, lead, "action")
        if env.check_values:
            check_choice(key, spec, value)
    return out


def cast_action(key: tuple[str, ...], spec: TensorSpec, value: Tensor) -> Tensor:
    """Cast an action to the dtype of its spec, or raise where that would change a number."""
    try:
        action: Tensor = spec.cast(value)
    except ValueError:
        msg = (
            f"action {keys.as_key(key)!r}: expected dtype {spec.dtype}, got {value.dtype} with "
            f"{_range(value) if value.numel() > 20 else value.tolist()}, which it cannot hold. "
            f"Let the policy write {spec.dtype}, as a ProbabilisticActor does that is given "
            "spec=env.action_spec."
        )
        raise TypeError(msg) from None
    return action


def check_choice(key: tuple[str, ...], spec: TensorSpec, value: Tensor) -> None:
    """Raise for an action that is none of the choices of its spec, such as two at once."""
    # masks are ignored: they hold what is allowed now, and a batch holds earlier steps
    if not isinstance(spec, Categorical | OneHot):
        return
    if spec.mask is not None:
        spec = spec.clone()
        spec.update_mask(None)
    if not spec.is_in(value):
        found = value.tolist() if value.numel() <= 20 else f"values {tuple(value.shape)}"
        msg = (
            f"action {keys.as_key(key)!r} is no choice of its spec {spec}: got {found}. Write one "
            "of them, or set check_values = False."
        )
        raise ValueError(msg)


def check_form(
    key: tuple[str, ...], spec: TensorSpec, value: Any, lead: torch.Size, what: str
) -> None:
    """Raise for a value of another dtype than its spec, or another shape than `lead + spec`."""
    if spec.dtype is None or not isinstance(value, Tensor):
        return
    if value.dtype != spec.dtype:
        advice = f"Cast it with .to({spec.dtype}), or change the spec."
        msg = f"{what} {keys.as_key(key)!r}: expected dtype {spec.dtype}, got {value.dtype}."
        raise TypeError(f"{msg} {advice}")
    expected = lead + spec.shape
    if not matches(value.shape, expected):
        msg = (
            f"{what} {keys.as_key(key)!r}: expected shape {tuple(expected)}, "
            f"got {tuple(value.shape)}."
        )
        raise ValueError(msg)


def check_leaves(
    leaves: SpecLeaves, tensordict: TensorDictBase, lead: torch.Size, what: str
) -> None:
    """Raise where an entry that an environment owes is missing, or has another shape or dtype."""
    for key, spec in leaves:
        value = tensordict.get(key, None)
        if value is None:
            names = [keys.as_key(name) for name, _ in keys.leaves(tensordict)]
            msg = f"{what}: {keys.as_key(key)!r} is missing, the environment returned {names}."
            raise KeyError(msg)
        if isinstance(spec, StackedComposite):
            for part, leaves in _parts(key, spec, value):
                check_leaves(leaves, part, lead, what)
            continue
        check_form(key, spec, value, lead, what)


def _parts(
    key: tuple[str, ...], spec: StackedComposite, value: Any
) -> Iterator[tuple[TensorDictBase, SpecLeaves]]:
    """Yield each part of a lazy stack, with the spec leaves that it must have."""
    name, count = keys.as_key(key), len(spec.specs)
    place = value.ndim - spec.ndim + spec.dim if isinstance(value, TensorDictBase) else -1
    if place < 0 or value.batch_size[place] != count:
        found = tuple(value.batch_size) if isinstance(value, TensorDictBase) else type(value)
        msg = f"{name!r}: expected tensordicts of batch size {tuple(spec.shape)}, got {found}."
        raise ValueError(msg)
    for number, (one, part) in enumerate(zip(spec.specs, value.unbind(place), strict=True)):
        label = f"{'.'.join(key)}[{number}]"  # what messages call it
        yield (
            TensorDict({label: part}, part.batch_size),
            [((label, *leaf), inner) for leaf, inner in leaves_of(one)],
        )


def check_values(leaves: SpecLeaves, tensordict: TensorDictBase, what: str) -> None:
    """Raise for values outside their specs, and NaN anywhere."""
    for key, spec in leaves:
        if isinstance(spec, StackedComposite):
            for part, inner in _parts(key, spec, tensordict.get(key)):
                check_values(inner, part, what)
            continue
        check_value(key, spec, tensordict.get(key), what)


def check_value(key: tuple[str, ...], spec: TensorSpec, value: Any, what: str) -> None:
    """Raise for a value outside its spec, and NaN."""
    inside = spec.is_in(value)
    is_float = isinstance(value, Tensor) and value.is_floating_point()
    # NaN is within no bounds, so a value inside a Bounded spec holds none: no second pass
    if is_float and not (inside and isinstance(spec, Bounded)) and bool(value.isnan().any()):
        msg = f"{what} {keys.as_key(key)!r} holds NaN. check_values = False allows it."
        raise ValueError(msg)
    if not inside:
        if isinstance(spec, NonTensor):
            shape = tuple(getattr(value, "shape", ()))
            msg = f"{what} {keys.as_key(key)!r}: expected {spec}, got {value} of shape {shape}. "
            raise ValueError(f"{msg}Give the spec shape={shape}, or set check_values = False.")
        found = value if not isinstance(value, Tensor) or value.numel() < 20 else _range(value)
        msg = (
            f"{what} {keys.as_key(key)!r} is outside its spec {spec}: got {found}. Widen the "
            f"spec, or set check_values = False."
        )
        raise ValueError(msg)


def _range(value: Tensor) -> str:
    return f"values from {value.min().item()} to {value.max().item()}"


def fit_columns(env: Environment, after: TensorDictBase, lead: torch.Size) -> None:
    """Give rewards and done flags their last dimension of size 1, in place."""
    for key, spec in (*env.reward_leaves, *env.done_leaves):
        value = after.get(key, None)
        if value is None:
            continue
        if value.shape == lead + spec.shape[:-1]:
            after.set(key, value.unsqueeze(-1))
        if spec.dtype == torch.bool and value.dtype != torch.bool:
            msg = f"step {keys.as_key(key)!r}: expected dtype torch.bool, got {value.dtype}."
            raise TypeError(msg)


def check_reset(
    env: Environment, root: TensorDictBase, masks: Mapping[Prefix, Tensor]
) -> TensorDictBase:
    """Check what a reset returned, and complete its done flags, in place."""
    lead = leading_sizes(env, root)
    fit_columns(env, root, lead)
    flagged, waits = [], can_sync(env)  # groups that the reset returned flags for
    for prefix in env.done_groups:
        flags = _flags(root, prefix)
        mask = masks.get(prefix, masks.get((), None))
        for flag in flags if waits else ():
            over = flag if mask is None else flag & fit_mask(mask, flag)
            if bool(over.any()):
                msg = f"reset: {(*prefix, 'done')} is set right after a reset: got {flag.tolist()}."
                raise RuntimeError(msg)
        if flags:
            flagged.append(prefix)
        else:
            holder = env.full_done_spec[prefix] if prefix else env.full_done_spec
            zeros = {name: holder[name].zero(lead) for name in keys.DONE_KEYS}
            for name, flag in zeros.items():
                root.set((*prefix, name), flag)
    # flags of rows that were reset are False; those of the others come from the root, which may
    # hold a done that differs from terminated | truncated
    complete_done(root, flagged, "reset", waits=waits, agree=False)
    check_leaves([*env.observation_leaves, *env.done_leaves], root, lead, "reset")
    return root


def _flags(root: TensorDictBase, prefix: Prefix) -> list[Tensor]:
    named: Iterable[Any] = (root.get((*prefix, name), None) for name in keys.DONE_KEYS)
    return [flag for flag in named if flag is not None]
