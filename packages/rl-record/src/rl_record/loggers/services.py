"""Loggers whose events go to other programs: TensorBoard, Weights & Biases, Trackio."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from rl_record.loggers.event import Event, Histogram, Metrics, Rewind, RunSettings, Video
from rl_record.loggers.logger import Logger
from rl_record.loggers.run_folder import counted, run_folder, video_file, written


class TensorboardLogger(Logger):
    """Writes the event files that TensorBoard shows: ``tensorboard --logdir runs``.

    Videos are files in the folder ``videos`` of the run, named by a text entry.

    Args:
        exp_name: name of the run; "/" makes folders.
        log_dir: folder of runs.

    Raises:
        ImportError: the extra ``tensorboard`` is not installed.

    Example:
        .. skip: next

        >>> with TensorboardLogger("first") as logger:
        ...     logger.log_scalar("loss", 0.5, step=100)
    """

    def __init__(self, exp_name: str, log_dir: Path | str = "runs") -> None:
        made = _imported("torch.utils.tensorboard", "tensorboard").SummaryWriter
        # event files of several processes may share a folder: resuming adds one
        self.folder = run_folder(log_dir, exp_name, "", resume=True)
        super().__init__(exp_name, TensorboardSink(self.folder, made))


class TensorboardSink:
    """Writes events by TensorBoard's own writer."""

    def __init__(self, folder: Path, make: Callable[..., Any]) -> None:
        self.folder, self.make = folder, make
        self.writer = make(str(folder))

    def write(self, events: Sequence[Event]) -> None:
        """Write events, and flush the file."""
        for event in events:
            self._write_one(event)
        self.writer.flush()

    def close(self) -> None:
        """Close the file."""
        self.writer.close()

    def _write_one(self, event: Event) -> None:
        match event:
            case Metrics():
                for name, value in event.values.items():
                    self.writer.add_scalar(name, value, event.step, event.time)
            case Histogram():
                data = event.data.float().cpu().numpy()
                data = data[np.isfinite(data)]
                if len(data):  # TensorBoard has no empty ones
                    self.writer.add_histogram(event.name, data, event.step, event.bins, event.time)
            case Video():
                file = str(video_file(self.folder, event))
                self.writer.add_text(event.name, file, event.step, event.time)
            case RunSettings():
                for name, value in event.values.items():
                    self.writer.add_text(f"settings/{name}", str(written(value)), 0, event.time)
            case Rewind():  # TensorBoard hides what older files hold from that step on
                self.writer.close()
                self.writer = self.make(str(self.folder), purge_step=event.step + 1)


class WandbLogger(Logger):
    """Sends a run to Weights & Biases.

    Entries are plotted over the key ``"step"``, so that a step that goes backwards is kept.

    Args:
        exp_name: name of the run.
        log_dir: where videos and the client's files are kept.
        options: arguments of `wandb.init`, as ``project``, ``mode="offline"``, ``resume``.

    Raises:
        ImportError: the extra ``wandb`` is not installed.

    Example:
        .. skip: next

        >>> with WandbLogger("first", project="poles", mode="offline") as logger:
        ...     logger.log_scalar("loss", 0.5, step=100)
    """

    def __init__(self, exp_name: str, log_dir: Path | str = "runs", **options: Any) -> None:
        client = _imported("wandb", "wandb")
        self.folder = run_folder(log_dir, exp_name, "", resume=True)
        self.run = client.init(name=exp_name, dir=str(self.folder), **options)
        self.run.define_metric("*", step_metric="step")
        super().__init__(exp_name, ServiceSink(client, self.run, self.folder, _with_step))


class TrackioLogger(Logger):
    """Keeps a run in Trackio's database on this machine: ``trackio show``.

    Args:
        exp_name: name of the run.
        log_dir: where videos are kept.
        project: what it belongs to; by default the name of `log_dir`.
        options: further arguments of `trackio.init`.

    Raises:
        ImportError: the extra ``trackio`` is not installed.

    Example:
        .. skip: next

        >>> with TrackioLogger("first", project="poles") as logger:
        ...     logger.log_scalar("loss", 0.5, step=100)
    """

    def __init__(
        self,
        exp_name: str,
        log_dir: Path | str = "runs",
        *,
        project: str | None = None,
        **options: Any,
    ) -> None:
        client = _imported("trackio", "trackio")
        self.folder = run_folder(log_dir, exp_name, "", resume=True)
        project = Path(log_dir).resolve().name if project is None else project
        self.run = client.init(project=project, name=exp_name, **options)
        super().__init__(exp_name, ServiceSink(client, self.run, self.folder, _at_step))


class ServiceSink:
    """Calls the client of a service, whose calls are those of Weights & Biases.

    `send` is given the run, an entry and its step.
    """

    def __init__(
        self, client: Any, run: Any, folder: Path, send: Callable[[Any, dict[str, Any], int], None]
    ) -> None:
        self.client, self.run, self.folder, self.send = client, run, folder, send

    def write(self, events: Sequence[Event]) -> None:
        """Log events; the client has a thread and a file of its own."""
        for event in events:
            if isinstance(event, RunSettings):
                self.run.config.update(written(event.values))
            else:
                self.send(self.run, self._entry(event), event.step)

    def close(self) -> None:
        """Finish the run."""
        self.run.finish()

    def _entry(self, event: Metrics | Histogram | Video | Rewind) -> dict[str, Any]:
        match event:
            case Metrics():
                return dict(event.values)
            case Histogram():
                return {event.name: self.client.Histogram(np_histogram=counted(event))}
            case Video():
                return {event.name: self.client.Video(str(video_file(self.folder, event)))}
            case Rewind():
                return {"rewind": event.step}


def _with_step(run: Any, entry: dict[str, Any], step: int) -> None:
    """Log an entry over a key of its own: steps of the client may not go backwards."""
    run.log({"step": step, **entry})


def _at_step(run: Any, entry: dict[str, Any], step: int) -> None:
    run.log(entry, step=step)


def _imported(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        msg = f"{extra} is not installed: pip install 'rl-record[{extra}]', or use JSONLLogger, "
        raise ImportError(msg + "which needs nothing.") from error
