from __future__ import annotations

import torch
from torch.distributions import Categorical
from torch.testing import assert_close

from rl_policies import OneHotOrdinal, Ordinal
from rl_policies.distributions.ordinal import ordinal_logits


def test_ordinal_logits_are_sums_over_thresholds():
    torch.manual_seed(0)
    scores = torch.randn(2, 5, dtype=torch.float64)
    passed = scores.sigmoid()
    for row in range(2):
        for k in range(5):
            wanted = passed[row, : k + 1].log().sum() + (1 - passed[row, k + 1 :]).log().sum()
            assert_close(ordinal_logits(scores)[row, k], wanted)
    same = Categorical(logits=ordinal_logits(scores))
    assert_close(Ordinal(scores).probs, same.probs)
    assert_close(OneHotOrdinal(scores, torch.bool).probs, same.probs)
    assert OneHotOrdinal(scores, torch.bool).sample().dtype == torch.bool
    assert torch.equal(Ordinal(scores).deterministic_sample, same.mode)
