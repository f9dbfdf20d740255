"""The session of a command: the model, the prober, the console and the result, with the steps that commands share."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from msgspec import Struct, structs

from bisect_trt.aliases import Names
from bisect_trt.errors import BisectError, ModelRefusedError
from bisect_trt.onnxlib.nodes import Node
from bisect_trt.options.shared import Search
from bisect_trt.options.spec import written
from bisect_trt.probe.candidate import Candidate, Identity, Probe
from bisect_trt.probe.ledger import Record
from bisect_trt.probe.outcome import Outcome
from bisect_trt.probe.prober import Prober
from bisect_trt.probe.user_checks import Undo
from bisect_trt.report.console import NOTHING_TO_UNDO, Console
from bisect_trt.report.outcomes import describe_outcome
from bisect_trt.report.parts import Failure, FailureRate, MetricValues, Minimality, ProbeScore
from bisect_trt.report.proofs import describe
from bisect_trt.report.result import Result, says_less
from bisect_trt.search.confirm import (
    COMPARISON,
    USER_CODE,
    confirm,
)
from bisect_trt.search.oracle import (
    Ask,
    Completion,
    Minimum,
    Mode,
    Note,
    Oracle,
    Remark,
    Subset,
    Transcript,
    Verdict,
    about_units,
)
from bisect_trt.search.strategy import minimise
from bisect_trt.session.advice import advice
from bisect_trt.session.checks import CheckSettings
from bisect_trt.session.subject import Subject
from bisect_trt.targets.base import too_new
from bisect_trt.worker.deadline import BudgetSpent
from bisect_trt.worker.protocol import LOST, Failed

Done = TypeVar("Done")
FAILURE_LOST = Minimum(frozenset(), proven=False)
"""The result of a search where all units together pass."""


class RebuiltPasses(BisectError):  # noqa: N818 - an ending, not an error
    """The original fails, and the model rebuilt of all its units passes, so it cannot be cut."""

    code = "BT3003"
    remedy = "Remove the difference from the model, or repeat the check to see how often it fails."


class _Lost(Exception):  # noqa: N818 - never leaves this module
    """All units together do not fail."""


class Case(Struct, frozen=True):
    """The smallest failing candidate that a search found.

    Attributes:
        minimum: Its units, and whether they are proven to be minimal.
        held: Whether it fails only if the target must use its low precision; see ``Candidate``.
        outputs: Its outputs; ``None`` for all tensors that something outside reads.
    """

    minimum: Minimum
    held: bool = False
    outputs: tuple[str, ...] | None = None


class Session(Struct, frozen=True):
    """The opened model of a command, the console, the result to fill in and, for a search, the prober.

    Attributes:
        subject: The model, its reference activations and its candidates.
        console: Prints messages and answers.
        result: The result, filled in as the command goes on.
        probing: Probes candidates and remembers the verdicts; ``None`` for commands that only
            compare.
    """

    subject: Subject
    console: Console
    result: Result
    probing: Prober | None

    @property
    def prober(self) -> Prober:
        """The prober of a search."""
        assert self.probing is not None, "this command does not search"
        return self.probing

    @property
    def place_words(self) -> list[str]:
        """The options ``--on`` of the places where the target runs."""
        return [word for place in self.subject.workers.places for word in ("--on", place.said)]

    def command(
        self,
        name: str,
        check: CheckSettings,
        model: Path | None = None,
        inputs: Path | None = None,
        extra: Names = (),
    ) -> str:
        """Return the command line, or the Python call, that runs a command with this check, on ``inputs`` or the same data.

        Args:
            name: The command.
            check: The check; the command gets its options.
            model: The file of the model, if it is another one.
            inputs: An ``.npz`` of other inputs than the run has.
            extra: Words of its own options.
        """
        settings = self.subject.settings
        target = check.target
        file = str(model or settings.path)
        if check.function is not None:
            return f"bisect_trt.{name}({file!r}, {getattr(check.function, '__name__', 'check')}, inputs={str(inputs)!r})"
        needed = {
            "reduce": ("-o", "reduced.onnx"),
            "precision": ("-o", "mixed.onnx"),
        }
        words = ["bisect-trt", name, file, *needed.get(name, ()), *extra]
        words += [*(target.flags() if target is not None else ()), *self.place_words]
        words += (
            [*written(settings.data), *written(settings.loop)]
            if inputs is None
            else ["--load-inputs", str(inputs)]
        )
        return shlex.join([*words, *check.words])

    def answered(
        self, reply: Done | Failed, who: str = "the target", *, reference: bool = False
    ) -> Done:
        """Return the reply of a worker that ran the model.

        Args:
            reply: The reply.
            who: What ran it, as the error names it.
            reference: Whether that is the reference, which is given a lower IR version anyway.

        Raises:
            UnavailableError: It is a failure.
        """
        if isinstance(reply, Failed):
            subject = self.subject
            fix = ("" if reference else subject.lowering) or "diagnose"
            hint = f" Try `{fix}`." if too_new(reply.message) else ""
            raise ModelRefusedError(
                f"{who} cannot run {subject.settings.path}: {reply.message}.{advice(subject, reply)}{hint}"
            )
        return reply

    @property
    def unreferenced(self) -> bool:
        """Whether the user's check runs without golden values, because the reference cannot run the model."""
        reference = None if self.prober.check.judges_runtime else self.subject.reference
        return reference is not None and (reference.refused is not None or bool(reference.missing))

    def probe_original(self, search: Search, candidate: Candidate | None = None) -> Record:
        """Probe the original model, or its substitute; with ``--repeat``, measure how often it fails.

        Raises:
            DoesNotReproduce: It never fails.
        """
        original = candidate or self.subject.original
        units = len(self.subject.units)
        record = self.prober.probe_original(
            original, repeat=search.repeat, confidence=search.confidence, units=units
        )
        flakiness = self.prober.flakiness
        if search.repeat is not None:
            self.result.flaky = FailureRate(
                runs=flakiness.runs,
                failures=flakiness.failures,
                rate=flakiness.rate,
                confidence=flakiness.confidence,
                passes_needed=flakiness.passes_needed,
                least_rate=round(flakiness.least_rate, 6),
            )
        if flakiness.passes_needed > 1:
            self.console.say(
                f"  it fails in {flakiness.failures} of {flakiness.runs} runs, so a candidate passes after "
                f"{flakiness.passes_needed} passes in a row ({flakiness.confidence:.0%} confidence for the whole search)"
            )
        return record

    def outcome(self, record: Record) -> Outcome:
        """Return the outcome of a probe."""
        outcome = self.prober.ledger.outcome(record.key)
        assert outcome is not None, "it was probed"
        return outcome

    def minimise(
        self,
        oracle: Oracle,
        mode: Mode = Mode.AUTO,
        suspect: int | None = None,
        searched: Sequence[int] | None = None,
        passing: int = 0,
    ) -> Minimum:
        """Reduce the model, or some of its units; see :func:`bisect_trt.search.strategy.minimise`.

        Args:
            oracle: Answers the questions of the search.
            mode: The strategy.
            suspect: The unit that is tried as the first culprit.
            searched: The units to search, in topological order; by default all.
            passing: How many of the first units are known to pass together.
        """
        units = self.subject.units
        algorithm = partial(
            minimise,
            units.searched if searched is None else searched,
            mode=mode,
            weights=units.with_weights,
            inseparable=units.bare,
            pattern=units.pattern,
            suspect=suspect,
            passing=passing,
        )
        everything = units.with_weights(units.everything if searched is None else searched)
        transcript = Transcript(oracle)
        minimum = unless_lost(algorithm, about_units(transcript), everything)
        return self.confirmed(transcript, minimum, without=partial(self.without, searched=searched))

    def without(self, taken: Subset, searched: Sequence[int] | None = None) -> Subset:
        """Return all units of the model, or of some of its units, that can be kept without the taken ones."""
        units = self.subject.units
        return units.with_weights(
            units.independent(taken.intersection(units.searched) or taken, searched)
        )

    def confirmed(
        self,
        oracle: Transcript,
        minimum: Minimum,
        complete: Completion | None = None,
        without: Callable[[Subset], Subset] | None = None,
    ) -> Minimum:
        """Return a minimum confirmed for checks that may be flaky; the answers of a user at a prompt are not repeated.

        ``complete`` adds to a set the units that cannot be removed while it is kept, by default for
        nodes; ``without`` returns all units that can be kept without some, or ``None`` if that is
        no candidate.
        """
        if self.prober.check.asks_user:
            return minimum
        flakiness = self.prober.flakiness if self.prober.measured else None
        doubt = USER_CODE if self.prober.check.runs_user_code else COMPARISON
        return confirm(
            minimum, oracle, complete or self.subject.units.bare, flakiness, without, doubt
        )

    def found(self, minimum: Minimum) -> Minimum:
        """Return the result of :meth:`minimise`.

        Raises:
            RebuiltPasses: The failure disappears when the model is rebuilt, or is flaky.
        """
        if minimum is not FAILURE_LOST:
            return self.doubted(minimum)
        subject = self.subject
        rebuilt = subject.cut(subject.units.with_weights(subject.units.everything))
        was = subject.original.proto.graph
        now = rebuilt.proto.graph
        parts = ("node", "initializer", "input", "output")
        if (
            all(len(getattr(was, part)) == len(getattr(now, part)) for part in parts)
            and self._passes_now()
        ):
            raise RebuiltPasses(
                f"{describe(Remark(Note.ORIGINAL_PASSED))}; `repeat` measures how often."
            )
        raise RebuiltPasses(
            "Re-serializing the model makes the failure disappear, or breaks it in another way, so it cannot be cut. Unused "
            "nodes and weights, metadata and the order of nodes may be lost; check whether the model that "
            f"`{subject.sanitizing('written')}` writes still fails."
        )

    def _passes_now(self) -> bool:
        """Whether the original, which failed, passes in another probe; not probed with a measured rate or a prompt."""
        if self.prober.measured or self.prober.check.asks_user:
            return False
        with suppress(BudgetSpent):
            return self.prober.probe(self.subject.original, again=True).passes
        return False

    def settle(self, case: Case) -> Candidate:
        """Return a case as a candidate, with the values of the input sample on which it fails."""
        candidate = self.subject.cut(case.minimum.units, held=case.held, outputs=case.outputs)
        outcome = self.prober.ledger.outcome(candidate.key)
        if outcome is None or outcome.sample is None:
            return candidate
        self.console.say(f"  it fails on sample {outcome.sample}; the next steps use that sample")
        return replace(candidate, sample=outcome.sample)

    def disagreed(self, minimum: Minimum, record: Record) -> Minimum:
        """Return the minimum as unproven, because the written model did not fail as before."""
        flakiness = self.prober.flakiness
        note = Note.READ_BACK
        if record.passes and not self.prober.measured:
            note = Note.READ_BACK_PASSED
        elif record.passes and flakiness.is_steady:
            note = Note.READ_BACK_RARER
        return minimum.unproven(note, record.reason, flakiness.runs)

    def conclude(self, minimum: Minimum) -> None:
        """Put the status and the minimality of an answer into the result."""
        result = self.result
        result.status = "found"
        result.minimality, result.why = self.proof(minimum)

    def failure(self, minimum: Minimum, culprits: Sequence[Node], path: Path) -> Failure:
        """Return one failure among several for the result: its nodes, their minimality, the model."""
        minimality, reason = self.proof(minimum)
        return Failure(
            culprits=tuple(culprits), minimality=minimality, why=reason, reduced=str(path)
        )

    def never_passes(self, answer: Subset = frozenset()) -> Remark | None:
        """Return why nothing is proven, where what must pass does not: the model without the answer, or Identity nodes only.

        A check that cannot run, and a runtime that refuses every such model, fail all candidates. A
        command of the user may also fail whatever it is given, now and then; one unit that failed
        alone is no proof against that.

        Args:
            answer: The units of the answer; empty if they are not nodes.
        """
        prober, check = self.prober, self.prober.check
        by_user = check.runs_user_code and not prober.measured
        single = len(answer.intersection(self.subject.units.searched)) <= 1
        if check.asks_user or (prober.ledger.passed and not (by_user and single)):
            return None
        if (
            check.metric is not None
        ):  # Identity nodes have no score, and the reference meets the bound
            return Remark(Note.IDENTITY, ("",)) if prober.ledger.is_broken else None
        # The model without the answer comes first: it has all operators that a broken check may
        # dislike.
        rest = self.subject.rest(answer) if answer else None
        try:
            for candidate in filter(None, (rest, self.subject.identity)):
                seen = prober.probe(candidate)
                if seen.passes:
                    title = f"{candidate.title}, twice more"
                    again = Probe(replace(candidate, title=title), again=True, runs=2)
                    # A check that fails at random also passes at random.
                    if by_user and prober.probe(again).fails:
                        return Remark(Note.RANDOM, (candidate.title,))
                    return None
        except BudgetSpent as error:
            return None if prober.ledger.passed else Remark(Note.NONE_PASSED, (str(error),))
        return Remark(Note.IDENTITY, ("" if seen.fails else f": {seen.reason}",))

    def _other_end(self) -> Remark | None:
        """Return how a check command ended otherwise than on the original, if it did."""
        records = self.prober.ledger.records
        for record in records:
            if records[0].said and record.said and record.verdict is Verdict.UNRESOLVED:
                return Remark(Note.PRINTED, (records[0].said, record.said))
        return None

    def proof(self, minimum: Minimum) -> tuple[Minimality, str | None]:
        """Return ``1-minimal`` or ``unproven``, and the reason."""
        flakiness = self.prober.flakiness
        if not minimum.proven:
            return "unproven", describe(minimum.remark, self._other_end())
        # A candidate that was ended from outside may be smaller than the answer, or its
        # neighbour.
        lost = next(
            (record for record in self.prober.ledger.records if record.signature == LOST), None
        )
        if lost is not None:
            return "unproven", describe(Remark(Note.NOT_PROBED, (lost.title, lost.reason)))
        doubt = self.never_passes(minimum.units)
        if doubt is not None:
            return "unproven", describe(doubt)
        if flakiness.passes_needed == 1:
            return "1-minimal", describe(minimum.remark)
        passed = sum(record.passes for record in self.prober.ledger.records)
        confidence = flakiness.reached(passed)
        if self.result.flaky:
            self.result.flaky = structs.replace(self.result.flaky, reached=round(confidence, 6))
        confidence = min(confidence, 0.999)
        figures = flakiness.rate, flakiness.runs, confidence, passed, flakiness.passes_needed
        return "unproven", describe(Remark(Note.RATE, figures))

    def doubted(self, minimum: Minimum) -> Minimum:
        """Return the minimum as unproven if the model without a unit fails like the original, with another message."""
        akin = [
            identity for identity in self.prober.ledger.akin if identity.units in minimum.refused
        ]
        if not minimum.proven or not akin:
            return minimum
        record = next(record for record in self.prober.ledger.records if record.key == akin[0].key)
        return minimum.unproven(Note.AKIN, record.reason, len(akin))

    def score_whole(self, candidate: Candidate) -> None:
        """Put the score of a candidate on the whole set into the result, if the check is a metric."""
        prober, check = self.prober, self.prober.check
        if check.metric is None:
            return
        scale = check.metric
        original = self.outcome(prober.ledger.records[0]).metric
        outcome = check.run(prober.write(candidate))
        if outcome.metric is None:
            self.console.warn(
                f"the answer could not be scored on the whole set: {describe_outcome(outcome)}"
            )
            return
        scores = (
            ProbeScore(probe=record.number, candidate=score.candidate, size=record.size)
            for record in prober.ledger.records
            if (score := self.outcome(record).metric) is not None
        )
        self.result.metric = MetricValues(
            **structs.asdict(outcome.metric),
            original=None if original is None else original.candidate,
            probes=tuple(scores),
        )
        self.console.answer(
            f"  {describe_outcome(outcome)}; the reference has {scale.metric.say(scale.reference)}"
        )

    def note_score(self) -> None:
        """Put the score of the first candidate into a result that ends before there is an answer."""
        ledger = self.prober.ledger
        outcomes = (ledger.outcome(record.key) for record in ledger.records)
        score = next(
            (
                outcome.metric
                for outcome in outcomes
                if outcome is not None and outcome.metric is not None
            ),
            None,
        )
        if score is not None and not self.result.metric:
            self.result.metric = MetricValues(**structs.asdict(score))

    def until_done(self, story: Callable[[], Done]) -> Done:
        """Return the result of a function; run it again if the user takes an answer back.

        Earlier answers are remembered, so the function reaches the same question again.
        """
        while True:
            try:
                return story()
            except Undo:
                undone = self.prober.ledger.forget_last()
                print(
                    f"Took back probe {undone.number} ({undone.signature}: {undone.title})."
                    if undone
                    else NOTHING_TO_UNDO
                )

    @property
    def best(self) -> Identity | None:
        """The smallest failing candidate so far, if it is smaller than the original."""
        best = self.prober.ledger.best
        return None if best is None or best.key == self.subject.original.key else best

    def save_best(self, path: Path) -> None:
        """Write the smallest failing candidate so far, if there is one."""
        subject = self.subject
        best = self.best
        if best is None or says_less("inconclusive", subject.workspace.folder):
            # A resumed run may have its answer.
            return
        with subject.workers.deadline.extended():
            subject.workspace.save(subject.cut(best.units).proto, path)
        self.result.artifacts["reduced"] = str(path)
        self.result.culprits = subject.describe_searched(best.units)
        self.console.answer(f"{path}: the best so far, {subject.units.count(best.units)} units.")


def unless_lost(algorithm: Callable[[Ask], Minimum], ask: Ask, everything: Subset) -> Minimum:
    """Run a search; if nothing fails during as many questions as a bisection takes, probe all units together.

    A failing subset shows that the model can be cut, so this usually costs no question.

    Returns:
        The result of the search; ``FAILURE_LOST`` if all units together do not fail.
    """
    transcript: set[Subset] = set()
    # A bisection that sees no failure in that many questions follows one that is not there.
    patience = len(everything).bit_length() + 1
    fails = False

    def watched(units: Subset) -> Verdict:
        nonlocal fails
        verdict = ask(units)
        fails = fails or verdict is Verdict.FAIL
        if not fails and len(transcript) < patience:
            transcript.add(units)
            if len(transcript) == patience and ask(everything) is not Verdict.FAIL:
                raise _Lost
        return verdict

    try:
        return algorithm(watched)
    except _Lost:
        return FAILURE_LOST


@contextmanager
def saving_best(save: Callable[[], object]) -> Iterator[None]:
    """Save what is known so far if the budget is spent or the user stops."""
    try:
        yield
    except (BudgetSpent, KeyboardInterrupt):
        save()
        raise
