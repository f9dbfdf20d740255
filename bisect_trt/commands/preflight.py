"""Checks before a search: the target is there and fits the model, the reference runs it; and advice where nothing fails."""

from __future__ import annotations

import numpy as np

from bisect_trt.commands.places import look_around
from bisect_trt.commands.settings import CheckSettings
from bisect_trt.commands.subject import Subject
from bisect_trt.errors import ModelRefusedError, RuntimeMissingError, quoted
from bisect_trt.onnxlib.nodes import all_nodes
from bisect_trt.onnxlib.qdq import find_quantized
from bisect_trt.probe.prober import DoesNotReproduce
from bisect_trt.targets.base import Lowering
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.worker.protocol import Failed


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
