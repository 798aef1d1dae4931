import numpy as np
import pytest

from rl_datasets import OpenMLExperienceReplay
from rl_datasets.arff_file import read_arff
from rl_datasets.testing import check_source
from rl_layout import check_layout

TEXT = """% a comment
@RELATION adult
@ATTRIBUTE age NUMERIC
@attribute 'work class' {Private, 'Self emp', "State"}
@ATTRIBUTE occupation {Tech, Sales, Craft}
@ATTRIBUTE hours real
@DATA
39, State, Sales, 40
50, 'Self emp', Tech, 13.5

% another
38, Private, ?, 40
?, Private, Craft, 40
28, Private, Craft, 20
"""


def opened(tmp_path, name="adult_num", text=TEXT, **options):
    (tmp_path / "files").mkdir(exist_ok=True)
    (tmp_path / "files" / "adult.arff").write_text(text)
    options = {"path": tmp_path / "files", "root": tmp_path / "r", "verbose": False, **options}
    return OpenMLExperienceReplay(name, **options)


def test_columns_are_numbers_and_categories_in_alphabetical_order(tmp_path):
    (tmp_path / "one.arff").write_text(TEXT)
    table = read_arff(tmp_path / "one.arff")
    assert table.names["work class"] == ["Private", "Self emp", "State"]
    assert table.categories["work class"].tolist() == [2, 1, 0, 0, 0]
    assert table.categories["occupation"].tolist() == [1, 2, -1, 0, 0]
    assert table.numbers["hours"].tolist() == [40, 13.5, 40, 40, 20]
    assert np.isnan(table.numbers["age"][3])


def test_rows_without_a_missing_value_are_scaled_contexts_and_choices(tmp_path):
    data = opened(tmp_path)
    rows = data[:]
    raw = np.array([[39, 40, 2], [50, 13.5, 1], [28, 20, 0]])
    assert np.allclose(rows["X"], (raw - raw.mean(0)) / raw.std(0), rtol=0, atol=1e-12)
    assert rows["y"].tolist() == [1, 2, 0]
    assert rows["next", "terminated"].all()
    assert rows["collector", "traj_ids"].unique().numel() == 3
    assert (data.report.trajectories, data.max_outcome_val) == (3, 2)
    assert data.metadata["choices"] == ["Craft", "Sales", "Tech"]
    assert not check_layout(rows).findings


def test_categories_may_be_columns(tmp_path):
    rows = opened(tmp_path, "adult_onehot")[:]
    assert rows["X"][:, 2:].tolist() == [[0, 0, 1], [0, 1, 0], [1, 0, 0]]


def test_samples_are_drawn_without_replacement(tmp_path):
    assert sorted(opened(tmp_path, batch_size=3).sample()["index"].tolist()) == [0, 1, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TEXT + "1, 2\n", "line 15: 2 values for 4 columns"),
        (TEXT + "1, State, Nurse, 3\n", "'occupation': 'Nurse' is none of its values"),
        (TEXT.partition("39,")[0], "ends without data"),
        (TEXT.replace("occupation", "job"), "no column 'occupation' of categories"),
    ],
)
def test_damaged_tables_are_refused(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        opened(tmp_path, text=text)


def test_an_unknown_name_names_the_closest():
    with pytest.raises(ValueError, match="did you mean 'mushroom_num'"):
        OpenMLExperienceReplay("mushrom_num")


def test_slices_longer_than_a_row_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"slice_len is 2, but the longest .* has 1 steps"):
        opened(tmp_path, slice_len=2)


def test_the_source_keeps_the_promises_of_sources(tmp_path):
    data = opened(tmp_path)
    check_source(lambda: data.source(tmp_path / "files"))
