"""The search for the fewest units to keep in high precision: its space, its state, and what it refuses."""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from bisect_trt.commands.session import Session
from bisect_trt.commands.subject import Subject
from bisect_trt.mixed_precision.lowering import Lowering
from bisect_trt.mixed_precision.parameters import PrecisionSettings
from bisect_trt.mixed_precision.suspicion import Suspect
from bisect_trt.probe.outcome import BROKEN_PREFIXES, Ending
from bisect_trt.probe.prober import DoesNotReproduce
from bisect_trt.search.confirm import confirm_enough
from bisect_trt.search.keep import find_keep
from bisect_trt.search.oracle import Minimum, Oracle, Subset, Verdict, about_units
from bisect_trt.tensors.inputs import Sample
from bisect_trt.worker.protocol import OVER_MEMORY

Reason = tuple[str, str]
"""The name of a rule, and a sentence."""
_BROKEN_RULES = {
    "build: ": "refused",
    "run: ": "not run",
    "signal ": "crash",
    "time-out": "time-out",
    OVER_MEMORY: OVER_MEMORY,
}
"""The rule for each of ``BROKEN_PREFIXES``."""


class PrecisionSpace(ABC):
    """The units of a search: nodes of a float model, or Q/DQ groups of a quantized one.

    Attributes:
        lowering: Makes the candidates.
        suspects: Units that the reference run speaks against, most suspicious first.
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
        """All units; those to keep first if a set fails on these samples come first."""

    @abstractmethod
    def describe(self, units: Subset) -> list[dict[str, Any]]:
        """Units for the result: name, operator, outputs, and the fields of the space."""

    def label(self, unit: int) -> str:
        """A unit in messages."""
        network = self.subject.network
        return network.describe(network.order[unit])

    def name(self, unit: int) -> str:
        """The name of a unit in the result."""
        node = self.describe(frozenset({unit}))[0]
        return str(node["name"] or node["outputs"][0])

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
        return self.settings.target is None or not self.settings.target.target.capabilities.costly

    @property
    def not_run(self) -> str | None:
        """A sentence, if the target does not run the model with all units lowered; then the answer is not about numbers."""
        broken = self.breaks(frozenset())
        if broken is None:
            return None
        how = "quantized" if self.settings.bits else f"in {self.settings.low}"
        return (
            f"With all of it {how} no number is wrong: {broken[1].lstrip(': ')}. So this is what it takes for the model to run; "
            "`bisect-trt diagnose` finds what in it is not run, and looks for a way around that."
        )

    def breaks(self, keep: Subset) -> Reason | None:
        """The rule and the end of a sentence, if the target crashed on, refused or did not finish a candidate."""
        if not any(record.signature.startswith(BROKEN_PREFIXES) for record in self.prober.ledger.records):
            return None  # the lookup below makes the candidate again
        outcome = self.prober.ledger.outcome(self.lowering.candidate(keep).key)
        if outcome is None or outcome.ending is not Ending.BROKEN:
            return None
        rule = next(rule for prefix, rule in _BROKEN_RULES.items() if outcome.signature.startswith(prefix))
        reason, target = outcome.reason.rstrip(".").removeprefix(f"sample {outcome.sample}: "), self.settings.target
        if target is None or not reason.startswith("the target "):
            return rule, f": {reason}"
        return rule, f" {target.target.title} {reason.removeprefix('the target ')}"

    def broken_without(self, minimum: Minimum) -> dict[int, Reason]:
        """The units of a minimal set without which the target does not run the model, with the reason."""
        found = {unit: self.breaks(minimum.units - {unit}) for unit in minimum.units}
        return {unit: (why[0], f"without it{why[1]}") for unit, why in found.items() if why is not None}

    def conclude(self, minimum: Minimum) -> None:
        """Put the status and the proof into the result, with :attr:`not_run` first."""
        super().conclude(minimum)
        if self.not_run is not None:
            self.result.why = " ".join(filter(None, (self.not_run, self.result.why)))

    def tell_not_run(self) -> None:
        """Print :attr:`not_run` before the answer."""
        if self.not_run is not None:
            self.console.answer(self.not_run)

    def tell_why(self) -> None:
        """Print why there is no proof, after the answer."""
        rest = (self.result.why or "").removeprefix(self.not_run or "").strip()
        if rest:
            self.console.answer(f"  {rest}")


def search_keep(task: Task, *, nothing_may_pass: bool = False) -> Minimum:
    """The fewest units to keep.

    Args:
        task: The search.
        nothing_may_pass: Whether the empty set is an answer.

    Raises:
        DoesNotReproduce: The model fails with all units kept too, or passes with none.
        BudgetSpent: No more probes may be made.
    """
    units, everything, nothing = task.lowering.units, task.everything, frozenset[int]()
    suspects, groups = [each.unit for each in task.space.suspects], task.space.patterns(everything)

    def algorithm(oracle: Oracle, *, fails: bool) -> Minimum | Subset:
        """The answer, or the set of units with the unexpected verdict; ``fails`` if the empty set is known to fail."""
        ask = about_units(oracle)
        if ask(everything) is not Verdict.PASS:
            return everything
        if not fails and (lowered := ask(nothing)) is not Verdict.FAIL:
            return Minimum(nothing, proven=True) if nothing_may_pass and lowered is Verdict.PASS else nothing
        minimum = find_keep(units, ask, suspects=suspects, groups=groups, most=task.settings.most)
        return confirm_enough(minimum, oracle, task.prober.runner.flakiness) if task.prober.measured else minimum

    answer = task.prober.search(partial(algorithm, fails=False), task.lowering.candidate)
    if answer == nothing:
        outcome = task.prober.ledger.outcome(task.lowering.candidate(nothing).key)
        # After a diagnosis, or on a ladder, the failure that was seen first may be another one: refused, and not off.
        if outcome is not None and outcome.ending in (Ending.BROKEN, Ending.MISMATCHED):
            answer = task.prober.search(partial(algorithm, fails=True), task.lowering.candidate)
    if isinstance(answer, Minimum):
        return answer
    raise refusal(task, answer)


def refusal(task: Task, asked: Subset) -> DoesNotReproduce:
    """The reason why precision does not explain the failure.

    Args:
        task: The search.
        asked: All units, if the model does not pass with them kept; none, if it does not fail with all lowered.
    """
    prober, space = task.prober, task.space
    key = task.lowering.candidate(asked).key
    record = next(record for record in prober.ledger.records if record.key == key)
    count = space.count(len(task.lowering.units))
    if record.verdict is Verdict.UNRESOLVED:
        how = f"in {space.high}" if asked else space.state
        return DoesNotReproduce(
            f"the check cannot judge the model with all {count} {how}: {record.reason}. So nothing can be learned "
            "from it; mend the check first."
        )
    if not asked:
        return DoesNotReproduce(
            f"the check passes with all {count} {space.state}: {record.reason}. So {space.cause} is not the reason for a "
            f"failure seen elsewhere, and no {space.noun} has to stay in {space.high}; try {_untried(task)}"
        )
    why = f"the check fails with all {count} in {space.high} too: {record.reason}."
    if record.said:
        return DoesNotReproduce(
            f'{why} It said: "{record.said}". So {space.cause} is not the reason, or the check itself is broken: '
            f"`bisect-trt log {shlex.quote(str(prober.runner.folder))} {record.number}` shows what it printed."
        )
    return DoesNotReproduce(
        f"{why} So {space.cause} is not the reason, or not the only one; `bisect-trt diagnose` or `reduce` without low "
        "precision finds what fails there."
    )


def _untried(task: Task) -> str:
    """What else may show a failure: the end of a sentence."""
    data, settings = task.subject.settings.data, task.settings
    given = data.given
    ways = ["other samples of the deployment's inputs" if given else "real input data (--load-inputs)"]
    if settings.bits and settings.options.reference is None:
        ways.append("the model before quantization (--reference),")
    return f"{', '.join(ways)} or a tighter tolerance."
