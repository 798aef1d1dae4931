"""The base class of environments: reset, step, rollout, seeds and state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, Self

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_envs.env import arguments, checks
from rl_envs.env.device_sync import can_sync, selects_every_row, selects_no_row
from rl_envs.env.done import ends
from rl_envs.env.held_leaves import HeldLeaves
from rl_envs.env.metaclass import EnvType
from rl_envs.env.partial_reset import merge, reset_masks, with_masks, without_masks
from rl_envs.env.rendering import Renderable
from rl_envs.env.rows import EnvRows
from rl_envs.env.seeds import next_seed
from rl_envs.env.specs import EnvSpecs
from rl_envs.rollouts import RolloutPlayer, RolloutRequest
from rl_envs.rollouts.request import copy_to_out, on_own_device, without_steps
from rl_layout import keys, step_mdp
from rl_tensordict import NestedKey, copied, find, put_group
from rl_tensordict.arguments import check_calls, check_flags, check_type, check_whole, local_device
from rl_tensordict.types import KeyPath
from rl_transforms import Place, Transform

Policy = Callable[[TensorDictBase], TensorDictBase]


class EnvBase(EnvSpecs, EnvRows, Renderable, metaclass=EnvType):
    """An environment that speaks tensordicts: one, or a batch of them that step together.

    A subclass sets its specs in `__init__` and gives three methods:

    - `_reset(tensordict)` starts the rows that `_reset` names (all where None comes) and returns
      the observations of all rows; those of the others are ignored.
    - `_step(tensordict)` reads the action and returns observations, rewards and done flags, without
      `"next"`. One of `done`, `terminated`, `truncated` is enough where it tells.
    - `_set_seed(seed)` seeds whatever is random.

    Two more make its state saveable: `_get_state` and `_set_state`. Every class takes `policy=` as
    well: the environment then comes with what the recurrent parts of that policy need.

    Args:
        device: of its data; the CPU where None.
        batch_size: sizes `[*B]` that all its data begins with.

    Attributes:
        batch_size: the sizes `[*B]`.
        batch_locked: whether tensordicts must have exactly that batch size. An environment whose
            state is all in the tensordict may set it to False.
        check_values: whether each value is compared with its spec, and NaN refused. Shapes and
            dtypes always are.
        waits_for_device: whether rollouts look at the done flags at each step, to reset only where
            a row is over. Where False, `_reset` is called after every step, with a mask that may
            name no row, and nothing waits for the device (`check_values` would).
        flags_agree: whether `done` is `terminated` or `truncated` in every step, and refused
            otherwise. False after a `StepCounter(update_done=False)`, which truncates steps that
            are not done: their trajectories continue.
        native_rows: whether it writes numpy rows itself, so that rollouts use `bind`.
        mask_keys: entries of a root that say which actions `rand_action` may draw.
        device: of its data.
        is_closed: whether `close` was called.
        is_started: whether it was reset, and can be stepped.

    Example:
        >>> from rl_envs.testing import CountingEnv
        >>> env = CountingEnv(max_steps=3)
        >>> env.rollout(10)["next", "observation"].flatten().tolist()
        [1.0, 2.0, 3.0]
    """

    batch_locked: bool = True
    check_values: bool = True
    waits_for_device: bool = True
    flags_agree: bool = True
    mask_keys: Sequence[NestedKey] = ()
    _num_moves: int = 0

    def __init__(self, *, device: torch.device | str | None = None, batch_size: Any = ()) -> None:
        self.device = local_device("device", "cpu" if device is None else device)
        self.batch_size = arguments.sizes_of(batch_size)
        self._returned: TensorDictBase | None = None  # by the last step
        self.is_closed = False
        self.is_started = False

    # what a subclass gives

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        raise NotImplementedError

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        raise NotImplementedError

    def _set_seed(self, seed: int) -> None:
        raise NotImplementedError

    def _get_state(self) -> dict[str, Any]:
        msg = (
            f"{type(self).__name__} cannot save and load its state: give it _get_state, which "
            f"returns a dictionary of tensors and numbers, and _set_state, which takes one."
        )
        raise NotImplementedError(msg)

    def _set_state(self, state: Mapping[str, Any]) -> None:
        EnvBase._get_state(self)  # says what is missing

    def _to(self, device: torch.device) -> None:
        """Move the state; specs follow by themselves."""
        msg = (
            f"this {type(self).__name__} lives on {self.device} and cannot be moved to {device}: "
            f"make it with device={str(device)!r} where it takes that, or move what it returns by "
            f"TransformedEnv(env, DeviceCastTransform({str(device)!r}, {str(self.device)!r}))."
        )
        raise NotImplementedError(msg)

    def _close(self) -> None:
        """Release what the environment holds. Called once."""

    # time

    def count_move(self) -> None:
        """Count one more of the `moves`: a rollout, of whatever length."""
        self._num_moves += 1

    @property
    def moves(self) -> int:
        """Number of steps, resets, rollouts and loaded states, of inner environments too.

        A root that was kept is out of date once this count has changed.

        Example:
            >>> from rl_envs.testing import CountingEnv
            >>> env = CountingEnv()
            >>> root, before = env.reset(), env.moves
            >>> _ = env.rand_step(root)
            >>> env.moves > before
            True
        """
        moves = self._num_moves
        for env in self._inside:
            moves += env.moves
        return moves

    @property
    def _inside(self) -> Sequence[EnvBase]:
        """The environments that this one steps, which others may step too."""
        return ()

    @property
    def outer(self) -> Iterable[Transform]:
        """The transforms around what it steps; a `TransformedEnv` has some."""
        return ()

    @property
    def stepped_objects(self) -> Iterator[object]:
        """The objects that a step changes; rows of one batch must not have one in common."""
        if not self._inside:
            yield self
        for env in self._inside:
            yield from env.stepped_objects

    def reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        """Start all trajectories, or the rows of a mask.

        Args:
            tensordict: `[*B]`, with bool `_reset` `[*B, 1]` to reset some rows only; the others
                keep what the tensordict holds. It is not changed. Entries that the environment
                does not know are kept, `"next"` is not.
            kwargs: passed on to the environment.

        Returns:
            A new tensordict `[*B]` with observations and done flags, all of them False in the rows
            that were reset.

        Raises:
            RuntimeError: the environment is closed, returned done flags that are set, or must be
                reset as a whole first.
            TypeError: the mask is not bool, or an observation has another dtype than its spec.
            ValueError: a shape is not the expected one, or an observation is outside its spec.

        Example:
            >>> from rl_envs.testing import CountingEnv
            >>> sorted(CountingEnv().reset().keys())
            ['done', 'observation', 'terminated', 'truncated']
        """
        checks.check_open(self)
        checks.check_batch(self, tensordict)
        masks = reset_masks(tensordict, self.done_groups, self.batch_size)
        kept = None if tensordict is None else without_masks(tensordict, masks)
        waits = can_sync(self)
        if waits and kept is not None and masks and selects_no_row(masks):
            return kept
        whole = kept is None or not masks or (waits and selects_every_row(masks))
        held = HeldLeaves((kept if whole else None, self.layout.shown))
        root = self.reset_checked(None if whole else with_masks(kept, masks), masks, kwargs)
        held.check(f"{type(self).__name__}._reset")
        self.is_started = True
        if kept is not None:
            root = kept.update(root) if whole else merge(kept, root, masks)
        if self.check_values:
            self.layout.check_observation(root)
        return root

    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Take one step.

        Args:
            tensordict: `[*B]` with the action, and what else the environment reads. It is not
                changed.

        Returns:
            A new tensordict with the same entries and `"next"`: observations, rewards
            `[*B, ..., 1]` and done flags. Entries of the policy under `"next"` are kept.

        Raises:
            KeyError: an action is missing, or the environment did not return what its specs say.
            RuntimeError: the environment is closed, or was never reset.
            TypeError: a dtype is not the expected one, or it is no tensordict.
            ValueError: a shape is not the expected one, or a value is outside its spec.

        Example:
            >>> from rl_envs.testing import CountingEnv
            >>> env = CountingEnv()
            >>> step = env.step(env.rand_action(env.reset()))
            >>> step["next", "reward"].shape, step["next", "done"].item()
            (torch.Size([1]), False)
        """
        if self.is_closed or not self.is_started or not self.layout.has_sizes(tensordict):
            checks.check_step(self, tensordict)
        fitted = self.layout.fit_actions(tensordict, checks_values=self.check_values)
        self._num_moves += 1
        root = copied(tensordict) if fitted is tensordict else fitted
        self._forget(root)
        if self._steps_by_rows(root):
            after = self._one_column.step(root)
        else:
            after = self.complete_step(self.raw_step(root))
        given = find(root, (keys.NEXT,))
        put_group(root, keys.NEXT, after if given is None else given.update(after))
        return root

    def step_and_maybe_reset(
        self, tensordict: TensorDictBase
    ) -> tuple[TensorDictBase, TensorDictBase]:
        """Take one step, and reset the rows that it ended.

        Args:
            tensordict: as for `step`.

        Returns:
            The step, with the real `"next"`; and the root that the following step starts from.

        Raises:
            RuntimeError: as for `step` and `reset`.

        Example:
            >>> from rl_envs.testing import CountingEnv
            >>> env = CountingEnv(max_steps=1)
            >>> step, root = env.step_and_maybe_reset(env.rand_action(env.reset()))
            >>> step["next", "observation"].item(), root["observation"].item()
            (1.0, 0.0)
        """
        step = self.step(tensordict)
        return step, self.maybe_reset(self.next_root(step))

    def maybe_reset(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Reset the rows of a root whose done flags are set.

        Args:
            tensordict: a root `[*B]`, as `step_mdp` makes it. One without done flags is not done.

        Returns:
            The root itself where nothing is seen to be done, otherwise a new one.

        Example:
            >>> from rl_envs.testing import CountingEnv
            >>> env = CountingEnv()
            >>> root = env.reset()
            >>> env.maybe_reset(root) is root
            True
        """
        checks.check_root(self, tensordict)
        over = ends(tensordict, self.done_groups)
        if not over or (can_sync(self) and selects_no_row(over)):
            return tensordict
        request = tensordict.copy()
        for prefix, flag in over.items():
            request.set((*prefix, "_reset"), flag)
        return self.reset(request)

    def rollout(  # noqa: PLR0913 - the arguments are the field's
        self,
        max_steps: int,
        policy: Policy | None = None,
        callback: Callable[[EnvBase, TensorDictBase], Any] | None = None,
        *,
        auto_reset: bool = True,
        break_when_any_done: bool | None = None,
        break_when_all_done: bool = False,
        tensordict: TensorDictBase | None = None,
        set_truncated: bool = False,
        auto_cast_to_device: bool = False,
        out: TensorDictBase | None = None,
    ) -> TensorDictBase:
        """Play steps and return them as one batch, without gradients.

        Args:
            max_steps: most steps to play, at least 1.
            policy: adds the action to a root; random actions where None or `env.rand_step`.
            callback: called with the environment and each finished step.
            auto_reset: reset the environment first. Otherwise continue `tensordict`, whose rows
                that are done are reset first, as `maybe_reset` does; or, where an environment
                `resets_by_stepping`, from where the last rollout has ended.
            break_when_any_done: stop as soon as a row is done. Otherwise rows that end are reset
                and the rollout continues. True where None, unless `break_when_all_done`.
            break_when_all_done: stop as soon as every row has been done once; rows that were done
                earlier are reset and continue.
            tensordict: the root to start from; needed where `auto_reset` is False.
            set_truncated: mark the last step as truncated, unless it is terminated.
            auto_cast_to_device: move each root to the policy's device, and its actions back.
            out: `[*B, N]`, overwritten in its first T steps, with the entries of the batch and no
                others; a view of these steps is returned.

        Returns:
            A batch `[*B, T]`, the last dimension named `"time"`.

        Raises:
            KeyError: the policy reads a key that the environment lacks, or writes no action; or
                `out` has other entries than the batch.
            RuntimeError: no root to start from, or the environment is closed.
            ValueError: `max_steps` is less than 1, or both breaks are asked for.

        Example:
            >>> from rl_envs.testing import CountingEnv
            >>> env = CountingEnv(max_steps=3)
            >>> env.rollout(7, break_when_any_done=False)["next", "done"].flatten().tolist()
            [False, False, True, False, False, True, False]
        """
        checks.check_open(self)
        policy = without_steps(policy)
        if break_when_any_done is None:
            break_when_any_done = break_when_all_done is False
        check_flags(
            auto_reset=auto_reset,
            break_when_any_done=break_when_any_done,
            break_when_all_done=break_when_all_done,
            set_truncated=set_truncated,
            auto_cast_to_device=auto_cast_to_device,
        )
        check_calls(policy=policy, callback=callback)
        checks.check_batch(self, tensordict)
        check_type("out", out, TensorDictBase | None, "a tensordict")
        request = RolloutRequest(
            max_steps,
            callback,
            break_when_any_done,
            break_when_all_done,
            set_truncated,
            continues=not auto_reset,
        )
        if not auto_reset:
            checks.check_start(self, tensordict)
        if auto_cast_to_device:
            policy = on_own_device(policy, self.device)
        with torch.no_grad():
            root = tensordict
            if root is not None:  # a row that is over cannot be stepped
                root = self.reset(root) if auto_reset else self.maybe_reset(root)
            batch = RolloutPlayer(self, policy, is_kept=False).play(request, root)
            return batch if out is None else copy_to_out(out, batch)

    # random actions, seeds, data without a step

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Add random actions to a root.

        Args:
            tensordict: a root `[*B]`; an empty one where None. It is not changed.

        Returns:
            A new tensordict with the actions, drawn from torch's global generator.

        Example:
            >>> from rl_envs.testing import CountingEnv
            >>> env = CountingEnv()
            >>> env.action_spec.is_in(env.rand_action()["action"])
            True
        """
        checks.check_batch(self, tensordict)
        shape = () if tensordict is None else self.layout.lead_of(tensordict)
        drawn = self.full_action_spec.rand(shape)
        return drawn if tensordict is None else tensordict.copy().update(drawn)

    def rand_step(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Take one step with random actions.

        Args:
            tensordict: the root `[*B]` to start from.

        Returns:
            The step, as `step` returns it.

        Example:
            >>> from rl_envs.testing import CountingEnv
            >>> env = CountingEnv()
            >>> env.rand_step(env.reset())["next", "observation"].item()
            1.0
        """
        return self.step(self.rand_action(tensordict))

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed the environment. The next reset starts from that seed.

        Args:
            seed: a whole number, 0 or more.
            static_seed: return the same seed, so that all environments are seeded alike.

        Returns:
            The seed for the next environment, which is far from this one.

        Raises:
            RuntimeError: the environment is closed.
            TypeError: the seed is no whole number.
            ValueError: the seed is negative.

        Example:
            >>> from rl_envs.testing import CountingEnv
            >>> CountingEnv().set_seed(0) == CountingEnv().set_seed(0)
            True
        """
        checks.check_open(self)
        check_whole("seed", seed, 0)
        check_flags(static_seed=static_seed)
        self._set_seed(seed)
        return seed if static_seed else next_seed(seed)

    def fake_tensordict(self) -> TensorDictBase:
        """Make a step of zeros, with all the entries that a real one has.

        Returns:
            A step `[*B]` with `"next"`.

        Example:
            >>> from rl_envs.testing import CountingEnv
            >>> sorted(CountingEnv().fake_tensordict()["next"].keys())
            ['done', 'observation', 'reward', 'terminated', 'truncated']
        """
        done = self.full_done_spec.zero()
        root = self.observation_spec.zero().update(self.state_spec.zero()).update(done)
        after = self.observation_spec.zero().update(self.full_reward_spec.zero())
        root.update(self.full_action_spec.zero())
        return root.set("next", after.update(done.clone()))

    # state

    def append_transform(self, transform: Any) -> EnvBase:
        """Put a transform around the environment.

        Args:
            transform: a transform, or a callable on a tensordict.

        Returns:
            A `TransformedEnv`; the environment itself, changed in place, if it is one.

        Raises:
            ValueError: the transform cannot sit in an environment.

        Example:
            >>> from rl_transforms import StepCounter
            >>> from rl_envs.testing import CountingEnv
            >>> CountingEnv().append_transform(StepCounter(2)).rollout(9).shape
            torch.Size([2])
        """
        wrapped: EnvBase = EnvType.wrap(self, transform)
        return wrapped

    def to(self, device: torch.device | str | int) -> Self:
        """Move the environment to a device, in place.

        A subclass says how by `_to(device)`. The next step needs a reset first.

        Args:
            device: of its state and its data.

        Returns:
            The environment itself.

        Raises:
            NotImplementedError: it cannot be moved.
            RuntimeError: the environment is closed, or there is no such device.

        Example:
            >>> from rl_envs.testing import CountingEnv
            >>> CountingEnv().to("cpu").device
            device(type='cpu')
        """
        checks.check_open(self)
        place = arguments.device_of(device)
        if place != arguments.device_of(self.device):
            self._to(place)
            self.device, self.is_started = place, False
            self._move_specs()
        return self

    def state_dict(self) -> dict[str, Any]:
        """Save the state of the environment: generators, counters and limits included.

        Returns:
            A dictionary of tensors, numbers, strings and further dictionaries.

        Raises:
            NotImplementedError: this environment cannot save its state.

        Example:
            >>> from rl_envs.testing import CountingEnv
            >>> CountingEnv().state_dict()["is_started"]
            False
        """
        checks.check_open(self)
        return {"is_started": self.is_started, "state": self._get_state()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore a state, saved by this environment or one like it.

        Args:
            state_dict: from `state_dict`.

        Raises:
            KeyError: it is no state of an environment.
            ValueError: it is of another environment; this one keeps its state.
            NotImplementedError: this environment cannot load a state.

        Example:
            >>> from rl_envs.testing import CountingEnv
            >>> CountingEnv().load_state_dict(CountingEnv().state_dict())
        """
        self._num_moves += 1
        checks.check_open(self)
        checks.check_saved(state_dict)
        before = deepcopy(self._get_state())
        checks.check_held(self, state_dict, before)
        try:
            self._set_state(state_dict["state"])
        except BaseException:  # loading failed halfway
            self._set_state(before)
            raise
        self.is_started = bool(state_dict["is_started"])

    # life

    def check_place(self, place: Place) -> None:
        """Raise where a transform of this environment cannot work in a place.

        Args:
            place: ``"worker"`` for an environment inside a serial or parallel one.

        Raises:
            ValueError: a transform belongs outside; the message names it.

        Example:
            >>> from rl_envs.testing import CountingEnv
            >>> CountingEnv().check_place("worker")
        """

    def close(self) -> None:
        """Release what the environment holds. A second call does nothing.

        Example:
            >>> from rl_envs.testing import CountingEnv
            >>> env = CountingEnv()
            >>> env.close()
            >>> env.is_closed
            True
        """
        if not self.is_closed:
            self.is_closed = True
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_size={tuple(self.batch_size)}, device={self.device})"

    # within

    def _forget(self, root: TensorDictBase) -> None:
        """Drop the result of an earlier step, in place; entries of a policy alone are kept."""
        old = find(root, (keys.NEXT,))
        if old is not None and any(find(old, key) is not None for key, _ in self.layout.done):
            del root[keys.NEXT]

    def next_root(self, step: TensorDictBase) -> TensorDictBase:
        """Make the root `[*B]` after a step, without rewards and actions; done flags are kept."""
        return step_mdp(step, reward_keys=self.reward_keys, action_keys=self.action_keys)

    def reset_checked(
        self,
        tensordict: TensorDictBase | None,
        masks: Mapping[KeyPath, Tensor],
        kwargs: dict[str, Any],
    ) -> TensorDictBase:
        """Reset, then check the result and complete its flags, on a copy."""
        checks.check_request(masks, kwargs)
        if tensordict is not None:
            checks.check_started(self)
        self._num_moves += 1
        if self._resets_by_rows and not kwargs:
            mask = None if tensordict is None else masks[()].cpu().numpy()
            return self._one_column.reset(mask)
        root = self._own(self.raw_reset(tensordict, **kwargs))
        return self.layout.complete_reset(root, masks, waits=can_sync(self))

    def _own(self, returned: TensorDictBase) -> TensorDictBase:
        """Copy the structure of what a subclass returned; objects name no device, as roots do."""
        copy = copied(returned)
        return copy.clear_device_() if self.layout.has_objects else copy

    def raw_reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        """Call `_reset`; only kind and batch size of the result, and what is held, are checked."""
        held = HeldLeaves((tensordict, self.layout.shown))
        returned = self._reset(tensordict, **kwargs)
        held.check(f"{type(self).__name__}._reset")
        return checks.check_returned(self, returned, "reset")

    def raw_step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Call `_step`; only kind and batch size of the result, and what is held, are checked."""
        held = HeldLeaves((tensordict, self.layout.shown), (self._returned, self.layout.reward))
        returned = self._step(tensordict)
        held.check(f"{type(self).__name__}._step")
        self._returned = checks.check_returned(self, returned, "step")
        return self._returned

    def complete_step(self, after: TensorDictBase) -> TensorDictBase:
        """Check and complete the result of `raw_step`, on a copy."""
        checks.check_root(self, after)
        return self.layout.complete_step(
            self._own(after),
            waits=can_sync(self),
            agree=self.flags_agree,
            checks_values=self.check_values,
        )
