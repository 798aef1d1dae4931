"""An environment seen through transforms."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
from tensordict import TensorDict, TensorDictBase

from rl_envs.env import checks
from rl_envs.env.arrays import RowArrays
from rl_envs.env.binding import OneColumn, RowBinding
from rl_envs.env.done import RESET
from rl_envs.env.env import EnvBase
from rl_envs.env.foreign import require_env
from rl_envs.env.forwarding import attributes_of, is_own
from rl_envs.env.interface import Binding
from rl_envs.env.metaclass import EnvType
from rl_envs.env.partial_reset import mask_of, merge, reset_masks, without_masks
from rl_envs.env.rows import EnvRows
from rl_envs.rollouts.deferred_transforms import defer_independent, split_for
from rl_envs.transformed.binding import TransformedBinding, pass_step
from rl_envs.transformed.driven_env import DrivenEnv
from rl_envs.transformed.snapshot import TransformSnapshot
from rl_layout import keys
from rl_tensordict.arguments import check_type
from rl_transforms import (
    ActionMask,
    Compose,
    Driver,
    EndOfLife,
    ObservationNorm,
    Place,
    StepCounter,
    Transform,
)

GivenTransform = Transform | Callable[[TensorDictBase], TensorDictBase]


class TransformedEnv(EnvBase):
    """An environment whose data passes transforms: outputs in order, inputs in reverse.

    A `TransformedEnv` inside a `TransformedEnv` is flattened into one, with all transforms in a
    row. Entries that the policy writes under `"next"` pass the transforms as well, but none of them
    can drop these.

    A transform that takes steps of its own (`FrameSkip`, `NoopReset`) drives the environment with
    the transforms in front of it.

    Args:
        base_env: any environment.
        *transforms: transforms, `Compose` among them, or callables on a tensordict, in the order
            in which outputs pass them; None for none yet.
        transform: one more, the last.

    Attributes:
        base_env: the environment inside, without transforms.
        transforms: what its data passes.

    Raises:
        TypeError: it is no environment.
        ValueError: a transform cannot sit in an environment.

    Example:
        >>> from rl_transforms import StepCounter
        >>> from rl_envs.testing import CountingEnv
        >>> env = TransformedEnv(CountingEnv(5), StepCounter(max_steps=2))
        >>> env.rollout(9)["next", "truncated"].flatten().tolist()
        [False, True]
    """

    base_env: EnvBase
    transforms: Compose

    def __init__(
        self,
        base_env: EnvBase,
        *transforms: GivenTransform | None,
        transform: GivenTransform | None = None,
    ) -> None:
        _check_env(base_env)
        given: list[GivenTransform] = [one for one in (*transforms, transform) if one is not None]
        if isinstance(base_env, TransformedEnv):
            given = [*base_env.transforms, *given]
            started, base_env = base_env.is_started, base_env.base_env
        else:
            started = base_env.is_started
        super().__init__(device=base_env.device, batch_size=base_env.batch_size)
        self.base_env = base_env
        self.batch_locked = base_env.batch_locked
        self.check_values = base_env.check_values
        self.resets_by_stepping = base_env.resets_by_stepping
        self.marks_missing = base_env.marks_missing
        self._split: dict[tuple[int, ...], tuple[EnvBase, Compose]] = {}
        # an environment that continues without a reset lacks what the transforms write at one
        self.is_started = started and not given
        self.transforms = Compose(*_unpacked(given))
        self._describe()

    def append_transform(self, transform: GivenTransform) -> TransformedEnv:
        """Add a transform after the others, in place.

        Args:
            transform: a transform, or a callable on a tensordict.

        Returns:
            The environment itself. It must be reset before its next step.

        Raises:
            ValueError: it cannot sit in an environment.

        Example:
            >>> from rl_transforms import InitTracker
            >>> from rl_envs.testing import CountingEnv
            >>> env = TransformedEnv(CountingEnv()).append_transform(InitTracker())
            >>> env.reset()["is_init"].item()
            True
        """
        return self.insert_transform(len(self.transforms), transform)

    def insert_transform(self, index: int, transform: GivenTransform) -> TransformedEnv:
        """Add a transform ahead of the one at a place, in place.

        Args:
            index: the place, from 0 (nearest to the environment) to the number of transforms.
            transform: a transform, or a callable on a tensordict.

        Returns:
            The environment itself. It must be reset before its next step.

        Raises:
            IndexError: there is no such place.
            ValueError: it cannot sit in an environment.

        Example:
            >>> from rl_transforms import InitTracker, StepCounter
            >>> from rl_envs.testing import CountingEnv
            >>> env = TransformedEnv(CountingEnv(), StepCounter())
            >>> type(env.insert_transform(0, InitTracker()).transforms[0]).__name__
            'InitTracker'
        """
        check_type("index", index, int, "a place, a whole number")
        if not 0 <= index <= len(self.transforms):
            msg = f"expected a place from 0 to {len(self.transforms)}: got {index}."
            raise IndexError(msg)
        members: list[GivenTransform] = list(self.transforms)
        Compose(transform).check_place("environment")
        members[index:index] = _unpacked([transform])
        self.transforms = Compose(*members)
        self._split.clear()
        self._describe()
        self.is_started = False
        return self

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed the environment inside, and transforms that step it."""
        return self._inner.set_seed(seed, static_seed)

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Add random actions to a root, as an `ActionMask` allows.

        Args:
            tensordict: a root `[*B]`; an empty one where None, unless actions are masked.

        Returns:
            A new tensordict with the actions.

        Raises:
            RuntimeError: actions are masked, and the environment was not reset yet.
            ValueError: actions are masked, and there is no root to read the mask from.

        Example:
            >>> from rl_envs.testing import CountingEnv
            >>> TransformedEnv(CountingEnv()).rand_action()["action"].shape
            torch.Size([2])
        """
        acted = super().rand_action(tensordict)
        if self._masks:
            checks.check_started(self)
            if tensordict is None:
                msg = "random actions obey a mask here: pass the root that holds it."
                raise ValueError(msg)
        for one in self._masks:
            assert tensordict is not None
            acted.set(one.action_key, one.rand(tensordict, self.full_action_spec))
        return acted

    @property
    def transform(self) -> Compose:
        """The same as `transforms`."""
        return self.transforms

    def __getattr__(self, name: str) -> Any:
        if is_own(self, name) or "base_env" not in vars(self):
            return object.__getattribute__(self, name)
        (found,) = attributes_of(type(self).__name__, [self.base_env], name)
        return found

    @property
    def random_policy(self) -> Any:
        """What acts where no policy is given: `rand_action` where masks say what is allowed."""
        return self.rand_action if self._masks else None

    @property
    def inner(self) -> EnvBase:
        """The environment inside the outer transforms; a driver may step it."""
        return self._inner

    @property
    def outer(self) -> Compose:
        """The transforms of steps and resets, without the drivers of the inner environment."""
        return self._outer

    @property
    def _inside(self) -> Sequence[EnvBase]:
        return (self._inner,)

    def check_place(self, place: Place) -> None:
        """Raise for a place that a transform here, or further in, cannot work in."""
        self.transforms.check_place(place)
        self.base_env.check_place(place)

    @property
    def leftover(self) -> Any:
        """Steps after the end of the last rollout, where the environment inside has such."""
        return self._inner.leftover

    @leftover.setter
    def leftover(self, leftover: Any) -> None:
        self._inner.leftover = leftover

    def split(self, in_keys: Sequence[tuple[str, ...]] | None) -> tuple[EnvBase, Compose]:
        """Split into what must run at every step and what can be computed on finished rows.

        A policy of unknown keys may read all that the environment shows.
        """
        waiting = Compose(*[one for one in self._outer if one.rows_only])
        if in_keys is None or not self._has_steps_of(TransformedEnv) or self.has_steps_set():
            return self, waiting
        inner, deferred = self._parts(in_keys)
        gone = {key for key, _ in self.layout.observation}
        gone -= {key for key, _ in inner.layout.observation}
        gone |= {keys.as_tuple(k) for one in deferred if not one.rows_only for k in one.out_keys}
        return (self, waiting) if gone & set(in_keys) else (inner, deferred)

    def _parts(self, in_keys: Sequence[tuple[str, ...]]) -> tuple[EnvBase, Compose]:
        """The environment after the transforms that must step, and the others."""
        stepping, waiting = defer_independent(*split_for(self._outer, in_keys))
        place = tuple(id(one) for one in stepping)
        if place not in self._split:
            inner = TransformedEnv(self._inner, Compose(*stepping)) if stepping else self._inner
            self._split[place] = inner, Compose(*waiting)
        return self._split[place]

    def bind(self, root: RowArrays, after: RowArrays) -> Binding:
        """Bind the columns `[*B, T, ...]` of a batch, of what comes out of the transforms."""
        if self.resets_by_stepping:
            self._refuse_steps_unlike(TransformedEnv)
        elif not self._own_rows or self.has_steps_set():
            return RowBinding(self, root, after)
        return TransformedBinding(self, root, after)

    def bind_step(self, root: RowArrays, after: RowArrays) -> Binding:
        """Bind columns of one step; done flags of groups alone go through tensordicts."""
        if self.done_groups != [()]:
            return RowBinding(self, root, after)
        return self.bind(root, after)

    @property
    def _one_column(self) -> OneColumn:
        """A binding of one step, which holds what the transforms held when it was made."""
        settings = TransformSnapshot(self._outer)
        held: Any = self.__dict__.get("_one_column")
        if held is None or not settings.agree(held[0]):
            bind = partial(TransformedBinding, self, checks_inner=True)
            held = self.__dict__["_one_column"] = settings, OneColumn(self, bind)
        column: OneColumn = held[1]
        return column

    def binding_settings(self) -> TransformSnapshot | None:
        """What the transforms hold, where the environment inside is bound to its columns alone."""
        return TransformSnapshot(self._outer) if self._inner.reads_actions_only else None

    def _steps_by_rows(self, root: TensorDictBase) -> bool:
        base = self._inner
        is_native = self.native_rows and base.native_rows and base.reads_actions_only
        is_native = is_native and self.layout.fits_arrays
        if not is_native or not self._passes_rows or self.has_steps_set() or base.has_steps_set():
            return False
        column = self._one_column
        return cast("TransformedBinding", column.binding).is_numpy() and column.takes(root)

    def _describe(self) -> None:
        """Derive the specs, in the order that transforms rely on."""
        self.transforms.check_place("environment")
        self._inner, self._outer = wrap_drivers(self.base_env, self.transforms)
        self._masks: list[ActionMask] = list(getattr(self.base_env, "_masks", ()))
        self._masks += [one for one in self.transforms if isinstance(one, ActionMask)]
        self.mask_keys = [one.mask_key for one in self._masks]
        for one in self.transforms:
            one.attach(self.base_env)
            if isinstance(one, ObservationNorm):  # which may ask for rows to take statistics of
                one.draw_rows = partial(_rows_before, weakref.ref(self), one)
        change, base = self._outer, self._inner
        self.flags_agree = base.flags_agree and all(map(_keeps_flags_equal, self.transforms))
        if base.resets_by_stepping:
            checks.check_limits(change)
        # what a reset is given travels in a tensordict
        is_asked = any(getattr(one, "call_before_env_reset", False) for one in change)
        self._own_rows = self._has_steps_of(TransformedEnv) or base.resets_by_stepping
        self.native_rows = base.native_rows and not is_asked and self._own_rows
        # whether steps by hand are those of rows, for this class and for the environment inside
        own, kind = TransformedEnv, type(self)
        is_own = kind._step is own._step and kind.step_through is own.step_through
        is_plain = type(base).bind_step is EnvRows.bind_step and base.done_groups == [()]
        self._passes_rows = is_own and is_plain
        self.reward_spec = change.transform_reward_spec(base.full_reward_spec)
        self.done_spec = change.transform_done_spec(base.full_done_spec)
        self.observation_spec = change.transform_observation_spec(base.observation_spec)
        self.action_spec = change.transform_action_spec(base.full_action_spec)
        self.state_spec = change.transform_state_spec(base.state_spec)

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        if tensordict is None:
            asked = self._outer.before_reset(TensorDict({}, self.batch_size))
            if asked.is_empty():
                return self._outer.reset(self._inner.reset(**kwargs))
            whole = torch.ones(*self.batch_size, 1, dtype=torch.bool, device=self.device)
            self._inner.is_started = True  # every row is about to be
            raw = self._inner.reset_checked(asked.copy().set(RESET, whole), {(): whole}, kwargs)
            return self._outer.reset(asked.update(raw))
        masks = reset_masks(tensordict, self.done_groups, self.batch_size)
        rows = mask_of(masks, ()).squeeze(-1)
        asked = self._outer.before_reset(tensordict, rows)
        raw = self._inner.reset_checked(asked, masks, kwargs)
        # rows that continue keep what the root holds, which has passed the transforms already
        root = merge(without_masks(asked, masks), raw, masks)
        return self._outer.reset(root, rows)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self.step_through(tensordict, lambda env, raw: env.step(raw).get(keys.NEXT))

    def step_through(
        self,
        tensordict: TensorDictBase,
        step: Callable[[EnvBase, TensorDictBase], TensorDictBase],
    ) -> TensorDictBase:
        """Pass a root to a step of the environment inside, and what comes back to the outside."""
        check_type("tensordict", tensordict, TensorDictBase, "a root as a tensordict")
        check_type("step", step, Callable, "a function that steps an environment")
        inner = self._outer.inv(tensordict)
        if inner is None:
            msg = "a transform returned nothing for the environment: it belongs in a buffer."
            raise RuntimeError(msg)
        given = tensordict.get(keys.NEXT, None)
        return pass_step(self._outer, tensordict, step(self._inner, inner), given)

    def _get_state(self) -> dict[str, Any]:
        return {
            "base": self._inner.state_dict(),
            "transforms": dict(self._outer.state_dict()),
            "names": self._names,
        }

    def _set_state(self, state: Mapping[str, Any]) -> None:
        if state["names"] != self._names:
            msg = f"the state is of the transforms {state['names']}: expected {self._names}."
            raise ValueError(msg)
        self._inner.load_state_dict(state["base"])
        self._outer.load_state_dict(state["transforms"])

    def _to(self, device: torch.device) -> None:
        self.base_env.to(device)
        self.transforms.to(device)
        self.device = device
        self._split.clear()
        self._describe()

    def _close(self) -> None:
        self._inner.close()

    def __repr__(self) -> str:
        return f"TransformedEnv({self.base_env!r}, [{', '.join(self._names)}])"

    @property
    def _names(self) -> list[str]:
        return [type(one).__name__ for one in self.transforms]


def _rows_before(
    reference: weakref.ref[TransformedEnv], transform: Transform, steps: int
) -> TensorDictBase:
    """Play steps of random actions, through the transforms in front of one of them."""
    env = reference()
    if env is None:
        msg = "the environment of this transform is gone: pass rows, as env.rollout(1000)."
        raise RuntimeError(msg)
    place = next(i for i, one in enumerate(env.transforms) if one is transform)
    inner = TransformedEnv(env.base_env, *list(env.transforms)[:place])
    env.is_started = False
    return inner.rollout(steps, break_when_any_done=False)


def _keeps_flags_equal(one: Transform) -> bool:
    if not isinstance(one, StepCounter) or one.max_steps is None:
        return True
    return one.update_done or one.marks_limit


def _check_env(thing: Any) -> None:
    require_env(thing, EnvBase, "expected an environment")


def _unpacked(given: list[GivenTransform]) -> Iterator[GivenTransform]:
    for one in given:
        if isinstance(one, Compose):
            yield from _unpacked(list(one))
        else:
            yield one


def wrap_drivers(base: EnvBase, transforms: Compose) -> tuple[EnvBase, Compose]:
    """Wrap an environment in a `DrivenEnv` for each `Driver`; returns the other transforms too."""
    # reset drivers act on the environment itself; a step driver on it and the transforms before
    members = list(transforms)
    drivers = {place: one for place, one in enumerate(members) if isinstance(one, Driver)}
    if not drivers:
        return base, transforms
    skips = [place for place, one in drivers.items() if one.drives == "step"]
    if len(skips) > 1:
        names = [type(members[place]).__name__ for place in skips]
        msg = f"expected one transform that makes a step of several: got {names}. Make them one."
        raise ValueError(msg)
    for one in drivers.values():  # what follows a reset is nearest to the environment
        base = DrivenEnv(base, one) if one.drives == "reset" else base
    first = skips[0] if skips else 0
    before, after = (
        [one for one in part if not isinstance(one, Driver)]
        for part in (members[:first], members[first:])
    )
    if skips:
        skip = drivers[first]
        if any(isinstance(one, EndOfLife) for one in before):
            msg = f"EndOfLife in front of {type(skip).__name__} would mark the lives of the last "
            raise ValueError(msg + "frame only: put it after.")
        base = DrivenEnv(TransformedEnv(base, Compose(*before)) if before else base, skip)
    return base, Compose(*after)


# EnvBase, which puts a transform around any environment, cannot import this module
EnvType.wrap = TransformedEnv
