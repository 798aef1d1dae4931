from __future__ import annotations

import pytest
import torch

from rl_layout import Segments
from rl_recurrent import Settings, Work, explain_backend
from rl_recurrent.backends import dispatch

DENSE = Segments.from_lengths(torch.full((64,), 5))
RAGGED = Segments.from_lengths(torch.tensor([5, 3]))
CUDA = torch.device("cuda")


@pytest.mark.parametrize(
    ("work", "segments", "wanted"),
    [
        (Work("lstm", 128), RAGGED, "pack"),
        (Work("lstm", 128), DENSE, "pad"),
        (Work("lstm", 128, dtype=torch.float64), DENSE, "pack"),
        (Work("lstm", 128, every_state=True), DENSE, "pack"),
        (Work("gru", 128), RAGGED, "pack"),
        (Work("gru", 128, every_state=True), DENSE, "pack"),
        (Work("gru", 512), DENSE, "pack"),
        (Work("lstm", 2), DENSE, "pad"),
        (Work("lstm", 128, CUDA), DENSE, "pad"),
        (Work("lstm", 160, CUDA), DENSE, "triton"),
        (Work("lstm", 160, CUDA), Segments.from_lengths(torch.full((32,), 5)), "pad"),
        (Work("lstm", 128, CUDA, every_state=True), DENSE, "triton"),
        (Work("gru", 512, CUDA), RAGGED, "triton"),
        (Work("gru", 512, CUDA, torch.float64), RAGGED, "pad"),  # there are no such kernels
        (Work("lstm", 512, CUDA, torch.float64, every_state=True), RAGGED, "pack"),
    ],
    ids=str,
)
def test_auto_follows_the_table(work, segments, wanted, monkeypatch):
    monkeypatch.setattr(dispatch, "has_triton", lambda: True)
    monkeypatch.setattr(dispatch, "has_loops", lambda: False)
    choice = explain_backend(work, segments)
    assert choice.backend == wanted
    assert str(choice).startswith(f"{wanted}: ")


@pytest.mark.parametrize(
    ("work", "wanted"),
    [
        (Work("gru", 512, CUDA), "pad"),
        (Work("lstm", 512, CUDA, every_state=True), "pack"),
        (Work("lstm", 160, CUDA), "pad"),
    ],
    ids=str,
)
def test_auto_without_triton_follows_the_table(work, wanted, monkeypatch):
    monkeypatch.setattr(dispatch, "has_triton", lambda: False)
    assert explain_backend(work, DENSE).backend == wanted


@pytest.mark.parametrize(
    ("work", "segments", "wanted"),
    [
        (Work("lstm", 128), RAGGED, "compiled"),
        (Work("lstm", 128), DENSE, "pad"),
        (Work("lstm", 128, dtype=torch.float64), DENSE, "pack"),
        (Work("lstm", 128, every_state=True), DENSE, "compiled"),
        (Work("gru", 128), RAGGED, "compiled"),
        (Work("gru", 128, dtype=torch.bfloat16), RAGGED, "compiled"),
        (Work("gru", 128, every_state=True), DENSE, "compiled"),
        (Work("gru", 65, dtype=torch.float64), DENSE, "pack"),
        (Work("gru", 512, CUDA), RAGGED, "triton"),
    ],
    ids=str,
)
def test_auto_with_numba_follows_the_table(work, segments, wanted, monkeypatch):
    monkeypatch.setattr(dispatch, "has_triton", lambda: True)
    monkeypatch.setattr(dispatch, "has_loops", lambda: True)
    assert explain_backend(work, segments).backend == wanted


@pytest.mark.parametrize("size", [1, 128, 129, 4096])
def test_auto_takes_the_loops_at_every_width(size, monkeypatch):
    monkeypatch.setattr(dispatch, "has_loops", lambda: True)
    assert explain_backend(Work("gru", size), RAGGED).backend == "compiled"


def test_requested_loops_run_or_raise(monkeypatch):
    asked = Settings("compiled")
    assert explain_backend(Work("lstm", 128), DENSE, asked).backend == "compiled"
    with pytest.raises(RuntimeError, match=r"in float32 on a CPU, the batch is torch.float64"):
        explain_backend(Work("lstm", 128, dtype=torch.float64), DENSE, asked)
    with pytest.raises(RuntimeError, match="on cuda: take pack"):
        explain_backend(Work("lstm", 128, CUDA), DENSE, asked)
    monkeypatch.setattr(dispatch, "has_loops", lambda: False)
    with pytest.raises(RuntimeError, match=r"pip install 'rl-recurrent\[compiled\]'"):
        explain_backend(Work("lstm", 128), DENSE, asked)


def test_requested_backend_runs_or_raises(monkeypatch):
    work = Work("lstm", 128)
    for backend in ("pad", "pack", "scan"):
        assert explain_backend(work, RAGGED, Settings(backend)).backend == backend
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(dispatch, "has_triton", lambda: True)
    with pytest.raises(RuntimeError, match="runs on CUDA, the batch is on cpu: take pad"):
        explain_backend(work, RAGGED, Settings("triton"))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert explain_backend(work, RAGGED, Settings("triton")).backend == "triton"
    monkeypatch.setattr(dispatch, "has_triton", lambda: False)
    with pytest.raises(RuntimeError, match=r"pip install 'rl-recurrent\[triton\]'"):
        explain_backend(work, RAGGED, Settings("triton"))


@pytest.mark.parametrize("name", ["backend", "precision", "save"])
def test_unknown_settings_raise(name):
    with pytest.raises(ValueError, match=f"{name} must be one of .*: got 'best'"):
        Settings(**{name: "best"})
