"""Whether each next observation is the one that follows, and whether ids name one step each."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import keys
from rl_layout.checks.neighbours import MarkerRows
from rl_layout.checks.report import Finding
from rl_layout.segments.contradiction import Comparison, compare_neighbours, is_observed
from rl_layout.segments.flat_views import flat_bits, is_plain
from rl_layout.segments.torch_cuts import cut_rows
from rl_tensordict import NestedKey, as_key, as_tuple

_FLAGS = {*keys.DONE_KEYS, keys.IS_INIT}
_WANTED: tuple[NestedKey, ...] = ("action", keys.NEXT_REWARD, "observation")
ObservationPairs = list[tuple[NestedKey, Tensor, Tensor]]


def observation_findings(batch: TensorDictBase, rows: MarkerRows) -> Iterator[Finding]:
    """Compare what follows each step with what it says follows."""
    if not rows.markers.can_cut:
        return
    if rows.drawn_alone:  # no next observation is that of a neighbour
        yield from _copy_findings(batch, rows)
        return
    compared = compare_neighbours(batch)
    if compared is not None:
        yield from _axis_findings(batch, rows, compared)
    successor, follows = _successors(rows)
    missing = batch.get(keys.NEXT_MISSING, None)
    has_next = rows.real if missing is None else rows.real & ~missing.reshape(-1).cpu()
    pairs = list(_pairs(batch))
    for key, root, after in pairs:
        known = has_next & follows
        differs = known & (flat_bits(after) != flat_bits(root)[successor]).any(1)
        foreign = differs & _stands_elsewhere(rows, root, after, differs)
        foreign &= is_observed(as_tuple(key))
        what = "is an observation of another trajectory"
        yield from rows.found("error", keys.next_key(key), foreign, what)
        what = "differs from the observation that follows, as after a running normaliser"
        if compared is not None and key in compared.leaves:
            what = "contradicts the row after, unproved by ids, steps or names: a cut"
        yield from rows.found("note", keys.next_key(key), differs & ~foreign, what)
    yield from _reset_findings(rows, pairs)
    yield from _copy_findings(batch, rows)


def _axis_findings(batch: TensorDictBase, rows: MarkerRows, last: Comparison) -> Iterator[Finding]:
    """Time along another dimension than the last one, as observations tell it."""
    if not last.is_rule:
        return
    for dim in range(batch.ndim - 1):
        other = compare_neighbours(batch, dim)
        number = 0 if other is None else int(other.compared.sum())
        if other is not None and 2 * other.count < number:
            names = ["'time'" if d == dim else "None" for d in range(batch.ndim)]
            what = (
                f"contradicts most neighbours along the last dimension, and {other.count} of "
                f"{number} along dimension {dim}: that is the time dimension. Say so by "
                f"names=[{', '.join(names)}], or time_dim={dim} of an estimator, or put it last"
            )
            where = last.contradicts.reshape(-1)
            yield from rows.found("error", keys.next_key(last.leaves[0]), where, what)
            return


def went_on(batch: TensorDictBase, rows: MarkerRows) -> Tensor:
    """Find the starts after a truncation at which the environment continued."""
    m, pairs = rows.markers, list(_pairs(batch))
    if m.truncated is None or not pairs:
        return rows.flags()
    return rows.paired & rows.after(m.truncated) & _taken(rows, pairs)


def _pairs(batch: TensorDictBase) -> Iterator[tuple[NestedKey, Tensor, Tensor]]:
    """Observations, that is leaves at the root with a twin under ``"next"``, as ``[N, ...]``."""
    flat = batch.reshape(-1)
    for parts, root in keys.leaves(flat):
        after = None if parts[0] == keys.NEXT else flat.get(keys.next_key(parts), None)
        if parts[-1] in _FLAGS or not is_plain(root) or not is_plain(after):
            continue
        if root.shape == after.shape and root.dtype == after.dtype:
            yield as_key(parts), root.cpu(), after.cpu()


def _successors(rows: MarkerRows) -> tuple[Tensor, Tensor]:
    """The row that each next observation belongs to, and whether it is in the same segment."""
    cut = cut_rows(rows.markers).cpu()
    # cuts before each row [N]: equal numbers are one segment
    number = torch.nn.functional.pad(cut.cumsum(0), (1, 0))[:-1]
    horizon = rows.markers.steps_to_next_obs
    ahead = rows.flags(on=True).long() if horizon is None else horizon.cpu()
    successor = rows.places + ahead
    inside = (successor >= 0) & (successor < rows.size)
    successor = successor.clamp(0, rows.size - 1)
    return successor, inside & (number[successor] == number) & rows.real[successor]


def _stands_elsewhere(rows: MarkerRows, root: Tensor, after: Tensor, differs: Tensor) -> Tensor:
    """Rows whose next observation is bit for bit an observation of another id."""
    found = rows.flags()
    ids = rows.markers.traj_ids
    where = differs.nonzero()[:, 0]
    if ids is None or not len(where):
        return found
    # equal rows of bits get equal numbers: N observations, then W next ones
    both = torch.cat([flat_bits(root), flat_bits(after)[where]])
    numbers = torch.unique(both, dim=0, return_inverse=True)[1]
    here, wanted = numbers[: rows.size], numbers[rows.size :]
    # a value found in several rows identifies none of them
    counts = torch.bincount(here[rows.real], minlength=len(both))
    owner = here.new_zeros(len(both)).scatter(0, here, rows.places)
    found[where] = (counts[wanted] == 1) & (ids.cpu()[owner[wanted]] != ids.cpu()[where])
    # states are reset to zeros, and missing values filled with them
    found[where] &= (both[rows.size :] != 0).any(1)
    return found & rows.real


def _taken(rows: MarkerRows, pairs: ObservationPairs) -> Tensor:
    """Rows whose observations are all bit for bit the next ones of the row before."""
    taken = rows.flags(on=True)
    for _, root, after in pairs:
        taken[1:] &= (flat_bits(after)[:-1] == flat_bits(root)[1:]).all(1)
    return taken


def _reset_findings(rows: MarkerRows, pairs: ObservationPairs) -> Iterator[Finding]:
    """Done steps whose next observation is the first one of the trajectory after them."""
    # That is right where a cut was made and the environment continued, which only a truncation can
    # be. Where terminations show it, with one value and another, final observations are lost.
    if not pairs:
        return
    m = rows.markers
    fresh = rows.real if m.is_init is None else m.is_init.cpu()
    ended = rows.paired & fresh & rows.after(rows.boundary & ~rows.lives) & ~rows.new_slice
    pairs = _telling([pair for pair in pairs if is_observed(as_tuple(pair[0]))] or pairs, ended)
    moved = rows.flags()
    for _, root, after in pairs:
        moved |= (flat_bits(after) != flat_bits(root)).any(1)
    leaks = ended & _taken(rows, pairs) & rows.after(moved)
    final = rows.flags()  # ends that are known to be terminations
    if m.terminated is not None:
        final = ended & rows.after(m.terminated)
    elif m.truncated is not None:
        final = ended & ~rows.after(m.truncated)
    key, root, _ = pairs[0]
    values = torch.unique(flat_bits(root)[leaks & final], dim=0)
    lost = len(values) > 1 and 2 * int((leaks & final).sum()) >= int(final.sum())
    what = "is the first observation after it, right only where the environment continued"
    if lost:
        what = "is the first observation of the trajectory after it: keep the final observation"
    before = torch.roll(leaks, -1)  # stored at the done step itself
    yield from rows.found("error" if lost else "note", keys.next_key(key), before, what)


def _telling(pairs: ObservationPairs, starts: Tensor) -> ObservationPairs:
    """Leaves that do not begin alike everywhere, as counts and recurrent states do."""

    def varies(root: Tensor) -> bool:
        first = flat_bits(root)[starts]
        return bool((first != first[:1]).any())

    return [pair for pair in pairs if varies(pair[1])] or pairs


def _copy_findings(batch: TensorDictBase, rows: MarkerRows) -> Iterator[Finding]:
    """Rows that bear the id and step of an earlier row and hold another step."""
    m = rows.markers
    if m.traj_ids is None or m.traj_step is None:
        return
    numbers = _numbers_of(m.traj_ids.cpu(), m.traj_step.cpu())
    places = torch.where(rows.real, rows.places, rows.size)
    first = rows.first_of(numbers, places)
    # padding has no first row: any row does, findings are of real rows only
    original = first[numbers].clamp(max=rows.size - 1)
    flat = batch.reshape(-1)
    # the observations of a sample may be augmented at random
    wanted = _WANTED if rows.slice_ids is None else _WANTED[:2]
    differs = rows.flags()
    for key in wanted:
        leaf = flat.get(key, None)
        if is_plain(leaf):
            values = flat_bits(leaf.cpu())
            differs |= (values != values[original]).any(1)
    what = "names another step already: ids are never reused"
    yield from rows.found("error", keys.TRAJ_IDS, differs & rows.real, what)


def _numbers_of(ids: Tensor, steps: Tensor) -> Tensor:
    """A number for each pair of id and step, the same where both are."""
    # sorting pairs takes ten times as long as sorting numbers; there are fewer than 2**31 of each
    kinds, numbers = (torch.unique(values, return_inverse=True) for values in (steps, ids))
    pairs = numbers[1] * len(kinds[0]) + kinds[1]
    found: Tensor = torch.unique(pairs, return_inverse=True)[1]
    return found
