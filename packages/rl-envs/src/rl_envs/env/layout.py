"""The leaves of an environment's data and its done groups, with the checks of steps and resets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_envs.env.done import derive_flags, groups_of
from rl_envs.env.leaf_checks import (
    ArrayTest,
    array_test,
    cast_action,
    check_choice,
    check_form,
    check_leaves,
    check_value,
    check_values,
    choice_test,
    missing_action,
    parts_of_stack,
    passes,
)
from rl_envs.env.partial_reset import fit_mask
from rl_envs.env.spec_leaves import SpecLeaves, has_fixed_form
from rl_layout import keys
from rl_specs import NonTensor, StackedComposite, TensorSpec
from rl_tensordict import build, find
from rl_tensordict.types import Array, KeyPath

NO_SIZES = torch.Size()


@dataclass(frozen=True)
class EnvLayout:
    """Key and spec of each leaf of an environment's data, by its part in a step."""

    # Rewards and flags are named without `"next"`. `lead` are leading batch sizes in front of the
    # environment's own, which one that is not batch-locked accepts.

    batch_size: torch.Size  # [*B]
    observation: SpecLeaves
    action: SpecLeaves
    reward: SpecLeaves
    done: SpecLeaves
    state: SpecLeaves  # what a step reads alongside observations and actions
    group_sizes: Mapping[KeyPath, torch.Size]  # of each nested group

    @cached_property
    def after(self) -> SpecLeaves:
        """Everything under `"next"`: observations, rewards, done flags."""
        return [*self.observation, *self.reward, *self.done]

    @cached_property
    def shown(self) -> SpecLeaves:
        """What a reset writes: observations and done flags."""
        return [*self.observation, *self.done]

    @cached_property
    def inputs(self) -> SpecLeaves:
        """What a step may read."""
        return [*self.action, *self.observation, *self.state]

    @cached_property
    def groups(self) -> list[KeyPath]:
        """The prefix of each group with done flags, the root's `()` first."""
        return groups_of(key for key, _ in self.done)

    @cached_property
    def has_fixed_forms(self) -> bool:
        """Whether all entries are tensors whose shapes never vary."""
        leaves = (*self.after, *self.action, *self.state)
        return all(has_fixed_form(spec) for _, spec in leaves)

    @cached_property
    def fits_arrays(self) -> bool:
        """Whether numpy has every dtype; it lacks bfloat16."""
        return all(spec.dtype is not torch.bfloat16 for _, spec in (*self.inputs, *self.after))

    @cached_property
    def bytes_of_step(self) -> int:
        """The memory of one step, but of what the policy writes besides actions."""
        leaves = [*self.shown, *self.action, *self.after]
        return sum(spec.shape.numel() * spec.dtype.itemsize for _, spec in leaves if spec.dtype)

    @cached_property
    def has_objects(self) -> bool:
        """Whether some entries are no tensors."""
        return any(isinstance(spec, NonTensor) for _, spec in self.after)

    @cached_property
    def tests(self) -> dict[KeyPath, ArrayTest]:
        """A quick test of the values of each entry under `"next"`, observations among them."""
        return {key: array_test(spec) for key, spec in self.after}

    @cached_property
    def choice_tests(self) -> dict[KeyPath, ArrayTest]:
        """A quick test of the choices of each action."""
        return {key: choice_test(spec) for key, spec in self.action}

    @cached_property
    def _after_tests(self) -> list[ArrayTest]:
        return [self.tests[key] for key, _ in self.after]

    @cached_property
    def _actions(
        self,
    ) -> list[tuple[KeyPath, TensorSpec, torch.Size, torch.dtype | None, ArrayTest]]:
        tests = self.choice_tests
        return [(key, leaf, leaf.shape, leaf.dtype, tests[key]) for key, leaf in self.action]

    def lead_of(self, tensordict: TensorDictBase) -> torch.Size:
        """The batch sizes of a tensordict before the environment's own."""
        sizes = tensordict.batch_size
        if sizes == self.batch_size:
            return NO_SIZES
        return torch.Size(sizes[: len(sizes) - len(self.batch_size)])

    def has_sizes(self, root: Any) -> bool:
        """Whether something is a tensordict of the environment's own batch size."""
        return isinstance(root, TensorDictBase) and bool(root.batch_size == self.batch_size)

    def holds_shown(self, root: TensorDictBase) -> bool:
        """Whether a root holds what a reset writes, as the specs say, and nothing else."""
        held = dict(keys.leaves(root))
        if len(held) != len(self._shown_forms):
            return False
        for key, shape, dtype in self._shown_forms:
            value = held.get(key)
            if value is None or value.shape != shape or value.dtype != dtype:
                return False
        return True

    @cached_property
    def _shown_forms(self) -> list[tuple[KeyPath, torch.Size, torch.dtype | None]]:
        # attributes of a spec cost a call each
        return [(key, spec.shape, spec.dtype) for key, spec in self.shown]

    # steps

    def fit_actions(self, root: TensorDictBase, *, checks_values: bool) -> TensorDictBase:
        """Cast actions to the dtype of their specs; raise where that would change a number."""
        # the input stays as it is: a copy is made as soon as one action has to be cast
        lead, out = self.lead_of(root), root
        for key, spec, shape, dtype, test in self._actions:
            value = find(root, key)
            if isinstance(value, Tensor) and (value.shape, value.dtype) == (lead + shape, dtype):
                if checks_values and not passes(test, value):
                    check_choice(key, spec, value)
                continue
            if value is None:
                raise missing_action(key, root)
            if isinstance(spec, StackedComposite):
                for part, leaves in parts_of_stack(key, spec, value):
                    check_leaves(leaves, part, lead, "action")
                continue
            if isinstance(value, Tensor) and value.dtype != spec.dtype:
                value = cast_action(key, spec, value)
                out = root.copy() if out is root else out
                out.set(key, value)
            check_form(key, spec, value, lead, "action")
            if checks_values and not passes(test, value):
                check_choice(key, spec, value)
        return out

    def complete_step(
        self, after: TensorDictBase, *, waits: bool, agree: bool, checks_values: bool
    ) -> TensorDictBase:
        """Check what a step returned, and complete its flags, in place."""
        lead = self.lead_of(after)
        self.fit_groups(after, lead)
        self._refuse_unknown_flags(after)
        self.fit_columns(after, lead)
        self.complete_done(after, self.groups, "step", waits=waits, agree=agree)
        check_leaves(self.after, after, lead, "step")
        if checks_values:
            check_values(self.after, self._after_tests, after, "step")
        return after

    def check_arrays(self, after: Mapping[KeyPath, Array]) -> None:
        """Raise for results `[*B, ...]` of a step outside their specs, and NaN."""
        for (key, spec), test in zip(self.after, self._after_tests, strict=True):
            if not test(after[key]):
                check_value(key, spec, torch.from_numpy(after[key].copy()), "step")

    def check_rows(self, batch: TensorDictBase) -> None:
        """Raise for values of a batch `[*B, T]` outside their specs, a leaf at a time."""
        time = len(self.batch_size)
        for what, prefix, leaves in (
            ("step", (keys.NEXT,), self.after),
            ("reset", (), self.observation),
        ):
            for key, spec in leaves:
                value: Tensor = find(batch, (*prefix, *key)).movedim(time, 0)  # [T, *B, ...]
                if not passes(self.tests[key], value):
                    check_value(key, spec, value, what)
        for key, spec in self.action:
            chosen = find(batch, key).movedim(time, 0)
            if not passes(self.choice_tests[key], chosen):
                check_choice(key, spec, chosen)

    def fit_groups(
        self, tensordict: TensorDictBase, lead: torch.Size, *, adds: bool = False
    ) -> None:
        """Give nested groups the sizes of their specs, in place, so that all steps stack."""
        for path, own in self._groups_inside_out:
            group, sizes = find(tensordict, path), lead + own
            if group is None and adds:  # rewards alone: later roots have the group, without them
                tensordict.set(path, build({}, sizes))
            elif isinstance(group, TensorDict) and group.batch_size != sizes:
                held = (entry for entry in group.values() if hasattr(entry, "shape"))
                if all(entry.shape[: len(sizes)] == sizes for entry in held):
                    group.batch_size = sizes

    def _refuse_unknown_flags(self, after: TensorDictBase) -> None:
        """Raise for done flags of a group that has none by its spec: no root would hold them."""
        for path in self._groups_without_flags:
            group = find(after, path)
            told = (
                ()
                if group is None
                else (n for n in keys.DONE_KEYS if find(group, (n,)) is not None)
            )
            for name in told:
                msg = (
                    f"step: {(*path, name)!r} is a done flag that done_spec lacks, so that nothing "
                    "would say which members are out. Add it to done_spec, or leave it out."
                )
                raise KeyError(msg)

    @cached_property
    def _groups_without_flags(self) -> list[KeyPath]:
        return [path for path in self.group_sizes if path not in self.groups]

    @cached_property
    def _groups_inside_out(self) -> list[tuple[KeyPath, torch.Size]]:
        return sorted(self.group_sizes.items(), key=lambda item: -len(item[0]))

    def fit_columns(self, after: TensorDictBase, lead: torch.Size) -> None:
        """Give rewards and done flags their last dimension of size 1, in place."""
        for key, spec in (*self.reward, *self.done):
            value = find(after, key)
            if value is None:
                continue
            if value.shape == lead + spec.shape[:-1]:
                after.set(key, value.unsqueeze(-1))
            if spec.dtype == torch.bool and value.dtype != torch.bool:
                msg = f"step {keys.as_key(key)!r}: expected dtype torch.bool, got {value.dtype}."
                raise TypeError(msg)

    @staticmethod
    def complete_done(
        tensordict: TensorDictBase,
        groups: Iterable[KeyPath],
        what: str,
        *,
        waits: bool = True,
        agree: bool = True,
    ) -> None:
        """Write the missing done flags of a step `[*B]`, in place."""
        # waits: compare redundant flags, which synchronises with the device; otherwise terminated
        # and truncated win. agree=False: three flags that are there stay, whether or not they agree
        for prefix in groups:
            holder = tensordict if not prefix else tensordict.get(prefix, None)
            flags = {} if holder is None else {n: find(holder, (n,)) for n in keys.DONE_KEYS}
            if not agree and len(flags) == sum(flag is not None for flag in flags.values()) > 0:
                continue
            found = derive_flags(flags, prefix, what, waits=waits)
            for name, flag in zip(keys.DONE_KEYS, found, strict=True):
                if flag is not flags[name]:
                    holder.set(name, flag)

    # resets

    def complete_reset(
        self, root: TensorDictBase, masks: Mapping[KeyPath, Tensor], *, waits: bool
    ) -> TensorDictBase:
        """Check what a reset returned, and complete its done flags, in place."""
        lead = self.lead_of(root)
        self.fit_groups(root, lead, adds=True)
        self.fit_columns(root, lead)
        flagged = []  # groups that the reset returned flags for
        for prefix in self.groups:
            named = (find(root, (*prefix, name)) for name in keys.DONE_KEYS)
            flags = [flag for flag in named if flag is not None]
            if waits and flags:
                check_not_done(flags, prefix, masks.get(prefix, masks.get((), None)))
            if flags:
                flagged.append(prefix)
                continue
            specs = {key[-1]: spec for key, spec in self.done if key[:-1] == prefix}
            for name in keys.DONE_KEYS:
                root.set((*prefix, name), specs[name].zero(lead))
        # flags of rows that were reset are False; those of the others come from the root, which
        # may hold a done that differs from terminated | truncated
        self.complete_done(root, flagged, "reset", waits=waits, agree=False)
        check_leaves(self.shown, root, lead, "reset")
        return root

    def check_observation(self, root: TensorDictBase) -> None:
        """Raise for observations outside their specs, and NaN, after a reset."""
        tests = [self.tests[key] for key, _ in self.observation]
        check_values(self.observation, tests, root, "reset")


def check_not_done(flags: Iterable[Tensor], prefix: KeyPath, mask: Tensor | None) -> None:
    """Raise for flags that are set in rows that were reset, all of them where the mask is None."""
    for flag in flags:
        over = flag if mask is None else flag & fit_mask(mask, flag)
        if bool(over.any()):
            msg = f"reset: {(*prefix, 'done')} is set right after a reset: got {flag.tolist()}."
            raise RuntimeError(msg)
