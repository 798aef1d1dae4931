"""Base of the recurrent modules: keys, modes, and reading and writing of tensordicts."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any, ClassVar

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn

from rl_layout import Segments, keys, recurrent_mode
from rl_layout.internals import batch_shape, marker_leaves
from rl_recurrent.backends.dispatch import BackendChoice, Settings, runs_static
from rl_recurrent.backends.static.unroll import unroll_static
from rl_recurrent.burn_in import burn_in_rows, unroll_after_burn_in
from rl_recurrent.cells.cell import CellName, States
from rl_recurrent.inputs import (
    check_input,
    check_states,
    recurrent_segments,
    refuse_lost_starts,
    refuse_sequence,
    require_is_init,
    require_sequence,
)
from rl_recurrent.network import Network, choice_for, unroll_checked
from rl_recurrent.single_step import explain_step, step_module
from rl_recurrent.state_keys import read_keys, written_keys
from rl_specs import Composite, Unbounded
from rl_tensordict import NestedKey, as_tuple, find, put
from rl_tensordict.arguments import shown
from rl_transforms import TensorDictPrimer

OUTSIDE = (
    "this recurrent batch has shapes that follow from its data, and runs outside of compiled code, "
    "with one graph break. For one graph take recurrent_backend='scan' or 'auto' (pad, pack and "
    "triton look at segments on the host), give a flat batch [N] max_length=, the most rows that a "
    "trajectory or a slice has in it, or reshape it to [B, T], and store ('collector', 'traj_ids') "
    "and ('collector', 'traj_step'), or name the last dimension 'time', so that no observations "
    "must be compared"
)


class RecurrentModule(TensorDictModuleBase):  # type: ignore[misc]
    """A recurrent network on tensordicts: what `LSTMModule` and `GRUModule` share.

    They describe the arguments. `make` is the class of network that `sizes` and `shape` make.
    """

    has_tensor_step: ClassVar[bool] = True  # rl_tensordict calls `step` to act
    cell: ClassVar[CellName]
    default_states: ClassVar[tuple[str, ...]]
    network: nn.RNNBase

    def __init__(  # noqa: PLR0913 - the arguments are the field's
        self,
        network: Any,
        make: Any,
        sizes: tuple[int | None, int | None],
        shape: dict[str, Any],
        *,
        in_key: NestedKey | None = None,
        in_keys: Sequence[NestedKey] | None = None,
        out_key: NestedKey | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
        recurrent_backend: str = "auto",
        default_recurrent_mode: bool | None = None,
        every_state: bool = False,
        burn_in: int = 0,
        learned_initial_state: bool = False,
        recurrent_matmul_precision: str = "auto",
        recurrent_save: str = "auto",
        max_length: int | None = None,
    ) -> None:
        super().__init__()
        self.in_keys = read_keys(in_key, in_keys, self.default_states)
        self.out_keys = written_keys(out_key, out_keys, self.in_keys[1:-1])
        self.settings = Settings(
            recurrent_backend, recurrent_matmul_precision, recurrent_save, max_length
        )
        if network is None:
            network = _new_network(make, sizes, {**shape, "device": device, "dtype": dtype})
        else:
            _check_network(network, sizes, self.cell)
        if not isinstance(burn_in, int | Integral) or burn_in < 0:
            msg = f"burn_in must be 0 or more rows: got {shown(burn_in)}."
            raise ValueError(msg)
        if burn_in and network.bidirectional:
            msg = "burn_in warms up a state that goes forward in time: leave bidirectional False."
            raise ValueError(msg)
        self.network = network
        self.default_recurrent_mode = default_recurrent_mode
        self.every_state, self.burn_in = every_state, burn_in
        self._shapes = tuple(map(torch.Size, Network.of(network).state_shapes))
        self.initial_states: Any = None
        if learned_initial_state:
            zeros = [network.weight_ih_l0.new_zeros(shape) for shape in self._shapes]
            self.initial_states = nn.ParameterList(map(nn.Parameter, map(torch.clone, zeros)))

    @property
    def state_keys(self) -> list[NestedKey]:
        """Keys of the states that a row starts from."""
        return list(self.in_keys[1:-1])

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Step once, or run over whole sequences, as `rl_layout.set_recurrent_mode` says.

        Args:
            tensordict: roots ``[*B]`` in sequential mode; TED rows ``[N]`` or ``[*B, T]`` in
                recurrent mode.

        Returns:
            The tensordict, with the outputs and the next states added.

        Raises:
            KeyError: an input, a state or ``is_init`` is missing.
            ValueError: the markers contradict each other, or a shape does not fit the mode.
            RuntimeError: the backend cannot run here.
        """
        if not self._is_recurrent():
            return self._write(tensordict, *self._one_step(tensordict))
        if torch.compiler.is_compiling() and not runs_static(self.settings, tensordict):
            return self._outside_graph(tensordict)
        return self._write(tensordict, *self._sequences(tensordict))

    @torch.compiler.disable(reason=OUTSIDE)  # type: ignore[untyped-decorator]
    def _outside_graph(self, batch: TensorDictBase) -> TensorDictBase:
        """Run over whole sequences outside of compiled code, with one graph break."""
        return self._write(batch, *self._sequences(batch))

    def _write(self, batch: TensorDictBase, out: Tensor, states: States) -> TensorDictBase:
        for key, value in zip(self.out_keys, (out, *states), strict=True):
            put(batch, (key,) if isinstance(key, str) else key, value)
        return batch

    def step(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Step once, on plain tensors, as policies call it.

        Args:
            tensors: one for each of `in_keys`: input ``[*B, I]``, states ``[*B, L, H]``, and
                ``is_init``, which changes nothing: at a reset the primer has put its default into
                the states.

        Returns:
            One for each of `out_keys`.

        Raises:
            ValueError: a shape does not fit.
        """
        if len(tensors) != len(self.in_keys):
            msg = f"expected a tensor for each of {self.in_keys}: got {len(tensors)}."
            raise ValueError(msg)
        x, states = tensors[0], tensors[1:-1]
        batch = x.shape[:-1]
        for state, shape in zip(states, self._shapes, strict=True):
            if state.shape != batch + shape:
                check_states(states, batch, self._weight, self._shapes)
        if self.initial_states is not None:
            states = self._with_initial(states)
        out, after = step_module(self.network, x, states)
        return (out, *after)

    def make_tensordict_primer(self) -> TensorDictPrimer:
        """Make the transform that puts zeros into the states at every reset.

        Returns:
            The primer; `rl_envs` appends it to environments that are given the policy.

        Raises:
            RuntimeError: a next state is not written under ``"next"`` and the name of its state.
        """
        specs, next_keys = Composite(), [keys.next_key(key) for key in self.state_keys]
        if [as_tuple(key) for key in self.out_keys[1:]] != next_keys:
            msg = f"a primer needs out_keys[1:] = {next_keys}: got {self.out_keys[1:]}."
            raise RuntimeError(msg)
        weight = self._weight
        for key, shape in zip(self.state_keys, self._shapes, strict=True):
            specs.set(key, Unbounded(shape, device=weight.device, dtype=weight.dtype))
        return TensorDictPrimer(specs, expand_specs=True)

    def explain_backend(self, batch: TensorDictBase) -> BackendChoice:
        """Say which backend runs on a batch in recurrent mode, and why.

        Args:
            batch: TED rows ``[N]`` or ``[*B, T]``.

        Returns:
            The choice; print it.

        Raises:
            KeyError: the input or ``is_init`` is missing.
            RuntimeError: the backend that was asked for cannot run here.
            ValueError: the backend has no cell states of every row, or markers contradict.
        """
        segments = recurrent_segments(batch)
        x = keys.require(batch, self.in_keys[0])
        if runs_static(self.settings, batch):
            return BackendChoice("scan", f"asked for, ready for {self.settings.max_length} rows")
        network = Network.of(self.network)
        return choice_for(x, segments, network, self.settings, every_state=self.every_state)

    def explain(self, batch: TensorDictBase) -> str:
        """Say which path a call takes in the current mode, and why.

        Args:
            batch: roots ``[*B]`` in sequential mode; TED rows ``[N]`` or ``[*B, T]`` in recurrent
                mode.

        Returns:
            One line for one step; for sequences the rows, then the backend and its reason.

        Raises:
            KeyError: the input or ``is_init`` is missing.
            RuntimeError: the backend that was asked for cannot run here.
            ValueError: a sequence in sequential mode, or markers contradict each other.
        """
        if not self._is_recurrent():
            require_is_init(batch)
            refuse_sequence(batch)
            return explain_step(self.network)
        choice, segments = self.explain_backend(batch), recurrent_segments(batch)
        rows = f"{len(segments)} segments in {segments.num_real} rows"
        return f"{rows}, the longest {segments.max_length}\n{choice}"

    def burn_in_mask(self, batch: TensorDictBase) -> Tensor:
        """Flag the burn-in rows, which a loss should leave out.

        Args:
            batch: TED rows ``[N]`` or ``[*B, T]``.

        Returns:
            bool ``[*B, T]``.

        Raises:
            KeyError: ``is_init`` is missing.
            ValueError: markers contradict each other.
        """
        segments = recurrent_segments(batch)
        return segments.scatter(burn_in_rows(batch, segments, self.burn_in))

    @torch.no_grad()
    def refreshed_states(self, batch: TensorDictBase) -> TensorDict:
        """Recompute the states that rows start from with the current parameters.

        The first row of a segment keeps its state: the row before it is not in the batch.

        Args:
            batch: a sample, TED rows ``[N]`` or ``[*B, T]`` with ``("collector", "row")``.

        Returns:
            Rows ``[K]`` for the buffer to write back: the state keys, ``("collector", "row")``, and
            ``"index"`` if the sample has it.

        Raises:
            KeyError: a key is missing.
            ValueError: markers contradict each other.
        """
        segments = recurrent_segments(batch)
        numbers = keys.require(batch, keys.ROW)
        x, states = self._inputs(batch)
        starts = self._with_initial(tuple(segments.first(state) for state in states))
        # pad has no cell states after every row
        pad = self.settings.backend == "pad" and self.cell == "lstm"
        settings = Settings(precision=self.settings.precision) if pad else self.settings
        _, after = unroll_checked(
            x, segments, starts, Network.of(self.network), settings, every_state=True
        )
        is_first = torch.zeros(segments.num_real, dtype=torch.bool, device=segments.starts.device)
        rest = (~is_first.index_fill_(0, segments.offsets[:-1], True)).nonzero()[:, 0]
        fresh = TensorDict({keys.ROW: segments.gather(numbers)[rest]}, [len(rest)])
        for key, state in zip(self.state_keys, after, strict=True):
            fresh.set(key, state.index_select(0, rest - 1))
        index = batch.get(keys.INDEX, None)
        if index is not None:
            fresh.set(keys.INDEX, segments.gather(index)[rest])
        return fresh

    def _is_recurrent(self) -> bool:
        mode = recurrent_mode()
        return bool(self.default_recurrent_mode) if mode is None else mode

    @property
    def _weight(self) -> Tensor:
        """W_ih of the first layer: it has the width of inputs, the dtype and the device."""
        weight: Tensor = self.network.weight_ih_l0  # type: ignore[assignment]
        return weight

    def _one_step(self, tensordict: TensorDictBase) -> tuple[Tensor, States]:
        require_is_init(tensordict)
        refuse_sequence(tensordict)
        x, states = self._inputs(tensordict)
        return step_module(self.network, x, self._with_initial(states))

    def _sequences(self, batch: TensorDictBase) -> tuple[Tensor, States]:
        require_sequence(batch)
        network, every_state = Network.of(self.network), self.every_state
        burn_in = self.burn_in if torch.is_grad_enabled() else 0  # nothing to cut
        if runs_static(self.settings, batch):
            is_init = require_is_init(batch)
            if not (torch.compiler.is_compiling() or is_init.is_cuda):
                # names the row; elsewhere it would need a host sync
                refuse_lost_starts(batch_shape(batch), marker_leaves(batch))
            x, states = self._inputs(batch)
            inputs = batch, x, self._with_initial(states), network, self.settings
            return unroll_static(*inputs, every_state=every_state, burn_in=burn_in)
        segments = recurrent_segments(batch)
        x, states = self._inputs(batch)
        starts = self._with_initial(tuple([segments.first(state) for state in states]))
        run = network, self.settings
        if burn_in:
            rows = burn_in_rows(batch, segments, burn_in)
            out, after = unroll_after_burn_in(x, segments, starts, rows, (*run, every_state))
        else:
            out, after = unroll_checked(x, segments, starts, *run, every_state=every_state)
        return out, tuple([self._at_segment_ends(state, segments) for state in after])

    def _at_segment_ends(self, states: Tensor, segments: Segments) -> Tensor:
        """Scatter states to rows of the batch, zeros elsewhere: ``[*B, T, L, H]``."""
        if self.every_state:
            return segments.scatter(states)
        dense = states.new_zeros(segments.num_rows, *states.shape[1:])
        dense = dense.index_copy_(0, segments.lasts, states)
        return dense.view(*segments.batch_shape, *states.shape[1:])

    def _inputs(self, tensordict: TensorDictBase) -> tuple[Tensor, States]:
        """The input and the states of all rows, checked."""
        weight, shape = self._weight, tensordict.batch_size
        x = keys.require(tensordict, self.in_keys[0])
        states = []
        for key in self.in_keys[1:-1]:
            state = find(tensordict, (key,) if isinstance(key, str) else key)
            if state is None:
                msg = (
                    f"the state {key!r} is missing: make_tensordict_primer() makes the transform "
                    "that writes it at a reset, policy= of an environment appends it, and a "
                    "buffer must keep it. For a start from zeros, set zeros."
                )
                raise KeyError(msg)
            states.append(state)
        check_input(x, shape, weight)
        check_states(states, shape, weight, self._shapes)
        return x, tuple(states)

    def _with_initial(self, states: States) -> States:
        """Replace states by the learned ones in rows where all of them are zero."""
        if self.initial_states is None:
            return states
        fresh = (torch.cat([state.flatten(-2) for state in states], -1) == 0).all(-1)
        fresh = fresh[..., None, None]
        pairs = zip(self.initial_states, states, strict=True)
        return tuple(torch.where(fresh, learned, state) for learned, state in pairs)


def _new_network(
    make: Any, sizes: tuple[int | None, int | None], arguments: dict[str, Any]
) -> nn.RNNBase:
    if None in sizes:
        msg = f"expected input_size and hidden_size, or a network: got {sizes}."
        raise ValueError(msg)
    if not arguments["batch_first"]:
        msg = "tensordicts have time last: leave batch_first True."
        raise ValueError(msg)
    network: nn.RNNBase = make(*sizes, **arguments)
    return network


def _check_network(network: Any, sizes: tuple[int | None, int | None], cell: CellName) -> None:
    if not isinstance(network, nn.RNNBase) or network.mode != cell.upper():
        msg = f"expected a torch.nn.{cell.upper()}: got {type(network).__name__}."
        raise ValueError(msg)
    if sizes != (None, None):
        msg = f"expected a network or sizes, one of the two: got both, sizes {sizes}."
        raise ValueError(msg)
    if not network.batch_first:
        msg = "tensordicts have time last: make the network with batch_first=True."
        raise ValueError(msg)
