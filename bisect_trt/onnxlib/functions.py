"""Functions of a model, inlined."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import onnx.inliner
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

from bisect_trt.onnxlib.nodes import (
    DEFAULT_DOMAINS,
    addressed,
    bodies,
    clone,
    defined_names,
    free_name,
    function_key,
    inner_nodes,
    is_end,
    keep_only,
    label,
)


def is_call(model: ModelProto, node: NodeProto) -> bool:
    """Return whether a node calls one of the model's functions."""
    return function_key(node) in map(function_key, model.functions)


def inline_functions(model: ModelProto, keep: Collection[str]) -> ModelProto:
    """Return the model with the calls of its functions inlined, except those in ``keep``, which then call a copy.

    Calls that cannot be inlined stay: see :func:`inlined`.
    """
    if not model.functions:
        return model
    result = clone(model)
    functions = {function_key(function): function for function in model.functions}
    names = {function.name for function in model.functions}
    copies = []
    for address, node in addressed(result.graph):
        function = functions.get(function_key(node))
        if function is not None and address in keep:
            copy = clone(function)
            copy.name = free_name(f"{function.name}_fp32", names)
            names.add(copy.name)
            node.op_type = copy.name
            copies.append(copy)
    result = inlined(result)
    if copies:
        # They may call each other.
        keep_only(result.functions, [*model.functions, *copies])
    return result


def opened(model: ModelProto) -> Iterator[tuple[str, NodeProto, GraphProto]]:
    """Yield the bodies with Q/DQ nodes: the prefix of names of nodes in them, the node around, the body; outer ones first.

    A body that has a tensor's name in common with another graph is left out.
    """
    waiting = [("", model.graph)]
    defined = defined_names(model.graph)
    for prefix, graph in waiting:
        for node in graph.node:
            for body in bodies(node):
                names = defined_names(body) - {""}
                # A name that is defined twice would be two tensors in one view.
                if defined.isdisjoint(names) and any(map(is_end, inner_nodes(body.node))):
                    defined |= names
                    waiting.append((f"{prefix}{label(node)}/", body))
                    yield waiting[-1][0], node, body


def flattened(model: ModelProto) -> ModelProto:
    """Return a view of a model that does not run: functions inlined, nodes of bodies with Q/DQ after all nodes of the main graph.

    They are named ``OUTER/INNER``. The inputs and outputs of these bodies are the model's too, and
    the nodes around read the outputs.
    """
    model = inline_functions(model, ())
    if not any(opened(model)):
        return model
    flat = clone(model)
    inner: list[NodeProto] = []
    # Inner bodies first, since an outer one that is emptied has no inner one left.
    for prefix, outer, body in reversed([*opened(flat)]):
        outer.input.extend(value.name for value in body.output)
        nodes = [clone(node) for node in body.node]
        for node in nodes:
            node.name = prefix + label(node)
        inner = nodes + inner
        for field in ("input", "output", "initializer", "value_info"):
            getattr(flat.graph, field).extend(getattr(body, field))
        body.Clear()
    flat.graph.node.extend(inner)
    return flat


def inlined(model: ModelProto, selected: Collection[tuple[str, str]] | None = None) -> ModelProto:
    """Return the model with the calls of its functions inlined.

    Calls stay where the model's operator sets define an operator of the function in another way,
    and all of them where ONNX refuses the model.

    Args:
        model: The model.
        selected: Domain and name of the functions to inline; ``None`` for all.
    """
    opsets = {_domain(opset): opset.version for opset in model.opset_import}
    result = clone(model)
    fitting = [function for function in result.functions if _fits(function, opsets)]
    # The inliner refuses a model with others.
    keep_only(result.functions, fitting)
    for function in result.functions:
        for opset in function.opset_import:
            opset.version = opsets[_domain(opset)]
    try:
        if selected is None:
            result = onnx.inliner.inline_local_functions(result)
        else:
            result = onnx.inliner.inline_selected_functions(result, [*selected])
    except Exception:
        # The inliner raises several exceptions for calls that do not fit their function.
        return model
    if selected is not None or len(fitting) < len(model.functions):
        keep_only(result.functions, model.functions)
    return result


def _domain(message: onnx.OperatorSetIdProto | NodeProto) -> str:
    return "" if message.domain in DEFAULT_DOMAINS else message.domain


def _fits(function: FunctionProto, opsets: dict[str, int]) -> bool:
    """Return whether a model's operator sets define each operator of a function as the function's sets do.

    Args:
        function: The function.
        opsets: The version of each domain in the model; domains that only the function has are
            added.
    """
    versions = {_domain(opset): opset.version for opset in function.opset_import}

    for domain, version in versions.items():
        opsets.setdefault(domain, version)

    def same(node: NodeProto) -> bool:
        domain = _domain(node)
        if domain not in versions or versions[domain] == opsets[domain]:
            return True
        try:
            pair = [
                onnx.defs.get_schema(node.op_type, version, domain)
                for version in (versions[domain], opsets[domain])
            ]
        except (onnx.defs.SchemaError, TypeError):
            # The operator is unknown, or its version is past 32 bits.
            return False
        return bool(pair[0].since_version == pair[1].since_version)

    return all(map(same, inner_nodes(function.node)))
