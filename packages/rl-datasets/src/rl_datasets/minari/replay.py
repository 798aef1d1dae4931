"""The buffer over a dataset of Minari."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from rl_datasets.download import HubDataset, fetch_json
from rl_datasets.episodes import EpisodeSource
from rl_datasets.folders import unknown_id
from rl_datasets.minari.hdf5 import MinariHDF5Source
from rl_datasets.minari.source import read_metadata
from rl_datasets.minari.tables import MinariTableSource
from rl_datasets.replay import BaseDatasetExperienceReplay
from rl_tensordict.arguments import check_choice, check_flags, check_type

HUB_OWNER = "farama-minari"


class MinariExperienceReplay(BaseDatasetExperienceReplay):
    """A dataset of Minari: every observation as it was, those after last steps included.

    Rows have `"observation"` (nested for spaces that are), `"action"`, `"episode"`, `("next", ...)`
    with reward and flags, and `"info"` where infos are kept; dtypes are those of the files.

    Args:
        dataset_id: As Minari names it, `"mujoco/hopper/expert-v0"`.
        batch_size: Rows of a sample, unless `sample` says otherwise.
        load_from_local_minari: Take the files that Minari has on this machine, in
            `$MINARI_DATASETS_PATH` or `~/.minari/datasets`.
        options: As for `BaseDatasetExperienceReplay`.

    Raises:
        ValueError: Local files are wanted, and another place for them or a new download as well.
        FileNotFoundError: The dataset is not there.

    Example:
        >>> import tempfile
        >>> from rl_datasets import to_minari
        >>> from rl_layout.testing import trajectories
        >>> from rl_replay import LazyTensorStorage, TensorDictReplayBuffer
        >>> buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100))
        >>> _ = buffer.extend(trajectories([5, 3]))
        >>> with tempfile.TemporaryDirectory() as root:
        ...     folder = to_minari(buffer, "demo/steps-v0", root=f"{root}/minari")
        ...     data = MinariExperienceReplay(
        ...         "demo/steps-v0", batch_size=4, path=folder, root=root, verbose=False
        ...     )
        ...     len(data), data.sample()["next", "reward"].shape
        (8, torch.Size([4, 1]))
    """

    family = "minari"
    sources_of_copies = "Its datasets are on https://huggingface.co/farama-minari."

    def __init__(
        self,
        dataset_id: str,
        batch_size: int | None = None,
        *,
        load_from_local_minari: bool = False,
        **options: Any,
    ) -> None:
        check_type("dataset_id", dataset_id, str, "the name of a dataset")
        check_flags(load_from_local_minari=load_from_local_minari)
        if load_from_local_minari:
            if options.get("path") is not None:
                raise ValueError("load_from_local_minari and path both say where files are.")
            if options.get("download") == "force":
                raise ValueError('load_from_local_minari downloads nothing: leave "force" out.')
            local = minari_root() / dataset_id
            if not local.exists():
                raise FileNotFoundError(
                    f"{dataset_id!r} is not in {minari_root()}: leave load_from_local_minari out."
                )
            options["path"] = local
        super().__init__(dataset_id, batch_size, **options)

    def source(self, path: Path) -> EpisodeSource:
        """The episodes of a folder that has `data/metadata.json`."""
        data = path / "data" if (path / "data").is_dir() else path
        kind = read_metadata(data).get("data_format", "hdf5")
        check_choice(f"data_format of {data}", kind, ["hdf5", "arrow", "parquet"])
        if kind != "hdf5":
            return MinariTableSource(data)
        return MinariHDF5Source(data)

    def fetch(self, folder: Path) -> None:
        """Download the dataset from Minari's place on the hub."""
        group, _, inner = self.dataset_id.partition("/")
        hub = HubDataset(f"{HUB_OWNER}/{group}")
        parts = folder.with_name(f"{folder.name}.hub")
        try:
            hub.fetch(parts, inner)
        except FileNotFoundError as error:
            if known := _published(hub):
                raise unknown_id(self.dataset_id, known, self.family) from error
            raise
        (parts / inner).replace(folder)
        shutil.rmtree(parts, ignore_errors=True)


def _published(hub: HubDataset) -> list[str]:
    """The datasets of a namespace on the hub; none if there is no such namespace."""
    try:
        told = fetch_json(hub.address("namespace_metadata.json"))
    except FileNotFoundError:
        return []
    return [str(name) for name in told.get("datasets", [])]


def minari_root() -> Path:
    """Where Minari keeps its datasets on this machine."""
    given = os.environ.get("MINARI_DATASETS_PATH")
    return Path(given).expanduser() if given else Path("~/.minari/datasets").expanduser()
