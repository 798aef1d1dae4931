from __future__ import annotations

import numpy as np

from rl_slabs import LazySlab
from rl_transforms.observations.moments import Moments
from rl_transforms.observations.running_moments import LocalMoments, SharedMoments


def test_local_moments_are_those_put_last():
    kept = LocalMoments()
    assert kept.all() is None
    for rows in (2, 3):
        kept.put(Moments.of(np.ones((rows, 2))))
    assert kept.all().count == 3


def test_shared_moments_merge_the_parts_of_all_writers():
    memory = LazySlab.shared(lanes=2)
    writers = [SharedMoments(memory), SharedMoments(memory)]
    assert writers[0].all() is None
    for writer in writers:
        writer.put(Moments.of(np.ones((3, 2))))
    assert [writer.part.count for writer in writers] == [3, 3]
    assert writers[0].all().count == 6
