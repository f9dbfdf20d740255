"""A candidate that breaks in the function that the original breaks in, on other operands, is no proof and no secret."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import Listening, build

from bisect_trt.probe.ledger import Ledger
from bisect_trt.probe.outcome import Ending, Outcome
from bisect_trt.search.oracle import Verdict


@pytest.mark.parametrize(
    ("signature", "akin"),
    [
        ("build: Mul node #: no kernel of tensor(double)", True),
        ("build: Add node #: no memory", False),
        ("run: Add node #: no kernel of tensor(float)", False),
        ("time-out", False),
    ],
)
def test_it_is_said(tmp_path: Path, signature: str, *, akin: bool) -> None:
    told = Listening()
    ledger = Ledger(tmp_path, [told])
    original = Outcome(Ending.BROKEN, "build: Add node #: no kernel of tensor(float)", "no kernel")
    for units, outcome in (((0, 1), original), ((0,), Outcome(Ending.BROKEN, signature, "in full"))):
        ledger.decide(build(units).identity, outcome)
    ledger.close()
    first, second = told.records
    assert (first.verdict, second.verdict) == (Verdict.FAIL, Verdict.UNRESOLVED)
    assert ("breaks where the original does, but not on the same" in second.reason) is akin
    assert second.reason.endswith("in full")
