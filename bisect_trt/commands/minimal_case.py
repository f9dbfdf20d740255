"""From suspects to a minimal case: extract one, and see whether it fails alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bisect_trt.commands.blame import by_blame, named_nodes
from bisect_trt.commands.session import Case, Session
from bisect_trt.commands.subject import Subject
from bisect_trt.onnxlib.network import Network
from bisect_trt.search.delta_debugging import make_smallest
from bisect_trt.search.oracle import Minimum, Oracle, Subset, Transcript, Verdict, about_units
from bisect_trt.targets.settings import TargetSettings

GROWTH_STEPS = 3
"""How many times a layer that passes alone is grown by what it reads, before the whole model is reduced."""
SUSPECTS_TRIED = 3
MOST_NARROWED = 12
"""Each may be a build, but a small one."""
HELD = "It fails held to the low precision (--hold-precision), which it has in the whole model; alone, TensorRT may choose fp32."


def may_choose_precision(target: TargetSettings | None) -> bool:
    """Whether the target may run a piece in fp32 that it runs in the low precision as part of the whole."""
    return target is not None and target.target.capabilities.chooses_precision and (target.fp16 or target.bf16)


@dataclass(frozen=True)
class Suspects:
    """Nodes that are probably to blame.

    Attributes:
        nodes: Their numbers, the most suspicious first.
        grow: Whether one that passes alone is tried with what it reads.
    """

    nodes: Sequence[int] = ()
    grow: bool = True

    def unit(self, network: Network) -> int | None:
        """The one that a search of the whole model should try first."""
        return network.rank[self.nodes[0]] if self.nodes and self.grow else None


def named_suspects(investigation: Session) -> Suspects:
    """The node of which the target's message speaks, where the original does not run."""
    subject, ledger = investigation.subject, investigation.prober.ledger
    outcome = ledger.outcome(subject.original.key)
    return Suspects(named_nodes(subject.network, outcome.reason)[:1] if outcome is not None else ())


def weak_suspects(subject: Subject, target: TargetSettings | None) -> Suspects:
    """What the reference run says against nodes, where the target does not show them: to be tried held to the precision."""
    if target is None or not may_choose_precision(target):
        return Suspects()
    from bisect_trt.commands.suspicion import BREAKS, suspect  # noqa: PLC0415 - a check of the user's need not wait for it

    found = suspect(subject, "fp16" if target.fp16 else "bf16")
    return Suspects([subject.network.order[entry.unit] for entry in found if entry.score >= BREAKS], grow=False)


def extract_suspect(
    investigation: Session, target: TargetSettings | None, suspects: Suspects, number: str = ""
) -> Case | None:
    """Does a suspect fail alone, on the reference's own activations? If not, with what it reads?

    Returns:
        What fails, 1-minimal; ``None`` if no suspect does, nor with its neighbours.
    """
    subject, console = investigation.subject, investigation.console
    steps = GROWTH_STEPS if suspects.grow else 0
    if number and not suspects.nodes:
        console.step(f"{number}Extract a suspect: not done, for nothing points at a node")
    for index in suspects.nodes[:SUSPECTS_TRIED]:
        who = subject.network.describe(index)
        console.step(f"{number}Extract {who}, feed it the reference's activations: does it fail alone?")
        units = frozenset({subject.network.rank[index]})
        for step in range(steps + 1):
            failing, held = _first_failing(investigation, units), False
            if failing is None and step == 0 and may_choose_precision(target):
                console.say("  no, but alone it may run in fp32: hold it to the low precision")
                failing, held = _first_failing(investigation, units, held=True), True
            if failing is not None:
                console.say(
                    "  yes: this is a minimal case" if step == 0 else f"  yes, with {len(units)} units: minimise them"
                )
                return minimise_case(investigation, failing, held=held)
            if step < steps:
                console.say("  no: it needs more of what it reads; add its producers")
                units = _with_producers(subject, units)
    if suspects.nodes:
        console.say("  no layer fails alone, nor with its neighbours: go on to reduce the whole model")
    return None


def narrow_held(investigation: Session, target: TargetSettings | None, case: Case) -> Case:
    """Of several nodes that fail only together, the one that fails alone held to the low precision, if there is one.

    As part of the others it ran in that precision; alone the target may have chosen fp32 for it.
    """
    subject, console = investigation.subject, investigation.console
    if case.held or not may_choose_precision(target) or not 1 < len(case.minimum.units) <= MOST_NARROWED:
        return case
    console.step("Does one of them fail alone, held to the low precision?")
    for node in by_blame(investigation, subject.cut(case.minimum.units, held=True)):
        failing = _first_failing(investigation, frozenset({subject.network.rank[node]}), held=True)
        if failing is not None:
            console.say(f"  yes: {subject.network.describe(node)}")
            return minimise_case(investigation, failing, held=True)
    console.say("  no")
    return case


def minimise_case(investigation: Session, failing: Subset, *, held: bool = False) -> Case:
    """Leave out what a small failing set does not need."""
    subject = investigation.subject

    def algorithm(oracle: Oracle) -> Minimum:
        heard = Transcript(oracle)
        return investigation.confirmed(heard, make_smallest(failing, about_units(heard), subject.units.bare))

    minimum = investigation.prober.search(algorithm, lambda units: subject.cut(units, held=held), subject.original)
    return Case(investigation.doubted(minimum), held)


def _first_failing(investigation: Session, units: Subset, *, held: bool = False) -> Subset | None:
    """Probe some units with stored weights, then with the nodes that make their weights."""
    subject = investigation.subject
    for chosen in dict.fromkeys((units, subject.units.with_weights(units))):
        candidate = subject.cut(chosen, held=held)
        if investigation.prober.probe(candidate).verdict is Verdict.FAIL:
            return candidate.units
    return None


def _with_producers(subject: Subject, units: Subset) -> Subset:
    network = subject.network
    parents = {parent for unit in units for parent in network.parents(network.order[unit])}
    return units | {network.rank[parent] for parent in parents if not network.constant[parent]}
