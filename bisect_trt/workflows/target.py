"""Whether the target is there, what it says of itself, and whether there is something to compare it with."""

from __future__ import annotations

from bisect_trt.errors import UnavailableError
from bisect_trt.probing.protocol import Failed
from bisect_trt.reporting.console import Console
from bisect_trt.targets.base import Lowering
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.workflows.subject import Subject


def require_target(subject: Subject, target: TargetSettings) -> None:
    """Make sure that the target is there and has what is asked of it, before anything is computed.

    Raises:
        UnavailableError: It is not installed, or has no GPU, or crashes when it starts.
        UsageError: It has no such option, or its profile does not fit the model.
    """
    target.target.check_inputs(target, {name: value.shape for name, value in subject.samples[0].items()})
    lowers_by(subject, target)


def lowers_by(subject: Subject, target: TargetSettings) -> Lowering:
    """Who lowers a model for this target; asking it is also how to find out whether the target is there at all.

    Raises:
        UnavailableError: It is not installed, or has no GPU, or crashes when it starts.
        UsageError: It has no such option.
    """
    reply = subject.about(target)
    if isinstance(reply, Failed):
        raise UnavailableError(f"{target.describe()} does not start: {reply.message}; `bisect-trt doctor` says more.")
    return reply.lowers_by


def require_reference(subject: Subject) -> None:
    """Make sure that there is something to compare the target with.

    Raises:
        UnavailableError: ONNX Runtime cannot run a node of the model, and it is the target as well.
    """
    for index, why in subject.reference.missing.items():
        raise UnavailableError(
            f"ONNX Runtime cannot run {subject.network.describe(index)}: {why}. So there is nothing to compare; "
            "`bisect-trt reduce` with a --check command of your own goes on all the same."
        )


def tell_unused(target: TargetSettings, console: Console) -> None:
    """Say that a check command decides, and not the target that was named beside it."""
    console.say(f"--check says good or bad, so {' '.join(target.flags())} is not used")
