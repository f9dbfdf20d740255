"""One look at all tensors before a reduction: worth it where each probe is minutes."""

from __future__ import annotations

from bisect_trt.probing.builtin import BuiltinCheck
from bisect_trt.probing.prober import Prober
from bisect_trt.reporting.console import Console
from bisect_trt.search.oracle import Minimum
from bisect_trt.workflows.isolate import isolate
from bisect_trt.workflows.layerwise.look import Look, compare_layers
from bisect_trt.workflows.subject import Subject


def looks(prober: Prober) -> bool:
    """Whether looking is worth it: one build, for the nine or ten that bisecting a thousand nodes takes."""
    check = prober.runner.check
    return isinstance(check, BuiltinCheck) and check.target.target.capabilities.costly


def try_suspect(subject: Subject, prober: Prober, console: Console) -> tuple[Minimum | None, int | None]:
    """See whether the layer that goes wrong first, with every tensor marked, fails alone.

    Args:
        subject: The model.
        prober: Has probed the original.
        console: Who is told.

    Returns:
        What fails, 1-minimal, if that layer or its neighbourhood does; and the unit that is suspected, if one is.
    """
    check = prober.runner.check
    assert isinstance(check, BuiltinCheck)
    if prober.ledger.is_broken:
        return None, None
    console.step("Look at every tensor once: where does it go wrong first?")
    look = Look(subject, check.target, check.tolerance, check.timeout)
    layers = compare_layers(look, prober.ledger.outcome(subject.original.key))
    if layers.refused or not (layers.outputs_fail and layers.origins):
        console.say("  that does not tell, so bisect without")
        return None, None
    return isolate(subject, prober, check.target, layers, console), subject.network.rank[layers.origins[0]]
