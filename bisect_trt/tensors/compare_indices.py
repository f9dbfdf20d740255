"""The comparison of lists of indices, such as TopK makes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bisect_trt.tensors.comparison import ComparisonKind, TensorComparison, WorstElement

Array = NDArray[Any]


def compare_indices(reference: Array, target: Array, places: int, known: dict[str, Any]) -> TensorComparison:
    """Compare lists of indices by how far each is from its place.

    The verdict is that of Polygraphy 0.53.6's ``IndicesCompareFunc`` (``polygraphy/comparator/compare.py``, Apache-2.0):
    lists lie along the last axis; each element of the target must be in the reference's list, at most ``places`` away; the
    last ``places`` elements of the target are not looked at.

    Args:
        reference: What the tensor should be.
        target: What it is, of the same shape.
        places: How many places an index may be away.
        known: What is known of the comparison already.
    """
    rows = reference.reshape(-1, reference.shape[-1] if reference.ndim else 1)
    seen = target.reshape(rows.shape)
    looked_at = max(rows.shape[1] - places, 0)
    failed: list[tuple[int, int, float]] = []
    for row in np.unique(np.nonzero(seen[:, :looked_at] != rows[:, :looked_at])[0]).tolist():
        where: dict[Any, int] = {}
        for place, value in enumerate(rows[row].tolist()):
            where.setdefault(value, place)
        for place, value in enumerate(seen[row, :looked_at].tolist()):
            away = abs(where[value] - place) if value in where else np.inf
            if value != rows[row, place] and away > places:
                failed.append((row, place, float(away)))
    if not failed:
        return TensorComparison(passed=True, kind=ComparisonKind.MATCH, **known)
    row, place, away = max(failed, key=lambda entry: entry[2])
    index = tuple(int(i) for i in np.unravel_index(row * rows.shape[1] + place, reference.shape))
    worst = WorstElement(index, seen[row, place].item(), rows[row, place].item(), away)
    moved = "is missing from the reference's list" if away == np.inf else f"is {away:.0f} places away"
    reason = f"{worst.target} at {index} {moved} (index tolerance {places}; {len(failed)} of {seen.size} elements)"
    return TensorComparison(
        passed=False, kind=ComparisonKind.MISMATCH, worst=worst, mismatching=len(failed), reason=reason, **known
    )
