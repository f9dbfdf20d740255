"""Before anything runs: is the target there, does what is asked of it fit the model, is there something to compare?"""

from __future__ import annotations

from bisect_trt.errors import UnavailableError
from bisect_trt.graph.nodes import all_nodes
from bisect_trt.probing.protocol import Failed
from bisect_trt.targets.base import Lowering
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.workflows.places import look_around
from bisect_trt.workflows.subject import Subject


def require_target(subject: Subject, target: TargetSettings) -> None:
    """Make sure that the target is there and has what is asked of it, before anything is computed.

    Raises:
        UnavailableError: It is not installed, or has no GPU, or crashes when it starts.
        UsageError: It has no such option, or its profile does not fit the model.
    """
    target.target.check_inputs(target, {name: value.shape for name, value in subject.samples[0].items()})
    look_around(subject, target)
    lowers_by(subject, target)


def require_fit(subject: Subject, target: TargetSettings) -> None:
    """Make sure that the target is there, and that what is asked of it fits the model as it is.

    Raises:
        UnavailableError: See :func:`require_target`.
        UsageError: As there, or it does not.
    """
    require_target(subject, target)
    target.target.check_model(target, {node.op_type for node in all_nodes(subject.network.proto)})


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
        fed = _drawn_integers(subject)
        mend = (
            f" Perhaps that is because {fed} random: give real data (--load-inputs), or the range of what is valid (--val-range)."
            if fed
            else subject.renaming
        )
        raise UnavailableError(
            f"ONNX Runtime cannot run {subject.network.describe(index)}: {why}.{mend} So there is nothing to compare; "
            "`bisect-trt reduce` with a --check command of your own goes on all the same, and `bisect-trt diagnose --self-check` "
            "compares the target with itself."
        )


def _drawn_integers(subject: Subject) -> str:
    """Which inputs of integers, such as indices, hold random values, in words; empty if there are none."""
    data = subject.settings.data
    if data.load_inputs or data.data_loader_script is not None:
        return ""
    names = [name for name, value in subject.samples[0].items() if value.dtype.kind in "iu"]
    listed = ", ".join(f"'{name}'" for name in names[:4])
    return f"{listed}{', ...' if len(names) > 4 else ''} {'is' if len(names) == 1 else 'are'}" if names else ""
