"""Records which execution provider runs which node of a model, and why a provider leaves a node to another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx import ModelProto

from bisect_trt.report.text import Entry
from bisect_trt.session.subject import Subject
from bisect_trt.targets.base import TargetSettings
from bisect_trt.tensors.files import Values
from bisect_trt.worker.protocol import Failed, Trace

if TYPE_CHECKING:
    from bisect_trt.session.session import Session


def place_nodes(
    subject: Subject, target: TargetSettings, model: ModelProto, inputs: Values
) -> list[Entry]:
    """Return an entry for each node, with its ``provider``; none where the target reports no placement.

    Args:
        subject: The user's model, with the workers that answer.
        target: The target.
        model: The model, in the form that the target runs.
        inputs: The values to open it with, by input name.
    """
    if not target.target.reports_placement(target):
        return []
    models = subject.models
    request = Trace(
        target, models.write("placed", model), models.feed("placed", inputs), "placement"
    )
    trace = subject.workers.ask(request)
    # A model that is refused is placed nowhere: the command that runs it says so.
    return [] if isinstance(trace, Failed) else trace.get("layers", [])


def record_placement(session: Session, target: TargetSettings) -> None:
    """Add the placement of the user's model to the result, as ``layers``, if the target reports one."""
    subject = session.subject
    model = subject.as_in_file(subject.network.proto)
    layers = place_nodes(subject, target, model, subject.samples[0])
    session.result.layers = layers or session.result.layers
