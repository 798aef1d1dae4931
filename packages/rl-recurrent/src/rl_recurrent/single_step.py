"""One step of a whole network: every layer once, at the cost of torch's cells."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from rl_recurrent.cells import CELLS
from rl_recurrent.cells.cell import LayerWeights, States
from rl_recurrent.network import Network
from rl_tensordict.torch_internals import parameters_of

NAMES = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")


def step_module(module: nn.RNNBase, x: Tensor, states: States) -> tuple[Tensor, States]:
    """Step a network of torch once; one plain layer takes a short path."""
    if torch.is_autocast_enabled(x.device.type):  # sequences are not cast either
        return _uncast(module, x, states)
    if module.num_layers > 1 or module.bidirectional or module.proj_size or x.ndim != 2:
        return step_network(x, states, Network.of(module))
    # a module's own lookup takes microseconds
    w_ih, w_hh, b_ih, b_hh = map(parameters_of(module).get, NAMES)
    if w_ih is None or w_hh is None or (module.bias and (b_ih is None or b_hh is None)):
        return step_network(x, states, Network.of(module))  # parametrized
    cell = CELLS[module.mode.lower()]
    before = tuple([state.select(1, 0) for state in states])  # [B, H]
    after = cell.torch_step(x, before, w_ih, w_hh, b_ih, b_hh)
    return after[0], tuple([state.unsqueeze(1) for state in after])


def explain_step(module: nn.RNNBase) -> str:
    """Say how `step_module` steps a network, and why."""
    stored = dict(module.named_parameters(recurse=False))
    reasons = {
        "several layers": module.num_layers > 1,
        "a projection": bool(module.proj_size),
        "parameters that are computed": not stored.keys() >= {*NAMES[:2]},
    }
    if not any(reasons.values()):
        return "one step: one call of torch's cell"
    return f"one step: layer by layer ({', '.join(why for why, holds in reasons.items() if holds)})"


def _uncast(module: nn.RNNBase, x: Tensor, states: States) -> tuple[Tensor, States]:
    """Step in the dtype of the parameters, and return the dtypes of the inputs."""
    weight: Tensor = module.weight_hh_l0  # type: ignore[assignment]
    cast = tuple(state.to(weight.dtype) for state in states)
    with torch.autocast(x.device.type, enabled=False):
        out, after = step_module(module, x.to(weight.dtype), cast)
    pairs = zip(after, states, strict=True)
    return out.to(x.dtype), tuple(new.to(state.dtype) for new, state in pairs)


def step_network(x: Tensor, states: States, network: Network) -> tuple[Tensor, States]:
    """Step every layer of a network once."""
    if network.bidirectional:
        msg = "a bidirectional network reads the future: it runs in recurrent mode only."
        raise ValueError(msg)
    if x.ndim != 2:
        return _flattened(x, states, network)
    cell = network.equations

    def step(x: Tensor, before: States, layer: LayerWeights) -> States:
        whole = layer.w_hr is not None  # torch's cells have no projection
        return cell.step(x, before, layer) if whole else cell.torch_step(x, before, *layer[:4])

    if len(network.layers) == 1:
        after = step(x, tuple(state[:, 0] for state in states), network.layers[0])
        return after[0], tuple(state.unsqueeze(1) for state in after)
    states_of_layers = []
    for number, layer in enumerate(network.layers):
        if number and network.dropout:
            x = dropout(x, network.dropout)
        after = step(x, tuple(state[:, number] for state in states), layer)
        x = after[0]
        states_of_layers.append(after)
    return x, tuple(torch.stack(each, 1) for each in zip(*states_of_layers, strict=True))


def _flattened(x: Tensor, states: States, network: Network) -> tuple[Tensor, States]:
    batch = x.shape[:-1]
    flat = tuple(state.reshape(-1, *state.shape[-2:]) for state in states)
    out, after = step_network(x.reshape(-1, x.shape[-1]), flat, network)
    return out.view(*batch, -1), tuple(state.view(*batch, *state.shape[1:]) for state in after)
