"""Checks before a search: the target is there and fits the model, the reference runs it; and advice where nothing fails."""

from __future__ import annotations

import json
from collections import defaultdict
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
_CHOSEN = "samples.json"


def require_target(subject: Subject, target: TargetSettings) -> None:
    """Make sure that the target is there and has the options that were given.

    Raises:
        UnavailableError: It is not installed, or has no GPU, or crashes when it starts.
        UsageError: It has no such option, or its profile does not fit the model.
    """
    target.target.check_inputs(target, {name: value.shape for name, value in subject.samples[0].items()})
    look_around(subject, target)
    lowers_by(subject, target)


def require_fit(subject: Subject, target: TargetSettings) -> None:
    """Make sure that the target is there, and that its options fit the model.

    Raises:
        UnavailableError: See :func:`require_target`.
        UsageError: As there, or they do not fit.
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
    """Make sure that the reference has values to compare with.

    Raises:
        UnavailableError: ONNX Runtime cannot run a node of the model.
    """
    for index, why in subject.reference.missing.items():
        data, random = subject.settings.data, [n for n, value in subject.samples[0].items() if value.dtype.kind in "iu"]
        fix = subject.renaming
        if random and not data.given:
            fix = (
                f" Perhaps that is because {quoted(random)} {'is' if len(random) == 1 else 'are'} random: give real data "
                "(--load-inputs), or the range of what is valid (--val-range)."
            )
        raise ModelRefusedError(
            f"ONNX Runtime cannot run {subject.network.describe(index)}: {why}.{fix} So there is nothing to compare; "
            "`bisect-trt reduce` with a --check command of your own does not need the reference."
        )


def advised(error: DoesNotReproduce, subject: Subject, check: CheckSettings) -> DoesNotReproduce:
    """Return the error with what to try next, one a line."""
    data, target, steps = subject.settings.data, check.target, []
    values = subject.reference.select([name for name in subject.network.outputs if name in subject.reference.infos])
    lost = [
        name
        for name, value in values.items()
        if not value.size or (value.dtype.kind == "f" and np.mean(~np.isfinite(value)) >= 0.5)
    ]
    if lost:
        steps.append(f"other inputs: {quoted(lost)} has no elements here, or NaN or Inf in half of them or more")
    if target is not None and not target.low_precisions:
        steps.append("the precision of the failing deployment (--fp16, --bf16, ...)")
    if find_quantized(subject.network).groups:
        steps.append("`bisect-trt precision --reference FLOAT.onnx`: whether the scales of the quantized model fit")
    if check.metric is not None:
        steps.append("the labels and preprocessing of the failing deployment, or a smaller --max-drop")
        return DoesNotReproduce("\n  - ".join([f"{error} What to try next:", *steps]))
    if data.given:
        steps.append("other samples of the failing deployment's inputs")
    else:
        steps.append(
            "real input data (--load-inputs or --data-loader-script) instead of random values, or another --seed"
        )
        steps.append("`bisect-trt samples --iterations 50`: many random samples")
    steps += [
        "a tighter --atol and --rtol, and the other options of the failing deployment",
        "`bisect-trt layerwise`: tensors inside that differ, though the outputs match",
        "`bisect-trt repeat --until bad -n 20`: builds that fail now and then",
    ]
    if any(not isinstance(dim, int) for dims in subject.declared.values() for dim in dims):
        steps.append("`bisect-trt sweep`: other sizes of the free dimensions")
    return DoesNotReproduce("\n  - ".join([f"{error} What to try next:", *steps]))


def keep_worst_samples(subject: Subject, check: CheckSettings, console: Console, result: Result) -> None:
    """Keep the samples that fail worst, where there are more than 16 and some fail; else keep all.

    The model is run on all of them once as it is, its outputs alone compared.

    Args:
        subject: The model; its samples are changed, before anything is computed of them.
        check: The target, its tolerances and the time that it may take.
        console: Prints which samples are kept.
        result: Gets ``looked_at``: how many there were, and the numbers of those that ``fail`` and of those that ``stay``.
    """
    if len(subject.samples) <= MANY or check.target is None:
        return
    noted = subject.workspace.folder / _CHOSEN  # a resumed run has to diagnose the same ones
    if noted.exists():
        found: dict[str, Any] = json.loads(noted.read_text("utf-8"))
    else:
        worst = _worst_first(subject, check, check.target)
        found = {"of": len(subject.samples), "fail": sorted(worst), "stay": sorted(worst[:FEW])}
        noted.write_text(json.dumps(found), "utf-8")
    if not found["stay"]:
        return
    named = ", ".join(map(str, found["stay"]))
    console.say(
        f"{len(found['fail'])} of {found['of']} samples fail; the worst are diagnosed: {named} "
        f"(1 to {len(found['stay'])} in what follows)"
    )
    subject.samples = [subject.samples[number - 1] for number in found["stay"]]
    result.extra["looked_at"] = found


def _worst_first(subject: Subject, check: CheckSettings, target: TargetSettings) -> list[int]:
    """The numbers of the samples that fail; none if the model cannot be run on one after the other."""
    models, scratch = subject.models, subject.workspace.scratch
    inputs = tuple(models.feed(f"many-{place}", sample) for place, sample in enumerate(subject.samples))
    golden = tuple(scratch(f"many-{place}.golden.npz") for place in range(len(inputs)))
    try:
        right = RunEach(reference_settings(), models.write("many", subject.truth.proto), inputs, golden)
        if isinstance(models.workers.ask(right, here=True), Failed):
            return []
        samples = tuple(Sample(*files) for files in zip(inputs, golden, strict=True))
        model = models.write("many", subject.network.proto)
        reply = models.workers.ask(Compare(target, model, samples, check.tolerance, every=True), check.timeout)
        if not isinstance(reply, Compared):
            return []
    finally:
        for path in (*inputs, *golden):
            path.unlink(missing_ok=True)
    severity: defaultdict[int, float] = defaultdict(float)
    for each in reply.comparisons:
        if not each.passed:
            severity[each.sample or 1] = max(severity[each.sample or 1], each.severity)
    return sorted(severity, key=lambda number: (-severity[number], number))
