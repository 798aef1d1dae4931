"""The Triton backend on one GPU, compared with torchrl's modules and torch's own networks.

Run with `nox -s "bench(rl-recurrent)"` on a machine with a CUDA device.
Forward and backward with gradients of parameters and inputs, tf32 products on both sides. Every
duration is a median of synchronised calls that take turns, the host's share included; `device` is
the time that kernels ran. Ratios are peer over ours: above 1 is faster. Goals stand after them.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from bench import medians_us, session, table
from tensordict import TensorDict
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

warnings.filterwarnings("ignore")

DEVICE = torch.device("cuda")
INPUT = 64
Call = Callable[[], object]
Table = dict[str, Call]


def synchronised(call: Call) -> Call:
    """The call, until the device is idle again."""

    def run() -> None:
        call()
        torch.cuda.synchronize()

    return run


def device_us(call: Call) -> float:
    """Time that the kernels of one call ran."""
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in seen.key_averages())


def show(title: str, calls: Table, goals: dict[str, float], repeats: int) -> None:
    """Print durations, and every peer's over that of the first call, which is ours."""
    working: Table = {}
    for name, call in calls.items():
        print(f"{title}: {name} begins", file=sys.stderr, flush=True)  # kernels compile for minutes
        try:
            synchronised(call)()
            working[name] = synchronised(call)
        except Exception as error:  # a peer that cannot run this shape is a line of the table
            reason = f"{type(error).__name__}: {str(error)[:80]}"
            print(f"\n{title}: {name} does not run: {reason}")
    mine = next(iter(calls))
    if mine not in working:
        return
    found = medians_us(repeats, *working.values(), warm_up=5)
    notes = {name: f"device {device_us(calls[name]):12,.1f} us" for name in working}
    for name in working.keys() & goals.keys():
        notes[name] += f"  goal at least {goals[name]:g}"
    table(title, dict(zip(working, found, strict=True)), mine, notes)


def starts(lengths: list[int]) -> Tensor:
    """Flags of first rows, ``[M, 1]``."""
    flag = torch.zeros(sum(lengths), 1, dtype=torch.bool)
    flag[[sum(lengths[:s]) for s in range(len(lengths))]] = True
    return flag


def batch_of(cell: str, flag: Tensor, size: int) -> TensorDict:
    """Inputs, stored states and starts, in the shape of the flag."""
    shape = flag.shape[:-1]
    rows = {"x": torch.randn(*shape, INPUT), "is_init": flag}
    for key in ("h", "c") if cell == "lstm" else ("h",):
        rows[key] = torch.zeros(*shape, 1, size)
    return TensorDict(rows, shape).to(DEVICE)


def module_of(package: Any, cell: str, size: int, **options: Any) -> Any:
    """The same network from ours or from the peer."""
    states = ["h", "c"] if cell == "lstm" else ["h"]
    return getattr(package, f"{cell.upper()}Module")(
        input_size=INPUT,
        hidden_size=size,
        in_keys=["x", *states, "is_init"],
        out_keys=["y", *(("next", key) for key in states)],
        device=DEVICE,
        **options,
    )


def training_call(module: Any, batch: TensorDict, mode: Any, size: int) -> Call:
    """Forward and backward over one batch, as a loss does it."""
    seen = torch.randn(*batch.batch_size, size, device=DEVICE)

    def call() -> None:
        rows = batch.copy()
        rows["x"] = batch["x"].detach().requires_grad_()
        with mode(True):
            out = module(rows)["y"]
        torch.autograd.backward(out, seen)
        module.zero_grad()

    return call


class Sides:
    """Ours and the peers', with the same switches."""

    def __init__(self, with_peer: bool) -> None:
        import rl_recurrent
        from rl_layout import set_recurrent_mode

        self.ours, self.mode = rl_recurrent, set_recurrent_mode
        self.peer: Any = None
        if with_peer and importlib.util.find_spec("torchrl") is not None:
            import torchrl.modules

            self.peer = torchrl.modules

    def mine(self, cell: str, batch: TensorDict, size: int, backend: str = "triton") -> Call:
        """A training step of ours."""
        module = module_of(self.ours, cell, size, recurrent_backend=backend)
        return training_call(module, batch, self.mode, size)

    def theirs(self, cell: str, batch: TensorDict, size: int, backend: str, **more: Any) -> Table:
        """A training step of torchrl's, if it is installed; its kernels multiply in tf32 too."""
        if self.peer is None:
            return {}
        more = {"recurrent_matmul_precision": "tf32", **more} if backend == "triton" else more
        module = module_of(self.peer, cell, size, recurrent_backend=backend, **more)
        mode = self.peer.set_recurrent_mode
        return {f"torchrl, {backend}": training_call(module, batch, mode, size)}


def dense_call(cell: str, shape: tuple[int, int], size: int) -> Call:
    """Forward and backward of torch's own network on full sequences."""
    kind: Any = nn.LSTM if cell == "lstm" else nn.GRU
    network = kind(INPUT, size, batch_first=True, device=DEVICE)
    x = torch.randn(*shape, INPUT, device=DEVICE, requires_grad=True)
    seen = torch.randn(*shape, size, device=DEVICE)

    def call() -> None:
        torch.autograd.backward(network(x)[0], seen)
        network.zero_grad()

    return call


def ragged(sides: Sides, cell: str, repeats: int) -> None:
    """G1 and G3: flat rows of segments of many lengths; the peer's pad splits, pads and packs."""
    for count in (64, 512):
        lengths = torch.randint(1, 257, (count,)).tolist()
        for size in (64, 128):
            batch = batch_of(cell, starts(lengths), size)
            calls = {"ours, triton": sides.mine(cell, batch, size)}
            calls |= sides.theirs(cell, batch, size, "pad")
            title = f"G1 {cell}, flat, {count} segments of 1 to 256, {sum(lengths)} rows, H={size}"
            show(title, calls, {"torchrl, pad": 3.0}, repeats)
    flag, size = starts([32] * 64), 128
    batch = batch_of(cell, flag, size)
    calls = {"ours, triton": sides.mine(cell, batch, size)}
    calls |= sides.theirs(cell, batch, size, "triton") | sides.theirs(cell, batch, size, "scan")
    goals = {"torchrl, triton": 10.0, "torchrl, scan": 10.0}
    show(f"G3 {cell}, 64 flat slices of 32, H={size}", calls, goals, max(5, repeats // 5))


def grid(sides: Sides, cell: str, repeats: int) -> None:
    """G2: environments by steps with resets inside, in the layout that suits the peer."""
    flag = torch.rand(128, 128, 1) < 0.03
    flag[:, 0] = True
    for size, goal in ((128, 1.5), (256, 2.0)):
        batch = batch_of(cell, flag, size)
        calls = {"ours, triton": sides.mine(cell, batch, size)}
        calls |= sides.theirs(cell, batch, size, "triton") | sides.theirs(cell, batch, size, "pad")
        show(
            f"G2 {cell}, [128, 128], 3 % resets, H={size}",
            calls,
            {"torchrl, triton": goal},
            repeats,
        )


def dense(sides: Sides, cell: str, repeats: int) -> None:
    """G4: full sequences without resets."""
    flag = torch.zeros(128, 128, 1, dtype=torch.bool)
    flag[:, 0] = True
    for size in (64, 128):
        batch = batch_of(cell, flag, size)
        network = dense_call(cell, (128, 128), size)
        for backend, goal in (("auto", 0.95), ("triton", 0.7)):
            calls = {f"ours, {backend}": sides.mine(cell, batch, size, backend), "torch": network}
            show(f"G4 {cell}, dense [128, 128], H={size}", calls, {"torch": goal}, repeats)


def wide(sides: Sides, cell: str, repeats: int) -> None:
    """G5: full sequences and large hidden states."""
    flag = torch.zeros(128, 128, 1, dtype=torch.bool)
    flag[:, 0] = True
    for size in (512, 1024):
        batch = batch_of(cell, flag, size)
        calls = {"ours, triton": sides.mine(cell, batch, size)}
        calls |= sides.theirs(cell, batch, size, "triton")
        calls["torch"] = dense_call(cell, (128, 128), size)
        goals = {"torchrl, triton": 3.0, "torch": 0.8}
        show(f"G5 {cell}, dense [128, 128], H={size}", calls, goals, repeats)


def kept_bytes(call: Callable[[], Any]) -> int:
    """Memory that a forward pass keeps for backward, beyond what it returns."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    made = call()
    torch.cuda.synchronize()
    shown = made if isinstance(made, tuple) else (made,)
    return torch.cuda.memory_allocated() - before - sum(t.nbytes for t in shown)


def memory(sides: Sides, cell: str, repeats: int) -> None:
    """G6: what backward needs is kept or made again."""
    from rl_layout import Segments
    from rl_recurrent.backends.triton.layer import scan
    from rl_recurrent.cells import CELLS

    size, lengths = 128, [128] * 256
    segments = Segments.from_lengths(torch.tensor(lengths, device=DEVICE))
    blocks, states = (4, 2) if cell == "lstm" else (3, 1)
    x = torch.randn(sum(lengths), INPUT, device=DEVICE, requires_grad=True)
    w_ih = torch.randn(blocks * size, INPUT, device=DEVICE, requires_grad=True)
    bias = torch.randn(blocks * size, device=DEVICE, requires_grad=True)
    w_hh = torch.empty(blocks * size, size, device=DEVICE).uniform_(-0.08, 0.08).requires_grad_()
    zeros = [torch.zeros(len(lengths), size, device=DEVICE) for _ in range(states)]

    def forward(save: str) -> Any:
        gates = nn.functional.linear(x, w_ih, bias)
        b_hn = bias[2 * size :] if cell == "gru" else None
        tensors = [gates, w_hh, b_hn, *zeros]
        return scan(CELLS[cell], tensors, segments, save=save, projection=(x, w_ih, bias))

    def training(save: str) -> Call:
        def call() -> None:
            made = forward(save)
            out = made[0] if isinstance(made, tuple) else made
            torch.autograd.backward(out, torch.ones_like(out))

        return call

    kept = {save: kept_bytes(lambda save=save: forward(save)) for save in ("state", "gates")}
    rows = sum(lengths)
    print(f"\nG6 {cell}, {rows} rows, H={size}: kept beyond the outputs, in floats per row and H")
    for save, held in kept.items():
        print(f"  ours, {save:20}{held / 4 / rows / size:8.2f}")
    show(
        f"G6 {cell}, what is made again, goal at most 1.1 of gates",
        {f"ours, {save}": training(save) for save in ("gates", "state")},
        {},
        repeats,
    )
    flag = torch.zeros(256, 128, 1, dtype=torch.bool)
    flag[:, 0] = True
    batch = batch_of(cell, flag, size)
    calls = {"ours, triton": sides.mine(cell, batch, size)}
    calls |= sides.theirs(cell, batch, size, "triton", recurrent_recompute="full")
    show(f"G6 {cell}, compared with torchrl's recompute", calls, {"torchrl, triton": 1.5}, repeats)


TABLES = {"ragged": ragged, "grid": grid, "dense": dense, "wide": wide, "memory": memory}
CELLS = ("lstm", "gru")


def main(names: list[str], repeats: int, with_peer: bool) -> None:
    """Print the tables that are asked for."""
    if not torch.cuda.is_available():
        print("G1 to G6: not measured: no CUDA device")
        return
    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = True
    torch.set_float32_matmul_precision("high")
    print(f"{torch.cuda.get_device_name()}, tf32 products")
    sides = Sides(with_peer)
    if sides.peer is None:
        print("without torchrl")
    for cell in [name for name in CELLS if name in names] or CELLS:
        for name in [name for name in TABLES if name in names] or TABLES:
            TABLES[name](sides, cell, repeats)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"cells and tables: {[*CELLS, *TABLES]}; or all")
    parser.add_argument("--repeats", type=int, default=50, help="calls after a median")
    # torchrl's kernels of 256 units and more compile for longer than three minutes
    parser.add_argument("--without-torchrl", action="store_true", help="time ours and torch alone")
    with session(parser) as given:
        main(given.names, given.repeats, not given.without_torchrl)
