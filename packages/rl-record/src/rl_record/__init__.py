"""Evaluations of policies; logs, curves and videos of runs, written in a thread of their own."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rl_record.look.look import look  # after it, the name is of no package of that name

if TYPE_CHECKING:
    from rl_record.evaluation.background import BackgroundEvaluator
    from rl_record.evaluation.evaluation import Evaluation
    from rl_record.evaluation.evaluator import Evaluator
    from rl_record.loggers.choice import make_logger
    from rl_record.loggers.csv_file import CSVLogger
    from rl_record.loggers.event import Event, Histogram, Metrics, Rewind, RunSettings, Sink, Video
    from rl_record.loggers.jsonl import JSONLLogger
    from rl_record.loggers.logger import Logger
    from rl_record.loggers.services import TensorboardLogger, TrackioLogger, WandbLogger
    from rl_record.look.html.page import Page
    from rl_record.run import Curve, Run, read_run
    from rl_record.video.pixels import PixelRenderTransform
    from rl_record.video.recorder import VideoRecorder

__all__ = [
    "BackgroundEvaluator",
    "CSVLogger",
    "Curve",
    "Evaluation",
    "Evaluator",
    "Event",
    "Histogram",
    "JSONLLogger",
    "Logger",
    "Metrics",
    "Page",
    "PixelRenderTransform",
    "Rewind",
    "Run",
    "RunSettings",
    "Sink",
    "TensorboardLogger",
    "TrackioLogger",
    "Video",
    "VideoRecorder",
    "WandbLogger",
    "look",
    "make_logger",
    "read_run",
]

# `python -m` imports this file first: what a command does not need takes longer than what it does
_MODULES = {
    "BackgroundEvaluator": "evaluation.background",
    "CSVLogger": "loggers.csv_file",
    "Curve": "run",
    "Evaluation": "evaluation.evaluation",
    "Evaluator": "evaluation.evaluator",
    "Event": "loggers.event",
    "Histogram": "loggers.event",
    "JSONLLogger": "loggers.jsonl",
    "Logger": "loggers.logger",
    "Metrics": "loggers.event",
    "Page": "look.html.page",
    "PixelRenderTransform": "video.pixels",
    "Rewind": "loggers.event",
    "Run": "run",
    "RunSettings": "loggers.event",
    "Sink": "loggers.event",
    "TensorboardLogger": "loggers.services",
    "TrackioLogger": "loggers.services",
    "Video": "loggers.event",
    "VideoRecorder": "video.recorder",
    "WandbLogger": "loggers.services",
    "make_logger": "loggers.choice",
    "read_run": "run",
}


def __getattr__(name: str) -> Any:
    """Imports an exported name when it is first asked for."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
