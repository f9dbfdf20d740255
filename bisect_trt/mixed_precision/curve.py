"""The search for a fix that holds: a minimal set on the failing samples, then rounds of fresh samples, growing and shrinking.

Each set that is run on fresh samples is a point of a curve: units kept, failing samples, worst
error.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from msgspec import Struct, structs

from bisect_trt.errors import UsageError
from bisect_trt.mixed_precision.lowering import CastLowering
from bisect_trt.mixed_precision.search import (
    Task,
    probe_ends,
    search_keep,
    tell_suspects,
    with_metadata,
)
from bisect_trt.mixed_precision.validation import Fresh, Round, probe_on, run_on
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.ledger import Record, Watcher
from bisect_trt.probe.oracles import SEVERE
from bisect_trt.probe.outcome import Ending, Outcome
from bisect_trt.report.mixed import (
    CHECK_ON_GIVEN,
    DROPPED,
    ENDED,
    METRIC_ON_GIVEN,
    NO_REFERENCE,
    NONE_PASSES,
    describe_validation,
    row_of,
)
from bisect_trt.report.outcomes import describe_outcome
from bisect_trt.report.parts import Validation
from bisect_trt.report.proofs import tell_steps
from bisect_trt.search.keep import find_keep, grow_and_shrink, shortest_prefix
from bisect_trt.search.oracle import Ask, Minimum, Note, Remark, Subset, Verdict
from bisect_trt.search.statistics import rate_interval
from bisect_trt.search.strategy import make_minimal
from bisect_trt.tensors.comparison import Details, TensorComparison, rounded_up
from bisect_trt.tensors.inputs import Sample
from bisect_trt.worker.deadline import BudgetSpent

CONFIDENCE = 0.95
_ROUNDS = 8
_LEAST_PROBES = 110
_LEAST_COSTLY_PROBES = 16
_ROUND_PROBES = 12
"""Growing and shrinking may take as many probes as the search for the minimal set took, and at
least so many."""
_MOST_FAILING = 24
_LOOKED_AT = 8
"""The number of failing samples of a round that later sets run on, and of those that nodes are
ordered by."""
_MARGIN = 0.8
"""The share of the tolerance that failing samples may use afterwards, so that samples like them
hold too."""
_SMALLER = 0.8
"""A set of at most this share of the set on the disk replaces it while the search goes on."""
_MANY = 7
"""The model is tried in bf16 where more nodes, and more than half of all, stay in fp32."""
_SHARE = 0.2
_TIMES = 2
"""A set of more than ``_MANY`` nodes, this share of all, and so many times the smallest set that
cures the model is not recommended only because it meets the tolerance."""
MILD = 2.0
"""Errors of up to so many times the tolerance may be rounding that adds up."""
_CURED_DB = 20.0
_CURED_SHARE = 0.1
"""So may ten times the tolerance where only nodes that lose values alone stay in fp32, and more if
the ratio of the outputs to their errors is at least this, and no error past this share of the
largest value: a tenth, on average and of each element. That depends on no tolerance."""
_FIRST_PROBES = 48
_STREAMS = 4
"""After so many probes without a small set most of the error may be rounding in many nodes."""


class Point(Struct, frozen=True):
    """A set of units, and how the model does on fresh samples with these kept, of all rounds that it ran on.

    Attributes:
        units: The units that are kept.
        errors: The error of each sample over its tolerance; past 1 it fails.
        allowed: The share of samples that may fail, none of them severely.
        learned: The number of samples that the set has grown for, so that they are fresh no more.
        outputs: Of each round and output the worst comparison, where samples fail.
        rounds: Of each round the file of the first sample, which tells rounds apart.
        none_loses: Whether no other unit loses its values alone, on the given samples and on those that fail.
    """

    units: Subset
    errors: tuple[float, ...]
    allowed: float = 0.0
    learned: int = 0
    outputs: tuple[TensorComparison, ...] = ()
    none_loses: bool = False
    rounds: tuple[Path, ...] = ()

    def with_round(self, other: Point) -> Point:
        """Return the set on the samples of a further round too: it holds where it does on all that it ran on."""
        return structs.replace(
            other,
            errors=self.errors + other.errors,
            outputs=self.outputs + other.outputs,
            rounds=self.rounds + other.rounds,
        )

    @property
    def failed(self) -> int:
        """The number of samples that fail."""
        return sum(error > 1 for error in self.errors)

    @property
    def severe(self) -> int:
        """The number of samples that are off by NaN, Inf, or more than ten times the tolerance."""
        return sum(error > SEVERE for error in self.errors)

    @property
    def holds(self) -> bool:
        """Whether no more samples fail than may."""
        return self.failed <= self.allowed * len(self.errors) and not self.severe

    @property
    def cures(self) -> bool:
        """Whether the remaining error may be rounding that adds up, however far it is past the tolerance, and no overflow."""
        worst = max(self.errors, default=math.inf)
        if not self.none_loses:
            return worst <= MILD
        return worst <= SEVERE or (worst < math.inf and all(map(_is_near, self.outputs)))

    @property
    def atol(self) -> dict[str, float]:
        """The absolute tolerance of each output with which all samples pass, to three digits; empty where none is needed."""
        needed = {
            name: max(details.atol_needed for details in alike)
            for name, alike in self._details().items()
        }
        return {name: float(rounded_up(atol)) for name, atol in needed.items() if atol < math.inf}

    @property
    def argmax(self) -> dict[str, float]:
        """The share of rows of each output with the largest value at the place where the reference has it; of the worst round."""
        shares = {
            name: [details.argmax for details in alike if details.argmax is not None]
            for name, alike in self._details().items()
        }
        return {name: min(rounds) for name, rounds in shares.items() if rounds}

    def _details(self) -> dict[str, list[Details]]:
        details = dict[str, list[Details]]()
        for output in self.outputs:
            if output.details:
                details.setdefault(output.name, []).append(output.details)
        return details

    def rank(self) -> tuple[bool, float, int]:
        """Sort key: a set that holds comes before one that does not, then fewer failures, or fewer units where both hold."""
        share = (self.severe * len(self.errors) + self.failed) / len(self.errors)
        return not self.holds, 0 if self.holds else share, len(self.units)

    @property
    def fails_under(self) -> float:
        """The share of all such samples of which it is 95% sure that fewer fail; 1 where nothing was learned."""
        fresh = len(self.errors) - self.learned
        # One-sided, so the other half of the error is not needed.
        return (
            1.0
            if self.failed >= fresh
            else rate_interval(self.failed, fresh, 2 * CONFIDENCE - 1)[1]
        )

    def to_part(self, drawn: str | None = None, *, recommended: bool = False) -> Validation:
        """The set as results have it; it may be ``recommended``, on samples ``drawn`` in some way."""
        part = Validation(
            samples=len(self.errors),
            passed=len(self.errors) - self.failed,
            severe=self.severe,
            worst_error=max(self.errors) if math.isfinite(max(self.errors)) else None,
            confidence=CONFIDENCE,
            fails_under=self.fails_under,
            learned=self.learned,
            sentence="",
            nodes=len(self.units),
            holds=self.holds,
            keep=tuple(sorted(self.units)),
            atol=self.atol,
            argmax=self.argmax,
            drawn=drawn,
            recommended=recommended,
        )
        return structs.replace(part, sentence=describe_validation(part, self.allowed))


def best_of(points: Iterable[Point]) -> Point | None:
    """Return the smallest set that holds, else the one that fails least; ``None`` without any.

    A set of up to a quarter more units is better if samples that fail clearly with the smallest one
    do not with it.
    """
    ranked = sorted(points, key=Point.rank)
    best = next(iter(ranked), None)
    if best is None or not best.holds:
        return best
    most = len(best.units) / _SMALLER
    mild = (point for point in ranked if point.holds and max(point.errors) <= MILD)
    return next((point for point in mild if len(point.units) <= most), best)


def _is_near(output: TensorComparison) -> bool:
    """Return whether the errors are far below the values of an output, however many tolerances they are."""
    details = output.details
    values = output.target_range
    if details is None or details.snr_db is None or output.max_abs is None or values is None:
        return details is None
    return details.snr_db >= _CURED_DB and output.max_abs <= _CURED_SHARE * values.absmax


class Fix(Watcher):
    """The search for a fix that holds; the output file has the best set that did so far.

    While the search goes on, a set that was not seen to hold on fresh samples is never in the file,
    unless none can judge it.

    Attributes:
        task: The search.
        minimum: The units that the given samples need, and whether that is proven.
        units: The units that are recommended; ``None`` before a set has run on fresh samples.
        passing: The smallest set so far that passes on the given samples, by a fifth; ``None`` before there is
            one, and once there are ``units``.
        written: The units of the set in the output file; ``None`` where nothing is written.
        curve: The sets that were run on fresh samples.
        why: Why none was, if so.
        everywhere: Whether most units, and not a few, have to stay in floats.
        traded: The best set by the tolerance, where that does not hold, or has too many nodes and a
            set that fails by rounding is recommended.
        cure: The set that fails by rounding, where that is recommended; where a set of many units is, a
            smaller one with finite errors.
        atol: The absolute tolerance of each output with which ``cure`` passes on given and fresh
            samples.
        passes_in_bf16: Whether the whole model in bf16 passes on the given samples, if that was
            tried; where ``everywhere``.
        streams: The scores of the kept units on other streams, where a metric is measured over
            drawn steps.
        stream_probes: The numbers of the probes on other streams.
    """

    def __init__(self, task: Task) -> None:
        """Prepare a search.

        Raises:
            UsageError: The user's samples do not fit the model, or there is nothing to compare on
                them.
        """
        self.task = task
        self.minimum = Minimum(frozenset(), proven=False, remark=Remark(Note.ENDED))
        self.units: Subset | None = None
        self.passing: Subset | None = None
        self.written: Subset | None = None
        self.curve: list[Point] = []
        self.why: str | None = ENDED
        self.streams: tuple[float, ...] = ()
        self.stream_probes = set[int]()
        self.everywhere = False
        self.passes_in_bf16: bool | None = None
        self.traded: Point | None = None
        self.cure: Point | None = None
        self.atol: dict[str, float] = {}
        self._fresh = Fresh.of(task)
        self._why_not_judged = _why_not_judged(task)
        self._unjudged = self._why_not_judged or self._fresh.why_none
        # Each recommended set contains these units.
        self._start: Subset = frozenset()
        # Sets that fail on the given samples.
        self._unfit = set[Subset]()
        # A set that passes on the given samples, in which the minimal set is searched, and what it
        # was grown to until it held.
        self._within: Subset | None = None
        self._first: Subset | None = None
        self._first_round: Round | None = None
        self._rounds = 0
        self._failing = Round()
        self._worst = list[Sample]()
        # These are of the user's samples, which are the same in each round.
        self._learned: set[int] = set()
        self._dropped = 0
        self._drawn = 0

    @property
    def kept(self) -> Subset:
        """The units that are recommended; all before a set is known that is enough."""
        return self.task.everything if self.units is None else self.units

    @property
    def point(self) -> Point | None:
        """The recommended set on the curve; ``None`` where it was not run on fresh samples."""
        return next((point for point in self.curve if point.units == self.units), None)

    @property
    def drawn(self) -> str:
        """Describe how the fresh samples were drawn, and the number of dropped ones."""
        dropped = DROPPED.format(self._dropped, self.task.space.high)
        return self._fresh.drawn + dropped * bool(self._dropped)

    def probed(self, record: Record) -> None:
        """Remember the set of a candidate that passed, if it is much smaller; write it where no fresh sample can judge it."""
        task, passed = self.task, self.task.prober.ledger.passed
        if (
            self.units is not None
            or record.verdict is not Verdict.PASS
            or not passed
            or passed[-1].key != record.key
        ):
            return
        units = passed[-1].units
        limit = len(task.everything) - 1 if self.passing is None else _SMALLER * len(self.passing)
        # Nothing is written where the model passes with everything lowered: precision is not the
        # reason then.
        if 0 < len(units) <= limit and task.lowering.candidate(units).key == record.key:
            self.passing = units
            if self._unjudged is not None:
                # Where there is no room, the search goes on, and the answer is printed.
                with suppress(UsageError):
                    self._write(units)

    def keep(self, units: Subset, *, again: bool = False) -> None:
        """Recommend and write a set, unless it is written already: an engine that is built again is another one.

        Raises:
            UsageError: It cannot be written.
        """
        self.units = units
        if self.written != units or again:
            self._write(units)

    def leave(self, units: Subset) -> None:
        """Write the set of the answer; a set that was not seen to hold is named so first, because the command may be killed.

        Raises:
            UsageError: It cannot be written.
        """
        self.units = units
        point = self.point
        if self._unjudged is None and not (point and point.holds):
            why = row_of(point.to_part()) if point else self.why
            self.task.console.warn(f"{self.task.settings.output.name} was not seen to hold: {why}.")
        self.keep(units)

    def _write(self, units: Subset) -> None:
        self.task.lowering.write(units, self.task.settings.output)
        self.written = units

    def search(self, *, nothing_may_pass: bool = False) -> None:
        """Find the minimal set, and the set that holds on fresh samples, which is written as soon as it is known.

        Raises:
            DoesNotReproduce: Precision is not the reason.
            BudgetSpent: No more probes may be made.
            UsageError: The answer cannot be written.
        """
        task = self.task
        kept = f"{task.space.noun}s in {task.space.high}"
        task.console.progress.expect(len(task.lowering.units), task.settings.most, kept)
        with task.prober.ledger.watched_by(self):
            # To measure the nodes takes longer than to see that they all may be lowered.
            suspects = None if task.cheap else self._first_suspects()
            nothing = probe_ends(
                task, suspects or None, self._judge_first, nothing_may_pass=nothing_may_pass
            )
            if nothing is None:
                if suspects is None:
                    task.space.measure_nodes()
                    suspects = self._first_suspects()
                    if task.cheap and not task.settings.bits and task.settings.most is None:
                        tell_suspects(task)
                if suspects is not None:
                    self._hold_first(suspects)
            # The search tries to lower the units first that cost least alone.
            task.space.measure(task)
            self.minimum = nothing or self._search_minimal()
        tell_steps(self.minimum, task.console)
        self._widen_margin()
        task.result.probes_minimal = len(task.prober.ledger.records)
        self._run_rounds()
        self._confirm_tolerance()
        self.measure_trade()
        self._try_bf16()
        self.leave(self.kept)

    def _first_suspects(self) -> Subset | None:
        """The suspects, where a set of nodes can be validated: they are the first to be."""
        unable = self.task.settings.bits or self._unjudged
        return None if unable else self.task.space.suspected

    def _suspect_operators(self) -> Subset:
        """Suspect and return the nodes of one operator, or of it and another, if it is enough to keep these."""
        task = self.task
        space = task.space
        suspects = space.suspects
        operators = Counter(node.op for node in space.culprits(task.everything))
        chosen: frozenset[str] = frozenset()
        for _ in range(2):
            errors: dict[frozenset[str], float] = {}
            for operator in sorted(operators.keys() - chosen, key=operators.__getitem__):
                kept = chosen | {operator}
                space.suspect_alike(kept)
                units = space.suspected
                if self._probe(units) is Verdict.PASS:
                    return units
                outcome = task.outcome_of(units)
                compared = outcome.comparisons if outcome else ()
                errors[kept] = max((each.severity for each in compared), default=math.inf)
            chosen = min(errors, key=lambda kept: errors[kept], default=chosen)
        # A later growth must not begin with the operators that were tried last.
        space.suspect_alike(())
        space.suspects = suspects
        return frozenset()

    def _hold_first(self, suspects: Subset) -> None:
        """Write a first set that holds on fresh samples before the search: suspects, or more, grown until they hold.

        Where rounding adds up in many nodes, the set that leaves it alone runs before: it is the
        answer of a search that is stopped.
        """
        cure = self.task.space.losing
        many = not suspects or self.is_large(suspects)
        if self.task.cheap and many and self._leaves_rounding(cure):
            self._judge_first(cure)
        units = self._first_enough(suspects)
        if not units:
            return
        point = self._judge_first(units)
        if point is not None and not point.holds:
            self._within = units
            self._grow_first(point)

    def _judge_first(self, units: Subset) -> Point | None:
        """Run a set on the first round of fresh samples."""
        self._first_round = self._first_round or self._next_round()
        return None if self._first_round is None else self._run_on(units, self._first_round)

    def _first_enough(self, units: Subset) -> Subset | None:
        """Return a set that passes on the given samples: by ranges, else what is measured to lose values, else with more.

        An engine may compute in the low precision what a suspect reads or makes.
        """
        space = self.task.space
        if self._is_enough(units):
            return units
        if self.task.cheap:
            return self._with_first(units, self._probe) if units else None
        space.measure_nodes()
        if self._is_enough(space.suspected) or self._is_enough(space.widen()):
            return space.suspected
        return None if self.task.settings.compiles else self._suspect_operators() or None

    def _with_first(self, units: Subset, ask: Ask) -> Subset | None:
        """Return a set and about as many of the first units of the order as are enough; ``None`` if all are needed."""
        candidates = [unit for unit in self._order() if unit not in units]
        size = shortest_prefix(candidates, lambda prefix: ask(units.union(prefix)) is Verdict.PASS)
        return None if size in (None, len(candidates)) else units.union(candidates[:size])

    def _grow_first(self, point: Point) -> None:
        """Grow a set until it holds, which is written then, and only then leave out what the failing samples do not need."""
        task, space = self.task, self.task.space
        last = len(task.prober.ledger.records) + self._budget(point)
        failing = point
        while not point.holds:
            units = self._with_certain(point.units)
            if not self._mixes(units):
                return
            known = units != point.units and self._clears(units) is Verdict.PASS
            failing = point if known else structs.replace(point, units=units)
            grown = units if known else self._with_first(units, self._clears)
            if grown is None or not self._passes_on_given(grown):
                return
            after = self._validate(grown)
            if after is None or not (after.holds or len(task.prober.ledger.records) < last):
                return
            point = after
        self._first = point.units
        if task.cheap and not point.units <= space.certain:
            self._start = space.certain
            self._grow(failing, shrinks=True)
            self._first = min((each.units for each in self.curve if each.holds), key=len)
        if self._first_round is not None:
            # Where the set is large one that leaves rounding alone is part of the answer.
            self._run_losing(self._first, self._first_round)

    def _with_certain(self, units: Subset) -> Subset:
        """Return a set with the nodes that lose values alone on failing samples; of cheap probes on those that fail then too."""
        space = self.task.space
        while True:
            grown = units | space.certain
            if not self.task.cheap:
                return grown
            remaining = [
                sample
                for (_, sample), error in zip(
                    self._failing, self._errors_of_failing(grown), strict=False
                )
                if error > 1 and not any(sample is each for each in self._worst)
            ]
            if not remaining:
                return grown
            self._worst += [remaining[at] for at in _spread(range(len(remaining)), _LOOKED_AT)]
            space.order(self._worst)
            if space.certain <= grown:
                return grown

    def _budget(self, point: Point) -> int:
        """Return the number of probes in which a set may grow and shrink."""
        most = self.task.settings.most
        # What is left is rounding, and a diagnosis only leaves a preliminary fix.
        if point.cures and most is not None:
            return most
        least = _LEAST_PROBES if self.task.cheap else _LEAST_COSTLY_PROBES
        return max(len(self.task.prober.ledger.records), least)

    def _next_round(self) -> Round | None:
        """Return samples that no set has run on, unless they are the user's."""
        self._rounds += 1
        return self._fresh.round(self._rounds - 1)

    def _validate(self, units: Subset) -> Point | None:
        """Run a set on another round; ``None`` after the last one."""
        samples = self._next_round() if self._rounds < _ROUNDS else None
        return None if samples is None else self._run_on(units, samples)

    def _mixes(self, units: Subset) -> bool:
        """Return whether a set leaves a node lowered; all groups may be taken out of a quantized model."""
        return bool(self.task.settings.bits) or units != self.task.everything

    def _is_enough(self, units: Subset) -> bool:
        return bool(units) and self._mixes(units) and self._probe(units) is Verdict.PASS

    def _probe(self, units: Subset) -> Verdict:
        return self.task.prober.probe(self.task.lowering.candidate(units)).verdict

    def _search_minimal(self) -> Minimum:
        """The minimal set; where rounding in many nodes is the reason, a set by the errors that they cause, unproven.

        Group testing finds a few nodes among many. Where a third of all is needed it takes as many
        probes as there are nodes.
        """
        task = self.task
        settings = task.settings
        by_error = settings.bits or (task.space.measured and not settings.compiles)
        if not by_error or self._why_not_judged is not None:
            return search_keep(task, settings.most, self._within)
        first = search_keep(task, settings.most or _FIRST_PROBES, self._within)
        cure = task.space.losing
        adds_up = self.is_large(first.units) and (settings.bits or self._leaves_rounding(cure))
        if first.proven or not adds_up:
            return first if first.proven else search_keep(task, settings.most, self._within)
        order = task.space.order([])
        grown = grow_and_shrink(cure, cure, order, self._probe, most=_FIRST_PROBES) or first.units
        smaller = min(grown, first.units, key=len)
        return Minimum(smaller, proven=False).unproven(Note.ADDS_UP, task.space.noun)

    def is_large(self, units: Subset, minimum: Subset = frozenset()) -> bool:
        """Return whether a set has too many units to be recommended beside a smaller one that cures the model."""
        share = _SHARE * len(self.task.everything)
        return len(units) > max(_MANY, share, _TIMES * len(minimum))

    def _leaves_rounding(self, units: Subset) -> bool:
        """Return whether the model fails on the given samples with some units kept, by what may be rounding."""
        samples = self._fresh.given_round()
        if samples is None:
            return False
        outcome = run_on(self.task, units, samples, "the given samples")
        known = self.task.space.measured
        point = Point(units, outcome.errors, outputs=outcome.comparisons, none_loses=known)
        return point.failed > 0 and point.cures

    def _widen_margin(self) -> None:
        """Take the minimal set with the best score of its size where a metric judges, since other samples may score lower.

        The sets that passed in the search are compared, and where a probe is cheap a minimal set
        without these units.
        """
        task, minimum, size = self.task, self.minimum, len(self.minimum.units)
        check = task.prober.check
        prober = task.prober
        if check.metric is None or not (minimum.proven and size) or task.settings.most is not None:
            return

        lower_is_better = check.metric.metric.lower_is_better

        def score(units: Subset) -> float:
            outcome = task.outcome_of(units)
            if outcome is None or outcome.ending is not Ending.PASSED or outcome.metric is None:
                return -math.inf
            value = outcome.metric.candidate
            return -value if lower_is_better else value

        candidates = task.everything - minimum.units
        if task.cheap and self._probe(candidates) is Verdict.PASS:
            find_keep(
                sorted(candidates),
                self._probe,
                suspects=[suspect.unit for suspect in task.space.suspects],
            )
        equal = [record.units for record in prober.ledger.passed if len(record.units) == size]
        best = max(equal, key=score, default=minimum.units)
        if score(best) > score(minimum.units):
            self.minimum = structs.replace(
                make_minimal(best, lambda units: self._probe(units).opposite), steps=minimum.steps
            )

    def _run_rounds(self) -> None:
        """Run sets on fresh samples until one holds, or the probes for that are spent."""
        task = self.task
        minimal = self.minimum.units
        known = minimal | task.space.certain
        not_judged = self._why_not_judged
        self.why = self._unjudged
        # Nodes that lose values on any input are kept from the start, if the check agrees.
        more = known != minimal and self._mixes(known) and not_judged is None
        self._start = known if more and self._passes_on_given(known) else minimal
        samples = None if self.why else self._first_round or self._next_round()
        if samples is None:
            self.why = self.why or NO_REFERENCE
            self.units = self._hold_on_other_streams(self._start)
            return
        task.console.step("Validate on fresh inputs")
        task.console.say(f"  fresh samples: {self._fresh.drawn}")
        # The smaller set is a point of the curve that some would ship.
        if minimal != self._start and task.cheap:
            self._run_on(minimal, samples)
        cure = self._run_losing(minimal, samples)
        point = self._run_on(self._start, samples)
        # Where a probe is a build, a set that leaves rounding alone is worth more than a larger one.
        grows = task.cheap or cure is None or not cure.cures
        if point is not None and grows and (self._first is None or not task.cheap):
            self._grow(point)
        self._run_losing(self.kept, samples)
        self._keep_best()

    def _run_losing(self, kept: Subset, samples: Round) -> Point | None:
        """Run the nodes that lose values alone on samples, where many more are kept; they may be enough."""
        losing = self.task.space.losing
        if not (self.task.space.measured and self.is_large(kept)):
            return None
        point = self._run_on(losing, samples)
        fewer = len(losing) < len(self.kept if self._first is None else self._first)
        if point is not None and point.holds and fewer and self._passes_on_given(losing):
            self._first = losing
            self._keep_best()
        return point

    def _hold_on_other_streams(self, units: Subset) -> Subset:
        """Return the smallest set that passes on other streams too, where a metric is measured over drawn steps."""
        prober = self.task.prober
        other_stream = prober.check.other_stream
        if other_stream is None:
            return units
        checks = [other_stream(number + 1) for number in range(_STREAMS)]
        larger = {record.units for record in prober.ledger.passed if len(record.units) > len(units)}
        for chosen in [units, *sorted(larger, key=len)][:_STREAMS]:
            records = [
                prober.beside(check, 1).probe(
                    with_metadata(
                        self.task.lowering.candidate(chosen), "bisect-trt.stream", str(number)
                    )
                )
                for number, check in enumerate(checks)
            ]
            self.stream_probes |= {record.number for record in records}
            outcomes = [prober.ledger.outcome(record.key) for record in records]
            self.streams = tuple(
                math.nan if outcome is None or outcome.metric is None else outcome.metric.candidate
                for outcome in outcomes
            )
            if all(record.verdict is Verdict.PASS for record in records):
                return chosen
        self.minimum = self.minimum.unproven(Note.OTHER_STEPS)
        return units

    def _order(self) -> Sequence[int]:
        """Return the units by the errors that they make; without suspects, those like the minimal set's first."""
        space = self.task.space
        if not space.suspects:
            space.suspect_alike({node.op for node in space.culprits(self.minimum.units)})
        return space.order(self._worst)

    def _grow(self, point: Point, *, shrinks: bool = False) -> None:
        """Grow a set until it holds on a round of fresh samples, or the probes for that are spent.

        What loses values alone on the failing samples is kept first, by one probe.

        Args:
            point: A set that is not enough.
            shrinks: Whether a larger set that is enough has been kept, so that fewer units are searched.
        """
        task = self.task
        budget = self._budget(point)
        while budget > 0 and not (point.holds and point.units not in self._unfit):
            order = self._order()
            grown = point.units | task.space.certain
            if not self._mixes(grown):
                return
            if shrinks or grown == point.units:
                shrinks = False
                probes = len(task.prober.ledger.records)
                limit = max(budget // 4, min(budget, _ROUND_PROBES))
                enough = grow_and_shrink(self._start, point.units, order, self._clears, most=limit)
                budget -= len(task.prober.ledger.records) - probes
                if enough is None or not self._passes_on_given(enough):
                    # More units did harm.
                    return
                grown = enough
            elif self._passes_on_given(grown):
                self._start = grown
            else:
                # It may cure the model nevertheless.
                self._unfit.add(grown)
            after = self._validate(grown)
            if after is None:
                return
            point = after

    def _confirm_tolerance(self) -> None:
        """Run the set that fails by rounding on other rounds, until one needs no larger tolerance than those before it.

        A tolerance passes on the samples that it was read from, which shows nothing about others.
        """
        point = self.cure
        while point is not None:
            after = self._validate(point.units)
            if after is None or after.atol == point.atol:
                return
            point = self.cure

    def measure_trade(self) -> None:
        """Measure the tolerances with which a set that fails by rounding passes, on the given samples too.

        Raises:
            BudgetSpent: No more probes may be made, and the set was not probed on the given samples.
        """
        point = self.cure
        if point is None:
            return
        on_given = dict[str, float]()
        known = self.task.outcome_of(point.units)
        if known is None or known.ending is not Ending.PASSED:
            user_round = self._fresh.given_round()
            if user_round is None:
                return
            outcome = run_on(self.task, point.units, user_round, "the given samples")
            on_given = Point(point.units, outcome.errors, outputs=outcome.comparisons).atol
        tolerance = self.task.prober.check.tolerances
        assert tolerance is not None, "values are compared"
        # An output that needs less keeps the tolerance that it has.
        used = {name: float(rounded_up(atol)) for name, atol in tolerance.atol.items()}
        self.atol = {
            name: max(atols.get(name, 0.0) for atols in (point.atol, on_given, used))
            for name in sorted({*point.atol, *on_given})
        }

    def passes_by_trade(self, written: Candidate) -> Outcome:
        """Probe a written set on the given samples with the tolerances that are named for it."""
        check = self.task.prober.check
        user_round = self._fresh.given_round()
        assert check.tolerances is not None, "values are compared"
        assert user_round is not None, "it was run on these"
        tolerance = replace(check.tolerances, atol={**check.tolerances.atol, **self.atol})
        # With another tolerance it is another question, also of a set that has run on them.
        label = f"the given samples, within {self.atol}"
        return probe_on(self.task.prober, written, user_round, tolerance, label)

    def _try_bf16(self) -> None:
        """Probe the whole model in bf16, where most of it must stay in floats."""
        task, lowering = self.task, self.task.lowering
        self.everywhere = len(self.kept) > max(len(task.everything) / 2, _MANY)
        if self.everywhere and task.cheap and isinstance(lowering, CastLowering):
            whole = lowering.in_bf16()
            self.passes_in_bf16 = None if whole is None else task.prober.probe(whole).passes

    def _keep_best(self) -> None:
        """Recommend the best set so far with the start in it: the smallest that holds, written at once, or that fails least."""
        best = best_of(
            point
            for point in self.curve
            if (self._start <= point.units or point.units == self._first)
            and point.units not in self._unfit
        )
        cures = [point for point in self.curve if point.cures]
        smallest = min(cures, key=lambda point: len(point.units), default=best)
        self.traded = None
        self.cure = None
        if best and smallest and not self.task.settings.bits:
            large = self.is_large(best.units, smallest.units)
            chosen = smallest if large or not (best.holds or best.cures) else best
            if (large or not best.holds) and max(chosen.errors) < math.inf:
                self.traded = best
                self.cure = best = chosen
            elif self.is_large(best.units):
                fewer = [each for each in self.curve if len(each.units) < len(best.units)]
                finite = [each for each in fewer if max(each.errors) < math.inf]
                order = sorted(finite, key=lambda each: (not each.cures, len(each.units)))
                self.cure = next(iter(order), None)
        self.units = self._start if best is None else best.units
        # Until the answer is known a set that holds is worth more than a smaller one.
        held = self.traded or best
        if held is not None and held.holds and self.written != held.units:
            self._write(held.units)

    def _passes_on_given(self, units: Subset) -> bool:
        """Return whether a larger set passes on the samples that were given; its engine is the one to keep from here on."""
        task = self.task
        engines = task.prober.check.engines
        if engines is not None:
            engines.clear()
        return self._probe(units) is Verdict.PASS

    def _run_on(self, units: Subset, samples: Round) -> Point | None:
        """Run a set on samples, as a new point of the curve; ``None`` where they cannot be compared."""
        task = self.task
        on_user_samples = self._fresh.given
        first = samples[0][0].inputs
        earlier = next((point for point in self.curve if point.units == units), None)
        if earlier is not None and first in earlier.rounds:
            return earlier
        outcome = run_on(task, units, samples, f"{len(samples)} fresh samples")
        errors = outcome.errors
        # A sample that fails with all nodes kept is no fault of the set.
        failing = [place for place, error in enumerate(errors) if error > 1]
        ended: BudgetSpent | None = None
        try:
            failing = self._really_failing(samples, failing)
        except BudgetSpent as error:
            ended = error
        comparable = tuple(
            error for place, error in enumerate(errors) if error <= 1 or place in failing
        )
        self._dropped += len(errors) - len(comparable)
        if not comparable:
            unable = f"they cannot be compared: {describe_outcome(outcome)}"
            self.why = NONE_PASSES.format(task.space.high) if errors else unable
            self._keep_best()
            return None
        self._drawn += 0 if on_user_samples else len(comparable)
        learned = len(self._learned) if on_user_samples else 0
        space = task.space
        point = Point(
            units, comparable, space.allowed, learned, outcome.comparisons, rounds=(first,)
        )
        if not point.holds and ended is None:
            failing.sort(key=lambda place: -errors[place])
            self._learn(samples, failing)
        # Of earlier sets too: on the samples that fail now other nodes may lose their values.
        point = point if earlier is None else earlier.with_round(point)
        others = [each for each in self.curve if each.units != units]
        self.curve = [
            structs.replace(each, none_loses=space.measured and space.losing <= each.units)
            for each in (*others, point)
        ]
        self._keep_best()
        if ended is not None:
            raise ended
        part = point.to_part()
        label = f"{space.count(len(units))} in {space.high}"
        task.console.say(f"  {label}: {row_of(part)}")
        passed = f"{part.passed} of {part.samples} fresh samples pass"
        task.console.progress.best = f"{label}, {passed}"
        return self.curve[-1]

    def _learn(self, samples: Round, failing: Sequence[int]) -> None:
        """Take some samples of a round, by their places, the worst first, on which a larger set has to pass."""
        space = self.task.space
        self._learned.update(failing)
        # The failing ones that are furthest apart teach most about what else is needed.
        most = _MOST_FAILING if self.task.cheap else _LOOKED_AT
        additions = [samples[place] for place in _spread(failing, most)]
        self._failing = (
            [samples[place] for place in sorted(self._learned)]
            if self._fresh.given
            else additions + self._failing
        )
        self._worst += [samples[place][1] for place in _spread(failing, _LOOKED_AT)]
        if self.task.cheap:
            space.measure_nodes()
        if space.measured:
            # On these samples other nodes may lose their values.
            space.order(self._worst)

    def _really_failing(self, samples: Round, failing: Sequence[int]) -> list[int]:
        """Return the failing samples on which the model passes with nothing lowered; precision does not explain the others."""
        if not failing:
            return []
        retried = [samples[place] for place in failing]
        outcome = run_on(self.task, self.task.everything, retried, f"{len(retried)} that failed")
        return [place for place, error in zip(failing, outcome.errors, strict=False) if error <= 1]

    def _errors_of_failing(self, units: Subset) -> tuple[float, ...]:
        """Return the errors of the failing samples seen with some units kept; none where the model does not run."""
        return run_on(self.task, units, self._failing, f"{len(self._failing)} that failed").errors

    def _clears(self, units: Subset) -> Verdict:
        """Whether a set passes on the failing samples seen, with a margin.

        Of a float model half of the allowed share of all drawn samples may fail, none severely.
        With none, a set would grow for the hardest of hundreds of samples; with the whole share,
        too many of the next samples fail.
        """
        quantized = bool(self.task.settings.bits)
        if quantized and units == self.task.everything:
            # Samples on which it fails are dropped.
            return Verdict.PASS
        errors = self._errors_of_failing(units)
        spared, margin = (
            (0, 1.0) if quantized else (int(self.task.space.allowed * self._drawn / 2), _MARGIN)
        )
        remaining = sorted(errors, reverse=True)[spared:]
        passed = (
            bool(errors) and max(errors) <= SEVERE / 2 and max(remaining, default=0.0) <= margin
        )
        if passed and self.task.cheap:
            # With more nodes in fp32 roundings may cancel less on the given samples.
            return self._probe(units)
        return Verdict.PASS if passed else Verdict.FAIL


def _spread(places: Sequence[int], count: int) -> list[int]:
    """Some of the places, from the first one on at equal distances."""
    count = min(count, len(places))
    return [places[at * len(places) // count] for at in range(count)]


def _why_not_judged(task: Task) -> str | None:
    """Why the check cannot judge other samples, if so."""
    check = task.prober.check
    if check.asks_user:
        return "you are the check"
    if check.metric is not None:
        return METRIC_ON_GIVEN
    return None if check.tolerances is not None else CHECK_ON_GIVEN
