import re

import pytest

from rl_layout.testing import trajectories
from rl_record import look
from rl_record.look.__main__ import main
from rl_replay import LazyMemmapStorage

TILE = re.compile('class="tile">.*?</div>')


@pytest.mark.parametrize(
    ("inside", "title"),
    [("rows", "dataset hopper"), ("", "storage hopper")],
    ids=["dataset", "own"],
)
def test_files_of_a_mapped_storage_are_shown_and_stay_as_they_are(inside, title, tmp_path):
    folder = tmp_path / "hopper"
    (folder / inside).mkdir(parents=True)
    storage = LazyMemmapStorage(9, scratch_dir=folder / inside, lossless=["observation"])
    storage.extend(trajectories([4, 3]))
    storage.flush()
    before = {path: path.read_bytes() for path in sorted((folder / inside).iterdir())}
    main([str(folder), "--out", str(tmp_path / "page.html")])
    page = (tmp_path / "page.html").read_text()
    assert f"<title>{title} [7], ReplayBuffer</title>" in page
    assert TILE.findall(page) == TILE.findall(look(trajectories([4, 3])).html)
    assert {path: path.read_bytes() for path in sorted((folder / inside).iterdir())} == before
