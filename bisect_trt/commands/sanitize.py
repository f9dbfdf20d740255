"""``sanitize``: fold constants and clean a model up; the result is compared with the original before it is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from bisect_trt.commands.session import Session
from bisect_trt.commands.subject import Subject
from bisect_trt.errors import BisectError
from bisect_trt.onnxlib.cleanup import (
    Folding,
    Removed,
    constant_value,
    fold_shapes,
    remove_unread,
    sort_nodes,
    to_tensor,
)
from bisect_trt.onnxlib.cut import extract
from bisect_trt.onnxlib.external_data import share_weights, tensor_bytes
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import share_names, tell_apart
from bisect_trt.onnxlib.save import save_model
from bisect_trt.onnxlib.shapes import declare_shapes, fix_input_shapes, inferred_infos
from bisect_trt.report.result import Result
from bisect_trt.targets.settings import reference_settings
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.worker.protocol import Compare, Failed, Sample

FOLD_LIMIT_BYTES = 16 << 20
"""The default of graphsurgeon, and so of ``polygraphy surgeon sanitize``, as well."""


@dataclass(frozen=True)
class SanitizeSettings:
    """What to do to the model.

    Attributes:
        output: Where it goes.
        input_shapes: Shapes to give the model's inputs, by name.
        fold_constants: Whether to store tensors that depend on no input.
        shape_inference: Whether shapes that inference finds are folded too.
        cleanup: Whether to remove what nothing reads.
        toposort: Whether to sort the nodes.
        timeout: Seconds that a run of a model may take, where that is more than by default.
    """

    output: Path
    input_shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    fold_constants: bool = True
    shape_inference: bool = True
    cleanup: bool = True
    toposort: bool = True
    timeout: float | None = None


@dataclass
class Changes:
    """What has been done so far, by the names of the fields in JSON."""

    shaped_inputs: list[str] = field(default_factory=list)
    folded_nodes: int = 0
    stored_tensors: int = 0
    stored_bytes: int = 0
    removed_nodes: int = 0
    removed_weights: int = 0
    removed_declarations: int = 0
    declared_shapes: int = 0
    sorted: bool = False
    renamed_nodes: int = 0
    too_large: list[str] = field(default_factory=list)
    not_computed: list[str] = field(default_factory=list)

    def describe(self) -> list[str]:
        """A line for each thing that changed, or was left though asked for."""
        stored = f"{self.stored_tensors} value(s), {self.stored_bytes} bytes"
        lines: dict[str, object] = {
            f"inputs of another shape: {', '.join(self.shaped_inputs)}": self.shaped_inputs,
            f"{self.folded_nodes} node(s) folded into {stored}": self.folded_nodes,
            f"{self.removed_nodes} node(s) and {self.removed_weights} weight(s) removed that no output depends on": (
                self.removed_nodes or self.removed_weights
            ),
            f"{self.removed_declarations} declaration(s) removed of tensors that are gone": self.removed_declarations,
            f"{self.declared_shapes} shape(s) declared that inference finds": self.declared_shapes,
            "nodes put into topological order": self.sorted,
            f"{self.renamed_nodes} node(s) renamed, whose name another has too": self.renamed_nodes,
            f"not folded, because larger than 16 MiB: {', '.join(self.too_large)}": self.too_large,
            f"not folded, because not computed: {', '.join(self.not_computed)}": self.not_computed,
        }
        return [line for line, applies in lines.items() if applies] or ["nothing to change"]


def sanitize(session: Session, settings: SanitizeSettings) -> Result:
    """Write the sanitised model, if its results are those of the original.

    Args:
        session: The original, with the input shapes of the sanitised model; its result gets ``changes``.
        settings: What to do.

    Raises:
        BisectError: The results differ, so nothing is written.
        UsageError: The output cannot be written.
    """
    subject, console, result = session.subject, session.console, session.result
    path, changes = subject.settings.path, Changes()
    model = subject.settings.load()
    before = len(model.graph.node)
    changes.renamed_nodes = tell_apart(model)
    share_weights(model, path, subject.workspace.candidates, subject.settings.weights)
    if settings.input_shapes:
        fix_input_shapes(model, settings.input_shapes, assume=False)
        changes.shaped_inputs = list(settings.input_shapes)
    # Nodes that nothing reads need not be computed.
    first = remove_unread(model) if settings.cleanup else Removed()
    if settings.fold_constants:
        model = fold(model, subject, FOLD_LIMIT_BYTES, changes, shapes=settings.shape_inference)
    last = remove_unread(model) if settings.cleanup else Removed()
    changes.removed_nodes, changes.removed_weights = first.nodes, first.weights
    changes.removed_declarations = first.declarations + last.declarations
    changes.sorted = settings.toposort and sort_nodes(model)
    if settings.shape_inference:
        changes.declared_shapes = _declare(model)
    for line in changes.describe():
        console.say(f"  {line}")
    doubt = _compare(model, subject)
    save_model(model, subject.workspace.weights.folder_of(model), settings.output)
    result.artifacts["sanitized"] = str(settings.output)
    result.extra["changes"] = {"nodes": [before, len(model.graph.node)], **vars(changes)}
    result.status, result.minimality, result.why = "found", "unproven" if doubt else "1-minimal", doubt
    compared = "not compared with the original" if doubt else "the same results as the original"
    console.answer(f"{settings.output}: {before} nodes before, {len(model.graph.node)} now; {compared}.")
    if doubt:
        console.warn(doubt)
    return result


def fold(
    model: onnx.ModelProto, subject: Subject, limit: int, changes: Changes, *, shapes: bool = True
) -> onnx.ModelProto:
    """Fold until nothing more can be: stored values let inference find more shapes, which can be folded then.

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
        changes.stored_tensors += len(values)
        changes.stored_bytes += sum(map(tensor_bytes, values.values()))


def _values(folding: Folding, subject: Subject, limit: int, changes: Changes) -> dict[str, onnx.TensorProto]:
    """The values of all that is to be stored; what is too large or cannot be computed is kept as it is."""
    network = folding.network
    known: dict[str, onnx.TensorProto] = {}
    changes.too_large, changes.not_computed = [], []

    def keep(name: str, reason: list[str]) -> None:
        folding.keep(name)
        reason.append(name)

    while missing := [name for name in folding.stored() if name not in known]:
        wanted = []
        for name in missing:
            constant = constant_value(network.nodes[network.producer[name]])
            if constant is not None:
                known[name] = constant
            elif (folding.known_bytes(name) or 0) > limit:
                keep(name, changes.too_large)
            else:
                wanted.append(name)
        values = _compute(network, wanted, subject)
        for name in wanted:
            if name not in values:
                keep(name, changes.not_computed)
            elif tensor_bytes(values[name]) > limit:
                keep(name, changes.too_large)
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


def _declare(model: onnx.ModelProto) -> int:
    """Write the shapes that inference finds into the model; returns how many of them it did not have."""
    network = Network(model)
    found = {name: value for name, value in network.inferred.items() if value.type.tensor_type.HasField("shape")}
    new = [name for name, value in found.items() if network.declared.get(name) != value]
    if new:
        declare_shapes(model, {**{value.name: value for value in model.graph.value_info}, **found})
    return len(new)


def _compare(model: onnx.ModelProto, subject: Subject) -> str | None:
    """Run both models on the same values; returns why that could not be done, if it could not.

    Raises:
        BisectError: They give other results.
    """
    models, proto = subject.models, subject.network.proto
    if share_names(proto):  # which ONNX Runtime refuses; names of nodes make no difference to what they compute
        proto = onnx.ModelProto()
        proto.CopyFrom(subject.network.proto)
        tell_apart(proto)
    original, changed = models.write("original", proto), models.write("sanitized", model)
    tolerance, names = ToleranceOptions(nonfinite_equal=True), tuple(subject.network.outputs)
    for number, sample in enumerate(subject.samples, 1):
        inputs, golden = models.feed(f"inputs-{number}", sample), subject.workspace.scratch(f"golden-{number}.npz")
        failed = models.collect(original, inputs, golden)
        if failed is not None:
            return (
                f"ONNX Runtime cannot run the original: {failed.message}. So the results are not compared; try what was "
                "written where the original runs."
            )
        reply = models.ask(Compare(reference_settings(), changed, (Sample(inputs, golden),), tolerance, names))
        if isinstance(reply, Failed):
            raise BisectError(
                f"ONNX Runtime runs the original and not the sanitised model: {reply.message}. So nothing is written; "
                "please report it, and leave a step out (--no-fold-constants, --no-cleanup)."
            )
        wrong = next((comparison for comparison in reply.comparisons if not comparison.passed), None)
        if wrong is not None:
            raise BisectError(
                f"the sanitised model gives another '{wrong.name}' than the original: {wrong.describe()}. So nothing is "
                "written; if the model declares a wrong shape inside, add --no-shape-inference, else please report it."
            )
    return None
