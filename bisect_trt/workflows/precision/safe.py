"""From the minimal set, which is enough for the samples that were given, to one that holds on others: the safe set.

Three things are added before anything is asked: the same place in every block (siblings), what comes near overflow on a few
other samples (headroom), and what is known to break on those given. Then the set is held against fresh samples; where some
fail, what those blame is added, and the next round is of other samples. Where nothing that they blame is enough, as little
as holds is kept of all there is, which may be the whole model: what is recommended has to hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from bisect_trt.graph.siblings import Siblings
from bisect_trt.probing.activations import Reference
from bisect_trt.probing.builtin import BuiltinCheck
from bisect_trt.probing.fresh_check import SEVERE
from bisect_trt.probing.metric_check import MetricCheck
from bisect_trt.probing.outcome import Ending
from bisect_trt.probing.prompt import PromptCheck
from bisect_trt.search.oracle import Minimum, Subset, Verdict
from bisect_trt.workflows.precision.born import births
from bisect_trt.workflows.precision.headroom import Headroom
from bisect_trt.workflows.precision.rounds import Fresh, Round
from bisect_trt.workflows.precision.task import Reason, Task
from bisect_trt.workflows.precision.validation import Validation, hold_against, validated
from bisect_trt.workflows.suspicion import Suspect
from bisect_trt.workflows.suspicion.facts import INSIDE

_RANGES = 4
"""Other samples whose ranges are looked at; each is one run of the reference and no probe."""
_ROUNDS = 5
_LEAST_PROBES = 8
"""What a safe set may always cost; else as much as the minimal one has."""
_BLAMED = 2
"""Of the samples that fail in a round, so many are looked into; all of them have to pass then."""
_MOST_FAILING = 16
_FEW = 0.01
"""Of fresh samples so many may fail, none severely, before most of the model is kept for them."""
_HALVINGS = 4
"""Of what lies between a set that fails and one that holds; each is two probes."""


@dataclass(frozen=True)
class Safe:
    """What is recommended.

    Attributes:
        units: What stays in fp32.
        reasons: The rule by which units that the minimal set does not have are kept, and why in words.
        validation: How it did on fresh samples; ``None`` if it was held against none.
        why: Why not, then.
        written: Whether it was written already; an engine that is built again is another one.
    """

    units: Subset
    reasons: dict[int, Reason] = field(default_factory=dict)
    validation: Validation | None = None
    why: str | None = None
    written: bool = False


def find_safe(
    task: Task,
    minimum: Minimum,
    suspects: Sequence[Suspect],
    early: Safe | None = None,
    fresh: Fresh | None = None,
) -> Safe:
    """Grow the minimal set until it holds.

    Args:
        task: The search.
        minimum: The minimal set.
        suspects: What the reference run says against nodes.
        early: A safe set that was found before the minimal one, if so; it stays the answer if that adds nothing to it.
        fresh: Where samples come from, if not from where the task says.

    Raises:
        BudgetSpent: No more probes may be made.
    """
    if isinstance(task.prober.runner.check, PromptCheck):
        return Safe(minimum.units, why="you are the check")
    growth = _Growth(task, minimum, suspects, frozenset() if early is None else early.units, fresh or Fresh(task))
    if early is not None and growth.adds_nothing():
        return early
    return growth.run()


class _Growth:
    """A set while it grows."""

    def __init__(self, task: Task, minimum: Minimum, suspects: Sequence[Suspect], early: Subset, fresh: Fresh) -> None:
        self._task = task
        self._early = early
        self._minimum = minimum
        self._suspects = suspects
        self._units = minimum.units
        self._reasons: dict[int, Reason] = {}
        self._siblings = Siblings(task.subject.network, task.lowering.units)
        self._fresh = fresh
        self._compares = isinstance(task.prober.runner.check, BuiltinCheck)  # a command knows best what it wants
        self._headroom = Headroom(task) if self._compares and task.settings.precision == "fp16" else None
        probed = len(task.prober.ledger.records)
        self._until = probed + max(probed, _LEAST_PROBES)
        self._ceiling: Subset | None = None  # what was kept of all there is, before the end of it was lowered again

    def run(self) -> Safe:
        """The story."""
        task, fresh = self._task, self._fresh
        task.console.step("What has to stay in fp32 on other inputs too?")
        for number, sample in enumerate(fresh.ranges(_RANGES), 1001):
            if self._headroom is not None:
                self._headroom.add(sample, number)
        self._start()
        if not self._units and not self._minimum.proven:
            return self._safe(why="nothing that is suspected is enough")
        if isinstance(task.prober.runner.check, MetricCheck):
            return self._safe(why="the metric is of a whole set, on which the answer is measured")
        why = fresh.why_none if self._compares else "what a check of yours says of other inputs is for it to say"
        if why is not None:
            return self._safe(why=why)
        task.console.say(f"  fresh samples: {fresh.drawn}")
        return self._validate()

    def _validate(self) -> Safe:
        """Round after round, until one of them passes, or nothing more can be done."""
        task, fresh = self._task, self._fresh
        held, learned = None, 0
        for number in range(_ROUNDS):
            samples = fresh.round(number)
            if samples is None:
                return self._safe(why="the reference does not run on other inputs")
            outcome = hold_against(task, self._units, samples, f"{len(samples.files)} fresh samples")
            if not outcome.errors:
                return self._safe(why=f"they cannot be compared: {outcome.reason}")
            held = validated(outcome, fresh, learned)
            failing = failing_places(outcome.errors)
            mild = max(outcome.errors) <= SEVERE
            if mild and len(failing) <= len(outcome.errors) * fresh.few:
                break
            tolerable = mild and len(failing) <= len(outcome.errors) * _FEW
            if not self._grow(samples.only(failing[:_MOST_FAILING]), whole=not tolerable):
                break
            learned = learned + len(failing) if fresh.given else 0
        if held is not None and held.passed < held.samples and not fresh.given:
            task.console.say(
                f"  {held.samples - held.passed} of {held.samples} still fail: before it is shipped, hold it against "
                "samples of the deployment (precision --validation-data, or --metric over a set)"
            )
        if self._ceiling is not None:
            kept, every = len(self._units), len(task.lowering.units)
            task.console.say(
                f"  {kept} of {every} are kept: fresh samples fail with all less that was tried; those of the deployment may not "
                "(precision --validation-data)"
            )
        return replace(self._safe(), validation=held)

    def adds_nothing(self) -> bool:
        """Whether the minimal set and its siblings are among what was kept before."""
        return self._with_siblings(self._minimum.units) <= self._early

    def _safe(self, why: str | None = None) -> Safe:
        return Safe(self._units, {u: r for u, r in self._reasons.items() if u in self._units}, why=why)

    def _start(self) -> None:
        """The largest of the sets to begin with that passes on the samples that were given."""
        for units in self._starts():
            if units == self._minimum.units:
                break
            self._clear_shelf()
            if self._task.prober.probe(self._task.lowering.candidate(units)).verdict is Verdict.PASS:
                self._units = units
                return
        self._units = self._minimum.units

    def _starts(self) -> Iterator[Subset]:
        small = self._minimum.units
        near = self._near()
        breaking = frozenset(each.unit for each in self._suspects if each.score >= INSIDE and self._compares)
        alike = self._with_siblings(small)
        yield small | alike | near | breaking | self._early
        yield small | near | breaking
        yield small | alike

    def _near(self) -> Subset:
        """What comes near overflow, with the reasons remembered."""
        if self._headroom is None:
            return frozenset()
        found = self._headroom.near()
        for unit, reason in found.items():
            self._reasons.setdefault(unit, ("headroom", reason))
        return frozenset(found)

    def _with_siblings(self, units: Subset) -> Subset:
        headroom, found = self._headroom, self._siblings.of(units)
        if headroom is not None:  # of what is kept for its range, the siblings that have none near it say nothing
            cold = frozenset(unit for unit in units if not headroom.is_warm(unit))
            found = units | self._siblings.of(cold) | frozenset(filter(headroom.is_warm, found))
        for unit in found - units:
            self._reasons.setdefault(unit, ("sibling", "in the place of one that is kept in another block"))
        return found

    def _grow(self, failing: Round, *, whole: bool) -> bool:
        """Add what samples that fail blame, until they pass; ``whole`` says whether all there is may be kept for that.

        Returns:
            Whether they do.
        """
        references = [self._reference(failing, place) for place in range(min(_BLAMED, len(failing.samples)))]
        largest = self._units
        for units in self._larger(references):
            if units == self._units:
                continue
            if len(self._task.prober.ledger.records) >= self._until:
                break
            if self._clears(units, failing):
                self._units = units
                return True
            largest = units
        # Before there is a minimal set nobody knows that so much is needed.
        return whole and bool(self._minimum.units) and self._resort(largest, references[0], failing)

    def _clears(self, units: Subset, failing: Round) -> bool:
        """Whether a set passes on the samples that were given, and on those that failed."""
        task = self._task
        self._clear_shelf()
        if task.prober.probe(task.lowering.candidate(units)).verdict is not Verdict.PASS:
            return False
        some = "1 sample" if len(failing.files) == 1 else f"{len(failing.files)} samples"
        return hold_against(task, units, failing, f"the {some} that failed").ending is Ending.PASSED

    def _resort(self, fails: Subset, reference: Reference, failing: Round) -> bool:
        """Keep what holds between a set that does not and all there is, in the order in which errors are born of that set."""
        whole, again = frozenset(self._task.lowering.units), self._ceiling is not None
        every = whole if self._ceiling is None else self._ceiling
        if not self._clears(every, failing):
            if every == whole or not self._clears(whole, failing):
                return False
            every = whole
        small, fails = self._units, fails & every
        first = births(self._task, fails, reference)
        order = list(dict.fromkeys([*first.broken, *first.growth, *self._task.lowering.units]))
        order = [unit for unit in order if unit in every - fails]
        kept = whole if again and every == whole else self._shortest(fails, order, failing)
        self._ceiling = every if again else kept
        if not again:  # the later a node is, the fewer are there to make more of what it rounds
            kept = self._shortest(small, [unit for unit in self._task.lowering.units if unit in kept - small], failing)
        for unit in kept:
            self._reasons.setdefault(unit, ("fresh sample", "without it and others fresh samples fail"))
        self._units = kept
        return True

    def _shortest(self, fails: Subset, order: Sequence[int], failing: Round) -> Subset:
        """A set that fails and as much of the beginning of an order as clears the samples; all of it is known to."""
        low, high = 0, len(order)
        for _ in range(_HALVINGS):
            middle = (low + high) // 2
            if middle == low:
                break
            if self._clears(fails.union(order[:middle]), failing):
                high = middle
            else:
                low = middle
        return fails.union(order[:high])

    def _larger(self, references: Sequence[Reference]) -> Iterator[Subset]:
        """Ever larger sets: what comes near overflow there, where NaN and Inf begin, then where errors grow most."""
        task, now = self._task, self._units
        found = [births(task, now, reference) for reference in references]
        broken = frozenset(unit for each in found for unit in each.broken)
        for unit in broken:
            self._reasons.setdefault(unit, ("fresh sample", "becomes NaN or Inf on a fresh sample"))
        base = now | self._near() | self._with_siblings(broken)
        if base != now:
            yield base
        size, most = 4, max((len(each.growth) for each in found), default=0)
        while size <= 4 * most:
            more = frozenset(unit for each in found for unit in each.growth[:size])
            for unit in more:
                self._reasons.setdefault(unit, ("fresh sample", "adds to the error on a fresh sample"))
            yield base | self._with_siblings(more)
            size *= 4

    def _reference(self, failing: Round, place: int) -> Reference:
        subject = self._task.subject
        sample = failing.samples[place]
        if self._headroom is not None:
            return self._headroom.add(sample, 2001 + place)
        return Reference(subject.network, sample, subject.workspace, subject.models, 2001 + place, subject.swap_limit)

    def _clear_shelf(self) -> None:
        """Of the sets that pass, the larger one's engine is kept from here on."""
        check = self._task.prober.runner.check
        shelf = getattr(check, "shelf", None)
        if shelf is not None:
            shelf.clear()


def failing_places(errors: Sequence[float]) -> list[int]:
    """The samples whose error is past its tolerance, the worst first."""
    return sorted((place for place, error in enumerate(errors) if error > 1), key=lambda place: -errors[place])
