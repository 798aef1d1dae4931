"""Recurrent mode in shapes that follow from the batch alone: no host sync, one graph.

The same rule as everywhere: a segment starts from the states in its first row. Here no list of
segments is made; flags say where they start, and every row offers its states.
"""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.nn.functional import dropout

from rl_layout import keys
from rl_recurrent.backends.scan import gru_scan_rows, lstm_scan_rows, window_steps
from rl_recurrent.network import Network
from rl_recurrent.settings import Settings
from rl_recurrent.stack import States
from rl_recurrent.weights import LayerWeights, gru_row_weights, lstm_row_weights


def runs_static(settings: Settings) -> bool:
    """Tell whether shapes must not depend on the data.

    Args:
        settings: of a module.

    Returns:
        True for ``scan`` with a `max_length`, and for ``scan`` and ``auto`` under `torch.compile`.

    Example:
        >>> runs_static(Settings("scan", max_length=5)), runs_static(Settings("scan"))
        (True, False)
    """
    fixed = settings.backend == "scan" and settings.max_length is not None
    return fixed or (settings.backend in ("scan", "auto") and torch.compiler.is_compiling())


def unroll_static(
    batch: TensorDictBase,
    x: Tensor,
    states: States,
    network: Network,
    max_length: int | None,
    *,
    every_state: bool = False,
) -> tuple[Tensor, States]:
    """Run a network over a batch without looking at its data on the host.

    Args:
        batch: TED rows ``[*B, T]`` with ``is_init``, for their markers.
        x: inputs ``[*B, T, I]``.
        states: ``[*B, T, L, H]`` each, of every row.
        network: the parameters.
        max_length: the longest segment to be ready for; T if None.
        every_state: give the states after every row, not at segment ends alone.

    Returns:
        Outputs ``[*B, T, O]``, and states ``[*B, T, L, H]``, zero but at segment ends.

    Raises:
        ValueError: the network has two directions or a projection, which needs another backend.
        RuntimeError: markers contradict each other, or a segment is longer than `max_length`. On
            CUDA the device reports it later.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> batch, network = trajectories([2, 3]), Network.of(torch.nn.GRU(2, 4))
        >>> h = (torch.zeros(5, 1, 4),)
        >>> out, _ = unroll_static(batch, batch["observation"], h, network, 3)
        >>> out.shape
        torch.Size([5, 4])
    """
    if network.bidirectional or network.layers[0].w_hr is not None:
        msg = "static shapes are for one direction without projection: take pack or auto, eager."
        raise ValueError(msg)
    shape, length = batch.batch_size, max_length or batch.batch_size[-1]
    starts, real = start_flags(batch)
    last = torch.cat([starts[1:], starts.new_ones(1)])
    size = starts.shape[0]
    steps = shape[-1] if length >= shape[-1] and len(shape) > 1 else window_steps(length, size)
    length = min(length, shape[-1])
    layout = starts, torch.arange(size, device=x.device), length, steps
    rows, found = x.reshape(size, -1), []
    for number, layer in enumerate(network.layers):
        if number and network.dropout:
            rows = dropout(rows, network.dropout)
        before = tuple(state.reshape(size, *state.shape[-2:])[:, number] for state in states)
        after = _scan(rows, layer, before, layout)
        rows = after[0]
        found.append(after)
    shown = real if every_state else real & last
    after = tuple(torch.stack(each, 1) * shown[:, None, None] for each in zip(*found, strict=True))
    out = rows * real[:, None]
    return out.view(*shape, -1), tuple(each.view(*shape, *each.shape[1:]) for each in after)


def start_flags(batch: TensorDictBase) -> tuple[Tensor, Tensor]:
    """Find the first rows of segments by rule 2, and real rows, as flags.

    Args:
        batch: TED rows ``[*B, T]`` with ``is_init``.

    Returns:
        bool ``[N]`` each. Rows of padding count as segments of one row.

    Raises:
        RuntimeError: a trajectory starts at a row that is not ``is_init``.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> start_flags(trajectories([2, 1]))[0]
        tensor([ True, False,  True])
    """
    is_init = batch[keys.IS_INIT].flatten()
    numbers = torch.arange(is_init.shape[0], device=is_init.device)
    seam = numbers % batch.batch_size[-1] == 0
    ended = _behind(_ended(batch, is_init))
    found = is_init | seam | ended
    lost = ended & ~seam
    ids, step = batch.get(keys.TRAJ_IDS, None), batch.get(keys.TRAJ_STEP, None)
    mask = batch.get(keys.MASK, None)
    real = torch.ones_like(is_init) if mask is None else mask.flatten()
    if ids is not None:
        other = ids.flatten() != ids.flatten().roll(1)
        found = found | other
        lost = lost & ~other if step is not None else lost
    if step is not None:
        jumps = step.flatten() != step.flatten().roll(1) + 1
        found = found | jumps
        lost = (lost & ~jumps if ids is None else lost) | (step.flatten() == 0)
    lost = lost & ~is_init & real & (_behind(real) | (numbers == 0))
    torch._assert_async(~lost.any(), "is_init is False where another trajectory starts")
    return found | ~real | ~_behind(real), real


def _ended(batch: TensorDictBase, like: Tensor) -> Tensor:
    """Whether the environment ended a trajectory at each row, bool ``[N]``."""
    ended = torch.zeros_like(like)
    for key in (keys.NEXT_DONE, keys.NEXT_TERMINATED, keys.NEXT_TRUNCATED):
        flag = batch.get(key, None)
        if flag is not None:
            ended = ended | flag.flatten()
    steps = batch.get(keys.STEPS_TO_NEXT_OBS, None)
    return ended if steps is None else ended & (steps.flatten() == 1)


def _behind(flag: Tensor) -> Tensor:
    """The flag of the row before, bool ``[N]``; False for the first."""
    return torch.cat([flag.new_zeros(1), flag[:-1]])


def _scan(
    rows: Tensor, layer: LayerWeights, before: States, layout: tuple[Tensor, Tensor, int, int]
) -> States:
    if len(before) == 1:
        return (gru_scan_rows(rows, *gru_row_weights(layer), *before, *layout),)
    w_ih, w_hh, bias, _ = lstm_row_weights(layer)
    made: States = lstm_scan_rows(rows, w_ih, w_hh, bias, *before, *layout)
    return made
