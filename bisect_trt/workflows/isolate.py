"""Extract the layer that goes wrong first, and see whether it fails alone."""

from __future__ import annotations

from bisect_trt.probing.prober import Prober
from bisect_trt.reporting.console import Console
from bisect_trt.search.minimality import make_minimal
from bisect_trt.search.oracle import Minimum, Subset
from bisect_trt.search.question import over_units
from bisect_trt.search.verdict import Verdict
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.workflows.layerwise.origins import Layerwise
from bisect_trt.workflows.subject import Subject

GROWTH_STEPS = 3
"""How many times a layer that passes alone is grown by what it reads, before the whole model is reduced."""
ORIGINS_TRIED = 3
HELD = "It fails held to the low precision (--hold-precision), which it has in the whole model; alone, TensorRT may choose fp32."


def may_choose_precision(target: TargetSettings | None) -> bool:
    """Whether the target may run a piece in fp32 that it runs in the low precision as part of the whole."""
    return target is not None and target.runtime == "trt" and (target.fp16 or target.bf16)


def isolate(
    subject: Subject, prober: Prober, target: TargetSettings | None, layers: Layerwise, console: Console
) -> Minimum | None:
    """Does the layer that goes wrong first fail alone, on the reference's own activations? If not, with what it reads?

    Returns:
        What fails, 1-minimal; ``None`` if no origin does, nor with its neighbours.
    """
    for index in layers.origins[:ORIGINS_TRIED]:
        console.step(
            f"3. Extract {subject.network.describe(index)}, feed it the reference's activations: does it fail alone?"
        )
        units = frozenset({subject.network.rank[index]})
        for step in range(GROWTH_STEPS + 1):
            failing = _first_failing(subject, prober, units)
            if failing is None and step == 0 and may_choose_precision(target):
                failing = _first_failing_held(subject, prober, units, console)
            if failing is not None:
                console.say(
                    "  yes: this is a minimal case" if step == 0 else f"  yes, with {len(units)} units: minimise them"
                )
                return minimise_case(subject, prober, failing)
            if step < GROWTH_STEPS:
                console.say("  no: it needs more of what it reads; add its producers")
                units = _with_producers(subject, units)
    console.say("  no layer fails alone, nor with its neighbours: go on to reduce the whole model")
    return None


def minimise_case(subject: Subject, prober: Prober, failing: Subset) -> Minimum:
    """Leave out what a small failing set does not need."""
    search = over_units(Verdict.FAIL, lambda ask: make_minimal(failing, ask, subject.units.bare))
    return prober.search(search, subject.cut)


def _first_failing(subject: Subject, prober: Prober, units: Subset) -> Subset | None:
    """Probe some units with stored weights, then with the nodes that make their weights."""
    for chosen in dict.fromkeys((units, subject.units.with_weights(units))):
        if prober.probe(subject.cut(chosen)).verdict is Verdict.FAIL:
            return subject.cut(chosen).units
    return None


def _first_failing_held(subject: Subject, prober: Prober, units: Subset, console: Console) -> Subset | None:
    """The same with the target held to the low precision that it has there in the whole model."""
    console.say("  no, but alone it may run in fp32: hold it to the low precision")
    subject.held = True
    failing = _first_failing(subject, prober, units)
    subject.held = failing is not None  # all that is cut from here on is cut from this piece
    return failing


def _with_producers(subject: Subject, units: Subset) -> Subset:
    network = subject.network
    parents = {parent for unit in units for parent in network.parents(network.order[unit])}
    return units | {network.rank[parent] for parent in parents if not network.constant[parent]}
