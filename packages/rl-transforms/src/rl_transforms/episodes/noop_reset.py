"""No-op actions at the start of episodes."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_specs import Categorical, Composite, MultiCategorical, MultiOneHot, OneHot, TensorSpec
from rl_tensordict import CPU, NestedKey, as_key, as_tuple, device_of_data, draw_seed
from rl_tensordict.arguments import check_integer, check_whole
from rl_transforms.entries import with_entries
from rl_transforms.episodes.env_driver import Driven, Driver


class NoopReset(Driver):
    """Takes a random number of no-op steps, from 1 to `noops`, after every reset.

    Episodes then begin in different states. The base environment takes the steps, whatever the
    position of this transform: they are in no rollout, and trackers start after them. An episode
    that ends during these steps is reset, and the remaining steps follow. In a partial reset the
    other rows are not stepped.

    Each row draws its own number from a generator that `env.set_seed` seeds; otherwise torch's
    global generator seeds it at first use. The generator is part of `state_dict`.

    Args:
        noops: the largest number of steps, at least 1.
        random: take a random number; otherwise always `noops`.
        noop_action: a tensor of the shape of the environment's action, with or without batch
            dimensions, or a dict of them by key if there are several actions. None means the first
            choice of a discrete action.

    Raises:
        ValueError: `noops` is less than 1.

    Example:
        >>> NoopReset(noops=30).noops
        30
    """

    drives = "reset"

    def __init__(
        self,
        noops: int = 30,
        random: bool = True,
        *,
        noop_action: Tensor | dict[NestedKey, Tensor] | None = None,
    ) -> None:
        super().__init__()
        check_whole("noops", noops, 1, " Leave the transform out.")
        self.noops, self.random, self.noop_action = noops, random, noop_action
        self._state: Tensor | None = None  # of the generator, once it was used

    def drive_reset(
        self, env: Driven, root: TensorDictBase, mask: Tensor | None = None
    ) -> TensorDictBase:
        """Take no-op steps in the rows that were reset.

        Args:
            env: the environment.
            root: ``[*B]``, after its reset.
            mask: bool ``[*B]``, the rows that were reset; None if all were.

        Returns:
            The root after these steps.
        """
        actions = self.actions(env.full_action_spec)
        # steps still to take, int64 [*B]; drawn for all rows, so that no mask moves a draw
        left = self._drawn(env.batch_size)
        if mask is not None:
            left = left.masked_fill(~mask.cpu(), 0)
        while bool((rows := left > 0).any()):
            acted = with_entries(root, actions)
            after = env.step_rows(acted, rows)
            further = env.following(acted, after)
            # of the stepped rows only: the results of the others are arbitrary
            over = env.over(after) & rows.to(device_of_data(root))
            if bool(over.any()):
                further = env.reset_rows(further, over)
            root = env.merge(root, further, rows.to(device_of_data(root)))
            left = left - 1
        return root

    def actions(self, spec: Composite) -> dict[NestedKey, Tensor]:
        """Return the no-op actions.

        Args:
            spec: of all actions ``[*B]``.

        Returns:
            An action for each key.

        Raises:
            ValueError: an action is not discrete and has no `noop_action`; or `noop_action` is
                outside the spec of the action, or for no action.
        """
        names = list(spec.keys(include_nested=True, leaves_only=True))
        given = self.noop_action
        if not isinstance(given, dict):
            given = {} if given is None else {names[0]: given}
        known = {as_tuple(key): value for key, value in given.items()}
        for key in known.keys() - {as_tuple(name) for name in names}:
            msg = f"NoopReset: there is no action {as_key(key)!r}: there are {names}."
            raise ValueError(msg)
        made: dict[NestedKey, Tensor] = {}
        for name in names:
            made[name] = _action(name, spec[name], known.get(as_tuple(name)))
        return made

    def seed(self, seed: int) -> None:
        """Reseed the generator."""
        self._state = torch.Generator().manual_seed(check_integer("seed", seed)).get_state()

    def transform_action_spec(self, spec: Composite) -> Composite:
        """Raise for actions without a known no-op, before the first reset.

        Raises:
            ValueError: as for `actions`.
        """
        self.actions(spec)
        return spec

    def extra_repr(self) -> str:
        """Show the arguments."""
        return f"noops={self.noops}, random={self.random}"

    def _drawn(self, shape: torch.Size) -> Tensor:
        """Draw the number of steps of each row."""
        if not self.random:
            return torch.full(shape, self.noops, device=CPU)
        if self._state is None:
            self.seed(draw_seed())
        assert self._state is not None
        # made anew from its state, which can be copied and pickled
        generator = torch.Generator()
        generator.set_state(self._state)
        drawn = torch.randint(1, self.noops + 1, shape, generator=generator, device=CPU)
        self._state = generator.get_state()
        return drawn

    def get_extra_state(self) -> dict[str, Tensor]:
        """Return the state of the generator, if it was used."""
        return {} if self._state is None else {"generator": self._state.clone()}

    def set_extra_state(self, state: dict[str, Tensor]) -> None:
        """Restore the state of the generator."""
        self._state = state["generator"].clone() if state else None


def _action(name: NestedKey, spec: TensorSpec, given: Tensor | None) -> Tensor:
    """A no-op action of the shape of its spec."""
    if given is None:
        if isinstance(spec, MultiCategorical | MultiOneHot) or not isinstance(
            spec, Categorical | OneHot
        ):
            msg = (
                f"NoopReset: nothing says which {as_key(as_tuple(name))!r} does nothing, as the "
                f"first choice of a Categorical or OneHot would: it is a {type(spec).__name__}. "
                "Pass noop_action=."
            )
            raise ValueError(msg)
        first = torch.zeros(spec.shape, dtype=spec.dtype, device=spec.device)
        if isinstance(spec, OneHot):
            first[..., 0] = 1
        return first
    action = given.to(spec.device or "cpu")
    # an action may lack batch dimensions: its shape is then that of the last ones
    if action.dtype != spec.dtype or action.shape != spec.shape[spec.ndim - action.ndim :]:
        msg = (
            f"NoopReset: noop_action for {name!r}: expected {list(spec.shape)} or the last of "
            f"these, {spec.dtype}: got {list(action.shape)}, {action.dtype}."
        )
        raise ValueError(msg)
    whole = action.expand(spec.shape).clone()
    if not spec.is_in(whole):
        msg = f"NoopReset: noop_action {given.tolist()} for {name!r} is outside {spec}."
        raise ValueError(msg)
    return whole
