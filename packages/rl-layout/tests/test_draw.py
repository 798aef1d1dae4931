from __future__ import annotations

import sys

import pytest
import torch

from rl_layout import EndKind, draw_layout, keys
from rl_layout.testing import environments, trajectories

KINDS = [EndKind.TERMINATED, EndKind.TRUNCATED, EndKind.CUT]


def notebook_picture(drawing):
    """The picture that a notebook asks for by this name."""
    return drawing._repr_png_()


def test_trajectories_are_bars_with_their_end():
    lines = str(draw_layout(trajectories([2, 4, 3], KINDS))).splitlines()
    assert lines[:3] == ["id 7  [X", "id 8  [==|", "id 9  [=>"]


def test_a_bar_that_begins_in_mid_trajectory_is_moved_along_time():
    assert str(draw_layout(trajectories([3, 2], first_step=2))).splitlines()[0] == "id 7    ==X"


def test_findings_are_drawn_on_their_row():
    batch = trajectories([2, 4])
    batch[keys.NEXT_DONE][3] = True
    assert str(draw_layout(batch)).splitlines()[1] == "id 8  [!"


def test_long_trajectories_are_scaled_to_the_line():
    lines = str(draw_layout(trajectories([800, 400]))).splitlines()
    assert [len(line) for line in lines[:2]] == [6 + 80, 6 + 40]


def test_batches_without_ids_are_numbered_and_many_are_cut_short():
    batch = environments(2, 6, [2, 1], KINDS).exclude(keys.TRAJ_IDS, keys.TRAJ_STEP)
    drawing = draw_layout(batch, max_trajectories=3)
    assert [bar.label for bar in drawing.bars] == ["#0", "#1", "#2"]
    assert f"... and {drawing.left_out} more" in str(drawing)


@pytest.mark.filterwarnings("ignore:.*[Qq]uantiz")
def test_a_quantized_leaf_is_drawn_past_and_marked():
    batch = trajectories([2, 4], KINDS[:2])
    coarse = torch.quantize_per_tensor(torch.rand(6, 2), 0.1, 0, torch.qint8)
    drawing = draw_layout(batch.set("observation", coarse).set(("next", "observation"), coarse))
    assert [bar.length for bar in drawing.bars] == [2, 4]
    assert "is quantized" in str(drawing.report)
    assert str(drawing).startswith("id 7")


def test_a_batch_of_padding_alone_is_refused():
    batch = trajectories([3]).set(keys.MASK, torch.zeros(3, dtype=torch.bool))
    with pytest.raises(ValueError, match="all 3 are masked out"):
        draw_layout(batch)


def test_text_is_saved_without_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    drawing = draw_layout(trajectories([2, 4]))
    drawing.save(tmp_path / "layout.txt")
    assert (tmp_path / "layout.txt").read_text().startswith("id 7  [X\n")
    assert notebook_picture(drawing) is None
    with pytest.raises(ModuleNotFoundError, match=r"rl-layout\[draw\]"):
        drawing.plot()


def test_a_picture_shows_every_bar(tmp_path):
    pytest.importorskip("matplotlib", reason="the draw extra is not installed")
    drawing = draw_layout(trajectories([2, 4, 3], KINDS))
    axes = drawing.plot()
    assert [label.get_text() for label in axes.get_yticklabels()] == ["id 7", "id 8", "id 9"]
    drawing.save(tmp_path / "layout.png")
    assert (tmp_path / "layout.png").read_bytes() == notebook_picture(drawing)
