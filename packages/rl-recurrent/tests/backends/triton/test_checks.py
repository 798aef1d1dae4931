import pytest
import torch

from rl_layout import Segments
from rl_recurrent import Network, Settings
from rl_recurrent.backends.triton.layer import scan
from rl_recurrent.cells import CELLS
from rl_recurrent.functional import unroll


def test_cpu_tensors_raise_and_the_message_names_other_backends(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    segments = Segments.from_lengths(torch.tensor([1]))
    lstm = [*map(torch.zeros, ((1, 8), (8, 2))), None, *map(torch.zeros, ((1, 2), (1, 2)))]
    with pytest.raises(ValueError, match=r"got cpu\. Use backend 'pad', 'pack' or 'scan'"):
        scan(CELLS["lstm"], lstm, segments)
    with pytest.raises(ValueError, match="expected tensors on a CUDA device"):
        scan(CELLS["gru"], [*map(torch.zeros, ((1, 6), (6, 2), 2, (1, 2)))], segments)


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU])
def test_wrong_dtypes_raise(kind, device):
    network = Network.of(kind(3, 2, device=device, dtype=torch.float64))
    x = torch.zeros(5, 3, device=device, dtype=torch.float64)
    segments = Segments.from_lengths(torch.tensor([2, 3], device=device))
    with pytest.raises(TypeError, match=r"expected torch\.float32.*, got torch\.float64"):
        unroll(x, segments, None, network, Settings("triton"))


def test_segments_on_another_device_raise(device):
    segments = Segments.from_lengths(torch.tensor([1])).to("meta")
    gates = [*map(torch.zeros, ((1, 6), (6, 2), 2, (1, 2)))]
    with pytest.raises(ValueError, match="like the inputs, got meta"):
        scan(CELLS["gru"], [each.to(device) for each in gates], segments)
