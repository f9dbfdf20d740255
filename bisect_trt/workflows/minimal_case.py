"""From the layer that goes wrong first to a minimal case: extract it, and see whether it fails alone."""

from __future__ import annotations

from bisect_trt.search.minimality import make_smallest
from bisect_trt.search.oracle import Minimum, Subset
from bisect_trt.search.question import Oracle, Search, about_units
from bisect_trt.search.verdict import Verdict
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.workflows.investigation import Case, Investigation
from bisect_trt.workflows.layerwise.origins import Layerwise
from bisect_trt.workflows.subject import Subject

GROWTH_STEPS = 3
"""How many times a layer that passes alone is grown by what it reads, before the whole model is reduced."""
ORIGINS_TRIED = 3
HELD = "It fails held to the low precision (--hold-precision), which it has in the whole model; alone, TensorRT may choose fp32."


def may_choose_precision(target: TargetSettings | None) -> bool:
    """Whether the target may run a piece in fp32 that it runs in the low precision as part of the whole."""
    return target is not None and target.target.capabilities.chooses_precision and (target.fp16 or target.bf16)


def extract_origin(
    investigation: Investigation, target: TargetSettings | None, layers: Layerwise, number: str = ""
) -> Case | None:
    """Does the layer that goes wrong first fail alone, on the reference's own activations? If not, with what it reads?

    Args:
        investigation: The original has been probed.
        target: The runtime under suspicion.
        layers: Where the model goes wrong.
        number: Of this step, where the steps have numbers.

    Returns:
        What fails, 1-minimal; ``None`` if no origin does, nor with its neighbours.
    """
    subject, console = investigation.subject, investigation.console
    for index in layers.origins[:ORIGINS_TRIED]:
        who = subject.network.describe(index)
        console.step(f"{number}Extract {who}, feed it the reference's activations: does it fail alone?")
        units = frozenset({subject.network.rank[index]})
        for step in range(GROWTH_STEPS + 1):
            failing, held = _first_failing(investigation, units), False
            if failing is None and step == 0 and may_choose_precision(target):
                console.say("  no, but alone it may run in fp32: hold it to the low precision")
                failing, held = _first_failing(investigation, units, held=True), True
            if failing is not None:
                console.say(
                    "  yes: this is a minimal case" if step == 0 else f"  yes, with {len(units)} units: minimise them"
                )
                return minimise_case(investigation, failing, held=held)
            if step < GROWTH_STEPS:
                console.say("  no: it needs more of what it reads; add its producers")
                units = _with_producers(subject, units)
    console.say("  no layer fails alone, nor with its neighbours: go on to reduce the whole model")
    return None


def minimise_case(investigation: Investigation, failing: Subset, *, held: bool = False) -> Case:
    """Leave out what a small failing set does not need."""
    subject = investigation.subject

    def algorithm(oracle: Oracle) -> Minimum:
        return investigation.confirmed(oracle, make_smallest(failing, about_units(oracle), subject.units.bare))

    search = Search(Verdict.FAIL, algorithm)
    minimum = investigation.prober.search(search, lambda units: subject.cut(units, held=held), subject.original)
    return Case(investigation.doubted(minimum), held)


def _first_failing(investigation: Investigation, units: Subset, *, held: bool = False) -> Subset | None:
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
