import html
import re

import torch

from rl_layout.testing import trajectories
from rl_record import look
from rl_record.look.__main__ import main
from rl_replay import LazyTensorStorage, ReplayBufferEnsemble, TensorDictReplayBuffer

TILE = re.compile('class="tile">.*?</div>')


def ensemble_of(*lengths, **options):
    members = [TensorDictReplayBuffer(storage=LazyTensorStorage(30)) for _ in lengths]
    ensemble = ReplayBufferEnsemble(*members, **options)
    for number, of_member in enumerate(lengths):
        if of_member:
            ensemble.extend(trajectories(of_member, first_id=100 * number), buffer=number)
    return ensemble


def test_an_ensemble_shows_each_of_its_buffers(tmp_path):
    ensemble = ensemble_of([4, 3], [], [5, 2, 6], batch_size=9)
    wrong = trajectories([3, 4], first_id=900)
    wrong["is_init"][3] = False
    ensemble.extend(wrong, buffer=2)
    page = look(ensemble)
    said = "buffer 0: 2 trajectories, no finding; buffer 1: no row; buffer 2: 5 trajectories, "
    assert repr(page) == f"Page('ensemble of 3 buffers, ReplayBufferEnsemble', {said}1 error)"
    ids, links = (re.findall(rf' {name}="#?([^"]+)"', page.html) for name in ("id", "href"))
    assert "buffer-2-row-16" in ids
    assert len(set(ids)) == len(ids)  # places of one buffer are not those of another
    assert set(links) <= set(ids)
    assert page.html.count("drew 3 rows") == 2  # a part of the batch of each
    ensemble.dumps(tmp_path / "both")
    main([str(tmp_path / "both")])
    dumped = (tmp_path / "both.html").read_text()
    assert "<h1>dump both of 3 buffers, ReplayBufferEnsemble</h1>" in dumped
    assert TILE.findall(dumped) == TILE.findall(page.html)


def test_an_ensemble_draws_next_what_it_would_have_drawn():
    seen, other = (
        ensemble_of([9, 8], [7], batch_size=8, generator=torch.Generator().manual_seed(3))
        for _ in range(2)
    )
    look(seen)
    for _ in range(3):
        assert seen.sample()["index"].tolist() == other.sample()["index"].tolist()


def test_text_of_data_stays_as_it_is_in_a_buffer_of_an_ensemble():
    rows, name = trajectories([3]), ' id="a href="#b'
    rows[name] = torch.zeros(3)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(9))
    buffer.extend(rows)
    assert html.escape(name) in look(ReplayBufferEnsemble(buffer)).html
