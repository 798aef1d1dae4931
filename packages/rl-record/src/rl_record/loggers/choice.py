"""A logger by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rl_record.loggers.csv_file import CSVLogger
from rl_record.loggers.jsonl import JSONLLogger
from rl_record.loggers.logger import Logger
from rl_record.loggers.services import TensorboardLogger, TrackioLogger, WandbLogger

LOGGERS: dict[str, type[Logger]] = {
    "jsonl": JSONLLogger,
    "csv": CSVLogger,
    "tensorboard": TensorboardLogger,
    "wandb": WandbLogger,
    "trackio": TrackioLogger,
}


def make_logger(kind: str, exp_name: str, log_dir: Path | str = "runs", **options: Any) -> Logger:
    """Make a logger by the name of its kind, as a command line gives it.

    Args:
        kind: ``"jsonl"``, ``"csv"``, ``"tensorboard"``, ``"wandb"`` or ``"trackio"``.
        exp_name: name of the run.
        log_dir: folder of runs.
        options: what that logger takes besides.

    Returns:
        The logger.

    Raises:
        ValueError: there is no such kind.
        ImportError: the kind needs an extra that is not installed.

    Example:
        >>> import tempfile
        >>> make_logger("jsonl", "first", tempfile.mkdtemp())
        JSONLLogger('first', last_step=-1)
    """
    if not isinstance(kind, str) or kind not in LOGGERS:
        msg = f"there is no logger {kind!r}: jsonl and csv need nothing; tensorboard, wandb and "
        msg += "trackio need the extra of that name, as in pip install 'rl-record[tensorboard]'."
        raise ValueError(msg)
    make: Any = LOGGERS[kind]
    logger: Logger = make(exp_name, log_dir, **options)
    return logger
