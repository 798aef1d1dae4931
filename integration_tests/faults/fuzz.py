"""Calls the public edges of a package with good and bad arguments, and counts how it answers.

    python integration_tests/faults/fuzz.py --package rl-specs --seconds 30 --seed 0

Each answer is one of

- fine: a result, or an error of the machine, as where a petabyte is asked for;
- ours: an exception that our code raises, with a message, or one with a note of ours that says
  what to do;
- obscure: an exception of torch, numpy, tensordict, gymnasium or Python itself, raised below the
  call or inside our function; a call that takes longer than its time; the end of the process;
- changed: an input of the caller is not what it was before the call. Modules of tensordicts may add
  entries (`fuzz_inputs.py` says which packages have them); what is there stays.

Calls run in a child process: if one kills it, the call is named and another child continues.
`--only NUMBER` repeats one call of a run and prints its traceback. Where more than `--most` of the
calls are obscure, or one changes its input, the exit status is 1.

The public names of a package are found by themselves. What needs a built object is listed in
`fuzz_<package>.py` (`fuzz_specs.py` for rl-specs) in this folder, by these names, all optional:

- `CALLS`: pairs (name, factory). A factory takes nothing and returns a fresh object, whose public
  methods are called, or a function, which is called. A factory of a class whose methods are
  written elsewhere (tensordict, torch) is asked for those that our packages define only.
- `POOLS`: argument name to a list of functions without arguments, each of which makes a value that
  fits. They stand in front of those of `fuzz_pools.py`.
- `CHANGES`: names of calls that say that they change what they are given, each with the reason.
- `SKIP`: names, `"Class.method"`, `"*.method"` or `"function"`, that are not called, each with the
  reason.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
KINDS = ("fine", "ours", "obscure", "changed")
CALL_SECONDS = 5.0  # after which a call counts as a hang
SILENCE = 20.0  # seconds without an answer, after which the child is killed: it hangs in C
READY = b"ready\n"


@dataclass
class Tally:
    """How the calls of one package were answered."""

    package: str
    kinds: Counter[str] = field(default_factory=Counter)
    obscure: dict[tuple[str, str], list[dict[str, Any]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def add(self, answer: dict[str, Any]) -> None:
        """Count one answer."""
        self.kinds[answer["kind"]] += 1
        if answer["kind"] in ("obscure", "changed"):
            self.obscure[answer["name"], answer["group"]].append(answer)

    @property
    def share(self) -> float:
        """Which share of the calls is obscure."""
        return self.kinds["obscure"] / max(1, sum(self.kinds.values()))

    def lines(self, shown: int) -> Iterator[str]:
        """Write the counts, and the obscure answers by call and message."""
        counts = "  ".join(f"{kind} {self.kinds[kind]:6d}" for kind in KINDS)
        yield f"{self.package:14s} calls {sum(self.kinds.values()):6d}  {counts}  {self.share:6.2%}"
        groups = sorted(self.obscure.items(), key=lambda item: -len(item[1]))
        for (name, _), answers in groups[:shown]:
            first = answers[0]
            yield f"  {len(answers):4d}  {name}: {first['message']}"
            yield f"        --only {first['number']}: {first['call']}, at {first['place']}"
        if len(groups) > shown:
            yield f"  and {len(groups) - shown} groups more: --shown {len(groups)}"


def run(package: str, seed: int, seconds: float, calls: int | None) -> Tally:
    """Call a package's edges until the time is over or the calls are made."""
    tally, number, left = Tally(package), 0, seconds
    while left > 0 and (calls is None or number < calls):
        with started(package, seed, number, calls) as child:
            begin = time.monotonic()
            for answer in answers_of(child, begin + left):
                tally.add(answer)
                number = answer["number"] + 1
            left -= time.monotonic() - begin
    return tally


@contextlib.contextmanager
def started(
    package: str, seed: int, first: int, calls: int | None
) -> Iterator[subprocess.Popen[bytes]]:
    """A child that is about to make its first call."""
    worker = [sys.executable, str(HERE / "fuzz_worker.py"), package, str(seed), str(first)]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        child = subprocess.Popen(
            [*worker, str(-1 if calls is None else calls), str(CALL_SECONDS)],
            stdout=subprocess.PIPE,
            cwd=folder,
            start_new_session=True,
        )
        assert child.stdout is not None
        try:
            if os.read(child.stdout.fileno(), len(READY)) != READY:
                msg = f"the child that was to call {package} did not start"
                raise RuntimeError(msg)
            yield child
        finally:
            # its own children go with it
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            child.stdout.close()


def answers_of(child: subprocess.Popen[bytes], end: float) -> Iterator[dict[str, Any]]:
    """Read answers until a child ends, is silent for too long, or the time is over."""
    assert child.stdout is not None
    begun: dict[str, Any] | None = None
    rest = b""
    with selectors.DefaultSelector() as waiting:
        waiting.register(child.stdout, selectors.EVENT_READ)
        while time.monotonic() < end:
            ready = waiting.select(SILENCE)
            block = os.read(child.stdout.fileno(), 1 << 16) if ready else b""
            *lines, rest = (rest + block).split(b"\n")
            for line in lines:
                said = json.loads(line)
                if "kind" in said:
                    yield said
                begun = None if "kind" in said else said
            if not block:
                if begun is not None:
                    yield {**begun, **end_of(child, hangs=not ready)}
                return


def end_of(child: subprocess.Popen[bytes], *, hangs: bool) -> dict[str, Any]:
    """Say how the last call of a child ended it."""
    why = f"no answer for {SILENCE:g} s" if hangs else f"the process ended with {child.wait()}"
    return {"kind": "obscure", "group": why, "message": why, "place": "?"}


def main() -> int:
    """Fuzz the packages that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--package", action="append", required=True, help="rl-specs, and so on")
    parser.add_argument("--seconds", type=float, default=30.0, help="for each package")
    parser.add_argument("--calls", type=int, help="for each package, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=float, default=1.0, help="largest share of obscure answers")
    parser.add_argument("--shown", type=int, default=30, help="groups of obscure answers")
    parser.add_argument("--only", type=int, help="repeat this call and print its traceback")
    options = parser.parse_args()
    if options.only is not None:
        worker = [sys.executable, str(HERE / "fuzz_worker.py"), *options.package]
        arguments = [str(options.seed), str(options.only), "show", str(CALL_SECONDS)]
        return subprocess.call([*worker, *arguments])
    worst, changed = 0.0, 0
    for package in options.package:
        tally = run(package, options.seed, options.seconds, options.calls)
        print("\n".join(tally.lines(options.shown)), flush=True)
        worst, changed = max(worst, tally.share), changed + tally.kinds["changed"]
    return int(worst > options.most or changed > 0)


if __name__ == "__main__":
    sys.exit(main())
