from __future__ import annotations

import pytest

from rl_datasets import (
    AtariDQNSource,
    D4RLSource,
    GenDGRLSource,
    LeRobotSource,
    MinariHDF5Source,
    MinariTableSource,
    OGBenchSource,
    OpenMLSource,
    RLDSSource,
    RobosetSource,
    VD4RLSource,
    convert,
)
from rl_datasets.testing import ListSource, toy_episodes

SOURCES = [AtariDQNSource, D4RLSource, GenDGRLSource, LeRobotSource, MinariHDF5Source]
SOURCES += [MinariTableSource, OGBenchSource, OpenMLSource, RLDSSource, RobosetSource, VD4RLSource]


@pytest.mark.parametrize("source", SOURCES)
def test_a_folder_is_named_by_a_string_too(source, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no|there are no|expected one"):
        source(str(tmp_path))
    with pytest.raises(TypeError, match="expected the name of a file or folder, got 3"):
        source(3)


def test_rows_are_written_to_a_folder_that_a_string_names(tmp_path):
    rows = convert(ListSource(toy_episodes([3, 2])), str(tmp_path), "toy")
    assert rows == tmp_path / "rows"
    with pytest.raises(TypeError, match="source: expected a source of episodes"):
        convert(toy_episodes([3]), tmp_path, "toy")
