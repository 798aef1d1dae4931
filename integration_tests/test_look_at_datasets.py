"""The page of a converted dataset shows the steps that its report counts."""

import re

from rl_datasets import convert
from rl_datasets.report import DatasetReport
from rl_datasets.testing import ListSource, toy_episodes
from rl_record import look


def test_a_converted_dataset_has_a_page(tmp_path):
    """The numbers of the page are those of the report."""
    folder = tmp_path / "toy-v0"
    rows = convert(ListSource(toy_episodes([3, 2, 6])), folder, "toy-v0", bar=False)
    report = DatasetReport.load(rows)
    page = look(folder)
    assert page.title == f"dataset toy-v0 [{report.steps}], ReplayBuffer"
    assert page.summary == f"{report.trajectories} trajectories, no finding"
    assert re.search(r"Lengths</h3>.*?max </span><b>6</b>", page.html)
    assert page.html == look(rows.parent).html
