"""Fixed shapes for the graph's inputs, and types for what has none declared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.graph.network import Network
from bisect_trt.graph.values import element_dtype, known_infos, to_info
from bisect_trt.tensors.info import TensorInfo


def input_infos(network: Network) -> list[TensorInfo]:
    """Type and shape of each graph input that must be fed, in order.

    Raises:
        UsageError: An input is no tensor (a sequence, map or optional).
        UnavailableError: An input declares no type, or one that nothing here knows.
    """
    infos = []
    for name in network.inputs:
        value = network.declared.get(name)
        if value is None:
            raise UnavailableError(
                f"the input '{name}' declares no type, so the model is not valid ONNX; export it again."
            )
        info = to_info(value)
        if info is None:
            if value.type.tensor_type.elem_type:
                element_dtype(value.type.tensor_type.elem_type)  # raises, with the reason
            raise UsageError(f"the input '{name}' is not a plain tensor, which bisect-trt cannot feed.")
        infos.append(info)
    return infos


def take_input_shapes(model: onnx.ModelProto, network: Network) -> None:
    """Give a model's inputs the shapes that those of another graph have, 1 for each dimension that is free there.

    Raises:
        UsageError: The other graph's inputs are not this model's.
    """
    fix_input_shapes(model, {info.name: [int(dim or 1) for dim in info.shape or ()] for info in input_infos(network)})


def fix_input_shapes(
    model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]], *, assume: bool = True
) -> dict[str, tuple[int | str | None, ...]]:
    """Give every graph input a fixed shape: the given one, and 1 for each dimension that is free.

    A dimension that has a name takes the size which a given shape has for that name. An input of unknown rank gets one
    dimension.

    Args:
        model: Changed in place.
        shapes: By input name.
        assume: Whether dimensions that nobody gave become 1; else they stay free.

    Returns:
        The inputs that had free dimensions which nobody gave, with the shape they now have.

    Raises:
        UsageError: A name is no input of the model, or a shape has another rank than the input.
    """
    weights = {tensor.name for tensor in model.graph.initializer}
    weights |= {tensor.values.name for tensor in model.graph.sparse_initializer}
    inputs = {value.name: value for value in model.graph.input if value.name not in weights}
    infos = {name: info for name, value in inputs.items() if (info := to_info(value)) is not None}
    for name in shapes:
        if name not in inputs:
            raise UsageError(f"the model has no input '{name}'; its inputs are: {', '.join(inputs) or 'none'}.")
    sizes = _named_sizes(infos, shapes)
    assumed: dict[str, tuple[int | str | None, ...]] = {}
    contradicted = False
    for name, info in infos.items():
        old = (None,) if info.shape is None else info.shape
        # A name may be known by now; what is not, is 1.
        known = tuple(shapes[name]) if name in shapes else tuple(sizes.get(dim, dim) for dim in old)
        new = tuple(dim if isinstance(dim, int) or not assume else 1 for dim in known)
        if new == old:
            continue
        if new != known:
            assumed[name] = new
        contradicted |= any(isinstance(was, int) and was != dim for was, dim in zip(old, new, strict=False))
        element_type = inputs[name].type.tensor_type.elem_type
        inputs[name].CopyFrom(onnx.helper.make_tensor_value_info(name, element_type, new))
    if contradicted:
        forget_shapes(model.graph)
    return assumed


def _named_sizes(infos: Mapping[str, TensorInfo], shapes: Mapping[str, Sequence[int]]) -> dict[int | str | None, int]:
    """The sizes that given shapes have for dimensions with a name."""
    sizes: dict[int | str | None, int] = {}
    for name, info in infos.items():
        given = shapes.get(name)
        if given is None or info.shape is None:
            continue
        if len(given) != len(info.shape):
            raise UsageError(
                f"the input '{name}' has {len(info.shape)} dimensions, but the shape {list(given)} has {len(given)}."
            )
        for dim, size in zip(info.shape, given, strict=True):
            if isinstance(dim, str):
                sizes.setdefault(dim, size)
    return sizes


def free_dimensions(model: onnx.ModelProto, axes: Mapping[str, int]) -> onnx.ModelProto:
    """The model with one dimension of each of some inputs free, of one name for all."""
    freed = onnx.ModelProto()
    freed.CopyFrom(model)
    for value in freed.graph.input:
        if value.name in axes:
            value.type.tensor_type.shape.dim[axes[value.name]].dim_param = "batch"
    forget_shapes(freed.graph)
    return freed


def free_inputs(
    model: onnx.ModelProto, shapes: Mapping[str, Sequence[int | str | None]], *, forget: bool = True
) -> onnx.ModelProto:
    """The model with those dimensions of its inputs free that are no number.

    Args:
        model: The original; it is not changed.
        shapes: By input.
        forget: Whether what the model declares of inner shapes is dropped too.
    """
    freed = onnx.ModelProto()
    freed.CopyFrom(model)
    for value in freed.graph.input:
        if value.name in shapes:
            kind = value.type.tensor_type.elem_type
            value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, kind, shapes[value.name]))
    if forget:
        forget_shapes(freed.graph)
    return freed


def forget_shapes(graph: onnx.GraphProto) -> None:
    """Drop what a model declares of inner shapes, when its inputs get others; an output keeps its rank, which it needs."""
    del graph.value_info[:]
    for value in graph.output:
        if value.type.WhichOneof("value") == "tensor_type":
            for dim in value.type.tensor_type.shape.dim:
                dim.Clear()


def declare_shapes(model: onnx.ModelProto, values: Mapping[str, onnx.ValueInfoProto]) -> None:
    """Declare the types and shapes of tensors in a model.

    Args:
        model: Changed in place.
        values: What is known of its tensors, outputs included, by name; what the model declares itself is part of it.
    """
    graph = model.graph
    outputs = [values.get(value.name, value) for value in graph.output]
    inner = values.keys() - {value.name for value in (*graph.input, *graph.output)}
    # Assigned after both are made: the values may be parts of this model.
    declared = [values[name] for name in values if name in inner]
    del graph.output[:], graph.value_info[:]
    graph.output.extend(outputs)
    graph.value_info.extend(declared)


def inferred_infos(network: Network) -> dict[str, TensorInfo]:
    """What ONNX's shape inference says of the tensors, where the model could not be run to see.

    Types that stay unknown are missing.
    """
    return known_infos(network.declared | network.inferred)
