"""The search for a fix that holds: a minimal set on the failing samples, then rounds of fresh samples, growing and shrinking.

Each set that is held against fresh samples is a point of a curve: units kept, failing samples, worst error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from bisect_trt.errors import UsageError
from bisect_trt.mixed_precision.search import Task, search_keep
from bisect_trt.mixed_precision.validation import Fresh, Round, hold_against
from bisect_trt.probe.ledger import Record, Watcher
from bisect_trt.probe.metric_check import MetricCheck
from bisect_trt.probe.oracles import SEVERE, BuiltinCheck
from bisect_trt.probe.user_checks import PromptCheck
from bisect_trt.search.keep import grow_and_shrink
from bisect_trt.search.oracle import Minimum, Subset, Verdict
from bisect_trt.search.statistics import rate_interval
from bisect_trt.tensors.inputs import Sample

CONFIDENCE = 0.95
ENDED = "the search did not come to its end"
_ROUNDS = 5
_LEAST_QUESTIONS, _LEAST_COSTLY_QUESTIONS = 160, 16
"""Growing and shrinking may ask as many questions as the search for the minimal set asked, and at least so many."""
_MOST_FAILING, _LOOKED_AT = 8, 2
"""So many failing samples of a round have to pass from then on; the activations of so many are looked at."""
_MARGIN = 0.8
"""The share of the tolerance that failing samples may use afterwards, so that samples like them hold too."""
_SMALLER = 0.8
"""A set of at most this share of the set on the disk replaces it while the search goes on."""


@dataclass(frozen=True)
class Point:
    """A set of units, and how the model does on fresh samples with these kept.

    Attributes:
        units: The units that are kept.
        errors: The error of each sample over its tolerance; past 1 it fails.
        allowed: The share of samples that may fail, none of them severely.
        learned: The number of samples that the set has grown for, so that they are fresh no more.
    """

    units: Subset
    errors: tuple[float, ...]
    allowed: float = 0.0
    learned: int = 0

    @property
    def failed(self) -> int:
        """The number of samples that fail."""
        return sum(error > 1 for error in self.errors)

    @property
    def severe(self) -> int:
        """The number of samples that are off by NaN, Inf, or more than ten times the tolerance."""
        return sum(error > SEVERE for error in self.errors)

    @property
    def worst(self) -> float:
        """The largest error over its tolerance."""
        return max(self.errors)

    @property
    def holds(self) -> bool:
        """Whether no more samples fail than may."""
        return self.failed <= self.allowed * len(self.errors) and not self.severe

    def rank(self) -> tuple[bool, int, int, int]:
        """Sort key: a set that holds comes before one that does not, then fewer failures, or fewer units where both hold."""
        held = self.holds
        return not held, 0 if held else self.severe, 0 if held else self.failed, len(self.units)

    @property
    def fails_under(self) -> float:
        """The share of all such samples of which it is 95% sure that fewer fail; 1 where nothing was learned."""
        fresh = len(self.errors) - self.learned
        # One-sided, so the other half of the error is not needed.
        return 1.0 if self.failed >= fresh else rate_interval(self.failed, fresh, 2 * CONFIDENCE - 1)[1]

    def describe(self) -> str:
        """A sentence without its end."""
        count = len(self.errors)
        held = f"held on {count - self.failed} of {count} fresh samples"
        if self.learned:
            held += f", {self.learned} of which it was mended on"
        bound = math.ceil(1000 * self.fails_under) / 10  # "under 2.3%" of 2.35 would be untrue
        return f"{held} (95% sure that under {bound:.1f}% fail), worst error {in_tolerances(self.worst)}"

    def row(self) -> str:
        """How many samples fail, and by how much."""
        return row_of(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Plain values; the worst error is ``null`` for NaN or Inf."""
        return {
            "samples": len(self.errors),
            "passed": len(self.errors) - self.failed,
            "severe": self.severe,
            "worst_error": self.worst if math.isfinite(self.worst) else None,
            "confidence": CONFIDENCE,
            "fails_under": self.fails_under,
            "learned": self.learned,
            "sentence": self.describe(),
            "nodes": len(self.units),
            "holds": self.holds,
            "keep": sorted(self.units),
        }


def row_of(point: Mapping[str, Any]) -> str:
    """How many samples fail with a set of the curve, and by how much."""
    failed, worst = point["samples"] - point["passed"], point["worst_error"]
    error = in_tolerances(math.inf if worst is None else worst)
    return f"{failed or 'none'} of {point['samples']} fresh samples fail, worst error {error}"


def in_tolerances(error: float) -> str:
    """An error in units of the tolerance, in words."""
    if not math.isfinite(error):
        return "NaN or Inf"
    return f"{error:.2g} of the tolerance" if error <= 1 else f"{error:.3g} times the tolerance"


@dataclass(frozen=True)
class PrecisionAnswer:
    """The end of a search.

    Attributes:
        minimum: The units that the given samples need, and whether that is proven.
        units: The units that are recommended.
        curve: The sets that were held against fresh samples.
        drawn: How the fresh samples were made, and how many were dropped, in words.
        why: Why none were drawn, if so.
    """

    minimum: Minimum
    units: Subset
    curve: tuple[Point, ...] = ()
    drawn: str = ""
    why: str | None = None

    @property
    def point(self) -> Point | None:
        """The recommended set on the curve; ``None`` where it was not held against fresh samples."""
        return next((point for point in reversed(self.curve) if point.units == self.units), None)


class Progress(Watcher):
    """The best answer so far, which is also what the output file holds.

    Attributes:
        answer: The answer; ``None`` before the minimal set is known.
    """

    def __init__(self, task: Task) -> None:
        """Write each much smaller set of the search for the minimal one as it is seen to pass."""
        self._task = task
        self.answer: PrecisionAnswer | None = None
        self._written: Subset | None = None
        task.prober.ledger.watchers += (self,)

    def probed(self, record: Record) -> None:
        """Write the set of a candidate that passed, if it is much smaller than the one on the disk."""
        task, passed = self._task, self._task.prober.ledger.passed
        if self.answer is not None or record.verdict is not Verdict.PASS or not passed or passed[-1].key != record.key:
            return
        units, before = passed[-1].units, self._written or task.everything
        # Nothing is written where the model passes with everything lowered: precision is not the reason then.
        if 0 < len(units) <= _SMALLER * len(before) and task.lowering.candidate(units).key == record.key:
            with suppress(UsageError):  # where there is no room, the search goes on, and the answer is printed
                task.lowering.write(units, task.settings.output)
                self._written = units

    def keep(self, answer: PrecisionAnswer) -> None:
        """Write an answer, unless its set is written already: an engine that is built again is another one.

        Raises:
            UsageError: It cannot be written.
        """
        self.answer = answer
        if self._written != answer.units:
            self._task.lowering.write(answer.units, self._task.settings.output)
            self._written = answer.units

    def rewrite(self, answer: PrecisionAnswer) -> None:
        """Write an answer over that of another search, which went on from it."""
        self._written = None
        self.keep(answer)


def find_answer(task: Task, progress: Progress, *, nothing_may_pass: bool = False) -> PrecisionAnswer:
    """The minimal set, and the set that holds on fresh samples; both are written as soon as they are known.

    Raises:
        DoesNotReproduce: Precision is not the reason.
        BudgetSpent: No more probes may be made.
        UsageError: The answer cannot be written.
    """
    minimum = search_keep(task, nothing_may_pass=nothing_may_pass)
    for step in minimum.steps:
        task.console.say(f"  {step}")
    task.result.extra["probes_minimal"] = len(task.prober.ledger.records)
    progress.keep(PrecisionAnswer(minimum, minimum.units, why=ENDED))
    task.space.measure(task)
    _Rounds(task, minimum, progress).run()
    assert progress.answer is not None, "it was kept"
    return progress.answer


def rounding_everywhere(task: Task, answer: PrecisionAnswer) -> bool:
    """Whether most units have to stay in floats, because each rounds a little, and not because a few break."""
    return 2 * max(len(task.space.certain), 1) < len(answer.units) > len(task.everything) / 2


def _why_not_held(task: Task) -> str | None:
    """Why the check says nothing of other samples, if so."""
    check = task.prober.runner.check
    if isinstance(check, PromptCheck):
        return "you are the check"
    if isinstance(check, MetricCheck):
        return "the metric is of a whole set, on which the answer is measured"
    if not isinstance(check, BuiltinCheck):
        return "what a check of yours says of other inputs is for it to say"
    return None


@dataclass
class _Rounds:
    """Rounds of fresh samples; after each the set grows, and shrinks again, on all failing samples seen."""

    task: Task
    minimum: Minimum
    progress: Progress
    curve: list[Point] = field(default_factory=list)
    failing: Round = field(default_factory=Round)
    worst: list[Sample] = field(default_factory=list)
    learned: set[int] = field(default_factory=set)  # of the user's samples, which are the same in each round
    dropped: int = 0
    start: Subset = frozenset()  # part of each set that is recommended
    fresh: Fresh = field(init=False)

    def __post_init__(self) -> None:
        self.fresh = Fresh.of(self.task)

    def run(self) -> None:
        """Hold sets against fresh samples until one holds, or the questions for that are spent."""
        task, minimal = self.task, self.minimum.units
        why = _why_not_held(task)
        known = minimal | task.space.certain
        self.start = known if why is None and (known == minimal or self._passes_on_given(known)) else minimal
        why = why or self.fresh.why_none
        if why is not None:
            self._keep(why)
            return
        task.console.step("Does it hold on other inputs?")
        task.console.say(f"  fresh samples: {self.fresh.drawn}")
        units: Subset | None = self.start
        left = self._questions()
        for number in range(_ROUNDS):
            samples = self.fresh.round(number)
            if samples is None:
                self._keep("the reference does not run on other inputs")
                return
            if number == 0 and minimal != self.start and task.cheap:
                self._hold(minimal, samples)
            assert units is not None
            point = self._hold(units, samples)
            if point is None or point.holds or left <= 0 or number == _ROUNDS - 1:
                break
            asked = len(task.prober.ledger.records)
            units = grow_and_shrink(
                self.start, units, task.space.order(self.worst), self._clears, most=max(2 * left // 3, 1)
            )
            left -= len(task.prober.ledger.records) - asked
            if units is None or not self._passes_on_given(units):  # more units did harm
                break
        assert self.progress.answer is not None, "a point was kept"
        if task.cheap and rounding_everywhere(task, self.progress.answer):
            self._look_at_small()

    def _look_at_small(self) -> None:
        """Where most of the model has to stay in floats, see how the units that are known to break do alone."""
        small, samples = self.task.space.certain, self.fresh.round(_ROUNDS)
        if samples is not None and small < self.start:
            self._hold(small, samples)

    def _questions(self) -> int:
        asked = len(self.task.prober.ledger.records)
        return max(asked, _LEAST_QUESTIONS if self.task.cheap else _LEAST_COSTLY_QUESTIONS)

    def _keep(self, why: str | None = None) -> None:
        """Write the best set so far that holds ``start``: the smallest that holds, else the one that fails least."""
        best = min((point for point in self.curve if self.start <= point.units), key=Point.rank, default=None)
        drawn = self.fresh.drawn
        if self.dropped:
            drawn += f"; {self.dropped} dropped, on which the model fails in {self.task.space.high} too"
        answer = PrecisionAnswer(self.minimum, self.start, tuple(self.curve), drawn, why)
        self.progress.keep(answer if best is None else replace(answer, units=best.units))

    def _passes_on_given(self, units: Subset) -> bool:
        """Whether a larger set passes on the samples that were given; its engine is the one to keep from here on."""
        task = self.task
        engine_cache = getattr(task.prober.runner.check, "engine_cache", None)
        if engine_cache is not None:
            engine_cache.clear()
        return task.prober.probe(task.lowering.candidate(units)).verdict is Verdict.PASS

    def _hold(self, units: Subset, samples: Round) -> Point | None:
        """Hold a set against samples, as a new point of the curve; ``None`` where they cannot be compared."""
        task = self.task
        outcome = hold_against(task, units, samples, f"{len(samples.files)} fresh samples")
        if not outcome.errors:
            self._keep(f"they cannot be compared: {outcome.reason}")
            return None
        errors = dict(enumerate(outcome.errors))
        failing = self._really_failing(samples, [place for place, error in errors.items() if error > 1])
        dropped = [place for place, error in errors.items() if error > 1 and place not in failing]
        self.dropped += len(dropped)
        kept = tuple(error for place, error in errors.items() if place not in dropped)
        if not kept:
            self._keep(f"on none of them the model passes in {task.space.high}")
            return None
        learned = len(self.learned) if self.fresh.given else 0
        point = Point(units, kept, task.space.allowed, learned)
        self.curve.append(point)
        self._keep()
        task.console.say(f"  {task.space.count(len(units))} in {task.space.high}: {point.row()}")
        failing.sort(key=lambda place: -errors[place])
        if not point.holds:
            self.learned.update(failing)
            more = samples.only(failing[:_MOST_FAILING])
            self.failing = samples.only(sorted(self.learned)) if self.fresh.given else more + self.failing
            self.worst += more.samples[:_LOOKED_AT]
        return point

    def _really_failing(self, samples: Round, failing: Sequence[int]) -> list[int]:
        """Those of failing samples on which the model passes with nothing lowered; the others say nothing of precision."""
        if not failing:
            return []
        outcome = hold_against(self.task, self.task.everything, samples.only(failing), f"{len(failing)} that failed")
        return [place for place, error in zip(failing, outcome.errors, strict=False) if error <= 1]

    def _clears(self, units: Subset) -> Verdict:
        """Whether a set passes on all failing samples seen, with a margin."""
        if self.task.settings.bits and units == self.task.everything:
            return Verdict.PASS  # samples on which it fails are dropped
        count = len(self.failing.files)
        what = f"the {'1 sample' if count == 1 else f'{count} samples'} that failed"
        outcome = hold_against(self.task, units, self.failing, what)
        margin = _MARGIN if not self.task.settings.bits else 1.0
        return Verdict.PASS if outcome.errors and max(outcome.errors) <= margin else Verdict.FAIL
