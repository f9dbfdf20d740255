"""A search for precision: the space that is searched, the parameters, and the answer; what every step of it works with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bisect_trt.commands.session import Session
from bisect_trt.commands.subject import Subject
from bisect_trt.commands.suspicion import Suspect
from bisect_trt.mixed_precision.lowering import Lowering
from bisect_trt.mixed_precision.parameters import PrecisionSettings
from bisect_trt.probe.outcome import BROKEN_PREFIXES, OVER_MEMORY, Ending
from bisect_trt.search.oracle import Minimum, Subset
from bisect_trt.tensors.inputs import Sample

Reason = tuple[str, str]
"""A rule's name, and the reason in words."""
_BROKEN = {
    "build: ": "refused",
    "run: ": "not run",
    "signal ": "crash",
    "time-out": "time-out",
    OVER_MEMORY: OVER_MEMORY,
}
"""The rule by how the signature begins; see ``BROKEN_PREFIXES``."""


class Space(ABC):
    """What a search for precision chooses from: nodes of a float model, or Q/DQ groups of a quantized one.

    Attributes:
        lowering: Makes the candidates.
        suspects: What the reference run says against units, most suspicious first.
        noun: A unit, in words.
        high: The precision of units that are kept.
        state: The state of all others.
        cause: What is to blame if a set has to be kept.
        allowed: The share of fresh samples that may fail, none severely.
        ways: How fresh samples are made, where that is not in all ways; see ``FreshSamples``.
    """

    noun = "node"
    high = "fp32"
    state = "lowered"
    cause = "precision"
    allowed = 0.0
    ways: tuple[str, ...] | None = None

    def __init__(self, subject: Subject, lowering: Lowering, suspects: Sequence[Suspect]) -> None:
        self.subject = subject
        self.lowering = lowering
        self.suspects = suspects

    @property
    def certain(self) -> Subset:
        """The units that are kept whatever the samples given say, because other samples will need them."""
        return frozenset()

    @abstractmethod
    def order(self, failing: Sequence[Sample]) -> list[int]:
        """All units, those to add first at the front if a set fails on these samples."""

    @abstractmethod
    def describe(self, units: Subset) -> list[dict[str, Any]]:
        """Units for the result: name, operator, outputs, and what the space adds."""

    def label(self, unit: int) -> str:
        """A unit, in messages."""
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

    def measure(self, task: Task) -> None:  # noqa: B027 - most spaces cannot tell
        """Measure what each unit costs alone, once the minimal set is known, if the space can tell."""

    def extra(self, kept: Subset, minimal: Subset) -> dict[str, Any]:  # noqa: ARG002 - of a space that has a table of units
        """What the result holds of the space, beside the answer."""
        return {"not_lowered": len(self.subject.network.nodes) - len(self.lowering.units)}

    def patterns(self, units: Subset) -> list[Subset]:  # noqa: ARG002 - of a space that has some
        """Units that are kept or lowered as a whole first."""
        return []

    def count(self, number: int) -> str:
        """So many units, in words."""
        return f"1 {self.noun}" if number == 1 else f"{number} {self.noun}s"


@dataclass(frozen=True)
class Task(Session):
    """A search for precision.

    Attributes:
        space: What is searched.
        settings: The parameters.
    """

    space: Space
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
    def not_run(self) -> str | None:
        """The reason in a sentence, if the target does not run the model with everything lowered; no number is wrong then."""
        found = self.breaks(frozenset())
        if found is None:
            return None
        how = "quantized" if self.settings.bits else f"in {self.settings.low}"
        return (
            f"With all of it {how} no number is wrong: {found[1].lstrip(': ')}. So this is what it takes for the model to run; "
            "`bisect-trt diagnose` finds what in it is not run, and looks for a way around that."
        )

    def breaks(self, keep: Subset) -> Reason | None:
        """How the target broke on a candidate: a rule's name, and the end of a sentence; ``None`` if it did not."""
        if not any(record.signature.startswith(BROKEN_PREFIXES) for record in self.prober.ledger.records):
            return None  # to look it up the candidate is made again
        outcome = self.prober.ledger.outcome(self.lowering.candidate(keep).key)
        if outcome is None or outcome.ending is not Ending.BROKEN:
            return None
        rule = next(rule for prefix, rule in _BROKEN.items() if outcome.signature.startswith(prefix))
        said, target = outcome.reason.rstrip("."), self.settings.target
        said = said.removeprefix(f"sample {outcome.sample}: ")
        subject = said.removeprefix("the target ")  # else it is how a check ended
        return rule, f": {said}" if target is None or subject == said else f" {target.target.title} {subject}"

    def broken_without(self, minimum: Minimum) -> dict[int, Reason]:
        """The units of a minimal set without which the target does not run the model, with the reason."""
        found = {unit: self.breaks(minimum.units - {unit}) for unit in minimum.units}
        return {unit: (why[0], f"without it{why[1]}") for unit, why in found.items() if why is not None}

    def conclude(self, minimum: Minimum) -> None:
        """Put into the result what was found, how sure that is, and first of all whether it is about numbers."""
        super().conclude(minimum)
        if self.not_run is not None:
            self.result.why = " ".join(filter(None, (self.not_run, self.result.why)))

    def tell_not_run(self) -> None:
        """Say before the answer that it is not about numbers, if so."""
        if self.not_run is not None:
            self.console.answer(self.not_run)

    def tell_why(self) -> None:
        """Say at the end what stands in the way of a proof; what is not about numbers was said first."""
        rest = (self.result.why or "").removeprefix(self.not_run or "").strip()
        if rest:
            self.console.answer(f"  {rest}")
