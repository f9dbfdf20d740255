"""Whether it is a size that fails, or what it is fed: the values of a size that fails, at one that passed with others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from bisect_trt.probing.ledger import BudgetSpent
from bisect_trt.search.oracle import Verdict
from bisect_trt.search.size_conditions import Point
from bisect_trt.workflows.investigation import Investigation
from bisect_trt.workflows.sweep.sized import Sized


def by_values(
    investigation: Investigation,
    sized: Sized,
    failing: Point,
    below: Sequence[Point],
    seen: Mapping[Point, Verdict],
) -> Point | None:
    """Of the sizes below one that fails, the first that passed and fails with the last of the failing one's values.

    The first of them it was fed before: values of a size begin as those of smaller ones do.
    """
    with suppress(BudgetSpent):
        for point in below:
            candidate = sized.with_end_of(failing, point) if seen.get(point) is Verdict.PASS else None
            if candidate is not None and investigation.prober.probe(candidate).verdict is Verdict.FAIL:
                return point
    return None
