"""Evaluations of policies; logs, curves and videos of runs, written in a thread of their own."""

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
from rl_record.look.look import look
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
