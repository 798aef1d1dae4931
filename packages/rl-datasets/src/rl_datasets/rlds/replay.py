"""The buffer over a dataset of Open X-Embodiment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rl_datasets.download import fetch_bucket
from rl_datasets.episodes import EpisodeSource
from rl_datasets.replay import BaseDatasetExperienceReplay
from rl_datasets.rlds.source import RLDSSource
from rl_datasets.stream.stream import StreamOptions
from rl_replay import SamplerWithoutReplacement


class OpenXExperienceReplay(BaseDatasetExperienceReplay):
    """A dataset of Open X-Embodiment, or any other in the form of RLDS.

    Rows have `"observation"` as the files do, `"action"`, reward, `"discount"` and flags under
    `"next"`, and `"task_index"`; the instructions are in `metadata["tasks"]`.

    Args:
        dataset_id: Name and version, `"bridge/0.1.0"`.
        batch_size: Rows of a sample, unless `sample` says otherwise.
        shuffle: False draws the rows in their order, once an epoch.
        streaming: Read the records over and over into a ring in memory and write nothing to the
            disk; `StreamOptions` says how large the ring is.
        pad: Not there, and refused: slices of one length need no padding.
        split: "train", or another one that the files have.
        last_action: Whether the last step of an episode has a real action, as in some conversions.
        options: As for `BaseDatasetExperienceReplay`.

    Raises:
        ValueError: Arguments that exclude each other, or damaged files.
        FileNotFoundError: The dataset is not there.

    Example:
        >>> OpenXExperienceReplay("bridge/0.1.0", shuffle=False, streaming=True)
        Traceback (most recent call last):
        ValueError: a stream is drawn from its ring in any order: leave shuffle out.
    """

    family = "openx"
    sources_of_copies = "Its datasets are in the public bucket gs://gresearch/robotics."

    def __init__(  # noqa: PLR0913 - what the class of the peer takes
        self,
        dataset_id: str,
        batch_size: int | None = None,
        *,
        shuffle: bool = True,
        streaming: bool | StreamOptions | None = None,
        pad: float | bool | None = None,
        split: str = "train",
        last_action: bool = False,
        **options: Any,
    ) -> None:
        if pad is not None and pad is not False:
            raise ValueError(
                "pad fills slices up: leave it out, or take SliceSampler(..., pad_output=True)."
            )
        sliced = {"num_slices", "slice_len"} & {k for k, v in options.items() if v is not None}
        if not shuffle:
            if sliced or options.get("sampler") is not None:
                raise ValueError("shuffle=False is an order of rows: leave slices and sampler out.")
            if streaming:
                raise ValueError("a stream is drawn from its ring in any order: leave shuffle out.")
            options["sampler"] = SamplerWithoutReplacement(shuffle=False)
        self._taken: dict[str, Any] = {"split": split, "last_action": last_action}
        super().__init__(dataset_id, batch_size, streaming=streaming or False, **options)

    def source(self, path: Path) -> EpisodeSource:
        """The episodes of a folder with `features.json`."""
        return RLDSSource(path, **self._taken)

    def fetch(self, folder: Path) -> None:
        """Download the files of the dataset from its public bucket."""
        fetch_bucket("gresearch", f"robotics/{self.dataset_id}/", folder)
