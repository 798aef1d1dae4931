"""Copies of networks that lag behind, and how they follow."""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from rl_value.losses.loss import LossModule

PREFIX = "target_"


class TargetUpdate:
    """Moves the target networks of a loss, one step at a time.

    Args:
        loss: has networks ``target_<name>`` beside its networks ``<name>``.

    Raises:
        RuntimeError: it has none.
    """

    def __init__(self, loss: LossModule) -> None:
        self.pairs = [
            (getattr(loss, name.removeprefix(PREFIX)), target)
            for name, target in loss.named_children()
            if name.startswith(PREFIX)
        ]
        if not self.pairs:
            msg = f"{type(loss).__name__} has no target network: make it with delay_value=True."
            raise RuntimeError(msg)

    @torch.no_grad()
    def init_(self) -> None:
        """Make every target network equal to its source."""
        for source, target in _tensors(self.pairs):
            target.copy_(source)


class SoftUpdate(TargetUpdate):
    """Moves target networks a little with each step: θ' ← ε θ' + (1 - ε) θ.

    (Lillicrap et al., arXiv:1509.02971, with τ = 1 - ε.) Numbers that are not floating point,
    as counts of batches, are copied.

    Args:
        loss: made with ``delay_value=True``.
        eps: share of the target that stays, in [0, 1]; 0.999 where nothing is given.
        tau: share of the source that comes in, instead.

    Raises:
        ValueError: both are given, or one lies outside [0, 1].
        RuntimeError: the loss has no target network.

    Example:
        >>> from rl_value import DQNLoss
        >>> from tensordict.nn import TensorDictModule
        >>> net = TensorDictModule(nn.Linear(2, 3), ["observation"], ["action_value"])
        >>> loss = DQNLoss(net, action_space="categorical")
        >>> update = SoftUpdate(loss, tau=0.5)
        >>> with torch.no_grad():
        ...     _ = net.module.bias.add_(1)
        >>> update.step()
        >>> (net.module.bias - loss.target_value_network.module.bias).tolist()
        [0.5, 0.5, 0.5]
    """

    def __init__(
        self, loss: LossModule, *, eps: float | None = None, tau: float | None = None
    ) -> None:
        if eps is not None and tau is not None:
            msg = f"eps={eps} and tau={tau} say the same in two ways: pass one of them."
            raise ValueError(msg)
        given: Any = tau if eps is None else eps
        given = 0.999 if given is None else given
        if not isinstance(given, Real | Tensor) or not 0 <= given <= 1:  # type: ignore[operator]
            msg = f"expected eps and tau in [0, 1]: got {given!r}."
            raise ValueError(msg)
        self.tau: float = 1 - given if tau is None else given  # type: ignore[assignment]
        super().__init__(loss)

    @torch.no_grad()
    def step(self) -> None:
        """Move every target network towards its source."""
        for source, target in _tensors(self.pairs):
            if target.is_floating_point():
                target.lerp_(source, self.tau)
            else:
                target.copy_(source)


class HardUpdate(TargetUpdate):
    """Makes target networks equal to their sources, every so many steps.

    (Mnih et al., Nature 518, 2015.)

    Args:
        loss: made with ``delay_value=True``.
        value_network_update_interval: steps from one copy to the next.

    Raises:
        ValueError: the interval is below 1.
        TypeError: it is no integer.
        RuntimeError: the loss has no target network.

    Example:
        >>> from rl_value import DQNLoss
        >>> from tensordict.nn import TensorDictModule
        >>> net = TensorDictModule(nn.Linear(2, 3), ["observation"], ["action_value"])
        >>> update = HardUpdate(DQNLoss(net, action_space="categorical"))
        >>> update.step()
        >>> update.counter
        1
    """

    def __init__(self, loss: LossModule, *, value_network_update_interval: int = 1000) -> None:
        given: Any = value_network_update_interval
        if not isinstance(given, int):
            msg = f"value_network_update_interval: expected an integer, got {given!r}."
            raise TypeError(msg)
        if value_network_update_interval < 1:
            msg = (
                "value_network_update_interval: expected at least 1, "
                f"got {value_network_update_interval}."
            )
            raise ValueError(msg)
        super().__init__(loss)
        self.interval = value_network_update_interval
        self.counter = 0

    def step(self) -> None:
        """Count a step, and copy where it is time."""
        self.counter += 1
        if self.counter == self.interval:
            self.counter = 0
            self.init_()


def _tensors(pairs: list[tuple[nn.Module, nn.Module]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Parameters and buffers of each source beside those of its target."""
    for source, target in pairs:
        theirs = {**dict(target.named_parameters()), **dict(target.named_buffers())}
        for name, value in (*source.named_parameters(), *source.named_buffers()):
            yield value, theirs[name]
