"""``sanitize``: fold constants and clean a model up; the result is compared with the original before it is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx

from bisect_trt.commands.call import Call
from bisect_trt.commands.session import Session
from bisect_trt.commands.subject import Subject
from bisect_trt.errors import WrongResultError
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
from bisect_trt.onnxlib.load import tensor_bytes
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import free_name, keep_only, share_names
from bisect_trt.onnxlib.save import save_model, share_weights
from bisect_trt.onnxlib.shapes import fix_input_shapes
from bisect_trt.options.commands import Sanitize
from bisect_trt.report.result import Result
from bisect_trt.targets.settings import reference_settings
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.worker.protocol import Compare, Failed, Sample

FOLD_LIMIT_BYTES = 16 << 20
"""Larger values are not folded, as by default in graphsurgeon and ``polygraphy surgeon sanitize``."""
_LINES = {
    "shaped_inputs": "input shapes fixed: {shaped_inputs}",
    "folded_nodes": "{folded_nodes} node(s) folded into {stored_tensors} value(s), {stored_bytes} bytes",
    "removed_nodes": "{removed_nodes} node(s) removed that no output depends on",
    "removed_weights": "{removed_weights} weight(s) removed that no node reads",
    "removed_declarations": "{removed_declarations} declaration(s) of removed tensors removed",
    "declared_shapes": "{declared_shapes} shape(s) declared that inference finds",
    "sorted": "nodes sorted topologically",
    "renamed_nodes": "{renamed_nodes} node(s) with duplicate names renamed",
}
"""A line for each change, by its field in JSON."""


def sanitize(session: Session, options: Sanitize) -> Result:
    """Write the sanitized model, if its results are equal to the original's.

    Args:
        session: The original, with the input shapes of the sanitized model; its result gets ``changes``.
        options: The steps to apply.

    Raises:
        BisectError: The results differ, so nothing is written.
        UsageError: The output cannot be written.
    """
    subject, console, result = session.subject, session.console, session.result
    model = subject.settings.load()
    before = len(model.graph.node)
    changes: dict[str, Any] = {
        "shaped_inputs": list(options.override_input_shapes),
        "renamed_nodes": _tell_apart(model),
    }
    changes |= {"folded_nodes": 0, "stored_tensors": 0, "stored_bytes": 0}
    share_weights(model, subject.settings.path, subject.workspace.candidates, subject.settings.weights)
    if options.override_input_shapes:
        fix_input_shapes(model, options.override_input_shapes, assume=False)
    first = remove_unread(model) if options.cleanup else Removed()  # these need not be computed
    if options.fold_constants:
        model = _fold(model, subject, changes, shapes=options.shape_inference)
    last = remove_unread(model) if options.cleanup else Removed()
    changes |= {"removed_nodes": first.nodes, "removed_weights": first.weights}
    changes |= {"removed_declarations": first.declarations + last.declarations}
    changes["sorted"] = sort_nodes(model)
    changes["declared_shapes"] = _declare(model) if options.shape_inference else 0
    words = {name: ", ".join(value) if isinstance(value, list) else value for name, value in changes.items()}
    for line in [line.format(**words) for name, line in _LINES.items() if words.get(name)] or ["nothing to change"]:
        console.say(f"  {line}")
    doubt = _compare(model, subject)
    save_model(model, subject.workspace.weights.folder_of(model), options.output)
    result.artifacts["sanitized"] = str(options.output)
    result.extra["changes"] = {"nodes": [before, len(model.graph.node)], **changes}
    result.status, result.minimality, result.why = "found", "unproven" if doubt else "1-minimal", doubt
    compared = "not compared with the original" if doubt else "the same results as the original"
    console.answer(f"{options.output}: {before} nodes before, {len(model.graph.node)} now; {compared}.")
    if doubt:
        console.warn(doubt)
    return result


def _fold(model: onnx.ModelProto, subject: Subject, changes: dict[str, Any], *, shapes: bool) -> onnx.ModelProto:
    """Return the folded model: stored values let inference find more shapes, which are folded in the next round."""
    while True:
        before = len(model.graph.node)
        if shapes:
            model = fold_shapes(Network(model)) or model
        folding = Folding(Network(model))
        values = _values(folding, subject)
        model = folding.apply(values)
        if len(model.graph.node) == before:
            return model
        changes["folded_nodes"] += before - len(model.graph.node)
        changes["stored_tensors"] += len(values)
        changes["stored_bytes"] += sum(map(tensor_bytes, values.values()))


def _values(folding: Folding, subject: Subject) -> dict[str, onnx.TensorProto]:
    """Return the values to store; values that are too large or cannot be computed remain nodes."""
    network = folding.network
    known: dict[str, onnx.TensorProto] = {}
    while missing := [name for name in folding.stored() if name not in known]:
        constants = {name: constant_value(network.nodes[network.producer[name]]) for name in missing}
        values = {name: value for name, value in constants.items() if value is not None}
        wanted = [name for name in missing if name not in values]
        sizes = {name: network.infos[name].nbytes or 0 for name in wanted if name in network.infos}
        wanted = [name for name in wanted if sizes.get(name, 0) <= FOLD_LIMIT_BYTES]
        computed = _compute(network, wanted, subject)
        values |= {name: value for name, value in computed.items() if tensor_bytes(value) <= FOLD_LIMIT_BYTES}
        for name in missing:
            if name in values:
                known[name] = values[name]
            else:
                folding.keep(name)
    return {name: known[name] for name in folding.stored()}


def _compute(network: Network, names: Sequence[str], subject: Subject) -> dict[str, onnx.TensorProto]:
    """Return the values of tensors that depend on no input: computed at once, else one by one; some may be missing."""
    if not names:
        return {}
    part, _ = extract(network, (), names, network.infos)
    values = subject.models.run("fold", part, {})
    if not isinstance(values, Failed):
        tensors = {name: to_tensor(name, value) for name, value in values.items()}
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}
    if len(names) == 1:
        return {}
    return {key: tensor for name in names for key, tensor in _compute(network, [name], subject).items()}


def _declare(model: onnx.ModelProto) -> int:
    """Declare the shapes that inference finds; return how many are new."""
    network = Network(model)
    found = {name: value for name, value in network.inferred.items() if value.type.tensor_type.HasField("shape")}
    new = [name for name, value in found.items() if network.declared.get(name) != value]
    if new:
        graph, returned = model.graph, network.returned
        known = {**{value.name: value for value in graph.value_info}, **found}
        declared = [value for name, value in known.items() if name in network.producer and name not in returned]
        outputs = [known.get(value.name, value) for value in graph.output]
        keep_only(graph.output, outputs)
        keep_only(graph.value_info, declared)
    return len(new)


def _tell_apart(model: onnx.ModelProto) -> int:
    """Give each node of the graph a unique name; nodes without one keep none.

    Args:
        model: Changed in place.

    Returns:
        The number of renamed nodes.
    """
    taken = {node.name for node in model.graph.node}
    seen: set[str] = set()
    changed = 0
    for node in model.graph.node:
        if node.name and node.name in seen:
            node.name = free_name(node.name, taken)
            taken.add(node.name)
            changed += 1
        seen.add(node.name)
    return changed


def _compare(model: onnx.ModelProto, subject: Subject) -> str | None:
    """Run both models on the same inputs; return why that was not possible, if so.

    Raises:
        BisectError: Their results differ.
    """
    models, proto = subject.models, subject.network.proto
    if share_names(proto):  # ONNX Runtime refuses duplicate names of nodes
        proto = onnx.ModelProto()
        proto.CopyFrom(subject.network.proto)
        _tell_apart(proto)
    original, changed = models.write("original", proto), models.write("sanitized", model)
    tolerance, names = ToleranceOptions(nonfinite_equal=True), tuple(subject.network.outputs)
    for number, sample in enumerate(subject.samples, 1):
        inputs, golden = models.feed(f"inputs-{number}", sample), subject.workspace.scratch(f"golden-{number}.npz")
        failed = models.collect(original, inputs, golden)
        if failed is not None:
            return f"ONNX Runtime cannot run the original, so the results were not compared: {failed.message}."
        reply = models.workers.ask(Compare(reference_settings(), changed, (Sample(inputs, golden),), tolerance, names))
        if isinstance(reply, Failed):
            raise WrongResultError(
                f"ONNX Runtime runs the original and not the sanitized model: {reply.message}. Nothing was written; please "
                "report it, and leave a step out (--no-fold-constants, --no-cleanup)."
            )
        wrong = next((comparison for comparison in reply.comparisons if not comparison.passed), None)
        if wrong is not None:
            raise WrongResultError(
                f"the sanitized model gives another '{wrong.name}' than the original: {wrong.describe()}. Nothing was "
                "written; if the model declares a wrong shape inside, add --no-shape-inference, else please report it."
            )
    return None


def run(call: Call) -> Result:
    """Fold constants and clean a model up.

    Raises:
        UsageError: An option is wrong, or the model cannot be written.
        UnavailableError: The model cannot be read.
    """
    own = call[Sanitize]
    call.may_write(own.output, overwrite=own.overwrite)
    with call.open(input_shapes=own.override_input_shapes).examined(own.timeout) as session:
        return sanitize(session, own)
