"""Several networks of one architecture, computed at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, linear
from torch.nn.parameter import is_lazy

from rl_policies.networks.mlp import MLP
from rl_tensordict import note_call, note_errors
from rl_tensordict.arguments import check_whole

# one call for all members gives each what a call of its own would
ELEMENTWISE = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish),
    *(nn.Tanh, nn.Hardtanh, nn.Tanhshrink, nn.Sigmoid, nn.Hardsigmoid, nn.Hardswish),
    *(nn.Softplus, nn.Softsign, nn.Identity),
)


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Ensemble(nn.Module):
    """Networks of one architecture and different parameters, of the same inputs.

    Linear layers of all members are one batched product, their norms one operation; nothing is
    vectorised by `vmap`, so dropout draws for each member and `torch.compile` traces plain
    operations. That is so for an `MLP` or an `nn.Sequential` of linear layers, `nn.LayerNorm`,
    `nn.BatchNorm1d`, `nn.Dropout` and element-wise activations; other networks, and those with
    hooks or shared parameters, are called one after the other, and `repr` says for which reason.

    Args:
        networks: the members. Their parameters are copied.

    Raises:
        TypeError: a member is no module.
        ValueError: there is no member, or members differ in more than the values of parameters.

    Example:
        >>> critics = Ensemble.from_module(MLP(3, 1, num_cells=[5]), 4)
        >>> critics(torch.zeros(7, 2), torch.zeros(7, 1)).shape
        torch.Size([7, 4, 1])
    """

    @note_errors
    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        members = list(networks)
        _check(members)
        self.num = len(members)
        found = (obstacle_of(member) for member in members)
        self.obstacle = next((one for one in found if one is not None), None)
        if self.obstacle is None:
            pairs = zip(*(_layers(member) for member in members), strict=True)
            self.layers = nn.ModuleList([_stacked(layers) for layers in pairs])
            self._out_shape = _shape_of(members[0])
        else:
            self.layers = nn.ModuleList([deepcopy(member) for member in members])
        self.training = members[0].training

    @classmethod
    def from_module(cls, network: nn.Module, num: int) -> Ensemble:
        """Make members of the architecture of a network, each with parameters drawn anew.

        Args:
            network: says what members are; it is not changed and none of its values is taken.
            num: how many members.

        Returns:
            The ensemble.

        Raises:
            TypeError: `network` is no module, or `num` no integer.
            ValueError: `num` is below 1, a lazy layer has not seen an input yet, or a layer has
                parameters and no `reset_parameters`.

        Example:
            >>> two = Ensemble.from_module(nn.Linear(3, 1), 2)(torch.ones(5, 3))
            >>> bool((two[:, 0] == two[:, 1]).any())
            False
        """
        _check([network])
        check_whole("num", num, 1)
        return cls([drawn_anew(network) for _ in range(num)])

    def forward(self, *inputs: Tensor) -> Tensor:
        """Compute the outputs of all members.

        Args:
            inputs: what a member takes; floats `[*B, ...]` for an `MLP`.

        Returns:
            `[*B, num, *out]`, where a member gives `[*B, *out]`; for members that are called one
            after the other `out` is one dimension.
        """
        if self.obstacle is not None:
            return torch.stack([member(*inputs) for member in self.layers], -2)
        try:
            x = inputs[0]
            if len(inputs) > 1:
                x = torch.cat([tensor.to(x.dtype) for tensor in inputs], -1)
            batch, x = x.shape[:-1], x.reshape(-1, x.shape[-1])
            for layer in self.layers:
                x = layer(x)  # [N, d] as long as members have it in common, then [num, N, d]
            x = _each(x, self.num).transpose(0, 1)
            x = x.reshape(*batch, self.num, x.shape[-1])  # a view where the batch is flat
            return x if self._out_shape is None else x.unflatten(-1, self._out_shape)
        except Exception as error:
            note_call(error, type(self).__name__, inputs)
            raise

    @property
    def num_members(self) -> int:
        """How many networks it is."""
        return self.num

    def extra_repr(self) -> str:
        """How many members there are and how they are computed."""
        if self.obstacle is None:
            return f"{self.num} members at once"
        return f"{self.num} members one after the other, because of {self.obstacle}"


class StackedLinear(nn.Module):
    """Linear layers: weights ``[num, out, in]``, biases ``[num, out]``."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        first = layers[0]
        # for an input that all have in common: the views of one product slow down what follows,
        # which pays where the product is the larger part
        self.is_one_product = first.in_features > first.out_features
        weight = _stack([layer.weight for layer in layers])
        if not self.is_one_product:  # in memory [num, in, out], as products and gradients have it
            turned = weight.detach().mT.contiguous().mT
            weight = nn.Parameter(turned, requires_grad=weight.requires_grad)
        self.weight = weight
        biases = [layer.bias for layer in layers if layer.bias is not None]
        self.bias = _stack(biases) if biases else None

    def forward(self, x: Tensor) -> Tensor:
        """``[N, in]`` or ``[num, N, in]`` to ``[num, N, out]``."""
        if x.ndim == 2 and self.is_one_product:
            bias = None if self.bias is None else self.bias.flatten()
            wide: Tensor = linear(x, self.weight.flatten(0, 1), bias)  # [N, num * out]
            made: Tensor = wide.unflatten(-1, (len(self.weight), -1)).transpose(0, 1)
            return made
        x, turned = _each(x, len(self.weight)), self.weight.mT
        if self.bias is None:
            return torch.bmm(x, turned)
        return torch.baddbmm(self.bias.unsqueeze(1), x, turned)


class StackedLayerNorm(nn.Module):
    """Layer norms: one normalisation, a scale and a shift ``[num, 1, d]`` for each member."""

    def __init__(self, layers: Sequence[nn.LayerNorm]) -> None:
        super().__init__()
        first = layers[0]
        self.shape, self.eps = first.normalized_shape, first.eps
        affine = first.weight is not None
        self.weight = _stack([n.weight for n in layers], 1) if affine else None
        self.bias = _stack([n.bias for n in layers], 1) if first.bias is not None else None

    def forward(self, x: Tensor) -> Tensor:
        """``[N, d]`` or ``[num, N, d]`` to the latter, or ``[N, d]`` where nothing is scaled."""
        x = layer_norm(x, self.shape, None, None, self.eps)
        x = x if self.weight is None else x * self.weight
        return x if self.bias is None else x + self.bias


class StackedBatchNorm(nn.Module):
    """Batch norms, as one of ``num * d`` features."""

    def __init__(self, layers: Sequence[nn.BatchNorm1d]) -> None:
        super().__init__()
        first, self.num = layers[0], len(layers)
        kind = (first.eps, first.momentum, first.affine, first.track_running_stats)
        self.norm = nn.BatchNorm1d(self.num * first.num_features, *kind)
        state = [layer.state_dict() for layer in layers]
        joined = {
            name: torch.cat([each[name] for each in state]) if value.ndim else value
            for name, value in state[0].items()
        }
        self.norm.load_state_dict(joined, assign=True)
        for parameter in self.norm.parameters():
            parameter.requires_grad_(first.weight.requires_grad)

    def forward(self, x: Tensor) -> Tensor:
        """``[N, d]`` or ``[num, N, d]`` to ``[num, N, d]``."""
        made: Tensor = self.norm(_each(x, self.num).transpose(0, 1).flatten(1))
        made = made.unflatten(1, (self.num, -1))
        return made.transpose(0, 1)


class StackedDropout(nn.Module):
    """Dropout that draws for each member, also where members have one input."""

    def __init__(self, layers: Sequence[nn.Dropout]) -> None:
        super().__init__()
        self.dropout, self.num = nn.Dropout(layers[0].p), len(layers)

    def forward(self, x: Tensor) -> Tensor:
        """``[N, d]`` or ``[num, N, d]`` to the latter, or as it is in evaluation."""
        if not self.training:  # not as views of one memory, which no layer may write to in place
            return x
        made: Tensor = self.dropout(_each(x, self.num))
        return made


STACKED: dict[type[nn.Module], Callable[..., nn.Module]] = {
    nn.Linear: StackedLinear,
    nn.LayerNorm: StackedLayerNorm,
    nn.BatchNorm1d: StackedBatchNorm,
    nn.Dropout: StackedDropout,
}


def obstacle_of(network: nn.Module) -> str | None:
    """What keeps the members of an architecture from being computed at once, if anything does."""
    layers = _layers(network)
    for layer in layers:
        if type(layer) not in STACKED and type(layer) not in ELEMENTWISE:
            return type(layer).__name__
        if type(layer) is nn.LayerNorm and len(layer.normalized_shape) > 1:
            return "a LayerNorm over several dimensions"
    modules = list(network.modules())
    if any(vars(module)[kind] for module in modules for kind in HOOKS):
        return "hooks"
    if any("forward" in vars(module) for module in modules):
        return "a forward of its own"
    used = [id(value) for layer in layers for value in layer.parameters()]
    return None if len(used) == len(set(used)) else "parameters that layers share"


def drawn_anew(network: nn.Module) -> nn.Module:
    """A copy of a network whose parameters and buffers are those of a new one."""
    made = deepcopy(network)
    for name, module in made.named_modules():
        if next(module.parameters(recurse=False), None) is None:
            continue
        reset = getattr(module, "reset_parameters", None)
        if reset is None:
            msg = f"{name or 'the network'} is a {type(module).__name__}, which has parameters and "
            msg += "no reset_parameters(): give Ensemble a list of networks instead"
            raise ValueError(msg)
        reset()
    return made


def _stacked(layers: Sequence[nn.Module]) -> nn.Module:
    """One layer for those of all members."""
    kind = STACKED.get(type(layers[0]))
    made = deepcopy(layers[0]) if kind is None else kind(layers)
    return made.train(layers[0].training)


def _layers(network: nn.Module) -> list[nn.Module]:
    """The layers that a network calls in turn; itself if it is no plain sequence."""
    if not isinstance(network, nn.Sequential) or type(network) not in (MLP, nn.Sequential):
        return [network]
    # a module that has several places is called in each; what an MLP shapes is no sequence
    return [
        layer
        for child in network
        for layer in ([child] if _shape_of(child) is not None else _layers(child))
    ]


def _shape_of(network: nn.Module) -> tuple[int, ...] | None:
    """The shape that an `MLP` gives its output, if that is not flat."""
    out = network.out_features if isinstance(network, MLP) else None
    return out if isinstance(out, tuple) else None


def _check(members: Sequence[Any]) -> None:
    if not members:
        msg = "an ensemble needs a member: got an empty list of networks"
        raise ValueError(msg)
    for place, member in enumerate(members):
        if not isinstance(member, nn.Module):
            msg = f"member {place} must be a torch module: got {type(member).__name__}"
            raise TypeError(msg)
        if any(is_lazy(value) for value in (*member.parameters(), *member.buffers())):
            msg = f"member {place} has a lazy layer: give its size, or call it once before"
            raise ValueError(msg)
    expected = _architecture(members[0])
    for place, member in enumerate(members):
        for (name, one), (_, other) in zip(expected, _architecture(member), strict=False):
            if one != other:
                msg = f"members differ at {name!r}: {one} in member 0, {other} in member {place}"
                raise ValueError(msg)
        if len(_architecture(member)) != len(expected):
            msg = f"members differ: {members[0]} and, as member {place}, {member}"
            raise ValueError(msg)


def _architecture(network: nn.Module) -> list[tuple[str, object]]:
    """What members have in common: modules as they print, and shapes, dtypes and devices."""
    found: list[tuple[str, object]] = [
        (name, f"{type(module).__name__}({module.extra_repr()})")
        for name, module in network.named_modules()
    ]
    tensors = (*network.named_parameters(), *network.named_buffers())
    kinds = [
        (n, f"{tuple(t.shape)} {t.dtype} on {t.device}{' that learns' * t.requires_grad}")
        for n, t in tensors
    ]
    return found + kinds


def _stack(values: Sequence[Tensor], dim: int = 0) -> nn.Parameter:
    """Parameters of all members as one, ``[num, ...]``; with ``dim=1`` ``[num, 1, ...]``."""
    made = torch.stack([value.detach() for value in values])
    return nn.Parameter(made.unsqueeze(1) if dim else made, values[0].requires_grad)


def _each(x: Tensor, num: int) -> Tensor:
    """The input of each member ``[num, N, d]``, where it may be one for all."""
    return x.expand(num, *x.shape) if x.ndim == 2 else x
