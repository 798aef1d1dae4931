"""Time what a training loop pays for ten scalars and for a video, per logger.

Run with `nox -s "bench(rl-record)"`. The caller's time is measured, while the thread writes; the
floor is a line of JSON appended and flushed in the loop itself.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from bench import medians_us, report, session, table
from tensordict import TensorDict
from torch.utils.tensorboard import SummaryWriter

from rl_record import CSVLogger, JSONLLogger, Logger, TensorboardLogger, VideoRecorder

RUNS = 500
NAMES = [f"loss/{number}" for number in range(10)]
FRAMES = torch.randint(256, (500, 3, 48, 64), dtype=torch.uint8)


WEIGHT = torch.randn(512, 512)


def step() -> None:
    """What a loop does between two calls: some milliseconds of torch."""
    WEIGHT @ WEIGHT @ WEIGHT


def metrics(*, tensors: bool) -> dict[str, object]:
    """Ten scalars, as numbers or as tensors of one element."""
    values = torch.rand(10)
    return dict(zip(NAMES, values if tensors else values.tolist(), strict=True))


def logs(logger: Logger, *, tensors: bool = False) -> Callable[[], object]:
    """Log ten scalars."""
    given = metrics(tensors=tensors)
    return lambda: logger.log_metrics(given)  # type: ignore[arg-type]


def by_hand(folder: Path) -> Callable[[], object]:
    """Append a line in the loop itself."""
    file = (folder / "hand.jsonl").open("a", encoding="utf-8")
    given = metrics(tensors=False)

    def call() -> None:
        file.write(json.dumps(given) + "\n")
        file.flush()

    return call


def by_tensorboard(folder: Path) -> Callable[[], object]:
    """The writer of TensorBoard, called in the loop."""
    writer, given = SummaryWriter(str(folder / "hand")), metrics(tensors=False)

    def call() -> None:
        for name, value in given.items():
            writer.add_scalar(name, value)

    return call


def dumped(logger: Logger) -> float:
    """Microseconds that a loop pays for a recorder's frames."""
    recorder, frame = VideoRecorder(logger, "large"), torch.zeros(400, 600, 3, dtype=torch.uint8)
    recorder.render = lambda: frame
    seen = TensorDict()
    for _ in range(500):
        recorder.reset(seen)
    (took,) = medians_us(1, recorder.dump, warm_up=0)
    logger.flush(600)
    return took


def longest_steps(logger: Logger) -> list[float]:
    """Microseconds of the slowest step of a loop: alone, and while a video is encoded."""
    found = []
    for frames in (0, 500):
        if frames:
            logger.log_video("meanwhile", FRAMES[:frames])
        took = []
        for _ in range(500):
            begin = time.perf_counter()
            step()
            took.append(time.perf_counter() - begin)
        found.append(max(took) * 1e6)
        logger.flush(600)
    return found


def main() -> None:
    """Print the medians."""
    folder = Path(tempfile.mkdtemp())
    loggers = [make("run", folder / make.__name__) for make in (JSONLLogger, CSVLogger)]
    loggers.append(TensorboardLogger("run", folder / "tensorboard"))
    titles = ["JSONLLogger", "CSVLogger", "TensorboardLogger", "JSONLLogger, tensors"]
    calls = [logs(logger) for logger in loggers] + [logs(loggers[0], tensors=True)]
    titles += ["a line of JSON by hand", "TensorBoard by hand"]
    calls += [by_hand(folder), by_tensorboard(folder)]
    found = medians_us(RUNS, *calls, shuffle=True, before=[step] * len(calls))
    table("ten scalars", dict(zip(titles, found, strict=True)), titles[0])
    (video,) = medians_us(5, lambda: loggers[0].log_video("play", FRAMES), warm_up=1)
    report("a video of 500 frames of 48 x 64, copied", video)
    report("500 frames of 400 x 600, recorded", dumped(loggers[0]))
    alone, meanwhile = longest_steps(loggers[0])
    report("the longest of 500 steps", alone)
    report("the same while 500 frames are encoded", meanwhile)
    for logger in loggers:
        logger.close(600)


if __name__ == "__main__":
    with session():
        main()
