"""The steps themselves: an environment and a policy, from batch to batch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import InteractionType, set_interaction_type
from torch import Tensor

from rl_collect.inputs.random_actions import RandomActions
from rl_envs import EnvBase, PolicyPlan, RolloutPlayer, RolloutRequest, policy_plan
from rl_layout import keys
from rl_tensordict.types import Array, KeyPath


class EnvRunner:
    """Plays batches, each of which begins where the one before stopped."""

    def __init__(
        self,
        env: EnvBase,
        policy: Any,
        exploration_type: InteractionType = InteractionType.RANDOM,
        *,
        is_profiled: bool = False,
    ) -> None:
        self.env = env
        self._shown = [*env.observation_spec.keys(True, True), *env.full_done_spec.keys(True, True)]
        self.plan: PolicyPlan | None = None if policy is None else policy_plan(policy)
        self._player = self._random = RolloutPlayer(env, self.plan)
        if self.plan is not None:
            self.plan.profile = "rl_collect.policy" if is_profiled else ""
            # random actions in the place of the policy's
            self._random = RolloutPlayer(env, policy_plan(RandomActions(self.plan, env)))
        self._exploration = set_interaction_type(exploration_type)
        self._root: TensorDictBase | None = None
        self._holder: RolloutPlayer | None = None  # whose columns hold the root instead
        self._is_playing = False
        self._moves = 0  # of the environment, when the root was made

    @property
    def env_was_moved(self) -> bool:
        """Whether somebody else moved the environment since it was last played here."""
        # one that is not locked keeps its state in the root
        return self._is_playing and self.env.batch_locked and self.env.moves != self._moves

    @property
    def has_copied(self) -> bool:
        """Whether the last batch is a copy of columns, which lie on the CPU."""
        return self._holder is not None

    @property
    def columns(self) -> Mapping[KeyPath, Array]:
        """Arrays `[*B, room, ...]` that the last batch is a copy of; empty if it is no copy."""
        return {} if self._holder is None else self._holder.arrays

    @property
    def root(self) -> TensorDictBase | None:
        """The root that the next step starts from; None if that is a reset."""
        if self._holder is not None:
            self._root, self._holder = self._holder.next_root(), None
        return self._root

    def reset(self) -> None:
        """Let the next batch begin with a reset of every environment."""
        self._root, self._holder, self._is_playing = None, None, False

    def play(self, num_steps: int, *, at_random: bool = False) -> TensorDictBase:
        """Play a batch."""
        player = self._random if at_random else self._player
        request = _request(num_steps, self._is_playing)
        root = None if player is self._holder and player.can_continue(request) else self.root
        with self._exploration:
            batch = player.play(request, root)
            self._is_playing, self._root, self._holder = True, None, player
            if not player.holds_root:
                self._holder = None
                if not self.env.resets_by_stepping:
                    with torch.no_grad():
                        self._root = player.root_after(batch)
        self._moves = self.env.moves
        return batch

    def play_in_columns(self, num_steps: int) -> Mapping[KeyPath, Array] | None:
        """Play a batch whose steps stay in arrays `[*B, T, ...]`; None if none was played."""
        request, player = _request(num_steps, self._is_playing), self._player
        if player is not self._holder or not player.can_continue(request):
            return None
        with self._exploration:
            arrays = player.play_in_columns(request)
        self._moves = self.env.moves
        return arrays

    def copy_columns(self, num_steps: int) -> TensorDictBase:
        """The batch that `play_in_columns` has played."""
        return self._player.copy_columns(num_steps)

    def explain(self, num_steps: int) -> str:
        """Say how steps are taken, and why in no faster way."""
        root = None if self._holder is self._player else self.root
        return self._player.explain(_request(num_steps, self._is_playing), root)

    def note_moves(self) -> None:
        """Note that the root is that of the environment's present state."""
        self._moves = self.env.moves

    def mark_first(self, rows: Tensor) -> None:
        """Let the next step begin a trajectory in some environments that continue."""
        if self.env.leftover is not None:
            self.env.leftover.mark_first_steps(rows)
        if keys.IS_INIT in self._shown and self.root is not None:
            flag = self.root.get(keys.IS_INIT)
            self.root.set(keys.IS_INIT, flag | rows.to(flag.device).reshape(flag.shape))

    def state_dict(self) -> dict[str, Any]:
        """The runner's state, to save."""
        root = None if self.root is None else self.root.clone().to_dict()
        return {"root": root, "is_playing": self._is_playing}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        self._root = None if state["root"] is None else self._rebuilt(state["root"])
        self._holder = None
        self._is_playing = state["is_playing"]

    def _rebuilt(self, saved: dict[str, Any]) -> TensorDictBase:
        """A root whose nested tensordicts have the batch sizes that the environment gives them."""
        values = TensorDict(saved, self.env.batch_size)
        shape = self.env.fake_tensordict().select(*values.keys(True, True), strict=False)
        for key, value in keys.leaves(values):
            shape.set(key, value.clone())
        return shape


@lru_cache
def _request(num_steps: int, continues: bool) -> RolloutRequest:
    return RolloutRequest(num_steps, break_when_any_done=False, continues=continues)
