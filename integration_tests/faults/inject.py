"""Exceptions in the middle of every write: what can be read afterwards was written whole.

Run with `nox -s faults`, or as a script: `--seconds 100 --seed 3`. One call of a buffer is
interrupted at one line of our sources, as Ctrl-C interrupts it. Then every row that `sample` and
indexing give must be one that was written, bit for bit, with its own next observation; links and
the index of trajectories must be those of a plain loop over the rows; and the next writes must
work. Rows that a transform holds back stand as before the call, or as after it: the same call made
again leaves what an uninterrupted call leaves.

Without `--seconds` every line of every scenario is tried. With `--twice` a call in the middle fails
and the code that recovers from it is interrupted as well. The exit status is 1 where one failed.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))

from interrupts import Interrupt, interrupting, interrupting_twice, our_call
from write_scenarios import Scenario, scenarios
from written_rows import N_STEPS, check

from rl_replay import ReplayBuffer
from rl_transforms import MultiStepTransform


def trial(scenario: Scenario, place: int, second: int | None = None) -> list[str]:
    """Interrupt a call at a line, and say what is wrong afterwards.

    With a `second` line the call number `place` fails, and what recovers from it at that line.
    """
    buffer = scenario.make()
    once = interrupting(place) if second is None else interrupting_twice(place, second)
    with contextlib.suppress(Interrupt), once:
        scenario.call(buffer)
    lines = []
    try:
        lines += [f"after the interrupt: {line}" for line in check(buffer, settled=False)]
        # rows held back may be lost to a second exception, none is made up
        if second is None and holds_back(buffer):
            lines += again(scenario, buffer)
        for first, count in ((700, 2), (707, 5), (721, 7)):
            buffer.extend(scenario.more(first, count))
            newest = scenario.newest(first, count)
            found = check(buffer, settled=newest is not None)
            lines += [f"after {count} more rows: {line}" for line in found]
            if newest is not None and not (buffer[:]["number"] == newest).any():
                lines.append(f"after {count} more rows these are not there")
        if getattr(buffer.storage, "takes_turns", False):
            lines += by_another_thread(lambda: buffer.extend(scenario.more(735, 3)))
    except (Exception, AssertionError):
        lines.append(f"a check or the next write fails: {traceback.format_exc()[-900:]}")
    return lines


def holds_back(buffer: ReplayBuffer) -> bool:
    """Whether rows wait in a transform for those ahead of them."""
    return any(isinstance(one, MultiStepTransform) for one in buffer.transform)


def again(scenario: Scenario, buffer: ReplayBuffer) -> list[str]:
    """What differs from an uninterrupted call, once the call was made or made again."""
    former, whole = scenario.make(), scenario.make()
    scenario.call(whole)
    if same_rows(buffer, former):
        scenario.call(buffer)
    if same_rows(buffer, whole):
        return []
    numbers = [one[:]["number"].flatten().tolist() for one in (buffer, whole)]
    return [f"made again, the call leaves {numbers[0]}, not {numbers[1]}, or other rows held back"]


def same_rows(one: ReplayBuffer, other: ReplayBuffer) -> bool:
    """Whether two buffers hold the same newest rows, and hold back the same."""
    stored = [buffer[:].reshape(-1)[-N_STEPS:].to_dict() for buffer in (one, other)]
    held = [
        None if transform.held is None else transform.held.to_dict()
        for buffer in (one, other)
        for transform in buffer.transform
    ]
    return all(same_trees(*pair) for pair in (stored, held))


def same_trees(one: Any, other: Any) -> bool:
    """Whether two dictionaries of tensors, or nothing at all, are equal."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_trees(one[k], other[k]) for k in one)
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    return one is None and other is None


def by_another_thread(call: Callable[[], Any]) -> list[str]:
    """What hinders another thread from doing something."""
    failures: list[str] = []

    def attempt() -> None:
        try:
            call()
        except Exception as error:
            failures.append(f"another thread cannot write: {error!r}")

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(40.0)
    return [*failures, "another thread waits forever"] if thread.is_alive() else failures


def count_calls(scenario: Scenario) -> int:
    """How many calls of functions of ours there are that can fail."""
    buffer, found = scenario.make(), 0

    def profile(frame: FrameType, event: str, called: Any) -> None:
        nonlocal found
        found += our_call(frame, event, called) is not None

    sys.setprofile(profile)
    try:
        scenario.call(buffer)
    finally:
        sys.setprofile(None)
    return found


def sweep_twice(seed: int, *, only: str = "", most: int = 25, few: int | None = None) -> int:
    """Let calls fail and interrupt what recovers from it; return how many trials failed.

    Args:
        seed: Which calls and lines are tried.
        only: Scenarios whose name has this in it.
        most: Calls of each scenario; for each up to three lines of what recovers from it.
        few: So many scenarios, drawn by the seed; all unless given.
    """
    generator, failed, tried, known = random.Random(seed), 0, 0, 0
    with tempfile.TemporaryDirectory() as name:
        listed = [one for one in scenarios(Path(name)) if only in one.name]
        for scenario in generator.sample(listed, few) if few else listed:
            calls, bad, count = count_calls(scenario), 0, 0
            for place in generator.sample(range(calls), min(most, calls)):
                buffer = scenario.make()
                with contextlib.suppress(Interrupt), interrupting_twice(place, -1) as seen:
                    scenario.call(buffer)
                first, *behind = seen
                for second in generator.sample(range(len(behind)), min(3, len(behind))):
                    lines, count = trial(scenario, place, second), count + 1
                    if lines:
                        bad += 1
                        where = f"{first}, then {behind[second]} ({place}, {second})"
                        sys.stdout.write(f"  {scenario.name}: {where}: {lines[:3]}\n")
            tried, failed, known = tried + count, failed + bad, known + calls
            sys.stdout.write(f"{scenario.name}: {count} pairs of {calls} calls, {bad} failed\n")
            sys.stdout.flush()
    sys.stdout.write(
        f"inject twice: {tried} pairs of {known} calls, {failed} failed, seed {seed}\n"
    )
    return failed


def sweep(
    seconds: float | None,
    seed: int,
    *,
    only: str = "",
    most: int | None = None,
    few: int | None = None,
    once: bool = False,
    listed: Callable[[Path], list[Any]] = scenarios,
    judge: Callable[[Any, int], list[str]] = trial,
) -> int:
    """Try lines of scenarios, print the figures, and return how many trials failed.

    Args:
        seconds: How long in all; every line unless given.
        seed: Which lines are tried, and in which order.
        only: Scenarios whose name has this in it.
        most: Lines of each scenario.
        few: So many scenarios, drawn by the seed; all unless given.
        once: Each line of our sources that a scenario runs when it is run first and last, not
            every time.
        listed: Makes the scenarios, with what they keep in a folder.
        judge: Interrupts a scenario at a line, and says what is wrong afterwards.
    """
    generator, failed, tried, known = random.Random(seed), 0, 0, 0
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        chosen = [one for one in listed(Path(name)) if only in one.name]
        chosen = generator.sample(chosen, few) if few else chosen
        for number, scenario in enumerate(chosen):
            buffer = scenario.make()
            with interrupting(-1) as seen:
                scenario.call(buffer)
            places = list(range(len(seen)))
            if once:
                first = {line: place for place, line in reversed(list(enumerate(seen)))}
                last = {line: place for place, line in enumerate(seen)}
                places = sorted({*first.values(), *last.values()})
            known += len(places)
            generator.shuffle(places)
            end = None if seconds is None else begin + seconds * (number + 1) / len(chosen)
            count = bad = 0
            for place in places[:most]:
                if end is not None and count and time.monotonic() > end:
                    break
                lines, count = judge(scenario, place), count + 1
                if lines:
                    bad += 1
                    sys.stdout.write(f"  {scenario.name} at {seen[place]} ({place}): {lines[:3]}\n")
            tried, failed = tried + count, failed + bad
            sys.stdout.write(f"{scenario.name}: {count} of {len(places)} lines, {bad} failed\n")
            sys.stdout.flush()
    sys.stdout.write(f"inject: {tried} of {known} lines, {failed} failed, seed {seed}\n")
    return failed


def options_of(about: str | None) -> argparse.Namespace:
    """Read what the command line says of a sweep."""
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    parser.add_argument(
        "--seconds", type=float, default=None, help="time in all; every line unless given"
    )
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--only", default="", help="scenarios whose name has this in it")
    parser.add_argument("--most", type=int, default=None, help="lines of each scenario")
    parser.add_argument(
        "--once", action="store_true", help="each line of the sources first and last, not always"
    )
    parser.add_argument(
        "--twice", action="store_true", help="a call fails, and what recovers is interrupted"
    )
    return parser.parse_args()


def sweep_as_asked(
    options: argparse.Namespace,
    listed: Callable[[Path], list[Any]],
    judge: Callable[[Any, int], list[str]],
) -> int:
    """Sweep as the command line says; return the exit status."""
    found = sweep(
        options.seconds,
        options.seed,
        only=options.only,
        most=options.most,
        once=options.once,
        listed=listed,
        judge=judge,
    )
    return int(found > 0)


def main() -> int:
    """Read the arguments, and run."""
    options = options_of(__doc__)
    if options.twice:
        return int(sweep_twice(options.seed, only=options.only, most=options.most or 25) > 0)
    return sweep_as_asked(options, scenarios, trial)


if __name__ == "__main__":
    sys.exit(main())
