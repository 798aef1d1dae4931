"""The choice of a backend: the table of ``"auto"``, and the limits of each backend.

| device | batch | backend |
|---|---|---|
| under `torch.compile` | ``[B, T]``; a flat batch with a `max_length` | ``scan`` |
| under `torch.compile` | anything else | as below, outside of the graph |
| CPU | an LSTM, segments all of one length, not in float64 | ``pad``, one call |
| CPU | anything else, with numba, not in float64 | ``compiled`` |
| CPU | anything else | ``pack`` |
| CUDA | segments all of one length, but a wide batch with 128 < H <= 192 | ``pad``: cuDNN |
| CUDA | anything else, with triton | ``triton`` |
| CUDA | anything else, without triton or in float64 | ``pad`` in blocks of time |

``compiled`` runs on the threads of torch, each with some of the segments, and on one where their
library cannot be reached, as on Windows. ``pad`` has no cell states of an LSTM per row: with
``every_state``, another one runs.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from tensordict import TensorDictBase

from rl_layout import Segments, keys, must_compare_observations
from rl_recurrent.backends.compiled.loops import has_loops
from rl_recurrent.cells.cell import CellName
from rl_tensordict import CPU
from rl_tensordict.arguments import shown

# cuDNN is slow for more segments than WIDE with a hidden size in SLOW_SIZES
WIDE = 32
SLOW_SIZES = range(129, 193)
PRECISIONS = ("auto", "ieee", "tf32", "tf32x3", "bf16")


@dataclass(frozen=True)
class Settings:
    """Options of a recurrence: backend, precision, memory.

    Attributes:
        backend: ``"pad"``, ``"pack"``, ``"compiled"``, ``"scan"``, ``"triton"`` or ``"auto"``.
        precision: of the operands of matrix products in ``triton``: ``"ieee"``, ``"tf32"``,
            ``"tf32x3"``, ``"bf16"``, or ``"auto"``, which does as ``torch.nn`` does on that device.
        save: what is kept for backward: ``"state"`` for the least memory, ``"gates"`` to compute
            less. ``"auto"`` is ``"gates"`` in ``pack`` and ``compiled``, ``"state"`` in ``triton``.
            ``scan`` keeps states alone; what ``pad`` keeps is up to torch.
        max_length: the longest segment that ``scan`` must be ready for, where its shapes must not
            depend on the data; None to read it from the data. Best the length of a slice: it is
            used as it is, so that flat rows and ``[B, T]`` give the same bits.

    Raises:
        ValueError: one of them is unknown.

    Example:
        >>> Settings(backend="pack").precision
        'auto'
    """

    backend: str = "auto"
    precision: str = "auto"
    save: str = "auto"
    max_length: int | None = None

    def __post_init__(self) -> None:
        known = {
            "backend": ("auto", "pad", "pack", "compiled", "scan", "triton"),
            "precision": PRECISIONS,
            "save": ("auto", "state", "gates"),
        }
        for name, values in known.items():
            value: Any = getattr(self, name)
            if not isinstance(value, str) or value not in values:
                msg = f"{name} must be one of {', '.join(values)}: got {getattr(self, name)!r}."
                raise ValueError(msg)
        length: Any = self.max_length
        if length is not None and (not isinstance(length, int) or length < 1):
            msg = f"max_length must be at least 1: got {self.max_length}."
            raise ValueError(msg)


@dataclass(frozen=True)
class Work:
    """The properties of a computation that the choice of a backend depends on.

    Attributes:
        cell: ``"lstm"`` or ``"gru"``.
        hidden_size: H.
        device: of the batch.
        dtype: of the parameters.
        every_state: whether states are returned after every row, not at segment ends alone.

    Example:
        >>> Work("gru", 128).device
        device(type='cpu')
    """

    cell: CellName
    hidden_size: int
    device: torch.device = CPU
    dtype: torch.dtype = torch.float32
    every_state: bool = False

    @property
    def needs_cells(self) -> bool:
        """Whether the cell state after every row is returned."""
        return self.cell == "lstm" and self.every_state


@dataclass(frozen=True)
class BackendChoice:
    """A backend and the reason for it.

    Attributes:
        backend: ``"pad"``, ``"pack"``, ``"compiled"``, ``"scan"`` or ``"triton"``.
        reason: one line of text.

    Example:
        >>> print(BackendChoice("pack", "asked for"))
        pack: asked for
    """

    backend: str
    reason: str

    def __str__(self) -> str:
        return f"{self.backend}: {self.reason}"


def explain_backend(
    work: Work, segments: Segments, settings: Settings | None = None
) -> BackendChoice:
    """Say which backend computes a batch, and why.

    Args:
        work: the computation.
        segments: of the batch.
        settings: the backend that was asked for; ``"auto"`` if absent.

    Returns:
        The choice.

    Raises:
        TypeError: an argument is of another type.
        RuntimeError: the backend that was asked for cannot run here.
        ValueError: the backend has no cell states after every row.

    Example:
        >>> segments = Segments.from_lengths(torch.tensor([3, 5]))
        >>> print(explain_backend(Work("gru", 128, dtype=torch.float64), segments))
        pack: GRU on a CPU, segments of several lengths
    """
    arguments: tuple[tuple[str, Any, Any], ...] = (
        ("work", work, Work),
        ("segments", segments, Segments),
        ("settings", settings, Settings | None),
    )
    for name, value, kind in arguments:
        if not isinstance(value, kind):
            msg = f"{name}: expected {name.capitalize()}, got {shown(value)}."
            raise TypeError(msg)
    return choose(work, segments, "auto" if settings is None else settings.backend)


def choose(work: Work, segments: Segments, asked: str) -> BackendChoice:
    """Choose a backend, which may be asked for; of arguments that were checked."""
    if asked != "auto":
        check_backend(asked, work)
        return BackendChoice(asked, "asked for")
    if torch.compiler.is_compiling():
        return BackendChoice("scan", "under torch.compile")
    return _on_cuda(work, segments) if work.device.type == "cuda" else _on_cpu(work, segments)


def check_backend(backend: str, work: Work) -> None:
    """Raise if a backend is missing here or cannot compute these states."""
    if backend == "pad" and work.needs_cells:
        msg = "pad gives cell states at segment ends only: take pack, scan, triton or auto."
        raise ValueError(msg)
    if backend == "compiled":
        _check_compiled(work)
    if backend != "triton":
        return
    if not has_triton():
        msg = "triton is not installed: pip install 'rl-recurrent[triton]', or take pack or auto."
        raise RuntimeError(msg)
    if work.device.type != "cuda" and not interprets():
        msg = f"triton runs on CUDA, the batch is on {work.device}: take pad, pack, scan or auto."
        raise RuntimeError(msg)


def has_triton() -> bool:
    """Tell whether triton can be imported."""
    return find_spec("triton") is not None


def interprets() -> bool:
    """Tell whether triton's interpreter is switched on, which runs kernels on a CPU for tests."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def is_dense(segments: Segments) -> bool:
    """Tell whether there are segments, all of one length: their rows are then ``[S, T]``."""
    return 0 < segments.num_real == segments.max_length * len(segments)


def _on_cpu(work: Work, segments: Segments) -> BackendChoice:
    dense = is_dense(segments)
    if work.cell == "lstm" and dense and not work.needs_cells and work.dtype != torch.float64:
        return BackendChoice("pad", "LSTM on a CPU, segments of one length: one call of torch")
    if work.dtype != torch.float64 and has_loops():
        return BackendChoice("compiled", f"{work.cell.upper()} on a CPU: loops that numba compiled")
    if work.needs_cells:
        return BackendChoice("pack", "LSTM on a CPU, the cell state after every row is wanted")
    if work.cell == "lstm" and dense:
        return BackendChoice("pack", "LSTM on a CPU in float64, which oneDNN does not have")
    lengths = "one length" if dense else "several lengths"
    return BackendChoice("pack", f"{work.cell.upper()} on a CPU, segments of {lengths}")


def _check_compiled(work: Work) -> None:
    """Raise if the loops that numba compiles cannot compute these states."""
    if work.device.type != "cpu" or work.dtype == torch.float64:
        msg = (
            "compiled computes in float32 on a CPU, "
            f"the batch is {work.dtype} on {work.device}: take pack or auto."
        )
        raise RuntimeError(msg)
    if not has_loops():
        msg = (
            "numba is not of use here: pip install 'rl-recurrent[compiled]', or take pack or auto."
        )
        raise RuntimeError(msg)


def _on_cuda(work: Work, segments: Segments) -> BackendChoice:
    dense = is_dense(segments)
    triton = has_triton() and work.dtype != torch.float64  # there are no kernels in float64
    slow = len(segments) > WIDE and work.hidden_size in SLOW_SIZES
    if dense and not work.needs_cells and not (slow and triton):
        return BackendChoice("pad", "segments of one length on CUDA: one call of cuDNN")
    if triton:
        return BackendChoice("triton", "segments on CUDA, all at once")
    why = "triton has no float64" if has_triton() else "triton is not installed"
    if work.needs_cells:
        return BackendChoice("pack", f"{why}, the cell state after every row is wanted")
    return BackendChoice("pad", f"{why}: blocks of time through cuDNN")


def runs_static(settings: Settings, batch: TensorDictBase) -> bool:
    """Tell whether a batch is unrolled in static shapes: ``scan`` with a bound, or compiled."""
    if not torch.compiler.is_compiling():
        return settings.backend == "scan" and settings.max_length is not None
    bounded = settings.max_length is not None or len(batch.batch_size) != 1  # unroll refuses []
    return settings.backend in ("scan", "auto") and bounded and not may_contradict(batch)


def may_contradict(batch: TensorDictBase) -> bool:
    """Tell whether segment ends depend on comparing observations, which needs the host."""
    if not batch.batch_size or batch.batch_size[-1] < 2 or not must_compare_observations(batch):
        return False
    after = batch.get(keys.NEXT)
    flags = (*keys.DONE_KEYS, keys.REWARD, keys.IS_INIT)
    return any(name in batch.keys() and name not in flags for name in after.keys())  # noqa: SIM118
