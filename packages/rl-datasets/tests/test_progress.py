import importlib.util

import pytest

from rl_datasets.progress import progress_bar

needs_tqdm = pytest.mark.skipif(importlib.util.find_spec("tqdm") is None, reason="needs tqdm")


@needs_tqdm
def test_a_bar_counts_up_to_its_total():
    with progress_bar(10, "one", "rows") as bar:
        bar.update(4)
        bar.update(6)
        assert (bar.n, bar.total, bar.desc) == (10, 10, "one")


def test_nothing_is_shown_where_no_bar_is_asked_for(capsys):
    with progress_bar(10, "one", "rows", shown=False) as bar:
        bar.update(10)
    assert capsys.readouterr() == ("", "")
