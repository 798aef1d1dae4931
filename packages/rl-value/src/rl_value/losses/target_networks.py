"""Target networks, and the updates that move them towards their sources."""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from rl_tensordict.arguments import check_whole
from rl_tensordict.torch_internals import lerp_all

PREFIX = "target_"
NetworkPairs = list[tuple[nn.Module, nn.Module]]


class TargetUpdate:
    """Moves target networks towards their sources, one step at a time.

    Args:
        source: a loss that has networks ``target_<name>`` next to its networks ``<name>``, or the
            network that learns.
        target: the network that follows; None if `source` is a loss.
        loss: a loss, by another name.

    Raises:
        RuntimeError: the loss has no target network.
        TypeError: something is no module, or a loss and a target are both given.
        ValueError: a target has other parameters than its source.
    """

    counter: int | None = None

    def __init__(self, source: Any, target: Any, loss: Any) -> None:
        if source is not None and loss is not None:
            msg = "the loss is the first argument, or loss_module=: pass one of them."
            raise TypeError(msg)
        source = loss if source is None else source
        for name, given in (("source", source), ("target", target)):
            if not isinstance(given, nn.Module) and (name == "source" or given is not None):
                msg = f"{name}: expected a module, got {type(given).__name__}. Pass a loss made "
                msg += "with delay_value=True, or source= and target= networks."
                raise TypeError(msg)
        self.pairs: NetworkPairs = _pairs_of(source) if target is None else [(source, target)]
        self.parts: NetworkPairs = []
        for learner, follower in self.pairs:
            _check_alike(learner, follower)
            self.parts += _parts(learner, follower)

    @torch.no_grad()
    def init_(self) -> None:
        """Make every target network equal to its source."""
        for source, target in _tensors(self.parts):
            target.copy_(source)

    def state_dict(self) -> dict[str, Any]:
        """The count of steps, if there is one; the networks keep their own state."""
        return {} if self.counter is None else {"counter": self.counter}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a count that was saved.

        Args:
            state_dict: what `state_dict` gave.
        """
        given: object = state_dict
        if not isinstance(given, dict):
            msg = f"expected what state_dict() gave, a dict: got {type(given).__name__}."
            raise TypeError(msg)
        if self.counter is not None:
            self.counter = int(state_dict.get("counter", self.counter))


class SoftUpdate(TargetUpdate):
    """Moves target networks a little with each step: θ' ← ε θ' + (1 - ε) θ.

    (Lillicrap et al., arXiv:1509.02971, with τ = 1 - ε.) Buffers follow as parameters do. Numbers
    that are not floating point, as counts of batches, are copied.

    Args:
        source: a loss made with ``delay_value=True``, or the network that learns.
        target: the network that follows, where `source` is one: a copy of it.
        eps: share of the target that stays, in [0, 1]; 0.999 where nothing is given.
        tau: share of the source that comes in, instead.
        loss_module: the loss, by the name that TorchRL has for it.

    Raises:
        ValueError: both shares are given, one is outside [0, 1], or the networks differ.
        RuntimeError: the loss has no target network.
        TypeError: the argument is no module.

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
        >>> late = nn.Linear(2, 3)
        >>> SoftUpdate(net.module, late, tau=1.0).step()  # any two networks
        >>> torch.equal(late.weight, net.module.weight)
        True
    """

    def __init__(
        self,
        source: nn.Module | None = None,
        target: nn.Module | None = None,
        *,
        eps: float | None = None,
        tau: float | None = None,
        loss_module: nn.Module | None = None,
    ) -> None:
        if eps is not None and tau is not None:
            msg = f"eps={eps} and tau={tau} say the same in two ways: pass one of them."
            raise ValueError(msg)
        given: Any = tau if eps is None else eps
        given = 0.999 if given is None else given
        is_number = isinstance(given, Real | Tensor) and not isinstance(given, bool)
        if not is_number or not 0 <= given <= 1:
            msg = f"expected eps and tau in [0, 1]: got {given!r}."
            raise ValueError(msg)
        self.tau: float | Tensor = 1 - given if tau is None else given
        super().__init__(source, target, loss_module)

    @torch.no_grad()
    def step(self) -> None:
        """Move every target network towards its source."""
        sources, targets = [], []
        for source, target in _tensors(self.parts):
            if target.is_floating_point() or target.is_complex():
                sources.append(source)
                targets.append(target)
            else:
                target.copy_(source)
        if isinstance(self.tau, Tensor):
            for source, target in zip(sources, targets, strict=True):
                target.lerp_(source, self.tau.to(target.device, target.dtype))
        elif targets:
            lerp_all(targets, sources, self.tau)


class HardUpdate(TargetUpdate):
    """Makes target networks equal to their sources, every so many steps.

    (Mnih et al., Nature 518, 2015.)

    Args:
        source: a loss made with ``delay_value=True``, or the network that learns.
        target: the network that follows, where `source` is one: a copy of it.
        value_network_update_interval: steps from one copy to the next.
        loss_module: the loss, by the name that TorchRL has for it.

    Raises:
        ValueError: the interval is below 1, or the networks differ.
        TypeError: it is no integer, or the argument is no module.
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

    counter: int

    def __init__(
        self,
        source: nn.Module | None = None,
        target: nn.Module | None = None,
        *,
        value_network_update_interval: int = 1000,
        loss_module: nn.Module | None = None,
    ) -> None:
        check_whole("value_network_update_interval", value_network_update_interval, 1)
        super().__init__(source, target, loss_module)
        self.interval = value_network_update_interval
        self.counter = 0

    def step(self) -> None:
        """Count a step, and copy every `interval` steps."""
        self.counter += 1
        if self.counter >= self.interval:
            self.counter = 0
            self.init_()


def _pairs_of(loss: nn.Module) -> NetworkPairs:
    """The networks of a loss, each with its target network."""
    pairs = [
        (getattr(loss, name.removeprefix(PREFIX)), target)
        for name, target in loss.named_children()
        if name.startswith(PREFIX)
    ]
    if not pairs:
        msg = f"{type(loss).__name__} has no target network: make it with delay_value=True, or "
        msg += "pass the network that follows as target=."
        raise RuntimeError(msg)
    return pairs


def _check_alike(source: nn.Module, target: nn.Module) -> None:
    """Raise if a target cannot follow its source, with the name of what differs."""
    if source is target:
        msg = "source and target are the same module, and nothing would move: pass a deepcopy."
        raise ValueError(msg)
    ours, theirs = _named(source), _named(target)
    for name in (*ours, *theirs):
        if name not in ours or name not in theirs:
            where = ("target", "source") if name in theirs else ("source", "target")
            msg = f"{name!r} is in the {where[0]} and not in the {where[1]}: a target network has "
            msg += "the parameters and buffers of its source. Pass a deepcopy of it."
            raise ValueError(msg)
        one, other = ours[name], theirs[name]
        if any(map(is_lazy, (one, other))):
            msg = f"{name!r} has no shape yet: call the network once, and copy it then."
            raise ValueError(msg)
        same = one.shape == other.shape and one.dtype == other.dtype
        if not same or one.device != other.device:
            wanted, got = (f"{list(t.shape)} {t.dtype} on {t.device}" for t in (one, other))
            msg = f"{name!r}: expected {wanted}, as in the source, got {got} in the target."
            raise ValueError(msg)


def _named(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers with their names."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _parts(source: nn.Module, target: nn.Module) -> NetworkPairs:
    """The modules that hold parameters or buffers, each with its target's."""
    # a walk over all modules in each step would take longer than to move what they hold
    theirs = dict(target.named_modules())
    return [
        (module, theirs[name])
        for name, module in source.named_modules()
        if any(True for _ in _own(module))
    ]


def _own(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers of a module itself, with their names."""
    yield from module.named_parameters(recurse=False)
    yield from module.named_buffers(recurse=False)


def _tensors(parts: NetworkPairs) -> Iterator[tuple[Tensor, Tensor]]:
    """Parameters and buffers of each source with those of its target."""
    for source, target in parts:
        theirs = dict(_own(target))
        for name, value in _own(source):
            yield value, theirs[name]
