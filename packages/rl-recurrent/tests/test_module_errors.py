"""What recurrent modules refuse, and the paths that they explain."""

from __future__ import annotations

import sys

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from rl_layout import set_recurrent_mode
from rl_layout.segments.end_kind import EndKind
from rl_layout.synthetic import environments, trajectories
from rl_recurrent import GRUModule, LSTMModule
from rl_recurrent.backends import dispatch

MODULES = [LSTMModule, GRUModule]

each_module = pytest.mark.parametrize("make", MODULES)

sequences = set_recurrent_mode("recurrent")


@each_module
def test_missing_is_init_error_names_the_transform(make, module_of, with_states):
    module = module_of(make)
    batch = with_states(trajectories([3]), module).exclude("is_init")
    for mode, rows in (("recurrent", batch), ("sequential", batch[0])):
        with set_recurrent_mode(mode), pytest.raises(KeyError, match="InitTracker writes it"):
            module(rows)


@each_module
@pytest.mark.parametrize("static", [{}, {"recurrent_backend": "scan", "max_length": 4}], ids=str)
def test_lost_is_init_raises_with_its_row(make, static, module_of, with_states):
    module = module_of(make, **static)
    batch = with_states(trajectories([3, 4]), module)
    batch["is_init"] = torch.zeros_like(batch["is_init"])
    with sequences, pytest.raises(ValueError, match="is_init is False at row 0, where another"):
        module(batch)
    assert "features" not in batch


@each_module
def test_triton_on_a_cpu_raises_and_names_the_other_backends(
    make, monkeypatch, module_of, with_states
):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr("rl_recurrent.backends.dispatch.has_triton", lambda: True)
    module = module_of(make, recurrent_backend="triton")
    batch = with_states(trajectories([3, 4]), module)
    with sequences, pytest.raises(RuntimeError, match="is on cpu: take pad, pack, scan or auto"):
        module(batch)


@pytest.mark.parametrize("shape", [[5], [7, 5], [7, 2, 5], [7, 1, 4]])
def test_state_of_another_shape_raises(shape, module_of, with_states):
    module = module_of(GRUModule)
    batch = with_states(trajectories([3, 4]), module)
    state = torch.zeros(7, *shape[1:]) if shape[0] == 7 else torch.zeros(7, 5)
    batch["recurrent_state"] = state.double()
    message = rf"state h of shape \[7, 1, 5\]: got \[{', '.join(map(str, state.shape))}\]"
    with sequences, pytest.raises(ValueError, match=message):
        module(batch)
    with pytest.raises(ValueError, match=r"state h of shape \[7, 1, 5\]"):
        module.step(batch["observation"], state.double(), batch["is_init"])


def test_module_in_the_wrong_mode_raises(module_of, with_states):
    module = module_of(GRUModule)
    batch = with_states(environments(2, 3, [3], [EndKind.TERMINATED]), module)
    for rows in (batch, batch[0], TensorDict(batch.to_dict(), [2, 3])):
        with pytest.raises(ValueError, match="sequential mode expects one step"):
            module(rows)
    with sequences, pytest.raises(ValueError, match=r"recurrent mode expects .* \[\]"):
        module(batch[0, 0])
    module(batch[:, 0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"in_key": None}, "in_key or in_keys"),
        ({"in_keys": ["a"]}, "in_key or in_keys"),
        ({"out_key": None}, "out_key or out_keys"),
        ({"in_key": None, "in_keys": ["a"]}, "1 states and is_init"),
        ({"out_key": None, "out_keys": ["a"]}, "out_keys of an output and 1"),
        ({"in_key": None, "in_keys": ["a", "b", ("agents", "is_init")]}, "nested group"),
        ({"batch_first": False}, "batch_first"),
        ({"recurrent_backend": "hoptorch"}, "backend must be one of"),
        ({"recurrent_matmul_precision": "high"}, "precision must be one of"),
        ({"burn_in": -1}, "burn_in must be 0 or more"),
        ({"burn_in": 1, "bidirectional": True}, "burn_in warms up .* leave bidirectional False"),
        ({"max_length": 0}, "max_length must be at least 1"),
        ({"gru": nn.GRU(2, 5, batch_first=True)}, "got both"),
    ],
)
def test_constructor_errors_say_what_was_expected(arguments, message, module_of):
    with pytest.raises(ValueError, match=message):
        module_of(GRUModule, **arguments)


def test_constructor_raises_for_wrong_networks():
    names = {"in_key": "observation", "out_key": "features"}
    with pytest.raises(ValueError, match=r"torch.nn.GRU: got LSTM"):
        GRUModule(gru=nn.LSTM(2, 5, batch_first=True), **names)
    with pytest.raises(ValueError, match="batch_first=True"):
        GRUModule(gru=nn.GRU(2, 5), **names)
    with pytest.raises(ValueError, match="input_size and hidden_size"):
        GRUModule(input_size=2, **names)


def test_explicit_triton_on_a_cpu_raises(monkeypatch, module_of, with_states):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    module = module_of(GRUModule, recurrent_backend="triton")
    batch = with_states(trajectories([3, 4]), module)
    with sequences, pytest.raises(RuntimeError, match="runs on CUDA, the batch is on cpu"):
        module(batch)


def test_pad_with_every_state_of_an_lstm_raises(module_of, with_states):
    module = module_of(LSTMModule, recurrent_backend="pad", every_state=True)
    batch = with_states(trajectories([3, 4]), module)
    with sequences, pytest.raises(ValueError, match="pad gives cell states at segment ends only"):
        module(batch)


def test_explain_backend_of_a_module_names_the_reason(module_of, monkeypatch):
    module = module_of(LSTMModule, dtype=torch.float32)
    batch = trajectories([3, 4])
    said = "compiled: LSTM on a CPU: loops that numba compiled"
    assert str(module.explain_backend(batch)) == said
    monkeypatch.setattr(dispatch, "has_loops", lambda: False)
    assert str(module.explain_backend(batch)) == "pack: LSTM on a CPU, segments of several lengths"
    assert module.explain_backend(trajectories([4, 4])).backend == "pad"
    assert module_of(LSTMModule, recurrent_backend="scan").explain_backend(batch).backend == "scan"


def functions_called(act):
    """Modules and names of the package's functions that a call passes through."""
    found = set()

    def record(frame, event, _):
        name = frame.f_globals.get("__name__", "")
        if event == "call" and name.startswith("rl_recurrent."):
            found.add(f"{name.removeprefix('rl_recurrent.')}.{frame.f_code.co_name}")

    sys.setprofile(record)
    try:
        act()
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize(
    ("make", "lengths", "has_numba", "backend"),
    [
        (LSTMModule, [20, 35, 9], True, "compiled"),
        (GRUModule, [20, 35, 9], True, "compiled"),
        (GRUModule, [20] * 150, True, "compiled"),
        (LSTMModule, [20] * 150, True, "pad"),
        (LSTMModule, [20, 35, 9], False, "pack"),
        (GRUModule, [20, 35, 9], False, "pack"),
        (GRUModule, [20] * 150, False, "pack"),
    ],
)
def test_call_of_a_plain_module_takes_the_path_that_is_explained(
    make, lengths, has_numba, backend, in_float32, with_states, monkeypatch
):
    if not has_numba:
        monkeypatch.setattr(dispatch, "has_loops", lambda: False)
    module = make(2, 64, in_key="observation", out_key="features")
    batch = in_float32(with_states(trajectories(lengths), module))
    with sequences:
        explained = module.explain(batch)
        called = functions_called(lambda: module(batch))
    rows = f"{len(lengths)} segments in {sum(lengths)} rows, the longest {max(lengths)}"
    assert explained == f"{rows}\n{module.explain_backend(batch)}"
    layers = {f"backends.{name}.layer": name for name in ("pack", "pad", "static.scan")}
    layers["backends.compiled.layer.layer"] = "compiled"
    ran = {name for call, name in layers.items() if call in called}
    assert ran == {backend} == {module.explain_backend(batch).backend}
    assert called & {"network.of", "inputs.refuse_lost_starts"} == {"network.of"}


@each_module
@pytest.mark.parametrize(
    ("options", "explained"),
    [
        ({}, "one step: one call of torch's cell"),
        ({"num_layers": 2}, "one step: layer by layer (several layers)"),
    ],
    ids=str,
)
def test_step_of_a_module_takes_the_path_that_is_explained(
    make, options, explained, in_float32, with_states
):
    module = make(2, 64, in_key="observation", out_key="features", **options)
    roots = in_float32(with_states(environments(3, 4, [5], [EndKind.CUT]), module))[:, 0]
    assert module.explain(roots) == explained
    called = functions_called(lambda: module(roots))
    assert ("single_step.step_network" in called) is ("layer by layer" in explained)
    assert ("network.of" in called) is ("layer by layer" in explained)


def test_explain_raises_where_the_call_would(module_of):
    module = module_of(LSTMModule, dtype=torch.float32)
    with pytest.raises(ValueError, match="sequential mode expects one step"):
        module.explain(trajectories([3, 4]))


def test_explain_backend_of_static_shapes_names_max_length(module_of):
    module = module_of(GRUModule, recurrent_backend="scan", max_length=9)
    assert str(module.explain_backend(trajectories([3]))) == "scan: asked for, ready for 9 rows"
