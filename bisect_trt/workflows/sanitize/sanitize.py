"""Fold what can be computed once and for all, take away what nothing reads, and prove that the results are the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from bisect_trt.errors import BisectError
from bisect_trt.graph.externals import share_weights
from bisect_trt.graph.fold import Removed, remove_unread, sort_nodes
from bisect_trt.graph.load import load_model
from bisect_trt.graph.save import save_model
from bisect_trt.graph.shapes import fix_input_shapes
from bisect_trt.probing.protocol import Compare, Failed, Sample
from bisect_trt.reporting.result import Result
from bisect_trt.targets.reference import reference_settings
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.workflows.investigation import Examination
from bisect_trt.workflows.sanitize.changes import Changes
from bisect_trt.workflows.sanitize.fold import fold
from bisect_trt.workflows.subject import Subject

FOLD_LIMIT_BYTES = 16 << 20
"""What graphsurgeon, and so ``polygraphy surgeon sanitize``, takes as well."""


@dataclass(frozen=True)
class SanitizeSettings:
    """What to do to the model.

    Attributes:
        output: Where it goes.
        input_shapes: Shapes to give the model's inputs, by name.
        fold_constants: Whether to store what depends on no input.
        fold_limit: Bytes past which a value is not stored.
        shape_inference: Whether shapes that inference finds are folded too.
        cleanup: Whether to take away what nothing reads.
        toposort: Whether to sort the nodes.
        timeout: Seconds that a run of a model may take, where that is more than by default.
    """

    output: Path
    input_shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    fold_constants: bool = True
    fold_limit: int = FOLD_LIMIT_BYTES
    shape_inference: bool = True
    cleanup: bool = True
    toposort: bool = True
    timeout: float | None = None


def sanitize(examination: Examination, settings: SanitizeSettings) -> Result:
    """Write the sanitised model, once its results are seen to be those of the original.

    Args:
        examination: Of the original, with the input shapes of the sanitised model; its result gets ``changes``.
        settings: What to do.

    Raises:
        BisectError: The results differ, so nothing is written.
        UsageError: The output cannot be written.
    """
    subject, console, result = examination.subject, examination.console, examination.result
    path, changes = subject.settings.path, Changes()
    model = load_model(path, subject.settings.external_data_dir)
    before = len(model.graph.node)
    share_weights(model, path, subject.workspace.candidates, subject.settings.weights)
    if settings.input_shapes:
        fix_input_shapes(model, settings.input_shapes, assume=False)
        changes.shaped = list(settings.input_shapes)
    if settings.cleanup:  # nothing need be computed for what nobody reads
        first = remove_unread(model)
    if settings.fold_constants:
        model = fold(model, subject, settings.fold_limit, changes, shapes=settings.shape_inference)
    if settings.cleanup:
        last = remove_unread(model)
        changes.removed = Removed(first.nodes, first.weights, first.declarations + last.declarations)
    changes.sorted = settings.toposort and sort_nodes(model)
    for line in changes.describe():
        console.say(f"  {line}")
    doubt = _compare(model, subject)
    save_model(model, subject.workspace.candidates, settings.output)
    result.artifacts["sanitized"] = str(settings.output)
    result.extra["changes"] = {"nodes": [before, len(model.graph.node)], **changes.to_json()}
    result.status, result.minimality, result.why = "found", "unproven" if doubt else "1-minimal", doubt
    compared = "not compared with the original" if doubt else "the same results as the original"
    console.answer(f"{settings.output}: {before} nodes before, {len(model.graph.node)} now; {compared}.")
    if doubt:
        console.warn(doubt)
    return result


def _compare(model: onnx.ModelProto, subject: Subject) -> str | None:
    """Run both models on the same values; why that could not be done, if it could not.

    Raises:
        BisectError: They give other results.
    """
    models = subject.models
    original, changed = models.write("original", subject.network.proto), models.write("sanitized", model)
    for number, sample in enumerate(subject.samples, 1):
        inputs, golden = models.feed(f"inputs-{number}", sample), subject.workspace.scratch(f"golden-{number}.npz")
        failed = models.collect(original, inputs, golden)
        if failed is not None:
            return (
                f"ONNX Runtime cannot run the original: {failed.message}. So the results are not compared; try what was "
                "written where the original runs."
            )
        tolerance, names = ToleranceOptions(nonfinite_equal=True), tuple(subject.network.outputs)
        reply = models.ask(Compare(reference_settings(), changed, (Sample(inputs, golden),), tolerance, names))
        if isinstance(reply, Failed):
            raise BisectError(
                f"ONNX Runtime runs the original and not the sanitised model: {reply.message}. So nothing is written; "
                "please report it, and leave a step out (--no-fold-constants, --no-cleanup)."
            )
        for comparison in reply.comparisons:
            if not comparison.passed:
                raise BisectError(
                    f"the sanitised model gives another '{comparison.name}' than the original: {comparison.describe()}. "
                    "So nothing is written; if the model declares a wrong shape inside, add --no-shape-inference, else please "
                    "report it."
                )
    return None
