"""One step of time: what the step produced becomes what the next step starts from."""

from __future__ import annotations

from typing import Any

from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase, is_non_tensor

from rl_layout import keys
from rl_layout.arguments import check_flags, check_keys
from rl_tensordict import NestedKey, as_tuple, build, names_of
from rl_tensordict.arguments import check_collection, shown

KeyOrList = NestedKey | list[NestedKey]


def step_mdp(  # noqa: PLR0913 - the arguments are the field's
    tensordict: TensorDictBase,
    next_tensordict: TensorDictBase | None = None,
    keep_other: bool = True,
    exclude_reward: bool = True,
    exclude_done: bool = False,
    exclude_action: bool = True,
    reward_keys: KeyOrList = keys.REWARD,
    done_keys: KeyOrList | None = None,
    action_keys: KeyOrList = "action",
) -> TensorDictBase:
    """Move ``"next"`` to the root.

    Args:
        tensordict: a step of any batch size, with ``"next"``. It is not changed.
        next_tensordict: written to in place where given; otherwise a new one is made.
        keep_other: keep root entries that are neither action, reward nor done.
        exclude_reward: drop rewards.
        exclude_done: drop done flags.
        exclude_action: drop actions.
        reward_keys: key of the reward, or a list of keys.
        done_keys: key of a done flag, or a list of keys; ``done``, ``terminated`` and
            ``truncated`` by default.
        action_keys: key of the action, or a list of keys.

    Returns:
        What the next step starts from; leaves are shared with the input.

    Raises:
        KeyError: there is no ``"next"``.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> step = trajectories([3])[1]
        >>> after = step_mdp(step)
        >>> after["observation"].tolist(), "action" in after, "reward" in after
        ([7.0, 2.0], False, False)
    """
    dones: KeyOrList = [*keys.DONE_KEYS] if done_keys is None else done_keys
    try:
        dropped = _tuples(reward_keys) if exclude_reward else set()
        dropped |= _tuples(dones) if exclude_done else set()
        actions = _tuples(action_keys)
        kept = None if keep_other else (set() if exclude_action else actions)
        dropped |= actions if exclude_action else set()
    except Exception:
        check_flags(keep_other=keep_other, exclude_reward=exclude_reward)
        check_flags(exclude_done=exclude_done, exclude_action=exclude_action)
        check_keys(reward_keys=reward_keys, done_keys=dones, action_keys=action_keys)
        raise
    if type(tensordict) is not TensorDict:  # the usual one costs nothing
        check_collection("tensordict", tensordict)
    moved = _step(tensordict, dropped, kept)
    return moved if next_tensordict is None else _written(next_tensordict, moved)


def _tuples(wanted: KeyOrList) -> set[tuple[str, ...]]:
    return {as_tuple(key) for key in (wanted if isinstance(wanted, list) else [wanted])}


def _written(target: TensorDictBase, moved: TensorDictBase) -> TensorDictBase:
    check_collection("next_tensordict", target)
    if target.batch_size == moved.batch_size:
        return target.update(moved)
    try:
        return target.update(moved)
    except RuntimeError as error:
        msg = (
            f"next_tensordict: expected batch size {list(moved.batch_size)}, that of the step, "
            f"got {list(target.batch_size)}. Give one of that size, or None for a new one."
        )
        raise RuntimeError(msg) from error


def _step(
    step: TensorDictBase, dropped: set[tuple[str, ...]], kept: set[tuple[str, ...]] | None
) -> TensorDictBase:
    # parts of a lazy stack may differ in shape: none may be stacked to be read
    if isinstance(step, LazyStackedTensorDict):
        each = [_step(one, dropped, kept) for one in step.tensordicts]
        return LazyStackedTensorDict.lazy_stack(each, step.stack_dim)
    after = step.get(keys.NEXT, None)
    if after is None:
        msg = f"'next' is missing: the step has {sorted(step.keys())}. Step the environment first."
        raise KeyError(msg)
    if not _is_group(after):
        msg = f"'next': expected a tensordict, got {shown(after)}. Step the environment first."
        raise TypeError(msg)
    before = step if kept is None else step.select(*kept, strict=False)
    return _merge(before, after, dropped | {(keys.NEXT,)}, ())


def _merge(
    before: TensorDictBase,
    after: TensorDictBase,
    dropped: set[tuple[str, ...]],
    prefix: tuple[str, ...],
) -> TensorDictBase:
    """The entries of both without the dropped ones; where both have one, what comes after."""
    old, new = dict(before.items()), dict(after.items())
    found: dict[str, Any] = {}
    # the order of the keys is that of before, the values are those of after
    for name, value in {**old, **new}.items():
        key = (*prefix, name)
        if key in dropped:
            continue
        if _is_group(value):
            # a group that one side lacks, or has as a leaf, counts as empty there
            groups = (old.get(name), new.get(name))
            one, other = (group if _is_group(group) else value.empty() for group in groups)
            value = _merged_groups(one, other, dropped, key)
        found[name] = value
    names = names_of(after)
    return build(found, after.batch_size, names, after.device)


def _merged_groups(
    before: TensorDictBase,
    after: TensorDictBase,
    dropped: set[tuple[str, ...]],
    prefix: tuple[str, ...],
) -> TensorDictBase:
    """Merge two groups: part by part where their parts may differ in shape."""
    stack = next((one for one in (after, before) if isinstance(one, LazyStackedTensorDict)), None)
    if stack is None:
        return _merge(before, after, dropped, prefix)
    # the other side may be dense: taken apart along the same dimension
    pairs = zip(*(one.unbind(stack.stack_dim) for one in (before, after)), strict=True)
    parts = [_merged_groups(one, other, dropped, prefix) for one, other in pairs]
    return LazyStackedTensorDict.lazy_stack(parts, stack.stack_dim)


def _is_group(value: Any) -> bool:
    return isinstance(value, TensorDictBase) and not is_non_tensor(value)
