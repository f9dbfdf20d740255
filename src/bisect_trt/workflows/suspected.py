"""Where a reduction probably ends, from one look at all tensors: worth it where probes take long."""

from __future__ import annotations

from bisect_trt.probing.builtin import BuiltinCheck
from bisect_trt.probing.prober import Prober
from bisect_trt.reporting.console import Console
from bisect_trt.workflows.layerwise_look import Look, compare_layers
from bisect_trt.workflows.subject import Subject


def looks(prober: Prober) -> bool:
    """Whether looking is worth it: one build more, for the nine or ten that bisecting a thousand nodes takes."""
    check = prober.runner.check
    return isinstance(check, BuiltinCheck) and check.target.runtime == "trt"


def suspected_unit(subject: Subject, prober: Prober, console: Console) -> int | None:
    """The unit that goes wrong first with every tensor marked; the original's own probe must have been made.

    Args:
        subject: The model.
        prober: Has probed the original.
        console: Who is told.

    Returns:
        ``None`` where it does not tell.
    """
    check = prober.runner.check
    assert isinstance(check, BuiltinCheck)
    if prober.ledger.is_broken:
        return None
    console.step("Look at every tensor once: where does it go wrong first?")
    look = Look(subject, check.target, check.tolerance, check.timeout)
    layers = compare_layers(look, prober.ledger.outcome(subject.original.key))
    if layers.refused or not (layers.outputs_fail and layers.origins):
        console.say("  that does not tell, so bisect without")
        return None
    console.say(f"  at {subject.network.describe(layers.origins[0])}, so try there first")
    return subject.network.rank[layers.origins[0]]
