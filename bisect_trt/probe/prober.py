"""The oracle of a search: runs the check on candidates, as often as each answer needs, and remembers the verdicts.

A question becomes a candidate and is answered from memory, from the journal, or by a probe.
``Prober`` repeats the check where it is flaky and remembers, ``Speculation`` probes ahead with
several workers, and ``reconfirm`` probes again what is recommended because it passed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from pathlib import Path
from threading import Timer
from typing import Protocol

from msgspec import Struct, structs

from bisect_trt.errors import (
    BisectError,
    CheckCommandError,
    ExitStatus,
    ModelRefusedError,
    NoisyMachineError,
    ResourceError,
)
from bisect_trt.onnxlib.cut import Cut
from bisect_trt.plugins import contained
from bisect_trt.probe.candidate import Candidate, Identity, Probe
from bisect_trt.probe.check import Check
from bisect_trt.probe.ledger import Ledger, Record
from bisect_trt.probe.outcome import UNDECIDED, Ending, Outcome, Reason
from bisect_trt.probe.speculation import Speculation
from bisect_trt.probe.user_checks import note_command
from bisect_trt.probe.workspace import CandidateFiles, Workspace
from bisect_trt.search.oracle import (
    Again,
    Oracle,
    Original,
    Question,
    Result,
    Search,
    Subset,
    Units,
    Verdict,
)
from bisect_trt.search.statistics import Flakiness, confirmations, expected_verdicts
from bisect_trt.tensors.files import Values
from bisect_trt.worker.process import Cancel
from bisect_trt.worker.protocol import LOST

_FAILURES = (Ending.FAILED, Ending.MISMATCHED, Ending.BROKEN)
Vet = Callable[[CandidateFiles, Outcome, Cancel | None], Outcome]
"""Returns the outcome of a piece that does not run; it is no failure if the reference does not run
the piece either."""


class DoesNotReproduce(BisectError):  # noqa: N818 - an ending, not an error
    """The original model passes its check, so there is nothing to look for."""

    status = ExitStatus.NOT_REPRODUCED
    code = "BT3001"
    remedy = "Try other input values, tolerances or conditions of the check."


class Activations(Protocol):
    """The reference's values of tensors."""

    @property
    def refused(self) -> str | None:
        """Why the reference runs no model of this kind, if so."""

    @property
    def more(self) -> Sequence[Activations]:
        """The activations of the input samples after the first."""

    def select(self, names: Sequence[str]) -> Values:
        """The known values of the named tensors."""


@dataclass
class Prober:
    """Probes candidates and remembers the verdicts, up to ``workers`` at a time.

    Attributes:
        check: Decides whether a candidate fails. It is taken for steady until ``flakiness`` is set.
        activations: The values of candidates that have none of their own.
        workers: How many probes may run at a time, if the check can.
        measured: Whether the failure rate of the original was asked for.
        vet: Asks the reference about pieces that do not run; ``None`` where it has no say.
        by_hand: Returns the command that checks a model with some inputs, where a plug-in decides.
        wasted: Parallel probes that were ended because their answers were not needed any more.
    """

    check: Check
    workspace: Workspace
    activations: Activations | None
    ledger: Ledger
    workers: int = 1
    flakiness: Flakiness = field(default_factory=Flakiness)
    measured: bool = False
    wasted: int = 0
    vet: Vet | None = None
    by_hand: Callable[[Path, Path], str] | None = None

    def __post_init__(self) -> None:
        """Probe one candidate at a time where the check cannot do more."""
        if not self.check.parallel:
            self.workers = 1

    def beside(self, check: Check, workers: int | None = None) -> Prober:
        """Return a prober with another check, which shares the journal, the budget, and how often a check has to pass."""
        return replace(
            self,
            check=check,
            workers=self.workers if workers is None else workers,
            measured=False,
            wasted=0,
        )

    def probe_original(
        self,
        candidate: Candidate,
        *,
        repeat: int | None = None,
        confidence: float = 0.99,
        units: int = 1,
    ) -> Record:
        """Probe the original model; it must fail.

        Args:
            candidate: The original.
            repeat: How often to run it, to measure its failure rate; ``None`` for once.
            confidence: The confidence required of the search, if it fails only sometimes.
            units: How many units will be searched.

        Raises:
            DoesNotReproduce: It does not fail.
        """
        identity = candidate.identity
        outcome = self._outcome(
            identity,
            lambda: self._bounded(
                identity, lambda cancel: self.measure(Probe(candidate), repeat or 1, cancel)
            ),
        )
        self.flakiness = Flakiness(
            outcome.runs, outcome.failures, confidence, expected_verdicts(units)
        )
        self.measured = repeat is not None
        return self._must_fail(self.ledger.decide(candidate.identity, outcome), candidate)

    def probe(self, question: Candidate | Probe, *, again: bool = False) -> Record:
        """Answer a question about a candidate, ``again`` if its verdict is known.

        Raises:
            BudgetSpent: No more probes may be made.
        """
        probe = question if isinstance(question, Probe) else Probe(question)
        identity = self.ledger.once_more(probe.identity) if again else probe.identity
        bounded = partial(self._bounded, identity, partial(self.run_check, probe))
        return self.ledger.decide(identity, self._outcome(identity, bounded))

    def _outcome(self, identity: Identity, run: Callable[[], Outcome]) -> Outcome:
        """Return the known outcome of a candidate, or run it and write the outcome to the journal."""
        outcome = self.ledger.outcome(identity.key)
        if outcome is None:
            self.ledger.start(identity)
            with ExitStack() as terminal:
                for watcher in self.ledger.watchers if self.check.asks_user else ():
                    terminal.enter_context(watcher.asking(identity, self.ledger.records))
                outcome = run()
            self.ledger.end(identity, outcome)
        return outcome

    def _bounded(self, identity: Identity, run: Callable[[Cancel | None], Outcome]) -> Outcome:
        """Run the check of a candidate, but not for longer than the budget allows."""
        seconds = self.ledger.seconds_left()
        if seconds is None:
            return run(None)
        cancel = Cancel()
        timer = Timer(seconds, cancel.set)
        timer.start()
        try:
            outcome = run(cancel)
        finally:
            timer.cancel()
            # The timer may be setting it at this moment, and must not write to a closed pipe.
            timer.join()
            cancel.close()
        if outcome.cancelled:
            self.ledger.end(identity, None)
            self.ledger.check_budget()
        return outcome

    def search(
        self,
        search: Search[Result],
        build: Callable[[Subset], Candidate | Probe],
        original: Candidate | None = None,
    ) -> Result:
        """Return the result of a search over the candidates that ``build`` makes; ``original`` is for questions about that.

        Args:
            search: The algorithm: a function of an oracle.
            build: Makes the candidate of some units, or the probe that it is asked with.
            original: The candidate that questions about the original probe.

        Raises:
            BudgetSpent: No more probes may be made.
        """

        def probe_for(question: Question) -> Probe:
            if isinstance(question, Again):
                candidate = probe_for(question.question).candidate
                title = question.title or f"{candidate.title}, once more"
                return Probe(
                    replace(candidate, title=title),
                    again=True,
                    runs=question.runs,
                    until=question.until,
                )
            if isinstance(question, Units):
                built = build(question.units)
                return built if isinstance(built, Probe) else Probe(built)
            assert original is not None, "the search asks about an original that it was not given"
            return Probe(original)

        # One search runs in several branches, each under a guess of the answers that are not
        # there yet.
        if self.workers > 1:
            speculation = Speculation(self.run_check, self.ledger, probe_for, self.workers)
            try:
                with speculation:
                    return speculation.run(search)
            finally:
                self.wasted += speculation.wasted
        memory: dict[Question, Verdict] = {}

        def oracle(question: Question) -> Verdict:
            if question in memory:
                self.ledger.cached += 1
            else:
                memory[question] = self.probe(probe_for(question)).verdict
            return memory[question]

        return search(oracle)

    def search_from(
        self, original: Candidate, search: Search[Result], build: Callable[[Subset], Candidate]
    ) -> Result:
        """Probe the original, then search; with several workers the search runs ahead of that first answer too.

        Args:
            original: The candidate that has to fail.
            search: The algorithm: a function of an oracle.
            build: Makes the candidate of some units.

        Raises:
            DoesNotReproduce: The original does not fail.
            BudgetSpent: No more probes may be made.
        """

        def story(oracle: Oracle) -> tuple[Result] | None:
            return (search(oracle),) if oracle(Original()) is Verdict.FAIL else None

        result = self.search(story, build, original)
        if result is None:
            self._must_fail(self.ledger.records[0], original)
            raise AssertionError("the original failed, and the search did not begin")
        return result[0]

    def _must_fail(self, record: Record, original: Candidate) -> Record:
        """Return the record of the original's probe, which has to be a failure."""
        if record.verdict is Verdict.FAIL:
            return record
        if record.signature == UNDECIDED:
            raise NoisyMachineError(f"the original model cannot be judged here: {record.reason}.")
        files = self.workspace.files(original.key, shared_weights=original.has_external_data)
        if files.model.exists() and files.model.read_bytes() != original.content():
            raise CheckCommandError(
                f"the check, or one that ran beside it, has changed {files.model} while it was checked, so the original was not "
                "checked; have it write elsewhere, or give --workers 1."
            )
        compared = self.check.compares and record.signature == "match"
        refused = self.activations.refused if compared and self.activations is not None else None
        if refused is not None:
            raise ModelRefusedError(
                f"the target runs the model, and the reference does not, so there is nothing to compare with: {refused}."
            )
        may_be_flaky = record.passes and self.check.runs_user_code and not self.measured
        advice = " If it fails only sometimes, add --repeat 20." if may_be_flaky else ""
        raise DoesNotReproduce(
            f"the failure does not reproduce on the original model: {record.reason}.{advice}"
        )

    def run_check(self, probe: Probe, cancel: Cancel | None = None) -> Outcome:
        """The first failure, or the last of enough passes; or the other way round, if the question says so.

        A sequential test: a candidate that fails is mostly known after one or two runs.
        """
        limit = self.flakiness.passes_needed if probe.runs is None else probe.runs
        until = probe.until
        # A steady failure is asked as often as it was measured, to see whether it passes now.
        if probe.again and probe.runs is None and self.flakiness.is_steady:
            limit = self.flakiness.runs
            until = Verdict.PASS
        going = (Ending.PASSED,) if until is Verdict.FAIL else _FAILURES
        outcomes = list[Outcome]()
        for outcome in self._each(probe, limit, cancel):
            outcomes.append(outcome)
            if outcome.ending not in going:
                break
        number = len(outcomes)
        last = outcomes[-1]
        return _summed(last if number == 1 else last.seeing(Reason.RUN, number), outcomes)

    def measure(self, probe: Probe, repeat: int, cancel: Cancel | None = None) -> Outcome:
        """Run the original ``repeat`` times.

        Args:
            probe: The probe of the original.
            repeat: How many runs at most; a failure ends them.
            cancel: Ends a run before its time.

        Returns:
            Its first failure, or its last pass, with the number of runs and of failures.

        Raises:
            UnavailableError: Another process ended it repeatedly.
        """
        outcomes = list[Outcome]()
        for outcome in self._each(probe, repeat, cancel):
            if outcome.cancelled:
                return outcome
            # Nothing can be searched while something ends the processes.
            if outcome.signature == LOST:
                reason = self.ledger.describe(outcome)
                raise ResourceError(
                    f"the original model cannot be probed: {reason}. Free memory, or end what ends it, and start again."
                )
            outcomes.append(outcome)
        failures = [outcome for outcome in outcomes if outcome.ending in _FAILURES]
        outcome = replace((failures or outcomes[-1:])[0], failures=len(failures))
        if repeat > 1:
            outcome = outcome.seeing(Reason.RATE, len(failures), len(outcomes))
        return _summed(outcome, outcomes)

    def _each(self, probe: Probe, most: int, cancel: Cancel | None = None) -> Iterator[Outcome]:
        """Yield the outcomes of so many runs of a candidate, which is written anew before each."""
        files = self.write(probe)
        candidate = probe.candidate
        for number in range(max(most, 1)):
            if number:
                # The check may have changed or removed the files of the run before.
                files.renew()
            for watcher in self.ledger.watchers:
                watcher.running(number + 1, most)
            began = time.monotonic()
            outcome = contained(self.check.run, Outcome, files, cancel)
            if self.by_hand is not None:
                note_command(files, self.by_hand(files.model, files.inputs))
            refused = outcome.ending is Ending.BROKEN and outcome.signature.startswith(
                ("build: ", "run: ")
            )
            if (
                refused
                and self.vet is not None
                and (isinstance(candidate.made, Cut) or candidate.values is not None)
            ):
                outcome = self.vet(files, outcome, cancel)
            if self.check.judges_runtime:
                files.note(self.ledger.describe(outcome))
            # A command reports its own time, without what it waited for.
            yield replace(outcome, seconds=outcome.seconds or time.monotonic() - began)

    def write(self, question: Candidate | Probe) -> CandidateFiles:
        """The files of a candidate, written where they are not there."""
        probe = question if isinstance(question, Probe) else Probe(question)
        candidate = probe.candidate
        if candidate.has_external_data and not self.check.finds_weights:
            self.workspace.weights.bring(candidate.proto)
        return write_candidate(probe, self.workspace, self.activations)


def write_candidate(
    probe: Probe, workspace: Workspace, activations: Activations | None
) -> CandidateFiles:
    """Write the files of a candidate where they are not there.

    Args:
        probe: The candidate, and how it is probed.
        workspace: The folder of the run.
        activations: The values of a candidate that has none.
    """
    candidate = probe.candidate
    values = candidate.values
    inputs = candidate.inputs
    outputs = candidate.outputs
    if values is not None:
        fed, expected = (
            {name: values[name] for name in names if name in values} for names in (inputs, outputs)
        )
        return workspace.write(probe, [(fed, expected)])
    assert activations is not None, "the candidate has no values"
    samples = (activations, *activations.more)
    return workspace.write(
        probe, [(sample.select(inputs), sample.select(outputs)) for sample in samples]
    )


def _summed(outcome: Outcome, outcomes: Sequence[Outcome]) -> Outcome:
    """An outcome with the number and the seconds of all of several runs."""
    return replace(outcome, seconds=sum(run.seconds for run in outcomes), runs=len(outcomes))


class Confirmed(str, Enum):
    """Endings of :func:`reconfirm`."""

    STEADY = "steady"
    """It passed each time, and the model failed each time without it."""
    RATE = "rate"
    """It passed so often in a row that the rate of failures is no explanation."""
    FAILED = "failed"
    """It failed when it was asked again."""
    LUCK = "luck"
    """The model without it, which had failed, passed when it was asked again."""
    ONCE = "once"
    """Only its last probe is known."""


class Confirmation(Struct, frozen=True):
    """The result of probing again what passed.

    Attributes:
        record: The last probe; no ``PASS`` where the passing may be chance.
        ending: What that and the other probes show.
        figures: How often it passed and how often the model failed without it; what passed by
            luck.
    """

    record: Record
    ending: Confirmed = Confirmed.ONCE
    figures: tuple[str | int, ...] = ()

    @property
    def passes(self) -> bool:
        """Whether it may be recommended."""
        return self.record.verdict is Verdict.PASS


def reconfirm(
    prober: Prober, failing: Candidate, passing: Candidate, ways: int = 1, failures: int = 0
) -> Confirmation:
    """Probe a candidate that passed as often again as it takes for its passing not to be chance.

    Args:
        prober: Probed both.
        failing: What fails without it. Unless each probe takes minutes it is run again too, as
            often as that needs fewer runs in all.
        passing: What passed.
        ways: How many such answers there are; all of them are to hold with the confidence asked
            for.
        failures: How often other candidates without it were probed, each of which failed.
    """
    check = prober.check
    flakiness = prober.flakiness
    if check.asks_user:
        return Confirmation(prober.probe(passing, again=True))
    if not flakiness.is_steady:
        # Each pass was as many passes, and so is this one.
        record = prober.probe(passing, again=True)
        figures = flakiness.passes_needed, flakiness.failures, flakiness.runs
        return _confirmation(record, Confirmed.RATE, *figures)
    failing_runs, passes = _runs(check, flakiness, ways, failures)
    lost = bool(failing_runs) and _passes_now(prober, failing, failing_runs)
    record = prober.probe(_repeated(passing, passes, runs=1 if lost else passes))
    if lost:
        undecided = structs.replace(record, verdict=Verdict.UNRESOLVED)
        return Confirmation(undecided, Confirmed.LUCK, (failing.title,))
    trials = flakiness.runs + failures + failing_runs
    return _confirmation(record, Confirmed.STEADY, passes + 1, trials)


def _confirmation(record: Record, passed: Confirmed, *figures: int) -> Confirmation:
    """Return what the last probe of something confirms: that it ``passed`` so, if it did."""
    if record.passes:
        return Confirmation(record, passed, figures)
    return Confirmation(record, Confirmed.FAILED if record.fails else Confirmed.ONCE)


def _runs(check: Check, flakiness: Flakiness, ways: int, failures: int) -> tuple[int, int]:
    """Return the runs of the failing and of the passing candidate; 0 and 1 where a probe takes minutes and no rate is known."""
    compiles = check.runtime is not None and check.runtime.target.compiles
    costly = check.bounds_whole or compiles
    if costly and flakiness.runs == 1:
        return 0, 1
    further, passes = confirmations(flakiness.runs + failures, [0] * ways, 1 - flakiness.confidence)
    return further, max(passes)


def _passes_now(prober: Prober, failing: Candidate, runs: int) -> bool:
    """Whether what failed passes when it is run again."""
    before = prober.ledger.outcome(failing.key)
    if before is not None and before.ending is Ending.PASSED:
        return False
    record = prober.probe(_repeated(failing, runs, until=Verdict.PASS))
    now = prober.ledger.outcome(record.key)
    return now is not None and now.ending is Ending.PASSED


def _repeated(
    candidate: Candidate, times: int, *, runs: int | None = None, until: Verdict = Verdict.FAIL
) -> Probe:
    """Return the question whether a candidate does the same again, so many times."""
    title = (
        f"{candidate.title}, once more" if times == 1 else f"{candidate.title}, {times} times more"
    )
    return Probe(
        replace(candidate, title=title),
        again=True,
        runs=times if runs is None else runs,
        until=until,
    )
