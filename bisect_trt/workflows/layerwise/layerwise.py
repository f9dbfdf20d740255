"""Compare every tensor on the target with the reference's, and find the first that is wrong.

By itself too, where that is asked for: all layers in one model, each fed the reference's values.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bisect_trt.errors import UnavailableError
from bisect_trt.graph.isolate import is_frozen, isolate
from bisect_trt.probing.outcome import Ending
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.workflows.checks import make_prober
from bisect_trt.workflows.engine_layers import engine_layers
from bisect_trt.workflows.investigation import Examination, Investigation
from bisect_trt.workflows.layerwise.groups import MOST_BUILDS, Seen, gather
from bisect_trt.workflows.layerwise.hiding import report_hiding
from bisect_trt.workflows.layerwise.look import Look, compare_layers
from bisect_trt.workflows.layerwise.origins import Layerwise, of_samples
from bisect_trt.workflows.layerwise.sliced import layer_slices
from bisect_trt.workflows.layerwise.telling import tell, to_json
from bisect_trt.workflows.record import recorded
from bisect_trt.workflows.settings import CheckSettings, SearchSettings
from bisect_trt.workflows.subject import Subject


@dataclass(frozen=True)
class LayerwiseSettings:
    """How to look at every tensor.

    Attributes:
        target: The runtime under suspicion.
        tolerance: How far a tensor may be off.
        timeout: Seconds that one run may take.
        isolated: Whether to look at the error that each layer adds by itself too.
        error_plot: Where the error along the network is drawn, if it is.
    """

    target: TargetSettings
    tolerance: ToleranceOptions
    timeout: float | None = None
    isolated: bool = False
    error_plot: Path | None = None


def layerwise(examination: Examination, settings: LayerwiseSettings) -> Result:
    """The command: compare every tensor, say where it goes wrong first.

    Raises:
        UnavailableError: The target does not run the model with tensors marked.
    """
    subject, console, result = examination.subject, examination.console, examination.result
    look = Look.by(subject, settings)
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


@dataclass(frozen=True)
class Own:
    """The error that each layer adds.

    Attributes:
        tensors: How a tensor is off when its node is fed the reference's values, in topological order.
        unseen: The tensors of which that is not known, with the reason.
        builds: How many models the target was given.
        refused: Why the target would not run the first of them, if it would not.
    """

    tensors: dict[str, TensorComparison]
    unseen: dict[str, str]
    builds: int
    refused: str | None = None


def compare_own(look: Look, names: Sequence[str] | None = None, most: int = MOST_BUILDS) -> Own:
    """Feed every layer the reference's values, all in one model, or in groups where the target refuses that.

    A model whose tensors do not fit into memory is looked at slice by slice, as with marks.

    Args:
        look: How to look.
        names: The tensors whose makers are looked at; ``None`` for all.
        most: How many models the target may be given.
    """
    subject, infos = look.subject, look.subject.reference.infos
    wanted = [name for name in look.wanted if names is None or name in names]
    frozen = _frozen(subject)
    fragile = {name for name in wanted if _is_fragile(subject, name, frozen)}
    left_out: dict[str, str] = {}

    def attempt(names: Sequence[str]) -> Seen:
        model = isolate(subject.network, names, infos, frozen)
        left_out.update(model.left_out)
        if not model.outputs:
            return Seen()
        seen = look.run(model.proto, model.outputs, fed=model.fed)
        assert seen is not None
        return seen

    slices = [wanted]
    if names is None:
        slices = [[name for name in part.tensors if name in infos] for part in layer_slices(subject, look.target)]
    found = [gather(part, fragile, attempt, most=most) for part in slices if part]
    comparisons = of_samples(each for part in found for seen in part.groups for each in seen.comparisons)
    tensors = {name: comparisons[name] for name in wanted if name in comparisons}
    unseen = {name: why for part in found for name, why in part.unseen.items()} | left_out
    refused = next((part.refused for part in found if not part.groups), None)
    builds = sum(part.builds for part in found)
    return Own(tensors, {name: why for name, why in unseen.items() if name not in tensors}, builds, refused)


def _is_fragile(subject: Subject, name: str, frozen: Collection[str]) -> bool:
    """Whether bools or integers go into its node or come out of it."""
    network, infos = subject.network, subject.reference.infos
    index = network.producer[name]
    ends = {*network.made(index), *network.reads[index]}.difference(frozen)
    return any(infos[end].dtype.kind in "biu" for end in ends if end in infos)


def _frozen(subject: Subject) -> dict[str, NDArray[Any]]:
    """The values of what is a shape or an index, as far as all input samples agree on them."""
    reference, frozen = subject.reference, {}
    for name in (*subject.network.inputs, *subject.network.computed):
        if name in reference.infos and is_frozen(reference.infos[name]):
            first, *others = (sample.select([name])[name] for sample in (reference, *reference.more))
            if all(np.array_equal(first, other) for other in others):
                frozen[name] = first
    return frozen
