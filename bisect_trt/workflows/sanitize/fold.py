"""Compute what depends on no input, on ONNX Runtime, and store it."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from bisect_trt.graph.cut import extract
from bisect_trt.graph.externals import tensor_bytes
from bisect_trt.graph.fold import Folding, constant_value, fold_shapes, to_tensor
from bisect_trt.graph.network import Network
from bisect_trt.graph.shapes import inferred_infos
from bisect_trt.probing.protocol import Failed
from bisect_trt.workflows.sanitize.changes import Changes
from bisect_trt.workflows.subject import Subject


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
