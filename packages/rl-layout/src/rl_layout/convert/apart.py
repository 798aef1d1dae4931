"""Compact batches as one tensordict for each trajectory, and back."""

from __future__ import annotations

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_layout.convert.ted import flat_form
from rl_tensordict import build, nest, tensors

_TRAJECTORY = "trajectory"


class H5Split:
    """Divide a compact batch into its trajectories, each of views.

    Takes what `TED2Flat` or `TED2Nested` returned, in memory or as a persistent tensordict of an
    HDF5 file, whose leaves are read then.

    Example:
        >>> from rl_layout import TED2Nested
        >>> from rl_layout.synthetic import trajectories
        >>> apart = H5Split()(TED2Nested()(trajectories([2, 3])))
        >>> apart["trajectory", "1", "steps", "action"].shape
        torch.Size([3, 1])
    """

    def __call__(self, data: TensorDictBase) -> TensorDict:
        """Divide a batch.

        Args:
            data: the compact form of a batch.

        Returns:
            Under ``"trajectory"`` a tensordict for each, by its number: ``"steps"`` of its j steps
            and ``"shared"`` of j + 1; the other entries as they are.

        Raises:
            KeyError: an entry of the compact form is missing.
            ValueError: the numbers of rows contradict the lengths.
        """
        flat = flat_form(data)
        lengths = flat["lengths"]
        parts: list[dict[str, TensorDict]] = [{} for _ in lengths]
        for group, more in (("steps", 0), ("shared", 1)):
            # a trajectory of j steps has j + 1 observations
            sizes = (lengths + more).tolist()
            found = tensors(flat[group])
            wrong = [key for key, leaf in found.items() if len(leaf) != sum(sizes)]
            if wrong:
                msg = (
                    f"lengths add up to {sum(sizes)} rows of {group!r}, and leaves {wrong} have "
                    "others. The data is truncated or altered."
                )
                raise ValueError(msg)
            pieces = {key: leaf.split(sizes) for key, leaf in found.items()}
            for number, size in enumerate(sizes):
                leaves = {key: piece[number] for key, piece in pieces.items()}
                parts[number][group] = build(nest(leaves), torch.Size([size]))
        made = TensorDict(
            {name: flat[name] for name in flat.keys() if name not in ("steps", "shared")}  # noqa: SIM118
        )
        made[_TRAJECTORY] = TensorDict(
            {str(number): TensorDict(dict(part)) for number, part in enumerate(parts)}
        )
        return made


class H5Combine:
    """Bring the trajectories of `H5Split` together again.

    Example:
        >>> from rl_layout import Flat2TED, TED2Flat
        >>> from rl_layout.synthetic import trajectories
        >>> batch = trajectories([2, 3])
        >>> again = Flat2TED()(H5Combine()(H5Split()(TED2Flat()(batch))))
        >>> bool((again == batch).all())
        True
    """

    def __call__(self, data: TensorDictBase) -> TensorDict:
        """Lay trajectories end to end.

        Args:
            data: what `H5Split` returned.

        Returns:
            The compact form, as `TED2Flat` returns it.

        Raises:
            KeyError: an entry is missing.
            ValueError: trajectories with other leaves, or of other lengths than it says.
        """
        missing = {_TRAJECTORY, "lengths", "batch_shape"} - set(data.keys())
        if missing:
            msg = f"not the trajectories of a batch: {sorted(missing)} is missing."
            raise KeyError(msg)
        lengths: Tensor = data["lengths"]
        parts = [data[_TRAJECTORY][str(number)] for number in range(len(lengths))]
        made = TensorDict(
            {name: data[name] for name in data.keys() if name != _TRAJECTORY}  # noqa: SIM118
        )
        for group, more in (("steps", 0), ("shared", 1)):
            found = [tensors(part[group]) for part in parts]
            for number, leaves in enumerate(found):
                size = int(lengths[number]) + more
                if leaves.keys() != found[0].keys() or any(
                    len(leaf) != size for leaf in leaves.values()
                ):
                    msg = (
                        f"trajectory {number} has other leaves than the first, or not {size} rows "
                        f"of {group!r}. The data is truncated or altered."
                    )
                    raise ValueError(msg)
            whole = {key: torch.cat([leaves[key] for leaves in found]) for key in found[0]}
            rows = int(lengths.sum()) + more * len(lengths)
            made[group] = build(nest(whole), torch.Size([rows]))
        return made
