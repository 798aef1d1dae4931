"""The cuts between rows in one pass, compiled by numba: the only file here that needs it."""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs
# mypy: disable-error-code="untyped-decorator"
# ruff: noqa: ANN001, ANN201, PLR0913 - a loop takes its arrays one by one, of any dtype

from numba import njit


@njit(nogil=True, cache=True)
def ends_at(row, done, terminated, truncated, steps_to_next_obs):
    """Whether a row says of itself that it is the last one; arguments as of `mark_cuts`."""
    ends = False
    if done is not None:
        ends |= done[row]
    if terminated is not None:
        ends |= terminated[row]
    if truncated is not None:
        ends |= truncated[row]
    if steps_to_next_obs is not None:
        ends &= steps_to_next_obs[row] == 1
    return ends


@njit(nogil=True, cache=True)
def mark_cuts(
    is_init, done, terminated, truncated, steps_to_next_obs, traj_ids, traj_step, mask, cut
):
    """Mark the rows whose successor does not continue them; see `boundaries.cut_rows`."""
    last = len(cut) - 1
    for row in range(last):
        breaks = ends_at(row, done, terminated, truncated, steps_to_next_obs)
        if is_init is not None:
            breaks |= is_init[row + 1]
        if traj_ids is not None:
            breaks |= traj_ids[row] != traj_ids[row + 1]
        if traj_step is not None:
            breaks |= traj_step[row] + 1 != traj_step[row + 1]
        if mask is not None:
            breaks |= mask[row] != mask[row + 1]
        cut[row] = breaks
    cut[last] = ends_at(last, done, terminated, truncated, steps_to_next_obs)
