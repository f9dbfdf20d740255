"""``sanitize``: folds constants, removes the unread, and compares the results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import onnx
from onnx import numpy_helper

from bisect_trt.errors import (
    WrongResultError,
)
from bisect_trt.onnxlib.cleanup import (
    Folding,
    constant_value,
    fold_shapes,
    in_opset,
    remove_unread,
    sort_nodes,
)
from bisect_trt.onnxlib.load import tensor_bytes
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import clone, free_name, keep_only, share_names
from bisect_trt.onnxlib.save import share_weights
from bisect_trt.onnxlib.shapes import fix_input_shapes
from bisect_trt.options.commands import Sanitize
from bisect_trt.report.outcomes import describe_comparison
from bisect_trt.report.result import Result
from bisect_trt.report.sentences import ORIGINAL_REFUSED, SAME_RESULTS
from bisect_trt.session.call import Call
from bisect_trt.session.subject import Subject
from bisect_trt.tensors.info import is_extension
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.worker.protocol import Compare, Compared, Failed, Sample

FOLD_LIMIT_BYTES = 16 << 20
"""Larger values are not folded, as by default in graphsurgeon and ``polygraphy surgeon
sanitize``."""


def run(call: Call) -> Result:
    """Fold constants and clean a model up, and write it if its results are equal to the original's.

    The result has the ``changes``.
    """
    options = call[Sanitize]
    call.may_write(options.output, overwrite=options.overwrite)
    with call.open(input_shapes=options.override_input_shapes).examined(options.timeout) as session:
        subject = session.subject
        console = session.console
        result = session.result
        model = subject.settings.load()
        shaped = options.override_input_shapes
        before = len(model.graph.node)
        renamed = _tell_apart(model)
        changes = Counter(renamed_nodes=renamed, folded_nodes=0, stored_tensors=0, stored_bytes=0)
        share_weights(model, subject.settings.weights, subject.workspace.candidates)
        if shaped:
            fix_input_shapes(model, shaped, assume=False)
        # The values of these need not be computed.
        first = remove_unread(model) if options.cleanup else Counter[str]()
        if options.fold_constants:
            model = _fold(model, subject, changes, shapes=options.shape_inference)
        last = remove_unread(model) if options.cleanup else Counter[str]()
        changes.update(removed_nodes=first["nodes"], removed_weights=first["weights"])
        changes.update(removed_declarations=first["declarations"] + last["declarations"])
        ordered = sort_nodes(model)
        changes.update(declared_shapes=_declare(model) if options.shape_inference else 0)
        lines = [f"input shapes fixed: {', '.join(shaped)}"] * bool(shaped) + [
            "nodes sorted topologically"
        ] * ordered
        lines += [f"{name.replace('_', ' ')}: {count}" for name, count in changes.items() if count]
        for line in lines or ["nothing to change"]:
            console.say(f"  {line}")
        if options.opset is not None:
            model = in_opset(model, options.opset)
        doubt = _compare(model, subject)
        subject.workspace.save(model, options.output)
        nodes = [before, len(model.graph.node)]
        result.changes = {
            "nodes": nodes,
            "shaped_inputs": list(shaped),
            "sorted": ordered,
            **changes,
        }
        compared = "not compared with the original" if doubt else SAME_RESULTS
        console.answer(f"{options.output}: {before} nodes before, {nodes[1]} now; {compared}.")
        if doubt:
            console.warn(doubt)
        return result.wrote(sanitized=options.output).end(why=doubt)


def _fold(
    model: onnx.ModelProto, subject: Subject, changes: Counter[str], *, shapes: bool
) -> onnx.ModelProto:
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
        stored = sum(map(tensor_bytes, values.values()))
        changes.update(
            folded_nodes=before - len(model.graph.node),
            stored_tensors=len(values),
            stored_bytes=stored,
        )


def _values(folding: Folding, subject: Subject) -> dict[str, onnx.TensorProto]:
    """Return the values to store; values that are too large or cannot be computed remain nodes."""
    network = folding.network
    stored: dict[str, onnx.TensorProto] = {}
    # What is stored makes further nodes foldable.
    while missing := [name for name in folding.stored() if name not in stored]:
        constants = {
            name: constant_value(network.nodes[network.producer[name]]) for name in missing
        }
        values = {name: value for name, value in constants.items() if value is not None}
        sizes = {name: network.infos[name].nbytes or 0 for name in missing if name in network.infos}
        wanted = [
            name
            for name in missing
            if name not in values and sizes.get(name, 0) <= FOLD_LIMIT_BYTES
        ]
        computed = _compute(network, wanted, subject)
        values |= {
            name: value
            for name, value in computed.items()
            if tensor_bytes(value) <= FOLD_LIMIT_BYTES
        }
        for name in missing:
            if name in values:
                stored[name] = values[name]
            else:
                folding.keep(name)
    return {name: stored[name] for name in folding.stored()}


def _compute(
    network: Network, names: Sequence[str], subject: Subject
) -> dict[str, onnx.TensorProto]:
    """Return the values of tensors that depend on no input: computed at once, else one by one; some may be missing."""
    if not names:
        return {}
    values = subject.models.constants(network, names)
    if not isinstance(values, Failed):
        # NumPy lacks the others, which stay nodes.
        return {
            name: numpy_helper.from_array(value, name)
            for name, value in values.items()
            if not is_extension(value.dtype)
        }
    if len(names) == 1:
        return {}
    return {
        key: tensor for name in names for key, tensor in _compute(network, [name], subject).items()
    }


def _declare(model: onnx.ModelProto) -> int:
    """Declare the shapes that inference finds; return how many are new."""
    network = Network(model)
    shaped = {
        name: value
        for name, value in network.inferred.items()
        if value.type.tensor_type.HasField("shape")
    }
    new = [name for name, value in shaped.items() if network.declared.get(name) != value]
    if new:
        graph = model.graph
        returned = network.returned
        values = {**{value.name: value for value in graph.value_info}, **shaped}
        declared = [
            value
            for name, value in values.items()
            if name in network.producer and name not in returned
        ]
        outputs = [values.get(value.name, value) for value in graph.output]
        keep_only(graph.output, outputs)
        keep_only(graph.value_info, declared)
    return len(new)


def _tell_apart(model: onnx.ModelProto) -> int:
    """Give each node of the graph a unique name, in place; nodes without one keep none.

    Return how many are renamed.
    """
    used = {node.name for node in model.graph.node}
    names = {""}
    changed = 0
    for node in model.graph.node:
        if node.name in names and node.name:
            node.name = free_name(node.name, used)
            used.add(node.name)
            changed += 1
        names.add(node.name)
    return changed


def _compare(model: onnx.ModelProto, subject: Subject) -> str | None:
    """Run both models on the same inputs; return why that was not possible, if so.

    Raises:
        BisectError: Their results differ.
    """
    models = subject.models
    proto = subject.network.proto
    if share_names(proto):
        # ONNX Runtime refuses duplicate names of nodes.
        proto = clone(proto)
        _tell_apart(proto)
    original = models.write("original", proto)
    changed = models.write("sanitized", model)
    tolerance = ToleranceOptions(nonfinite_equal=True)
    names = tuple(subject.network.outputs)
    for number, sample in enumerate(subject.samples, 1):
        inputs = models.feed(f"inputs-{number}", sample)
        golden = subject.workspace.scratch(f"golden-{number}.npz")
        failed = models.collect(original, inputs, golden)
        if failed is not None:
            return f"{ORIGINAL_REFUSED}: {failed.message}."
        reply = models.ask(
            Compare(models.reference, changed, (Sample(inputs, golden),), tolerance, names)
        )
        wrong = [reply.message] if isinstance(reply, Failed) else []
        if isinstance(reply, Compared):
            wrong = [
                f"'{comparison.name}' is another: {describe_comparison(comparison)}"
                for comparison in reply.comparisons
                if not comparison.passed
            ]
        if wrong:
            raise WrongResultError(
                f"the sanitized model does not run as the original does: {wrong[0]}. Nothing was written; if the model "
                "declares a wrong shape inside, add --no-shape-inference, else please report it, and skip a step "
                "(--no-fold-constants, --no-cleanup)."
            )
    return None
