"""Functions of a model, inlined."""

from __future__ import annotations

from collections.abc import Collection

import onnx.inliner
from onnx import ModelProto

from bisect_trt.onnxlib.nodes import addressed, clone, free_name, keep_only


def inline_functions(model: ModelProto, keep: Collection[str]) -> ModelProto:
    """Return the model with the calls of its functions inlined, except those in ``keep``, which then call a copy.

    Calls of functions of another opset stay: ONNX would convert their nodes.
    """
    if not model.functions:
        return model
    result = clone(model)
    functions = {(function.domain, function.name): function for function in model.functions}
    names = {function.name for function in model.functions}
    copies = []
    for address, node in addressed(result.graph):
        function = functions.get((node.domain, node.op_type))
        if function is not None and address in keep:
            copy = clone(function)
            copy.name = free_name(f"{function.name}_fp32", names)
            names.add(copy.name)
            node.op_type = copy.name
            copies.append(copy)
    opsets = {each.domain or "ai.onnx": each.version for each in model.opset_import}
    alike = [
        function
        for function in result.functions
        if all(
            opsets.get(each.domain or "ai.onnx") in (None, each.version)
            for each in function.opset_import
        )
    ]
    keep_only(result.functions, alike)  # the inliner refuses a model with others
    result = onnx.inliner.inline_local_functions(result)
    if copies or len(alike) < len(model.functions):
        result.functions.extend([*model.functions, *copies])  # they may call each other
    return result
