"""The search for the fewest units to keep in high precision: its space, its state, and what it refuses."""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bisect_trt.commands.session import Session
from bisect_trt.commands.subject import Subject
from bisect_trt.mixed_precision.lowering import Lowering
from bisect_trt.mixed_precision.parameters import PrecisionSettings
from bisect_trt.mixed_precision.suspicion import Suspect
from bisect_trt.probe.outcome import BROKEN_PREFIXES, Ending, Outcome
from bisect_trt.probe.prober import DoesNotReproduce
from bisect_trt.search.confirm import confirm_enough
from bisect_trt.search.keep import find_keep
from bisect_trt.search.oracle import Minimum, Oracle, Subset, Verdict, about_units
from bisect_trt.tensors.inputs import Sample


class PrecisionSpace(ABC):
    """The units of a search: nodes of a float model, or Q/DQ groups of a quantized one.

    Attributes:
        lowering: Makes the candidates.
        suspects: Units that probably need high precision, most suspicious first.
        noun: The name of a unit.
        high: The precision of units that are kept.
        state: The state of the others.
        cause: The suspected reason of the failure.
        allowed: The share of fresh samples that may fail, none of them severely.
        ways: How fresh samples are drawn; ``None`` for all ways of ``FreshSamples``.
    """

    noun, high, state, cause = "node", "fp32", "lowered", "precision"
    allowed = 0.0
    ways: tuple[str, ...] | None = None

    def __init__(self, subject: Subject, lowering: Lowering, suspects: Sequence[Suspect]) -> None:
        self.subject = subject
        self.lowering = lowering
        self.suspects = suspects

    @property
    def certain(self) -> Subset:
        """The units that are kept in any case, because other samples will need them."""
        return frozenset()

    @abstractmethod
    def order(self, failing: Sequence[Sample]) -> list[int]:
        """All units, with those first that most probably have to be kept for these samples to pass."""

    @abstractmethod
    def describe(self, units: Subset) -> list[dict[str, Any]]:
        """Units for the result: name, operator, outputs, and the fields of the space."""

    def label(self, unit: int) -> str:
        """A unit in messages."""
        network = self.subject.network
        return network.describe(network.order[unit])

    def notes(self) -> Iterator[str]:
        """Warnings before the search, a sentence each."""
        return iter(())

    def culprits(self, units: Subset) -> list[dict[str, Any]]:
        """The nodes of some units, for the result."""
        return self.describe(units)

    def measure(self, task: Task) -> None:  # noqa: B027 - only quantized groups are measured
        """Measure the error of each unit alone, once the minimal set is known."""

    def extra(self, kept: Subset, minimal: Subset) -> dict[str, Any]:  # noqa: ARG002 - groups have a table of units
        """The fields of the result that describe the space."""
        return {"not_lowered": len(self.subject.network.nodes) - len(self.lowering.units)}

    def patterns(self, units: Subset) -> list[Subset]:  # noqa: ARG002 - only nodes have patterns
        """Disjoint sets of units that are lowered together before each is tried alone."""
        return []

    def count(self, number: int) -> str:
        """A number of units, in words."""
        return f"1 {self.noun}" if number == 1 else f"{number} {self.noun}s"


@dataclass(frozen=True)
class Task(Session):
    """A session that searches for precision.

    Attributes:
        space: The units.
        settings: The parameters.
    """

    space: PrecisionSpace
    settings: PrecisionSettings

    @property
    def lowering(self) -> Lowering:
        """Makes the candidates."""
        return self.space.lowering

    @property
    def everything(self) -> Subset:
        """All units."""
        return frozenset(self.lowering.units)

    @property
    def cheap(self) -> bool:
        """Whether a probe takes milliseconds rather than minutes."""
        return self.settings.target is None or not self.settings.target.target.compiles

    @property
    def not_run(self) -> str | None:
        """A sentence, if the target does not run the model with all units lowered; then the answer is not about numbers."""
        broken = self.breaks(frozenset())
        if broken is None:
            return None
        how = "quantized" if self.settings.bits else f"in {self.settings.low}"
        return (
            f"With all of it {how} no number is wrong: {broken}. So this is what it takes for the model to run; "
            "`bisect-trt diagnose` finds what in it is not run, and looks for a way around that."
        )

    def outcome_of(self, keep: Subset) -> Outcome | None:
        """The outcome of the candidate with some units kept, if it was probed."""
        return self.prober.ledger.outcome(self.lowering.candidate(keep).key)

    def breaks(self, keep: Subset) -> str | None:
        """The reason, if the target crashed on, refused or did not finish a candidate."""
        if not any(record.signature.startswith(BROKEN_PREFIXES) for record in self.prober.ledger.records):
            return None  # the lookup below makes the candidate again
        outcome = self.outcome_of(keep)
        if outcome is None or outcome.ending is not Ending.BROKEN:
            return None
        reason, target = outcome.reason.rstrip(".").removeprefix(f"sample {outcome.sample}: "), self.settings.target
        return reason if target is None else reason.replace("the target ", f"{target.target.title} ", 1)

    def conclude(self, minimum: Minimum) -> None:
        """Put the status and the proof into the result, with :attr:`not_run` first."""
        super().conclude(minimum)
        self.result.why = " ".join(filter(None, (self.not_run, self.result.why))) or None


def probe_ends(task: Task, *, nothing_may_pass: bool = False) -> Minimum | None:
    """Probe all units in high precision, then none; the empty set where that is an answer and passes.

    Raises:
        DoesNotReproduce: The model fails with all units kept too, or passes with none.
        BudgetSpent: No more probes may be made.
    """
    everything, nothing = task.everything, frozenset[int]()

    def algorithm(oracle: Oracle) -> Subset | None:
        """The set with an unexpected verdict, if one has it."""
        ask = about_units(oracle)
        if ask(everything) is not Verdict.PASS:
            return everything
        return None if ask(nothing) is Verdict.FAIL else nothing

    unexpected = task.prober.search(algorithm, task.lowering.candidate)
    if unexpected is None:
        return None
    if not unexpected:
        outcome = task.outcome_of(nothing)
        ending = None if outcome is None else outcome.ending
        # After a diagnosis, or on a ladder, the failure that was seen first may be another one: refused, and not off.
        if ending in (Ending.BROKEN, Ending.MISMATCHED):
            return None
        if nothing_may_pass and ending is Ending.PASSED:
            return Minimum(nothing, proven=True)
    raise refusal(task, unexpected)


def search_keep(task: Task) -> Minimum:
    """The fewest units to keep, where the model passes with all units kept and fails with none.

    Raises:
        BudgetSpent: No more probes may be made.
    """
    suspects, groups = [each.unit for each in task.space.suspects], task.space.patterns(task.everything)

    def algorithm(oracle: Oracle) -> Minimum:
        ask = about_units(oracle)
        minimum = find_keep(task.lowering.units, ask, suspects=suspects, groups=groups, most=task.settings.most)
        return confirm_enough(minimum, oracle, task.prober.runner.flakiness) if task.prober.measured else minimum

    return task.prober.search(algorithm, task.lowering.candidate)


def refusal(task: Task, units: Subset) -> DoesNotReproduce:
    """The reason why precision does not explain the failure, by the verdict with all units kept, or with none."""
    prober, space = task.prober, task.space
    key = task.lowering.candidate(units).key
    record = next(record for record in prober.ledger.records if record.key == key)
    of_all = f"with all {space.count(len(task.lowering.units))} {f'in {space.high}' if units else space.state}"
    if record.verdict is Verdict.UNRESOLVED:
        return DoesNotReproduce(f"the check cannot judge the model {of_all}: {record.reason}. Fix the check first.")
    if not units:
        data = "other samples of" if task.subject.settings.data.given else "real inputs (--load-inputs) from"
        reference = ", the model before quantization (--reference)" if task.settings.bits else ""
        return DoesNotReproduce(
            f"the check passes {of_all}: {record.reason}. So {space.cause} is not the reason for a failure seen elsewhere, and "
            f"no {space.noun} has to stay in {space.high}; try {data} the deployment{reference}, or a tighter tolerance."
        )
    log = shlex.join(["bisect-trt", "log", str(prober.runner.folder), str(record.number)])
    rest = f'It printed: "{record.said}"; `{log}` shows the rest.' if record.said else ""
    return DoesNotReproduce(
        f"the check fails {of_all} too: {record.reason}. {rest} So {space.cause} is not the reason, or not the only one; "
        "`bisect-trt diagnose` or `reduce` without low precision finds what fails there."
    )
