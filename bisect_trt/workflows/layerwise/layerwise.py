"""Compare every tensor on the target with the reference's, and find the first that is wrong."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bisect_trt.errors import UnavailableError
from bisect_trt.probing.outcome import Ending
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.workflows.checks import make_prober
from bisect_trt.workflows.engine_layers import engine_layers
from bisect_trt.workflows.investigation import Examination, Investigation
from bisect_trt.workflows.layerwise.hiding import report_hiding
from bisect_trt.workflows.layerwise.look import Look, compare_layers
from bisect_trt.workflows.layerwise.origins import Layerwise
from bisect_trt.workflows.layerwise.own import compare_own
from bisect_trt.workflows.layerwise.telling import tell, to_json
from bisect_trt.workflows.record import recorded
from bisect_trt.workflows.settings import CheckSettings, SearchSettings


@dataclass(frozen=True)
class LayerwiseSettings:
    """How to look at every tensor.

    Attributes:
        target: The runtime under suspicion.
        tolerance: How far a tensor may be off.
        timeout: Seconds that one run may take.
        isolated: Whether to look at the error that each layer adds by itself too.
    """

    target: TargetSettings
    tolerance: ToleranceOptions
    timeout: float | None = None
    isolated: bool = False


def layerwise(examination: Examination, settings: LayerwiseSettings) -> Result:
    """The command: compare every tensor, say where it goes wrong first.

    Raises:
        UnavailableError: The target does not run the model with tensors marked.
    """
    subject, console, result = examination.subject, examination.console, examination.result
    look = Look(subject, settings.target, settings.tolerance, settings.timeout)
    console.step(f"{settings.target.describe()} against the reference, every tensor an output")
    original, plain = look.unmarked()
    layers = compare_layers(look, original)
    if layers.refused:
        raise UnavailableError(
            f"the target does not run the model with every tensor marked: {layers.refused}. `diagnose` and `reduce` go "
            "on without marks."
        )
    layers = replace(layers, engine=engine_layers(subject.network, plain.layers))
    if settings.isolated:
        layers = _with_own(look, layers, console)
    result.extra |= to_json(subject, layers)
    tell(subject, layers, console)
    if layers.hidden:
        console.say(f"  without marks: {original.reason}")
        return _hidden(examination, look, layers)
    result.culprits = subject.describe_searched(subject.network.rank[index] for index in layers.origins[:1])
    result.status = "found" if layers.origins else "not_reproduced"
    result.minimality = "1-minimal"
    if not layers.origins:
        console.answer("Every tensor matches.")
        return result
    console.answer(f"First mismatch: {subject.network.describe(layers.origins[0])}.")
    if original.ending is Ending.PASSED:
        console.answer("The model's own outputs match all the same: the error does not get there.")
    return result


def _with_own(look: Look, layers: Layerwise, console: Console) -> Layerwise:
    own = compare_own(look)
    if own.refused:
        console.warn(f"the target does not run the layers alone: {own.refused}.")
    return replace(layers, own=own.tensors, own_unseen=own.unseen)


def _hidden(examination: Examination, look: Look, layers: Layerwise) -> Result:
    """Marks make the failure vanish: find those that do."""
    console, result = examination.console, examination.result
    result.status = "inconclusive"
    result.why = "marking tensors hides the failure, so they do not show where it begins"
    check = CheckSettings(target=look.target, tolerance=look.tolerance, timeout=look.timeout)
    prober = make_prober(check, SearchSettings(workers=1), look.subject, console)
    try:
        investigation = Investigation(look.subject, console, result, prober)
        with recorded(investigation, look.target):
            prober.probe_original(look.subject.original)
            report_hiding(investigation, look, layers)
    finally:
        prober.ledger.close()
    console.answer("Marking hides the failure; `bisect-trt diagnose` goes on without marks.")
    return result
