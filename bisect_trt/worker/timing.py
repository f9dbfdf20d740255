"""Times a model beside a baseline, in blocks that alternate, so that what slows the machine down slows both.

A block is some runs of about 20 ms together. Its fastest run counts: other processes only add time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from bisect_trt.aliases import Plain
from bisect_trt.search.statistics import SignTest
from bisect_trt.worker.host import fed_to, run_times
from bisect_trt.worker.protocol import Blocks

_BLOCK_SECONDS = 0.02
_WARM_SECONDS = 0.1
_WARM_RUNS = 50
_MOST_RUNS = 200
_LEAST_RUNS = 3
_LONG_SECONDS = 0.2
"""A run that takes longer is a block of its own."""
_PAUSE_SECONDS = 0.002
"""Threads of a runtime spin for a moment after a run, and would slow the other side down."""


class Timed(Struct, frozen=True):
    """A loaded model that is timed.

    Attributes:
        session: The model.
        feed: Its inputs.
        runs: The number of runs in a block.
    """

    session: Any
    feed: Plain
    runs: int = 1

    @classmethod
    def of(cls, session: Any, feed: Plain) -> Timed:  # noqa: ANN401 - of a target
        """Warm a model up; returns it with blocks of about 20 ms."""
        timed = cls(session, fed_to(session, feed))
        seconds = timed.times(1)
        began = time.monotonic()
        while len(seconds) < _WARM_RUNS and time.monotonic() - began < _WARM_SECONDS:
            seconds += timed.times(max(1, round(_BLOCK_SECONDS / 2 / seconds[-1])))
        # The fastest run is the one that nothing else disturbed.
        fastest = max(min(seconds), 1e-7)
        least_runs = 1 if fastest > _LONG_SECONDS else _LEAST_RUNS
        return cls(
            session, timed.feed, min(max(round(_BLOCK_SECONDS / fastest), least_runs), _MOST_RUNS)
        )

    def times(self, runs: int) -> list[float]:
        """Seconds of each of several runs, where the model is."""
        remote = getattr(self.session, "times", None)
        return list(
            run_times(self.session, self.feed, runs) if remote is None else remote(self.feed, runs)
        )

    def block(self) -> float:
        """Seconds of the fastest run of a block."""
        return min(self.all())

    def all(self) -> list[float]:
        """Seconds of each run of a block."""
        time.sleep(_PAUSE_SECONDS)
        return self.times(self.runs)


def _measure_both(
    measure: Callable[[], list[float]], baseline: Timed | None, *, swapped: bool
) -> tuple[list[float], list[float]]:
    """Return the seconds of the model's runs and of a block of the baseline, if there is one; ``swapped`` if that comes first."""
    if baseline is None:
        return measure(), []
    if swapped:
        other = [baseline.block()]
        return measure(), other
    return measure(), [baseline.block()]


def compare_blocks(
    model: Timed,
    baseline: Timed | None,
    judge: Callable[[float, float], tuple[bool, bool]],
    budget: float,
    share: float | None = None,
) -> Blocks:
    """Time blocks until it is known whether most are too long or most are not, or the time is over.

    Args:
        model: The model.
        baseline: What it is compared with, if anything.
        judge: Returns of the seconds of a block and of the baseline's beside it whether they are
            too long, and whether not.
        budget: Seconds that this may take.
        share: The share of all runs, not of blocks, that must not be too long; without a baseline.
    """
    # Two one-sided tests: what is not slow is not yet shown to be fast enough.
    slow, fine = (
        (SignTest(), SignTest()) if share is None else (SignTest(1 - share), SignTest(share))
    )
    mine = list[float]()
    theirs = list[float]()
    began = time.monotonic()
    while not (slow.known or (fine.known and not slow.leads)) and (
        not mine or time.monotonic() - began < budget
    ):
        measure = model.all if share is not None else lambda: [model.block()]
        # Each side comes first as often.
        runs, other = _measure_both(measure, baseline, swapped=len(mine) % 2 == 1)
        mine += runs
        theirs += other
        for too_long, short in (judge(seconds, sum(other)) for seconds in runs):
            slow.add(holds=too_long)
            fine.add(holds=short)
    verdict = True if slow.known else False if fine.known and not slow.leads else None
    return Blocks(tuple(mine), tuple(theirs), slow.holds, verdict)
