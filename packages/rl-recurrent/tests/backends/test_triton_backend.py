from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

# In a process of its own: kernels are interpreted or compiled as it was when they were imported.
CODE = """
import torch
from torch.testing import assert_close
from rl_layout import Segments
from rl_recurrent import GRU, LSTM, Network, Settings
from rl_recurrent.functional import unroll

torch.manual_seed(0)
lengths = torch.tensor([3, 1, 6])
segments, x = Segments.from_lengths(lengths), torch.randn(10, 3)
variants = [(LSTM, {"proj_size": 4}), (LSTM, {"num_layers": 2}), (GRU, {"bidirectional": True})]
for kind, variant in variants:
    module = kind(3, 17, **variant)
    network, found = Network.of(module), []
    states = tuple(torch.randn(3, *shape, requires_grad=True) for shape in network.state_shapes)
    for backend in ("pack", "triton"):
        leaf = x.clone().requires_grad_()
        out, after = unroll(leaf, segments, states, network, Settings(backend))
        loss = out.square().sum() + sum(state.sum() for state in after)
        leaves = [leaf, *states, *module.parameters()]
        found.append([out, *after, *torch.autograd.grad(loss, leaves)])
    assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
print("equal")
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
def test_networks_over_interpreted_kernels_equal_packed_ones():
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CODE],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stdout == "equal\n", run.stderr
