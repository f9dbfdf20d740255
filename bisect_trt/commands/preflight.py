"""Checks before anything is probed: the target is there and fits the model, and the reference runs it."""

from __future__ import annotations

from bisect_trt.commands.places import look_around
from bisect_trt.commands.subject import Subject
from bisect_trt.errors import ModelRefusedError, RuntimeMissingError, quoted
from bisect_trt.onnxlib.nodes import all_nodes
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
            f"{target.describe()} does not start: {reply.message}; `bisect-trt doctor` says more."
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
