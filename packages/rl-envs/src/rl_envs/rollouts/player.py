"""The loop of rollouts, over whatever kind of steps an environment and a policy allow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import torch
from tensordict import TensorDictBase

from rl_envs.env import checks
from rl_envs.env.binding import grouped
from rl_envs.env.interface import Environment
from rl_envs.env.layout import EnvLayout
from rl_envs.env.rows import EnvRows
from rl_envs.rollouts.action_bounds import warn_of_narrow_actions
from rl_envs.rollouts.column_steps import ColumnSteps, why_not_columns, why_not_shown
from rl_envs.rollouts.deferred_transforms import apply_deferred, can_continue
from rl_envs.rollouts.device_steps import DeviceSteps, why_not_tensors
from rl_envs.rollouts.policy_plan import PolicyPlan, policy_plan
from rl_envs.rollouts.request import Goal, RolloutRequest
from rl_envs.rollouts.surplus import SurplusSteps
from rl_envs.rollouts.tensordict_steps import TensorDictSteps
from rl_layout import keys
from rl_tensordict import find, nest
from rl_tensordict.arguments import check_calls, check_type
from rl_tensordict.types import Array, KeyPath
from rl_transforms import Transform


class StepLoop(Protocol):
    """Takes the steps of a rollout, and holds them."""

    keeps_root: bool  # whether the root after the last step is made, too

    def start(self, root: Any, goal: Goal) -> int:
        """Begin at a root, or with a reset; returns how many steps are there already."""

    def act(self, t: int) -> None:
        """Let the policy act on the root of step t."""

    def step(self, t: int) -> bool:
        """Take step t; returns whether a row may be done."""

    def advance(self, t: int) -> None:
        """Make the root after step t; rows that are done are reset."""

    def done(self, t: int) -> tuple[Array, Any]:
        """The rows that step t has ended, bool `[rows]`, and the length of each row by then."""

    def is_over(self, t: int) -> bool:
        """Whether t steps are enough for what the goal asks of each row."""

    def at(self, t: int) -> TensorDictBase:
        """Step t, for a callback."""

    def batch(self, num_steps: int, *, set_truncated: bool = False) -> TensorDictBase:
        """The batch `[*B, T]`; on request its last step is marked as truncated."""


def play_steps(
    env: Environment,
    steps: StepLoop,
    request: RolloutRequest,
    root: Any,
) -> TensorDictBase:
    """Play until every row has its steps; returns the batch `[*B, T]`."""
    num_steps = take_steps(env, steps, request, root, Goal(request))
    return steps.batch(num_steps, set_truncated=request.set_truncated)


def take_steps(
    env: Environment, steps: StepLoop, request: RolloutRequest, root: Any, goal: Goal
) -> int:
    """Play until every row has its steps; returns how many there are."""
    breaks = request.breaks
    t = steps.start(root, goal)
    is_over = steps.is_over(t)
    while not is_over:
        steps.act(t)
        may_be_done = steps.step(t)
        if breaks and may_be_done:
            goal.note(*steps.done(t))
        if request.callback is not None:
            request.callback(env, steps.at(t))
        t += 1
        is_over = steps.is_over(t)
        if steps.keeps_root or not is_over:
            steps.advance(t - 1)
    return t


class SetUp(NamedTuple):
    """What a batch is written into, and the transforms that wait for it."""

    steps: ColumnSteps
    deferred: list[Transform]
    waiting: list[Transform]  # for finished rows
    # the request that it was made for
    request: RolloutRequest
    goal: Goal | None  # of one that does not break, which is the same for each batch
    layout: EnvLayout
    ways: list[tuple[bool, bool]]
    has_root: bool  # whether a root was given


class RolloutPlayer:
    """An environment and a policy, which play batch after batch.

    What does not change from batch to batch is set up once: the calls of the policy, the columns
    that steps are written into, and the environment's binding to them.

    Args:
        env: the environment.
        policy: adds the action to a root; random actions where None.
        is_kept: whether several batches will be played. Columns of moderate size are then used
            again, and each batch is a copy of them; rows that its last step ends are reset then.

    Raises:
        TypeError: it is no environment, or the policy cannot be called.

    Example:
        >>> from rl_envs.testing import CountingEnv
        >>> env = CountingEnv(max_steps=3)
        >>> player = RolloutPlayer(env)
        >>> player.play(RolloutRequest(2)).shape, player.play(RolloutRequest(5)).shape
        (torch.Size([2]), torch.Size([3]))
        >>> player.explain(RolloutRequest(2))
        'through tensordicts: CountingEnv writes no rows itself, and the host reads its values'
    """

    def __init__(self, env: Environment, policy: Any = None, *, is_kept: bool = True) -> None:
        check_type("env", env, EnvRows, "an environment")
        check_calls(policy=policy)
        self.env = env
        self.policy = env.random_policy if policy is None else policy
        warn_of_narrow_actions(env, getattr(policy, "policy", policy))  # a plan holds its policy
        self._is_kept, self._no_grad = is_kept, torch.no_grad()
        self._plan: PolicyPlan | None = None
        self._columns: ColumnSteps | None = None
        self._parts_of: Any = None  # the layout that the parts are of
        self._parts: dict[object, tuple[Environment, list[Transform]]] = {}
        self._set_up: SetUp | None = None  # of the last batch, where its columns are kept

    def explain(self, request: RolloutRequest, root: TensorDictBase | None = None) -> str:
        """Say how steps are taken, and why in no faster way.

        Args:
            request: what is asked for.
            root: the root to begin with.

        Returns:
            A line that begins with "in place", "on tensors" or "through tensordicts".

        Example:
            >>> from rl_envs import GymEnv
            >>> RolloutPlayer(GymEnv("CartPole-v1")).explain(RolloutRequest(2))
            'in place: the environment writes its rows into the columns of the batch'
        """
        reason = why_not_columns(self.env, request, root)
        if not reason:
            return "in place: the environment writes its rows into the columns of the batch"
        other = why_not_tensors(self.env, request, self._refreshed, root)
        if not other:
            return f"on tensors, without a look at their values: {reason}"
        return f"through tensordicts: {reason}, and {other}"

    def play(self, request: RolloutRequest, root: TensorDictBase | None = None) -> TensorDictBase:
        """Play a batch.

        Args:
            request: how many steps, and when to stop.
            root: the root `[*B]` to begin with; a reset where None, or the surplus steps of the
                last batch where the request continues.

        Returns:
            A batch `[*B, T]`, the last dimension named `"time"`, without gradients.

        Raises:
            KeyError: the policy reads a key that the environment lacks, or writes no action.
            RuntimeError: the environment is closed.

        Example:
            >>> from rl_envs.testing import CountingEnv
            >>> player = RolloutPlayer(CountingEnv())
            >>> player.play(RolloutRequest(2))["observation"].flatten().tolist()
            [0.0, 1.0]
        """
        self.env.count_move()  # one for the whole rollout
        with self._no_grad:
            return self._played(request, root)

    def play_in_columns(self, request: RolloutRequest) -> Mapping[KeyPath, Array] | None:
        """Play a batch whose steps stay in the columns, where one like it was played before.

        Args:
            request: how many steps; it continues the last batch.

        Returns:
            The steps as arrays `[*B, T, ...]` by key, which the next batch overwrites;
            `copy_columns` makes a batch of them. None if nothing was played, and `play` is to be
            called: of the first batches, or where transforms wait for the batch.

        Raises:
            RuntimeError: the environment is closed.

        Example:
            >>> from rl_envs import GymEnv
            >>> player = RolloutPlayer(GymEnv("CartPole-v1"))
            >>> request = RolloutRequest(3, break_when_any_done=False, continues=True)
            >>> player.play_in_columns(request) is None
            True
            >>> _ = player.play(request)
            >>> player.play_in_columns(request)["next", "reward"].shape
            (3, 1)
            >>> player.copy_columns(3).shape
            torch.Size([3])
        """
        # columns that hold a root are of an environment without transforms that wait
        kept = self._kept_for(request, None) if self.can_continue(request) else None
        if kept is None or kept.goal is None:
            return None
        env, steps = self.env, kept.steps
        env.count_move()
        with self._no_grad:
            num_steps = take_steps(env, steps, request, None, kept.goal)
            env.is_started, env.reached = True, None
            if env.check_values:
                steps.check(num_steps)
        return steps.columns.first(num_steps)

    def copy_columns(self, num_steps: int) -> TensorDictBase:
        """Copy the steps that the columns hold.

        Args:
            num_steps: how many, as were played.

        Returns:
            A batch `[*B, T]`, the last dimension named `"time"`.

        Raises:
            RuntimeError: they hold none, since steps were not written in place.
        """
        if self._columns is None:
            msg = "no steps are in columns: play() returns its batch."
            raise RuntimeError(msg)
        return self._columns.batch(num_steps)

    def root_after(self, batch: TensorDictBase) -> TensorDictBase:
        """Make the root that follows the last batch; rows that are done are reset.

        Args:
            batch: `[*B, T]`, what `play` has returned last.

        Returns:
            A root `[*B]` that owns its memory. Where steps are written in place it holds what the
            environment shows, otherwise what `step_mdp` keeps of the step.

        Raises:
            RuntimeError: the environment is closed, or resets rows while others step.

        Example:
            >>> from rl_envs.testing import CountingEnv
            >>> player = RolloutPlayer(CountingEnv())
            >>> root = player.root_after(player.play(RolloutRequest(2)))
            >>> root["observation"].item()
            2.0
        """
        env = self.env
        if env.resets_by_stepping:
            msg = f"this {type(env).__name__} keeps its own root: let the request continue."
            raise RuntimeError(msg)
        check_type("batch", batch, TensorDictBase, "a batch that was played")
        if self.holds_root:  # rows that are done were reset already
            return self.next_root()
        reached = batch if env.reached is None else env.reached.unsqueeze(-1)
        if not env.native_rows:
            return env.maybe_reset(env.next_root(reached[..., -1])).clone()
        # there a policy reads what the environment shows, nothing else
        time = len(env.batch_size)
        found = {key: find(reached, (keys.NEXT, *key)) for key, _ in env.layout.shown}
        last = {k: leaf.select(time, -1).clone() for k, leaf in found.items() if leaf is not None}
        return env.maybe_reset(grouped(nest(last), env.batch_size, env.layout.group_sizes))

    def _played(self, request: RolloutRequest, root: TensorDictBase | None) -> TensorDictBase:
        env, kept = self.env, self._kept_for(request, root)
        if kept is not None:
            return self._write_columns(kept, root)
        check_type("request", request, RolloutRequest, "a RolloutRequest")
        checks.check_open(env)
        own = env.own_steps(request, self.policy, root)
        if own is None and not why_not_columns(env, request, root):
            return self._play_columns(request, root)
        if self._columns is not None:
            self._columns.has_next_root = False
        if own is not None:
            return play_steps(env, own, request, root)
        if not why_not_tensors(env, request, self._refreshed, root):
            steps: StepLoop = DeviceSteps(env, self._plan)
        else:
            steps = TensorDictSteps(env, self.policy)
        batch = play_steps(env, steps, request, root)
        waiting = self._split(None)[1]
        env.reached = batch[..., -1] if waiting else None
        return apply_deferred(waiting, batch)

    def can_continue(self, request: RolloutRequest) -> bool:
        """Whether a batch can begin with the root that the columns hold.

        Args:
            request: what is asked for.

        Returns:
            True where `play(request)` needs no root to continue.
        """
        kept = self._columns
        return (
            kept is not None
            and kept.has_next_root
            and request.continues
            and kept.fits(self.env, request)
        )

    @property
    def holds_root(self) -> bool:
        """Whether the columns hold the root after the last batch."""
        return self._columns is not None and self._columns.has_next_root

    @property
    def arrays(self) -> Mapping[KeyPath, Array]:
        """The columns `[*B, room, ...]` that the last batch is a copy of; empty if it is no copy.

        Returns:
            Arrays by key, whose first steps are those of the batch. The next batch overwrites them.
        """
        return {} if self._columns is None else self._columns.columns.arrays

    def next_root(self) -> TensorDictBase:
        """Copy the root `[*B]` that the columns hold.

        Returns:
            What the environment shows after the last batch, rows that were done reset.

        Raises:
            RuntimeError: they hold none, since steps were not written in place.

        Example:
            >>> from rl_envs import GymEnv
            >>> player = RolloutPlayer(GymEnv("CartPole-v1"))
            >>> _ = player.play(RolloutRequest(3, break_when_any_done=False))
            >>> player.holds_root, player.next_root()["observation"].shape
            (True, torch.Size([4]))
        """
        if self._columns is None or not self.holds_root:
            msg = "the columns hold no root: make it of the last step, by env.next_root()."
            raise RuntimeError(msg)
        return self._columns.next_root()

    def _refreshed(self) -> PolicyPlan | None:
        """The policy's calls, listed anew where parts of it were replaced."""
        if self._plan is not None:
            self._plan.refresh()
        elif self.policy is not None:
            self._plan = policy_plan(self.policy)
        return self._plan

    def _kept_for(self, request: RolloutRequest, root: TensorDictBase | None) -> SetUp | None:
        """What the last batch was played with, where another one would be set up likewise."""
        kept = self._set_up
        if kept is None or request is not kept.request or self.env.is_closed:
            return None
        is_same = self.env.layout is kept.layout and self._ways() == kept.ways
        if (root is not None) is not kept.has_root or not is_same or not kept.steps.is_bound:
            return None
        if root is not None and why_not_shown(self.env, root):
            return None
        return kept if kept.steps.suits(self._refreshed()) else None

    def _play_columns(self, request: RolloutRequest, root: TensorDictBase | None) -> TensorDictBase:
        env, plan = self.env, self._refreshed()
        if self._columns is not None and not self._columns.suits(plan):
            if root is None and self.can_continue(request):
                root = self._columns.next_root()
            self._columns = None
        leftover = env.leftover if request.continues else None
        stepping, deferred = self._split([] if plan is None else plan.in_keys)
        if leftover is not None:
            whole = leftover.is_whole
        else:
            whole = root is not None and not can_continue(deferred)
        if whole:
            stepping, deferred = self._split(None)
        # else transforms add to the root what the environment that steps does not show
        has_root = stepping is env and not len(deferred)
        set_up = SetUp(
            self._steps_for(stepping, request, has_root),
            [one for one in deferred if not one.rows_only],
            [one for one in deferred if one.rows_only],
            request,
            None if request.breaks else Goal(request),
            env.layout,
            self._ways(),
            root is not None,
        )
        self._set_up = set_up if set_up.steps.is_kept else None
        return self._write_columns(set_up, root, leftover)

    def _write_columns(
        self, set_up: SetUp, root: TensorDictBase | None, leftover: SurplusSteps | None = None
    ) -> TensorDictBase:
        env, steps, waiting = self.env, set_up.steps, set_up.waiting
        begun = root if leftover is None else leftover
        request = set_up.request
        num_steps = take_steps(env, steps, request, begun, set_up.goal or Goal(request))
        batch = steps.batch(num_steps, set_truncated=request.set_truncated)
        env.is_started = True
        if env.check_values:
            steps.check(batch.shape[-1], batch)
        if set_up.deferred:
            before = None if leftover is None else leftover.last
            batch = apply_deferred(set_up.deferred, batch, root, before)
        env.reached = batch[..., -1] if waiting else None
        if steps.leftover is not None:
            last, is_whole = batch[..., -1].clone(), steps.env is env
            env.leftover = replace(steps.leftover, last=last, is_whole=is_whole)
        return apply_deferred(waiting, batch) if waiting else batch

    def _ways(self) -> list[tuple[bool, bool]]:
        # a transform may wait, and may learn to count, after it was added
        return [(one.online, one.rows_only) for one in self.env.outer]

    def _split(self, in_keys: list[KeyPath] | None) -> tuple[Environment, list[Transform]]:
        """The environment to step and the transforms that wait, while its specs stay."""
        if self._parts_of is not self.env.layout:
            self._parts_of, self._parts = self.env.layout, {}
        names = None if in_keys is None else tuple(in_keys), *self._ways()
        if names not in self._parts:
            stepping, deferred = self.env.split(in_keys)
            self._parts[names] = stepping, list(deferred)
        return self._parts[names]

    def _steps_for(self, env: Environment, request: RolloutRequest, has_root: bool) -> ColumnSteps:
        kept = self._columns
        if kept is None or not kept.fits(env, request):
            is_kept = self._is_kept and (self._plan is None or self._plan.is_flat)
            kept = ColumnSteps(env, self._plan, request, is_kept=is_kept, has_root=has_root)
            self._columns = kept if kept.is_kept else None
        return kept
