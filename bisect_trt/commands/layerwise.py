"""``layerwise``: compares every tensor on the target with the reference's, and names the first wrong one."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from bisect_trt.errors import ConflictError, MissingOptionError, ModelRefusedError
from bisect_trt.options.compare import CompareOptions
from bisect_trt.options.searches import Layerwise
from bisect_trt.options.shared import CheckOptions
from bisect_trt.options.spec import written
from bisect_trt.probe.outcome import Ending
from bisect_trt.report.parts import OwnOutputs
from bisect_trt.report.result import Result
from bisect_trt.session.call import Call
from bisect_trt.session.checks import CheckSettings, tolerance_options
from bisect_trt.steps.arbiter import Arbiter
from bisect_trt.steps.layers import (
    LayerComparison,
    Marking,
    compare_layers,
    compare_own,
    fill_in,
    tell,
)
from bisect_trt.steps.placement import record_placement
from bisect_trt.targets.options import Target


def run(call: Call) -> Result:
    """Compare every tensor on the target with the reference's, and name the first node that is wrong.

    Raises:
        UnavailableError: The target does not run the model with tensors marked.
    """
    options = call[Layerwise]
    target = call[Target].required()
    if options.baseline is not None and not options.latency:
        raise MissingOptionError("--baseline needs --latency; add it.")
    conflicting = written(call[CompareOptions])[:1] or ["--isolate"] * options.isolate
    if options.latency and conflicting:
        raise ConflictError(
            f"--latency compares no values, so {conflicting[0]} has no effect; drop one."
        )
    tolerance = tolerance_options(call[CompareOptions], target)
    opened = call.open()
    with opened.examined(options.timeout, target) as session:
        if options.latency:
            from bisect_trt.steps.latency import latency  # noqa: PLC0415 - few ask for it

            return latency(session, target, options.baseline)
        subject = session.subject
        console = session.console
        result = session.result
        look = Marking(subject, target, tolerance, options.timeout)
        console.step(f"{target.describe()} against the reference, every tensor an output")
        # Marks may change what the compiler fuses, so the unmarked model has the last word.
        original = look.unmarked()
        record_placement(session, target)
        layers = compare_layers(look, original)
        if layers.refused:
            raise ModelRefusedError(
                f"the target does not run the model with every tensor marked: {layers.refused}. Use `diagnose` or `reduce`, "
                "which work without marks."
            )
        if not layers.tensors:
            raise ModelRefusedError(
                "no tensor of the model has a value of the reference to compare."
            )
        if options.isolate:
            layers = _isolated(look, layers)
        passes = original.ending is Ending.PASSED
        result.own_outputs = OwnOutputs(match=passes, reason=original.reason)
        console.say(f"  the model's own outputs, without marks: {original.reason}")
        fill_in(result, subject, layers)
        tell(subject, layers, console)
        # Every tensor matches, and the outputs of the unmarked model do not.
        if layers.hidden:
            console.answer(
                "Marking hides the failure. `bisect-trt diagnose` works without marks; `bisect-trt workaround` finds which "
                "marks hide it."
            )
            return result.end(
                "inconclusive",
                "marking tensors hides the failure, so they do not show where it begins",
            )
        settings = CheckSettings(CheckOptions(timeout=options.timeout), (), target, tolerance)
        arbiter = Arbiter(session, settings, not options.no_other_release)
        if not layers.origins:
            console.answer("Every tensor matches.")
            step = arbiter.doubt()
            return result.end("not_reproduced", step and f"every tensor matches\n  - {step}")
        first = layers.origins[0]
        result.culprits = subject.describe_searched([subject.network.rank[first]])
        console.answer(f"First mismatch: {subject.network.describe(first)}.")
        _judge(arbiter, layers, first)
        if passes:
            console.answer("The error does not reach the model's own outputs.")
        return result.end()


def _isolated(look: Marking, layers: LayerComparison) -> LayerComparison:
    """Return the comparison with the error of each layer that is fed the reference's values."""
    isolated = compare_own(look)
    if isolated.refused:
        look.subject.console.warn(
            f"the target does not run the isolated layers: {isolated.refused}."
        )
    return structs.replace(layers, own=isolated.tensors, own_unseen=isolated.unseen)


def _judge(arbiter: Arbiter, layers: LayerComparison, first: int) -> None:
    """Run the first wrong node alone, on the sample on which it is wrong, and decide which side is."""
    subject = arbiter.session.subject
    network = subject.network
    comparisons = (layers.tensors[name] for name in network.made(first) if name in layers.tensors)
    sample = next((comparison.sample for comparison in comparisons if not comparison.passed), None)
    piece = subject.cut(frozenset({network.rank[first]}))
    arbiter.judge(replace(piece, sample=sample or 1))
