"""Types and shapes of tensors: in ONNX's messages, from ONNX's shape inference, and set for the graph's inputs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import onnx
from msgspec import Struct
from onnx import TensorProto, helper

from bisect_trt.errors import (
    ModelFileError,
    UnavailableError,
    UnknownNameError,
    ValueRefusedError,
)
from bisect_trt.onnxlib.nodes import (
    clone,
)
from bisect_trt.tensors.info import TensorInfo, dtype_from_name

Shape = tuple[int | str | None, ...]
"""A dimension is a size, a name, or free."""
_EXTENSIONS = {
    "BFLOAT16": "bfloat16",
    "FLOAT8E4M3FN": "float8_e4m3fn",
    "FLOAT8E4M3FNUZ": "float8_e4m3fnuz",
    "FLOAT8E5M2": "float8_e5m2",
    "FLOAT8E5M2FNUZ": "float8_e5m2fnuz",
    "FLOAT8E8M0": "float8_e8m0fnu",
    "FLOAT4E2M1": "float4_e2m1fn",
    "INT4": "int4",
    "UINT4": "uint4",
    "INT2": "int2",
    "UINT2": "uint2",
}
"""ONNX's name and ``ml_dtypes``' of the types that NumPy lacks; before 1.19 ``onnx.helper`` says
float32 or int8."""


def element_dtype(element_type: int) -> np.dtype[np.generic]:
    """Return NumPy's type for an ONNX element type.

    Raises:
        UnavailableError: Neither NumPy nor the installed ``ml_dtypes`` has such a type.
    """
    if element_type == TensorProto.STRING:
        # ONNX says object, which no file holds without pickle.
        return np.dtype(np.str_)
    try:
        name = str(TensorProto.DataType.Name(element_type))
        extension = _EXTENSIONS.get(name)
        return (
            np.dtype(helper.tensor_dtype_to_np_dtype(element_type))
            if extension is None
            else dtype_from_name(extension)
        )
    except (KeyError, ValueError) as error:
        raise ModelFileError(
            f"the element type {element_type} is unknown to ONNX {onnx.__version__}; upgrade onnx."
        ) from error


@cache
def element_type(dtype: np.dtype[np.generic]) -> int:
    """Return ONNX's element type for a NumPy type."""
    if dtype.kind == "U":
        # ONNX has objects for strings, and its older releases nothing else.
        return int(TensorProto.STRING)
    for name, extension in _EXTENSIONS.items():
        if dtype.name == extension:
            return int(TensorProto.DataType.Value(name))
    return int(helper.np_dtype_to_tensor_dtype(dtype))


def tensor_infos(types: Mapping[str, onnx.ValueInfoProto]) -> dict[str, TensorInfo]:
    """Return types and shapes of the plain tensors among declarations, by name."""
    infos = map(to_info, types.values())
    return {info.name: info for info in infos if info is not None}


def to_info(value: onnx.ValueInfoProto) -> TensorInfo | None:
    """Return the type and shape in a declaration; ``None`` without an element type, or if it declares no tensor."""
    tensor = value.type.tensor_type
    if value.type.WhichOneof("value") != "tensor_type" or not tensor.elem_type:
        return None
    shape = tuple(map(_dimension, tensor.shape.dim)) if tensor.HasField("shape") else None
    try:
        return TensorInfo(value.name, element_dtype(tensor.elem_type), shape)
    except UnavailableError:
        return None


def _dimension(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return int(dim.dim_value)
    return str(dim.dim_param) or None


def value_info(
    name: str, infos: Mapping[str, TensorInfo], declared: Mapping[str, onnx.ValueInfoProto]
) -> onnx.ValueInfoProto:
    """Return the declaration of a tensor: as it ran, else the model's, else the bare name, which ONNX Runtime accepts.

    Args:
        name: The name of the tensor.
        infos: Types and shapes of tensors as they ran, by name.
        declared: The declarations of the model, by name.
    """
    if name in infos:
        return helper.make_tensor_value_info(
            name, element_type(infos[name].dtype), infos[name].shape
        )
    return declared.get(name) or onnx.ValueInfoProto(name=name)


def identity_model(original: onnx.ModelProto, infos: Mapping[str, TensorInfo]) -> onnx.ModelProto:
    """Return a model of Identity nodes only, in the versions of a model.

    Args:
        original: The model with the IR version and the opsets.
        infos: The types and static shapes of the inputs; the output of ``x`` is ``x/identity``.
    """
    model = onnx.ModelProto(ir_version=original.ir_version, opset_import=original.opset_import)
    model.graph.name = "identity"
    for name, info in infos.items():
        output = f"{name}/identity"
        model.graph.node.add(op_type="Identity", name=output, input=[name], output=[output])
        for values, tensor in ((model.graph.input, name), (model.graph.output, output)):
            values.append(value_info(tensor, {tensor: info}, {}))
    return model


def resized(
    infos: Iterable[TensorInfo], shapes: Mapping[str, Sequence[int | str | None]]
) -> list[TensorInfo]:
    """Return inputs with other shapes, where these are given."""
    return [
        replace(info, shape=tuple(shapes[info.name])) if info.name in shapes else info
        for info in infos
    ]


class InputSizes(Struct, frozen=True):
    """The size of each dimension of a model's inputs.

    Attributes:
        shapes: The shape of each input, by name.
        assumed: The shapes in which a free dimension without a given size became 1.
        contradicted: The inputs for which the model declares another size than the given one.
    """

    shapes: Mapping[str, Shape]
    assumed: Mapping[str, Shape]
    contradicted: frozenset[str]


def sizes_at(
    shapes: Mapping[str, Sequence[int | range]], share: float | None
) -> dict[str, list[int | None]]:
    """Return shapes with one size for each range of sizes.

    Args:
        shapes: Shapes by input name.
        share: The place of the size in each range, from 0, the smallest, to 1, the largest;
            ``None`` for free dimensions.
    """

    def at(dim: range) -> int | None:
        return None if share is None else dim[round(share * (len(dim) - 1))]

    return {
        name: [dim if isinstance(dim, int) else at(dim) for dim in shape]
        for name, shape in shapes.items()
    }


def require_input(name: str, inputs: Collection[str], option: str = "") -> None:
    """Make sure that a model has an input, which ``option`` names.

    Raises:
        UsageError: It has not.
    """
    if name not in inputs:
        raise UnknownNameError(
            f"{option}the model has no input '{name}'; its inputs are: {', '.join(inputs) or 'none'}.",
            name,
            inputs,
        )


def input_sizes(
    model: onnx.ModelProto, shapes: Mapping[str, Sequence[int | None]], *, assume: bool = True
) -> InputSizes:
    """Return a size for each dimension of the inputs: the given one, and 1 for each other free dimension.

    A named dimension gets its size from the given shapes. An input of unknown rank gets one
    dimension.

    Args:
        model: The model; it is not changed.
        shapes: The given shapes, by input name; ``None`` keeps a dimension as it is declared.
        assume: Whether free dimensions without a given size become 1; else they stay free.

    Raises:
        UsageError: A name is no input of the model, or a shape has another rank than the input.
    """
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = {value.name: value for value in model.graph.input if value.name not in weights}
    infos = {name: info for name, value in inputs.items() if (info := to_info(value)) is not None}
    sizes: dict[int | str | None, int] = {}
    for name, shape in shapes.items():
        require_input(name, inputs)
        if name in infos:
            # The first size that is given for a name stands.
            sizes = _named_sizes(infos[name], shape) | sizes
    chosen: dict[str, Shape] = {}
    assumed: dict[str, Shape] = {}
    contradicted = set()
    for name, info in infos.items():
        wanted = shapes.get(name)
        declared = info.shape
        if declared is None:
            declared = (None,) * len(shapes.get(name, (None,)))
        sized = _given_sizes(declared, wanted, sizes)
        chosen[name] = tuple(dim if isinstance(dim, int) or not assume else 1 for dim in sized)
        if chosen[name] != sized:
            assumed[name] = chosen[name]
        pairs = zip(declared, chosen[name], strict=False)
        if any(isinstance(dim, int) and dim != size for dim, size in pairs):
            contradicted.add(name)
    return InputSizes(chosen, assumed, frozenset(contradicted))


def _given_sizes(
    declared: Shape, wanted: Sequence[int | None] | None, sizes: Mapping[int | str | None, int]
) -> Shape:
    """Return a declared shape with the given size of each dimension, by its place or else by its name."""
    pairs = zip(declared, wanted or [None] * len(declared), strict=True)
    merged = [dim if size is None else size for dim, size in pairs]
    return tuple(sizes.get(dim, dim) for dim in merged)


def _named_sizes(info: TensorInfo, shape: Sequence[int | None]) -> dict[int | str | None, int]:
    """Return the sizes that a given shape has for the named dimensions of an input; the first of a name counts."""
    declared = info.shape
    if declared is not None and len(shape) != len(declared):
        raise ValueRefusedError(
            f"the input '{info.name}' has {len(declared)} dimensions, but the shape {list(shape)} has {len(shape)}."
        )
    pairs = [*zip(declared or (), shape, strict=False)]
    return {dim: size for dim, size in reversed(pairs) if isinstance(dim, str) and size is not None}


def fix_input_shapes(
    model: onnx.ModelProto, shapes: Mapping[str, Sequence[int | None]], *, assume: bool = True
) -> None:
    """Declare every graph input with the sizes of :func:`input_sizes`.

    Args:
        model: Changed in place. Where sizes contradict it, the declared shapes of inner tensors are
            dropped.
        shapes: By input name.
        assume: Whether free dimensions without a given size become 1; else they stay free.

    Raises:
        UsageError: As :func:`input_sizes`.
    """
    sizes = input_sizes(model, shapes, assume=assume)
    for value in model.graph.input:
        if (
            value.name in sizes.shapes
            and (info := to_info(value)) is not None
            and info.shape != sizes.shapes[value.name]
        ):
            declare_input(value, sizes.shapes[value.name])
    if sizes.contradicted:
        forget_shapes(model.graph)


def declare_input(value: onnx.ValueInfoProto, shape: Sequence[int | str | None]) -> None:
    """Declare another shape for an input."""
    value.CopyFrom(
        helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, shape)
    )


def free_inputs(
    model: onnx.ModelProto, shapes: Mapping[str, Sequence[int | str | None]], *, forget: bool = True
) -> onnx.ModelProto:
    """Return the model with other input shapes.

    Args:
        model: The model; it is not changed.
        shapes: The shape of each input to change: sizes, names, or ``None`` for a free dimension.
        forget: Whether the declared shapes of inner tensors are dropped.
    """
    freed = clone(model)
    for value in freed.graph.input:
        if value.name in shapes:
            declare_input(value, shapes[value.name])
    if forget:
        forget_shapes(freed.graph)
    return freed


def forget_shapes(graph: onnx.GraphProto) -> None:
    """Drop the declared shapes of inner tensors; an output keeps its rank."""
    del graph.value_info[:]
    for value in graph.output:
        if value.type.WhichOneof("value") == "tensor_type":
            for dim in value.type.tensor_type.shape.dim:
                dim.Clear()
