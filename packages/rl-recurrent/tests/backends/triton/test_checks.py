import pytest
import torch

from rl_layout import Segments
from rl_recurrent.backends.triton.layer import scan
from rl_recurrent.cells import CELLS


def run_lstm(device="cpu", options=None, **changed):
    """Scan 5 rows, H = 3, two segments, with some of the tensors changed."""
    tensors = {
        "gates": torch.zeros(5, 12, device=device),
        "w_hh": torch.zeros(12, 3, device=device),
        "b_hn": None,
        "h0": torch.zeros(2, 3, device=device),
        "c0": torch.zeros(2, 3, device=device),
    }
    segments = Segments.from_lengths(torch.tensor([2, 3], device=device))
    return scan(CELLS["lstm"], [*{**tensors, **changed}.values()], segments, **(options or {}))


def test_cpu_tensors_raise_and_the_message_names_other_backends(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match=r"got cpu\. Use backend 'pad', 'pack' or 'scan'"):
        run_lstm()
    segments = Segments.from_lengths(torch.tensor([1]))
    with pytest.raises(ValueError, match="expected tensors on a CUDA device"):
        scan(CELLS["gru"], [*map(torch.zeros, ((1, 6), (6, 2), 2, (1, 2)))], segments)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        (
            "gates",
            (5, 9),
            r"gates: expected shape \[5, 12\] for 2 segments in 5 rows, got \[5, 9\]",
        ),
        ("gates", (4, 12), r"gates: expected shape \[5, 12\]"),
        ("w_hh", (9, 3), r"w_hh: expected shape \[12, 3\]"),
        ("h0", (5, 3), r"h0: expected shape \[2, 3\]"),
        ("c0", (2, 4), r"c0: expected shape \[2, 3\]"),
    ],
)
def test_wrong_shapes_raise(name, shape, expected, device):
    with pytest.raises(ValueError, match=expected):
        run_lstm(device, **{name: torch.zeros(shape, device=device)})


def test_wrong_dtypes_raise(device):
    wrong = torch.zeros(2, 3, device=device, dtype=torch.float64)
    with pytest.raises(TypeError, match=r"h0: expected torch\.float32"):
        run_lstm(device, h0=wrong)


def test_mixed_devices_raise(device):
    with pytest.raises(ValueError, match=r"h0: expected it on .*, got meta"):
        run_lstm(device, h0=torch.zeros(2, 3, device="meta"))


def test_unknown_options_raise(device):
    with pytest.raises(ValueError, match=r"save: expected one of \['state', 'gates'\], got 'all'"):
        run_lstm(device, {"save": "all"})
    with pytest.raises(ValueError, match="precision: expected one of"):
        run_lstm(device, {"precision": "fp8"})


def test_projection_of_another_shape_raises(device):
    x, w_ih = torch.zeros(5, 7, device=device), torch.zeros(12, 6, device=device)
    with pytest.raises(ValueError, match=r"w_ih \[12, I\].*got \[\[5, 7\], \[12, 6\]\]"):
        run_lstm(device, {"projection": (x, w_ih, None)})
