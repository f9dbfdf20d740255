"""Types and shapes of tensors: in ONNX's messages, from ONNX's shape inference, and set for the graph's inputs.

The C++ part of shape inference takes some 2 kB a node beside the model, which Python's memory cannot use afterwards: 40 MB for
20,000 nodes, where the parsed model has 11. What it finds of a node follows from the types of what the node reads, from
initializers and from ``Constant`` nodes, so a large network is done in stretches that hand their types on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from sys import intern
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto, helper

from bisect_trt.errors import (
    ModelFileError,
    UnavailableError,
    UnknownNameError,
    UnsuitableModelError,
    ValueRefusedError,
)
from bisect_trt.onnxlib.nodes import IR_WITHOUT_INITIALIZER_INPUTS, clone, keep_only
from bisect_trt.tensors.info import Infos, TensorInfo, dtype_from_name, is_string

if TYPE_CHECKING:
    from bisect_trt.onnxlib.network import Network

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
"""ONNX's name and ``ml_dtypes``' of the types that NumPy lacks; before 1.19 ``onnx.helper`` says float32 or int8."""


def element_dtype(element_type: int) -> np.dtype[np.generic]:
    """NumPy's type for an ONNX element type; strings are ``object``.

    Raises:
        UnavailableError: NumPy has no such type, nor has ``ml_dtypes``, if that is installed.
    """
    if element_type == TensorProto.STRING:
        return np.dtype(object)
    try:
        name = str(TensorProto.DataType.Name(element_type))
        extension = _EXTENSIONS.get(name)
        return (
            np.dtype(helper.tensor_dtype_to_np_dtype(element_type)) if extension is None else dtype_from_name(extension)
        )
    except (KeyError, ValueError) as error:
        raise ModelFileError(
            f"the element type {element_type} is not known to ONNX {onnx.__version__}; update the package."
        ) from error


@cache
def element_type(dtype: np.dtype[np.generic]) -> int:
    """ONNX's element type for a NumPy type."""
    if is_string(dtype):
        return int(TensorProto.STRING)
    for name, extension in _EXTENSIONS.items():
        if dtype.name == extension:
            return int(TensorProto.DataType.Value(name))
    return int(helper.np_dtype_to_tensor_dtype(dtype))


class Declarations(Mapping[str, onnx.ValueInfoProto]):
    """What is known of the types of tensors, by name; a message of its own for each of 100,000 takes hundreds of bytes.

    All but the name is kept as bytes, which tensors of the same type share.
    """

    def __init__(self, known: Declarations | None = None) -> None:
        """Begin with what others say."""
        self._kinds: dict[str, bytes] = {} if known is None else dict(known._kinds)
        self._shared: dict[bytes, bytes] = {}

    def put(self, value: onnx.ValueInfoProto) -> None:
        """Declare a tensor as this does; the last declaration counts."""
        bare = clone(value)
        bare.ClearField("name")
        kind = bare.SerializeToString()
        self._kinds[intern(value.name)] = self._shared.setdefault(kind, kind)  # a network has the same name

    def __getitem__(self, name: str) -> onnx.ValueInfoProto:
        value = onnx.ValueInfoProto()
        value.ParseFromString(self._kinds[name])
        value.name = name
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)

    def __contains__(self, name: object) -> bool:
        return name in self._kinds

    def infos(self) -> Infos:
        """Types and shapes of the plain tensors among them."""
        one_of_each = {kind: name for name, kind in self._kinds.items()}
        known = {kind: to_info(self[name]) for kind, name in one_of_each.items()}
        return Infos(self._kinds, {kind: info for kind, info in known.items() if info is not None})


def to_info(value: onnx.ValueInfoProto) -> TensorInfo | None:
    """What a declaration says of a tensor; ``None`` where it says no element type or it is no tensor."""
    tensor = value.type.tensor_type
    if value.type.WhichOneof("value") != "tensor_type" or not tensor.elem_type:
        return None
    shape: tuple[int | str | None, ...] | None = None
    if tensor.HasField("shape"):
        shape = tuple(_dimension(dim) for dim in tensor.shape.dim)
    try:
        return TensorInfo(value.name, element_dtype(tensor.elem_type), shape)
    except UnavailableError:
        return None


def _dimension(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return int(dim.dim_value)
    return str(dim.dim_param) or None


def from_info(info: TensorInfo) -> onnx.ValueInfoProto:
    """A declaration of a tensor."""
    return helper.make_tensor_value_info(info.name, element_type(info.dtype), info.shape)


def value_info(
    name: str, infos: Mapping[str, TensorInfo], declared: Mapping[str, onnx.ValueInfoProto]
) -> onnx.ValueInfoProto:
    """The best declaration there is: what was seen when it ran, else what the model says, else the bare name.

    ONNX Runtime finds the type of an output by itself, so that a bare name will do there.
    """
    if name in infos:
        return from_info(infos[name])
    return declared.get(name) or onnx.ValueInfoProto(name=name)


AT_ONCE = 2048
"""Nodes of a stretch. Below twice as many the whole is done at once."""
_SHAPE_BYTES = 1 << 16
"""A larger weight is no shape: inference is given its type alone, for it makes a copy, and no message can be of 2 GB."""


def infer(network: Network, at_once: int = AT_ONCE, *, follow_values: bool = False) -> Declarations | None:
    """The types that are declared and found, of sequences too, by name; ``None`` where inference gives up.

    Args:
        network: The model.
        at_once: Nodes of a stretch.
        follow_values: Whether sizes that nodes compute of shapes are followed to where they are used.
    """
    order, known = network.order, Declarations(network.declared)
    step = at_once if len(order) >= 2 * at_once else len(order)
    try:
        for start in range(0, len(order), step):
            for value in _of(network, order[start : start + step], known, follow_values=follow_values):
                known.put(value)
    except Exception:  # it gives up as a whole on what it does not understand, in several ways
        return None
    return known


def _of(
    network: Network, stretch: Sequence[int], known: Declarations, *, follow_values: bool
) -> Iterable[onnx.ValueInfoProto]:
    """What is found of a stretch.

    Args:
        network: The model.
        stretch: Nodes that follow each other in topological order.
        known: What is known of the tensors that it reads.
        follow_values: See :func:`infer`.
    """
    source, inside = network.proto, set(stretch)
    before = {parent for index in stretch for parent in network.parents(index)} - inside
    constants = [index for index in sorted(before) if network.nodes[index].op_type == "Constant"]
    nodes = [*constants, *stretch]
    made = {name for index in nodes for name in network.made(index)}
    model = onnx.ModelProto(ir_version=max(source.ir_version, IR_WITHOUT_INITIALIZER_INPUTS))
    model.opset_import.extend(source.opset_import)
    model.functions.extend(source.functions)
    graph = model.graph
    graph.node.extend(network.nodes[index] for index in nodes)
    for name in dict.fromkeys(name for index in stretch for name in network.reads[index]):
        weight = network.initializers.get(name)
        if weight is not None and weight.ByteSize() <= _SHAPE_BYTES:
            graph.initializer.append(weight)
        elif name in network.sparse_initializers:
            graph.sparse_initializer.append(network.sparse_initializers[name])
        elif name not in made and name in known:
            graph.input.append(known[name])
    graph.value_info.extend(known[name] for name in made if name in known and name not in network.returned)
    graph.output.extend(known[name] for name in network.outputs if name in made and name in known)
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=follow_values).graph
    return (value for value in chain(inferred.value_info, inferred.output) if value.HasField("type"))


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
            raise ModelFileError(
                f"the input '{name}' declares no type, so the model is not valid ONNX; export it again."
            )
        info = to_info(value)
        if info is None:
            if value.type.tensor_type.elem_type:
                element_dtype(value.type.tensor_type.elem_type)  # raises, with the reason
            raise UnsuitableModelError(f"the input '{name}' is not a plain tensor, which bisect-trt cannot feed.")
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
            raise UnknownNameError(f"the model has no input '{name}'; its inputs are: {', '.join(inputs) or 'none'}.")
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
            raise ValueRefusedError(
                f"the input '{name}' has {len(info.shape)} dimensions, but the shape {list(given)} has {len(given)}."
            )
        for dim, size in zip(info.shape, given, strict=True):
            if isinstance(dim, str):
                sizes.setdefault(dim, size)
    return sizes


def free_inputs(
    model: onnx.ModelProto, shapes: Mapping[str, Sequence[int | str | None]], *, forget: bool = True
) -> onnx.ModelProto:
    """The model with those dimensions of its inputs free that are no number.

    Args:
        model: The original; it is not changed.
        shapes: By input.
        forget: Whether what the model declares of inner shapes is dropped too.
    """
    freed = clone(model)
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
    # Both are made first: values may be parts of this model.
    outputs = [values.get(value.name, value) for value in graph.output]
    made = {name for node in graph.node for name in node.output}.difference(value.name for value in graph.output)
    declared = [values[name] for name in values if name in made]
    keep_only(graph.output, outputs)
    keep_only(graph.value_info, declared)
