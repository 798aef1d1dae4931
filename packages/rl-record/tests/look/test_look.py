import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import LazyStackedTensorDict, NonTensorData, TensorDict, lazy_stack

import rl_record
from rl_layout import EndKind, keys
from rl_layout.testing import environments, plain_batches, trajectories
from rl_record import look
from rl_record.look.__main__ import main
from rl_replay import (
    ConsumingSampler,
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    ReplayBuffer,
    ReplayBufferEnsemble,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictReplayBuffer,
)

VOID = ("meta", "input")


class Elements(HTMLParser):
    """The elements of a page, their text, and whether each is closed."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.ids, self.links, self.texts = [], [], [], [], []
        self.feed(page.html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.ids += [value for name, value in attrs if name == "id"]
        self.links += [value for name, value in attrs if name == "href"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("style", "script"):
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(self.texts)


def tiles(page):
    found = re.findall(r'<div class="tile"><b[^>]*>([\d,]+)</b>([\w ]+)</div>', page.html)
    return {name: int(count.replace(",", "")) for count, name in found}


def test_numbers_of_a_page_by_hand():
    batch = trajectories([2, 3, 1], [EndKind.TERMINATED, EndKind.TRUNCATED, EndKind.CUT])
    batch["next", "reward"] = torch.tensor([1.0, 2, 10, 20, 30, 5]).unsqueeze(-1)
    page = look(batch)
    assert tiles(page) == {
        "rows": 6,
        "trajectories": 3,
        "terminated": 1,
        "truncated": 1,
        "cut": 1,
        "errors": 0,
        "notes": 0,
    }
    assert "2 of 3 trajectories are stored from their first step" in page.html
    assert re.search(r"Returns</h3>.*?mean </span><b>31.5</b>", page.html)  # of 3 and 60
    assert re.search(r"Lengths</h3>.*?mean </span><b>2.5</b>", page.html)
    assert repr(page) == "Page('batch [6]', 3 trajectories, no finding)"


def test_findings_lead_to_their_rows():
    batch = trajectories([3, 4])
    batch["is_init"][3] = False
    page = look(batch)
    found = Elements(page)
    assert tiles(page)["errors"] == 1
    assert "#row-3" in found.links
    assert set(found.links) - {"#row-3"} <= {f"#{name}" for name in found.ids}
    assert "row-3" in found.ids
    window = page.html.split('id="row-3"')[1]
    assert '<tr class="here"><td>3</td>' in window


def test_bars_show_the_digits_in_which_ids_differ():
    first = (1234567890 << 32) + 7
    page = look(trajectories([3, 2], first_id=first))
    labels = re.findall(r"<span>(id [^<]*)</span>", page.html)
    assert labels == [f"id …{str(first + k)[-6:]} · {n}" for k, n in ((0, 3), (1, 2))]
    assert f'title="id {first + 1}: 2 steps' in page.html


def test_text_of_data_is_never_markup(tmp_path):
    evil = "<script>alert(1)</script>\"'&"
    batch = trajectories([3, 2])
    batch[evil] = torch.zeros(5)
    batch[evil + "2", "</style>"] = torch.zeros(5, 9, 9, dtype=torch.uint8)
    batch["note"] = NonTensorData(evil, batch_size=[5])
    clean, found = Elements(look(trajectories([3, 2]))), Elements(look(batch))
    assert found.tags.count("script") == clean.tags.count("script") == 1
    assert found.tags.count("style") == 1
    assert evil in found.text
    name = str(tmp_path / evil.replace("/", ""))
    buffer = ReplayBuffer(storage=LazyTensorStorage(9))
    buffer.extend(batch.exclude("note"))
    buffer.dumps(name)
    assert Elements(look(name)).tags.count("script") == 1


def test_the_same_rows_give_the_same_page_and_no_address():
    batch = environments(3, 40, [4, 5], [EndKind.TERMINATED])
    batch["pixels"] = torch.randint(256, (3, 40, 16, 16, 3), dtype=torch.uint8)
    page = look(batch).html
    assert page == look(batch).html
    assert not re.search(r"(src|href)=\"(?!#|data:)", page)
    assert "http" not in page
    assert len(Elements(look(batch)).tags) > 100


def test_frames_of_a_page_play():
    batch = trajectories([3, 2])
    batch["pixels"] = torch.zeros(5, 9, 11, 3, dtype=torch.uint8)
    films = re.findall(r'data-rows="([^"]+)"', look(batch).html)
    assert [json.loads(rows) for rows in films] == [[0, 1, 2], [3, 4]]


@pytest.mark.filterwarnings("ignore:.*contradict")
@given(plain_batches(), st.booleans())
def test_any_layout_has_a_page_whose_counts_add_up(batch, named):
    page = look(batch)
    found = tiles(page)
    assert found["rows"] == batch.numel()
    if "trajectories" in found:
        assert (
            sum(found[kind] for kind in ("terminated", "truncated", "cut"))
            == (found["trajectories"])
        )
    Elements(page)


BUFFERS = {
    "memory": lambda: LazyTensorStorage(23),
    "file": lambda: LazyMemmapStorage(23),
    "lossless": lambda: LazyTensorStorage(23, lossless=True),
    "list": lambda: ListStorage(23),
    "columns": lambda: LazyTensorStorage(24, ndim=2),
}


@pytest.mark.parametrize("make", BUFFERS.values(), ids=BUFFERS)
def test_rows_of_any_storage_are_shown(make):
    storage = make()
    buffer = TensorDictReplayBuffer(storage=storage)
    for start in range(4):
        rows = trajectories([5, 4], first_id=10 * start)
        buffer.extend(rows.reshape(3, 3) if storage.ndim == 2 else rows)
    expected = look(buffer[:].exclude("index"))
    for name, count in tiles(expected).items():
        assert tiles(look(buffer))[name] == count, name


@pytest.mark.parametrize(
    "sampler",
    [
        lambda: SliceSampler(slice_len=3),
        SamplerWithoutReplacement,
        lambda: PrioritizedSampler(50, 0.7, 0.5),
        lambda: ConsumingSampler(2),
    ],
    ids=["slices", "once each", "priorities", "consumed"],
)
@pytest.mark.parametrize("prefetch", [None, 2])
def test_a_buffer_draws_next_what_it_would_have_drawn(sampler, prefetch):
    def made():
        generator = torch.Generator().manual_seed(3)
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(50),
            sampler=sampler(),
            batch_size=6,
            generator=generator,
            prefetch=prefetch,
        )
        buffer.extend(trajectories([20, 15, 10]))
        buffer.sample()
        return buffer

    seen, other = made(), made()
    page = look(seen)
    assert "drew 6 rows" in page.html
    for _ in range(3):
        assert seen.sample()["index"].tolist() == other.sample()["index"].tolist()


def test_slices_of_a_sample_by_hand():
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(9), sampler=SliceSampler(slice_len=4), batch_size=8
    )
    buffer.extend(trajectories([4]))
    page = look(buffer)
    assert "drew 8 rows in 2 runs of neighbouring steps; 4 of the rows are different" in page.html
    assert page.html.count("sampled: 4 rows from row 0 on") == 2


def test_a_sampler_that_cannot_draw_is_said():
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(9),
        sampler=SliceSampler(slice_len=7, strict_length=True),
        batch_size=7,
    )
    buffer.extend(trajectories([2]))
    assert "SliceSampler drew nothing. " in look(buffer).html


def test_a_dump_shows_what_its_buffer_does(tmp_path, capsys):
    buffer = ReplayBuffer(storage=LazyTensorStorage(20), batch_size=4)
    buffer.extend(trajectories([4, 3]))
    buffer.dumps(tmp_path / "dump")
    main([str(tmp_path / "dump"), "--out", str(tmp_path / "page.html")])
    assert capsys.readouterr().out == f"{tmp_path / 'page.html'}\n"
    page = (tmp_path / "page.html").read_text()
    assert "<title>dump dump [7], ReplayBuffer</title>" in page
    assert tiles(look(tmp_path / "dump"))["trajectories"] == 2
    main([str(tmp_path / "dump")])
    assert (tmp_path / "dump.html").read_text() == page


COMMAND = """
import runpy, sys
sys.argv = ["look", *sys.argv[1:]]
runpy.run_module("rl_record.look", run_name="__main__")
heavy = ("torch._dynamo", "numba", "gymnasium", "matplotlib")
print([name for name in heavy if sys.modules.get(name)])
"""


def test_the_command_imports_no_more_than_a_page_needs(tmp_path):
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(9000))
    buffer.extend(trajectories([3000, 2000, 4000]))  # so many that numba would be of use
    buffer.dumps(tmp_path / "dump")
    command = [sys.executable, "-c", COMMAND, str(tmp_path / "dump")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    out, imported = done.stdout.splitlines()
    assert imported == "[]"
    assert Path(out).read_text("utf-8") == look(tmp_path / "dump").html


def test_the_command_says_what_is_no_dump(tmp_path):
    command = [sys.executable, "-m", "rl_record.look", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "holds no rows" in done.stderr
    assert "Traceback" not in done.stderr


def test_rows_that_vary_in_shape_are_named():
    rows = [TensorDict({"a": torch.zeros(n), "b": torch.tensor(1.0)}, []) for n in (2, 3)]
    page = look(lazy_stack(rows)).html
    assert isinstance(lazy_stack(rows), LazyStackedTensorDict)
    assert "rows differ in shape: [2], [3]" in page
    assert "No trajectories: " in page


@pytest.mark.parametrize(
    "change",
    [
        lambda batch: batch[:1],
        lambda batch: batch.exclude(*list(batch.keys())),
        lambda batch: batch.select("observation"),
        lambda batch: batch.set("observation", batch["observation"] * float("nan")),
        lambda batch: batch.set(("next", "reward"), batch["next", "reward"] * float("nan")),
        lambda batch: batch.set(keys.MASK, torch.zeros(5, dtype=torch.bool)),
        lambda batch: batch.set("is_init", batch["is_init"].float()),
        lambda batch: batch.set(keys.TRAJ_IDS, torch.zeros(5, 2, dtype=torch.int64)),
        lambda batch: batch.set("empty", torch.zeros(5, 0)),
        lambda batch: batch.set("observation", batch["observation"].requires_grad_()),
    ],
    ids=[
        "one row",
        "none",
        "markers",
        "NaN",
        "NaN rewards",
        "padding",
        "dtype",
        "shape",
        "empty",
        "graph",
    ],
)
def test_odd_batches_have_a_page(change):
    Elements(look(change(trajectories([3, 2]))))


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (7, TypeError, "expected a tensordict, a buffer or a path"),
        (TensorDict({}, []), ValueError, "with rows, got batch size"),
        (trajectories([2])[:0], ValueError, "with rows, got batch size"),
        (ReplayBuffer(), ValueError, "is empty"),
        (ReplayBufferEnsemble(ReplayBuffer(), ReplayBuffer()), ValueError, "2 buffers of this"),
        ("nowhere", FileNotFoundError, "nowhere holds no rows: expected a folder of buffer.dumps"),
    ],
)
def test_what_cannot_be_shown_is_refused(source, error, message):
    with pytest.raises(error, match=message):
        look(source)


def test_buffers_of_other_things_are_refused():
    texts = ReplayBuffer()
    texts.extend(["a", "b"])
    with pytest.raises(TypeError, match="this buffer stores a str"):
        look(texts)


def test_inputs_are_not_changed():
    batch = trajectories([3, 2])
    before = batch.clone()
    look(batch)
    assert (batch == before).all()
    assert set(batch.keys(True)) == set(before.keys(True))


def test_a_notebook_gets_a_frame_of_its_own():
    page = look(trajectories([3]))
    shown = page._repr_html_()
    assert shown.startswith("<iframe ")
    assert shown.count("<") == 2  # everything else is escaped
    assert rl_record.Page is type(page)


def test_a_million_rows_stay_small(tmp_path):
    lengths = torch.randint(1, 30, (20_000,), generator=torch.Generator().manual_seed(0))
    batch = trajectories(lengths.tolist())
    size = look(batch).save(tmp_path / "page.html").stat().st_size
    assert size < 1_000_000
