"""Marks that hide the failure: the fewest of them are a workaround."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bisect_trt.errors import UsageError
from bisect_trt.probing.candidate import Candidate
from bisect_trt.probing.ledger import BudgetSpent
from bisect_trt.probing.luck import look_again
from bisect_trt.probing.prober import Prober
from bisect_trt.search.keep import keep_if_enough
from bisect_trt.search.oracle import Minimum, Subset
from bisect_trt.workflows.investigation import Investigation
from bisect_trt.workflows.layerwise.look import Look
from bisect_trt.workflows.layerwise.origins import Layerwise

MOST_QUESTIONS = 24
"""Each may be a build; one mark among a thousand takes about a dozen."""
_SHOWN = 5
"""More marks go into a file."""
_USEFUL = 20
"""Each mark is a tensor that is computed, kept and copied out; of more than this nobody makes outputs."""
MARKS = "marks.txt"


@dataclass(frozen=True)
class Hiding:
    """Tensors whose marks hide the failure.

    Attributes:
        marks: Their names, in topological order.
        minimum: What the search ended with.
        holds: Whether they do so each time.
        seen: How often that was seen, in words.
    """

    marks: tuple[str, ...]
    minimum: Minimum
    holds: bool = True
    seen: str = "seen once"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        proven = "1-minimal" if self.minimum.proven else "unproven"
        return {
            "marks": list(self.marks),
            "minimality": proven,
            "why": self.minimum.why,
            "seen": self.seen,
            "holds": self.holds,
            "workaround": self.holds and len(self.marks) <= _USEFUL,
        }


def report_hiding(investigation: Investigation, look: Look, layers: Layerwise, budget: int | None = None) -> None:
    """Find the fewest marks that hide the failure, and say what they are good for.

    Args:
        investigation: The original must have been probed.
        look: How to look.
        layers: What was seen with the marks.
        budget: How many probes the whole run may make, if that is limited; a quarter of them go into this.

    Raises:
        BudgetSpent: No more probes may be made; what was found until then is told.
    """
    prober, console = investigation.prober, investigation.console
    console.say("  which of the marks are enough to hide it?")
    most = MOST_QUESTIONS if budget is None else min(MOST_QUESTIONS, budget // 4)
    hiding = find_hiding(look, [name for name in layers.tensors if name not in look.outputs], prober, most)
    if hiding is None:
        console.say("  all of them together do not hide it again, so they are no workaround")
    else:
        known = investigation.result.extra["hiding"] = hiding.to_json()
        role = "an output" if len(hiding.marks) == 1 else "outputs"
        gone = f"as {role} of the model too, the failure is gone ({known['minimality']}; {hiding.seen})."
        if not hiding.holds:
            console.answer(f"No workaround: with {_named(investigation, hiding.marks)} marked, {hiding.minimum.why}.")
        elif known["workaround"]:
            console.answer(f"A workaround: with {_named(investigation, hiding.marks)} {gone}")
        else:
            console.answer(f"No workaround, with so many: with {_named(investigation, hiding.marks)} {gone}")
    prober.ledger.check_budget()


def _named(investigation: Investigation, marks: Sequence[str]) -> str:
    """The marks in words: by name where they are few, else by the file that lists them."""
    if len(marks) <= _SHOWN:
        return ", ".join(f"'{name}'" for name in marks)
    path = investigation.subject.workspace.folder / MARKS
    try:
        path.write_text(
            "".join(name.replace("\n", "\\n") + "\n" for name in marks), encoding="utf-8", errors="backslashreplace"
        )
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}; make room and run again.") from error
    investigation.result.artifacts["marks"] = str(path)
    return f"the {len(marks)} tensors that {path} lists"


def find_hiding(look: Look, names: Sequence[str], prober: Prober, most: int = MOST_QUESTIONS) -> Hiding | None:
    """The fewest marks that hide the failure; ``None`` if all of them together do not, asked once more.

    Args:
        look: How to look.
        names: The tensors that were marked, in topological order.
        prober: Who probes.
        most: How many questions may be asked once that is known.
    """
    try:
        minimum = prober.search(keep_if_enough(len(names), most), lambda marks: marked_candidate(look, names, marks))
    except BudgetSpent as spent:
        passed = [identity.marks for identity in prober.ledger.passed if identity.marks]
        if not passed:
            raise
        minimum = Minimum(min(passed, key=len), proven=False, why=str(spent))
    if minimum is None:
        return None
    hiding = Hiding(tuple(names[place] for place in sorted(minimum.units)), minimum)
    try:
        believed = look_again(prober, look.subject.original, marked_candidate(look, names, minimum.units))
    except BudgetSpent as spent:
        return replace(hiding, minimum=replace(minimum, proven=False, why=str(spent)))
    if not believed.passes:
        minimum = replace(minimum, proven=False, why=believed.record.reason)
    return replace(hiding, minimum=minimum, holds=believed.passes, seen=believed.seen or hiding.seen)


def marked_candidate(look: Look, names: Sequence[str], marks: Subset) -> Candidate:
    """The model with some tensors marked; only its own outputs are compared."""
    subject = look.subject
    network = subject.network
    outputs = tuple(network.outputs)
    model = subject.marked(dict.fromkeys([*outputs, *(names[place] for place in sorted(marks))]))
    title = f"{len(marks)} of {len(names)} tensors marked"
    return Candidate(model, tuple(network.inputs), outputs, title, subject.original.units, marks=marks)
