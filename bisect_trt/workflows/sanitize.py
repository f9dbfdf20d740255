"""A model made simpler, with the same results; what was done to it is said in words and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from bisect_trt.errors import BisectError
from bisect_trt.graph.cut import extract
from bisect_trt.graph.externals import share_weights, tensor_bytes
from bisect_trt.graph.fold import Folding, Removed, constant_value, fold_shapes, remove_unread, sort_nodes, to_tensor
from bisect_trt.graph.network import Network
from bisect_trt.graph.nodes import share_names, tell_apart
from bisect_trt.graph.save import save_model
from bisect_trt.graph.shapes import declare_shapes, fix_input_shapes, inferred_infos
from bisect_trt.probing.protocol import Compare, Failed, Sample
from bisect_trt.reporting.result import Result
from bisect_trt.targets.settings import reference_settings
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.workflows.investigation import Examination
from bisect_trt.workflows.subject import Subject


@dataclass
class Changes:
    """What has been done so far."""

    shaped: list[str] = field(default_factory=list)
    stored: int = 0
    stored_bytes: int = 0
    folded_nodes: int = 0
    removed: Removed = field(default_factory=Removed)
    declared: int = 0
    sorted: bool = False
    renamed: int = 0
    large: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        removed = self.removed
        return {
            "shaped_inputs": self.shaped,
            "folded_nodes": self.folded_nodes,
            "stored_tensors": self.stored,
            "stored_bytes": self.stored_bytes,
            "removed_nodes": removed.nodes,
            "removed_weights": removed.weights,
            "removed_declarations": removed.declarations,
            "declared_shapes": self.declared,
            "sorted": self.sorted,
            "renamed_nodes": self.renamed,
            "too_large": self.large,
            "not_computed": self.refused,
        }

    def describe(self) -> list[str]:
        """A line for each thing that changed, or was left though asked for."""
        removed = self.removed
        lines = [f"inputs of another shape: {', '.join(self.shaped)}"] if self.shaped else []
        if self.folded_nodes:
            lines.append(f"{self.folded_nodes} node(s) folded into {self.stored} value(s), {self.stored_bytes} bytes")
        if removed.nodes or removed.weights:
            lines.append(f"{removed.nodes} node(s) and {removed.weights} weight(s) removed that no output depends on")
        if removed.declarations:
            lines.append(f"{removed.declarations} declaration(s) removed of tensors that are gone")
        if self.declared:
            lines.append(f"{self.declared} shape(s) declared that inference finds")
        if self.sorted:
            lines.append("nodes put into topological order")
        if self.renamed:
            lines.append(f"{self.renamed} node(s) renamed, whose name another has too")
        for names, why in ((self.large, "larger than --fold-size-threshold"), (self.refused, "not computed")):
            if names:
                lines.append(f"not folded, because {why}: {', '.join(names)}")
        return lines or ["nothing to change"]


def fold(
    model: onnx.ModelProto, subject: Subject, limit: int, changes: Changes, *, shapes: bool = True
) -> onnx.ModelProto:
    """Fold until nothing more can be: what is stored lets inference find more shapes, which can be folded then.

    Args:
        model: The model; it may be changed.
        subject: Has the workers that compute.
        limit: Bytes past which a value is not stored.
        changes: Gets what was done.
        shapes: Whether shapes that inference finds are folded too.

    Returns:
        The model, folded.
    """
    while True:
        before = len(model.graph.node)
        if shapes:
            model = fold_shapes(Network(model)) or model
        folding = Folding(Network(model))
        values = _values(folding, subject, limit, changes)
        model = folding.apply(values)
        if len(model.graph.node) == before:
            return model
        changes.folded_nodes += before - len(model.graph.node)
        changes.stored += len(values)
        changes.stored_bytes += sum(map(tensor_bytes, values.values()))


def _values(folding: Folding, subject: Subject, limit: int, changes: Changes) -> dict[str, onnx.TensorProto]:
    """The values of all that is to be stored; what is too large or cannot be computed is kept as it is."""
    network = folding.network
    known: dict[str, onnx.TensorProto] = {}
    changes.large, changes.refused = [], []
    while missing := [name for name in folding.stored() if name not in known]:
        wanted = []
        for name in missing:
            constant = constant_value(network.nodes[network.producer[name]])
            if constant is not None:
                known[name] = constant
            elif (folding.known_bytes(name) or 0) > limit:
                folding.keep(name)
                changes.large.append(name)
            else:
                wanted.append(name)
        values = _compute(network, wanted, subject)
        for name in wanted:
            if name not in values:
                folding.keep(name)
                changes.refused.append(name)
            elif tensor_bytes(values[name]) > limit:
                folding.keep(name)
                changes.large.append(name)
            else:
                known[name] = values[name]
    return {name: known[name] for name in folding.stored()}


def _compute(network: Network, names: Sequence[str], subject: Subject) -> dict[str, onnx.TensorProto]:
    """The values of tensors that depend on no input: all at once, else one by one; some may be missing."""
    if not names:
        return {}
    part, _ = extract(network, (), names, inferred_infos(network))
    values = subject.models.run("fold", part, {})
    if not isinstance(values, Failed):
        tensors = {name: to_tensor(name, value) for name, value in values.items()}
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}
    if len(names) == 1:
        return {}
    return {key: tensor for name in names for key, tensor in _compute(network, [name], subject).items()}


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
    model = subject.settings.load()
    before = len(model.graph.node)
    changes.renamed = tell_apart(model)
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
    if settings.shape_inference:
        changes.declared = _declare(model)
    for line in changes.describe():
        console.say(f"  {line}")
    doubt = _compare(model, subject)
    save_model(model, subject.workspace.weights.folder_of(model), settings.output)
    result.artifacts["sanitized"] = str(settings.output)
    result.extra["changes"] = {"nodes": [before, len(model.graph.node)], **changes.to_json()}
    result.status, result.minimality, result.why = "found", "unproven" if doubt else "1-minimal", doubt
    compared = "not compared with the original" if doubt else "the same results as the original"
    console.answer(f"{settings.output}: {before} nodes before, {len(model.graph.node)} now; {compared}.")
    if doubt:
        console.warn(doubt)
    return result


def _declare(model: onnx.ModelProto) -> int:
    """Write the shapes that inference finds into the model; how many of them it did not have."""
    network = Network(model)
    found = {name: value for name, value in network.inferred.items() if value.type.tensor_type.HasField("shape")}
    new = [name for name, value in found.items() if network.declared.get(name) != value]
    if new:
        declare_shapes(model, {**{value.name: value for value in model.graph.value_info}, **found})
    return len(new)


def _compare(model: onnx.ModelProto, subject: Subject) -> str | None:
    """Run both models on the same values; why that could not be done, if it could not.

    Raises:
        BisectError: They give other results.
    """
    models = subject.models
    proto = subject.network.proto
    if share_names(proto):  # which ONNX Runtime refuses; what a node is called makes no difference to what it computes
        proto = onnx.ModelProto()
        proto.CopyFrom(subject.network.proto)
        tell_apart(proto)
    original, changed = models.write("original", proto), models.write("sanitized", model)
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
