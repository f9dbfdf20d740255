"""Checks before a search: the target is installed and fits the model, the reference runs it; and advice if nothing fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bisect_trt.commands.binding import look_around
from bisect_trt.commands.subject import Subject
from bisect_trt.errors import ModelRefusedError, RuntimeMissingError, quoted
from bisect_trt.onnxlib.nodes import all_nodes
from bisect_trt.onnxlib.qdq import find_quantized
from bisect_trt.probe.prober import DoesNotReproduce
from bisect_trt.report.console import Console
from bisect_trt.report.result import Result
from bisect_trt.targets.base import Lowering
from bisect_trt.targets.settings import TargetSettings, reference_settings
from bisect_trt.worker.protocol import Compare, Compared, Failed, RunEach, Sample

if TYPE_CHECKING:
    from bisect_trt.commands.checks import CheckSettings

MANY, FEW = 16, 8
"""Of more than 16 samples, the 8 that fail worst are diagnosed: every tensor of each is computed, kept and compared."""


def require_target(subject: Subject, target: TargetSettings) -> None:
    """Check that the target is installed and has the options that are given.

    Raises:
        UnavailableError: It is not installed, or has no GPU, or crashes when it starts.
        UsageError: It has no such option, or its profile does not fit the model.
    """
    target.target.check_inputs(target, {name: value.shape for name, value in subject.samples[0].items()})
    look_around(subject, target)
    lowers_by(subject, target)


def require_fit(subject: Subject, target: TargetSettings) -> None:
    """Check that the target is installed, and that its options fit the model.

    Raises:
        UnavailableError: See :func:`require_target`.
        UsageError: As there, or the options do not fit.
    """
    require_target(subject, target)
    target.target.check_model(target, {node.op_type for node in all_nodes(subject.network.proto)})


def lowers_by(subject: Subject, target: TargetSettings) -> Lowering:
    """Return how a model is lowered for this target: by the target, layer by layer, or by Casts in the model.

    Raises:
        UnavailableError: The target is not installed, or has no GPU, or crashes when it starts.
        UsageError: It has no such option.
    """
    reply = subject.about(target)
    if isinstance(reply, Failed):
        raise RuntimeMissingError(
            f"{target.describe()} does not start: {reply.message}; run `bisect-trt doctor` for details."
        )
    return reply


def require_reference(subject: Subject) -> None:
    """Check that the reference runs the model.

    Raises:
        UnavailableError: ONNX Runtime cannot run a node of the model.
    """
    for index, why in subject.reference.missing.items():
        integers = [name for name, value in subject.samples[0].items() if value.dtype.kind in "iu"]
        fix = subject.renaming
        if integers and not subject.settings.data.given:
            fix = (
                f" The random values of {quoted(integers)} may be invalid: give real data (--load-inputs), or the valid range "
                "(--val-range)."
            )
        raise ModelRefusedError(
            f"ONNX Runtime cannot run {subject.network.describe(index)}: {why}.{fix} So there is nothing to compare with; "
            "`bisect-trt reduce` with your own --check command does not need the reference."
        )


def advised(error: DoesNotReproduce, subject: Subject, check: CheckSettings) -> DoesNotReproduce:
    """Return the error with what to try next, one a line."""
    data, target = subject.settings.data, check.target
    values = subject.reference.select([name for name in subject.network.outputs if name in subject.reference.infos])
    lost = [
        name
        for name, value in values.items()
        if not value.size or (value.dtype.kind == "f" and np.mean(~np.isfinite(value)) >= 0.5)
    ]
    dynamic = any(not isinstance(dim, int) for dims in subject.declared.values() for dim in dims)
    compares = check.metric is None
    steps = {
        f"other inputs: {quoted(lost)} has no elements, or at least half of them are NaN or Inf": lost,
        "the precision of the failing deployment (--fp16, --bf16, ...)": target and not target.low_precisions,
        "`bisect-trt precision --reference FLOAT.onnx`: checks the scales of the quantized model": (
            find_quantized(subject.network).groups
        ),
        "the labels and preprocessing of the failing deployment, or a smaller --max-drop": not compares,
        "other samples of the failing deployment's inputs": compares and data.given,
        "real input data (--load-inputs or --data-loader-script) instead of random values, or another --seed": (
            compares and not data.given
        ),
        "`bisect-trt samples --iterations 50`: many random samples": compares and not data.given,
        "a smaller --atol and --rtol, and the other options of the failing deployment": compares,
        "`bisect-trt layerwise`: inner tensors that differ although the outputs match": compares,
        "`bisect-trt repeat --until bad -n 20`: builds that fail sometimes": compares,
        "`bisect-trt sweep`: other sizes of the free dimensions": compares and dynamic,
    }
    return DoesNotReproduce("\n  - ".join([f"{error} What to try next:", *(step for step in steps if steps[step])]))


def keep_worst_samples(subject: Subject, check: CheckSettings, console: Console, result: Result) -> None:
    """Keep the samples that fail worst, if there are more than 16 and some fail; else keep all.

    The model is run once on all of them, and only its outputs are compared. A resumed run finds the same samples.

    Args:
        subject: The model; its samples are changed, before anything is computed from them.
        check: The target, its tolerances and the time that it may take.
        console: Prints which samples are kept.
        result: Gets ``looked_at``: the number of samples, those that ``fail`` and those that ``stay``.
    """
    if len(subject.samples) <= MANY or check.target is None:
        return
    models, scratch = subject.models, subject.workspace.scratch
    inputs = tuple(models.feed(f"many-{place}", sample) for place, sample in enumerate(subject.samples))
    golden = tuple(scratch(f"many-{place}.golden.npz") for place in range(len(inputs)))
    reply: Any = None
    try:
        right = RunEach(reference_settings(), models.write("many", subject.truth.proto), inputs, golden)
        if not isinstance(models.workers.ask(right, here=True), Failed):
            samples = tuple(Sample(*files) for files in zip(inputs, golden, strict=True))
            model = models.write("many", subject.network.proto)
            reply = models.workers.ask(
                Compare(check.target, model, samples, check.tolerance, every=True), check.timeout
            )
    finally:
        for path in (*inputs, *golden):
            path.unlink(missing_ok=True)
    severity: dict[int, float] = {}
    for each in reply.comparisons if isinstance(reply, Compared) else ():
        if not each.passed:
            severity[each.sample or 1] = max(severity.get(each.sample or 1, 0.0), each.severity)
    if severity:
        stay = sorted(sorted(severity, key=lambda number: (-severity[number], number))[:FEW])
        console.say(
            f"{len(severity)} of {len(subject.samples)} samples fail; the worst are diagnosed: {', '.join(map(str, stay))} "
            f"(samples 1 to {len(stay)} below)"
        )
        result.extra["looked_at"] = {"of": len(subject.samples), "fail": sorted(severity), "stay": stay}
        subject.samples = [subject.samples[number - 1] for number in stay]
