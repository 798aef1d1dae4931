"""Fuzzed parts of rl-datasets that have no public name: sources and reports as they are made.

Nothing is downloaded, as names of data sets are drawn at random; what is written goes with the
folder of the child process.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
from fuzz_pools import Pool, each

from rl_datasets import DatasetReport, Episode
from rl_datasets.testing import ListSource, toy_episodes

# a port of this machine that nothing listens to: each download fails at once
NOWHERE = "http://127.0.0.1:9"
os.environ |= {"http_proxy": NOWHERE, "https_proxy": NOWHERE, "no_proxy": ""}
os.environ |= {name: str(Path.cwd()) for name in ("RL_DATASETS", "MINARI_DATASETS_PATH")}


def episode() -> Episode:
    """Three steps."""
    return toy_episodes([3])[0]


CALLS = [
    ("Episode()", episode),
    ("ListSource()", lambda: ListSource(toy_episodes([3, 2]))),
    ("DatasetReport()", lambda: DatasetReport("toy", "toy")),
]
POOLS: Pool = {
    "source": [lambda: ListSource(toy_episodes([3, 2]))],
    "folder": [lambda: Path(tempfile.mkdtemp()), tempfile.mkdtemp],
    "observations": [lambda: {("observation",): np.zeros((4, 2))}],
    "bar": each(False),
}
SKIP = {"EpisodeSource": "abstract: Python names the methods that are missing"}
