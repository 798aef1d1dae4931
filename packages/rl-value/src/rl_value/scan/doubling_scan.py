"""The recurrence in a few operations on whole arrays, on any device."""

from __future__ import annotations

import torch
from torch import Tensor


def doubling_scan(a: Tensor, b: Tensor) -> Tensor:
    """Compute y[i] = b[i] + a[i] y[i + 1] over flat rows, y[N] = 0, in log2(N) rounds."""
    # Each round doubles the number of rows that a y has seen. Where an a is 0 nothing comes
    # through, neither NaN nor infinity.
    goes_on = a != 0
    goes_on[-1:].fill_(False)
    seen = 1
    while seen < len(b):
        reach = goes_on[:-seen]  # no a is 0 in the rows that this y has seen
        more = torch.where(reach & _counts(a[:-seen], b[seen:]), a[:-seen] * b[seen:], 0)
        b = torch.cat([b[:-seen] + more, b[-seen:]])
        a = torch.cat([a[:-seen] * a[seen:], a[-seen:]])
        goes_on = torch.cat([reach & goes_on[seen:], torch.zeros_like(goes_on[-seen:])])
        seen *= 2
    return b.clone() if seen == 1 else b


def _counts(a: Tensor, b: Tensor) -> Tensor:
    """Where a product is no 0: of weights above 1 it may leave the range in front of zeros."""
    return (b != 0) | ~a.isinf()


def jumping_scan(a: Tensor, b: Tensor, successor: Tensor) -> Tensor:
    """Compute y[i] = b[i] + a[i] y[successor[i]] over flat rows."""
    # As doubling_scan, for rows whose successor is not the next one: rounds double the number of
    # successors that a y has seen. Differentiable by torch's own means.
    size, columns = len(b), (1,) * (b.ndim - 1)
    for _ in range(size.bit_length()):
        ahead = successor.clamp(max=size - 1)
        live = (successor < size).view(size, *columns) & (a != 0)
        b = b + torch.where(live, a * b[ahead], 0)
        a = torch.where(live, a * a[ahead], 0)
        successor = torch.where(successor < size, successor[ahead], size)
    return b
