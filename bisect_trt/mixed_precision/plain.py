"""A quantized model in floats: its weights dequantized, or those of the model before quantization."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from bisect_trt.commands.subject import Subject
from bisect_trt.errors import ModelRefusedError, UnsuitableModelError
from bisect_trt.mixed_precision.grid import Grid
from bisect_trt.onnxlib.load import load_all_inside, load_model, read_weight
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import attribute, held
from bisect_trt.onnxlib.qdq import Group, Pair, Stored, has_quantized, is_dequantize, is_quantize, unquantize
from bisect_trt.onnxlib.shapes import take_input_shapes
from bisect_trt.worker.protocol import Failed

_SAME = 1e-3
"""Relative error up to which two float models compute the same."""
_MOVES = ("Transpose", "Reshape", "Identity", "Squeeze", "Unsqueeze", "Flatten", "Cast")
_NAMED = re.compile(r"(?i)(?<![a-z])(relu6?|clip)(?![a-z])")
_ACTIVATIONS = ("Relu", "Clip", "LeakyRelu", "PRelu", "ThresholdedRelu", "Elu", "Selu", "Celu", "HardSwish", "Max")
_SIX = 6.0
Clip = tuple[float, float | None]


@dataclass(frozen=True)
class Plain:
    """The model with nothing quantized of what is searched.

    Attributes:
        network: The model.
        groups: The groups that are searched, each pair with the activation function that it stands for.
        weights: The weights that are stored quantized, in floats, by the output of the node that dequantizes them.
        original: The model before quantization, if given; with the same input shapes.
        taken: The weights that were taken from that, by the same names.
        why: Why not all were, if so.
    """

    network: Network
    groups: tuple[Group, ...]
    weights: Stored
    original: Network | None = None
    taken: Mapping[str, NDArray[Any]] | None = None
    why: str | None = None

    @property
    def truth(self) -> Network:
        """The model that the reference runs."""
        return self.network if self.original is None else self.original


def make_plain(subject: Subject, groups: Sequence[Group], original: Path | None) -> Plain:
    """Take out every group.

    Args:
        subject: The model.
        groups: The groups that are searched.
        original: The model before quantization, if given.

    Raises:
        UsageError: That has other inputs or outputs.
        UnavailableError: It cannot be read, or ONNX Runtime does not dequantize a weight.
    """
    network = subject.network
    stored = [
        network.nodes[i].output[0]
        for group in groups
        for pair in group.pairs
        if not pair.quantize
        for i in pair.dequantize
    ]
    weights = _dequantized(subject, stored)
    source = None if original is None else _original(subject, original)
    groups = tuple(_with_activations(subject, groups, source))
    pairs = [pair for group in groups for pair in group.pairs]
    own = Network(unquantize(network, pairs, weights))
    if source is None:
        return Plain(own, groups, weights)
    found = {name: value for name in stored if (value := _weight_of(network, source, name)) is not None}
    found = {name: value for name, value in found.items() if value.shape == tuple(weights[name].dims)}
    merged = dict(weights)
    for name, value in found.items():
        dtype = numpy_helper.to_array(weights[name]).dtype
        merged[name] = numpy_helper.from_array(np.asarray(value, dtype), name)
    mended = Network(unquantize(network, pairs, merged))
    if _same(subject, source, mended):
        missing = len(stored) - len(found)
        why = f"{missing} of {len(stored)} quantized weights are not found in {original}" if missing else None
        return Plain(mended, groups, merged, source, found, why)
    why = f"with the weights of {original} the model computes something else, so they are dequantized"
    return Plain(own, groups, weights, source, {}, why)


def constant_of(subject: Subject, name: str | None, network: Network | None = None) -> NDArray[Any] | None:
    """The value of a tensor that depends on no input; ``None`` of another one.

    Args:
        subject: The quantized model.
        name: The tensor.
        network: That model with other tensors in floats, for its value there.
    """
    network = network or subject.network
    if name is None:
        return None
    tensor = network.initializers.get(name)
    maker = network.producer.get(name)
    if tensor is None and (maker is None or not network.constant[maker]):
        return None
    if tensor is None and maker is not None:
        tensor = held(network.nodes[maker])
    try:
        if tensor is not None:
            return read_weight(tensor, subject.workspace.weights.folder_of(network.proto))
    except Exception:  # its file is gone, or it is of a type that NumPy lacks: ONNX and NumPy raise their own
        return None
    made = _computed(subject, [name], network)
    return None if isinstance(made, Failed) else np.asarray(made[name])


def _dequantized(subject: Subject, names: Sequence[str]) -> dict[str, TensorProto]:
    """The values of weights, computed by the reference runtime all at once.

    Raises:
        UnavailableError: It cannot.
    """
    made = _computed(subject, names, subject.network) if names else {}
    if isinstance(made, Failed):
        raise ModelRefusedError(f"ONNX Runtime does not dequantize the model's weights: {made.message}.")
    return {name: numpy_helper.from_array(np.asarray(made[name]), name) for name in names}


def _computed(subject: Subject, names: Sequence[str], network: Network) -> dict[str, NDArray[Any]] | Failed:
    """Tensors that depend on no input; the model itself is not run, so this is not taken for the reference."""
    nodes, waiting = set[int](), list(names)
    while waiting:
        maker = network.producer.get(waiting.pop())
        if maker is not None and maker not in nodes:
            nodes.add(maker)
            waiting += network.reads[maker]
    model = onnx.ModelProto()
    model.CopyFrom(network.proto)
    read = {name for index in nodes for name in network.reads[index]}
    copies = [onnx.NodeProto.FromString(network.nodes[i].SerializeToString()) for i in network.order if i in nodes]
    stored = [tensor for tensor in network.proto.graph.initializer if tensor.name in read]
    for field in ("node", "initializer", "input", "output", "value_info"):
        model.graph.ClearField(field)
    model.graph.node.extend(copies)
    model.graph.initializer.extend(stored)
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return subject.models.run("weights", model, {})


def _original(subject: Subject, path: Path) -> Network:
    """The model before quantization, with its weights inside and the shapes of the search."""
    proto = load_model(path)
    load_all_inside(proto, path.parent)
    own = subject.network
    if has_quantized(proto):
        raise UnsuitableModelError(f"--reference: {path} is quantized itself; give the model from before quantization.")
    _rename_outputs(proto, own)
    network = Network(proto)
    for what, mine, theirs in (("inputs", own.inputs, network.inputs), ("outputs", own.outputs, network.outputs)):
        if set(mine) != set(theirs):
            raise UnsuitableModelError(
                f"--reference: {path} has the {what} {sorted(theirs)} and the quantized model {sorted(mine)}; give the "
                "model that it was quantized from."
            )
    take_input_shapes(proto, own)
    return Network(proto)


def _rename_outputs(proto: onnx.ModelProto, quantized: Network) -> None:
    """Give an output the name that it has in the quantized model, in place: PyTorch names it after the last dequantize node."""
    taken = {name for node in proto.graph.node for name in node.output} | {value.name for value in proto.graph.input}
    for name in quantized.outputs:
        tensor = name
        while (maker := quantized.producer.get(tensor)) is not None:
            node = quantized.nodes[maker]
            if not (is_quantize(node) or is_dequantize(node)):
                break
            tensor = node.input[0]
        for value in proto.graph.output:
            if name not in taken and value.name == tensor:
                proto.graph.node.append(onnx.helper.make_node("Identity", [tensor], [name], name=f"{name}/renamed"))
                value.name = name


def _weight_of(network: Network, source: Network, name: str) -> NDArray[Any] | None:
    """The weight of the original in the place of a dequantized one: the same input of the same operator."""
    readers, seen = [(name, index) for index in network.consumers.get(name, ())], set[str]()
    names = {node.name: index for index, node in enumerate(source.nodes) if node.name}
    while readers:
        read, index = readers.pop()
        node = network.nodes[index]
        if node.op_type in _MOVES and node.output[0] not in seen:
            seen.add(node.output[0])
            readers += [(node.output[0], other) for other in network.consumers.get(node.output[0], ())]
        place = list(node.input).index(read) if read in node.input else None
        twin = _twin(network, source, index, names)
        if place is None or twin is None or place >= len(source.nodes[twin].input):
            continue
        found = _constant(source, source.nodes[twin].input[place])
        if found is not None:
            return found
    return None


def _twin(network: Network, source: Network, index: int, names: Mapping[str, int]) -> int | None:
    """The same operator in the original: by its name, else by its outputs."""
    node = network.nodes[index]
    makers = [names.get(node.name), *(_maker_of(source, name) for name in node.output)]
    return next((each for each in makers if each is not None and source.nodes[each].op_type == node.op_type), None)


def _maker_of(original: Network, tensor: str) -> int | None:
    """The node of the original that makes a tensor: ONNX Runtime's quantizer renames an output that it quantizes."""
    return original.producer.get(tensor, original.producer.get(tensor.removesuffix("_QuantizeLinear_Input")))


def _constant(network: Network, name: str) -> NDArray[Any] | None:
    if name in network.initializers:
        return np.asarray(numpy_helper.to_array(network.initializers[name]))
    maker = network.producer.get(name)
    if maker is None:
        return None
    node = network.nodes[maker]
    if (tensor := held(node)) is not None:
        return np.asarray(numpy_helper.to_array(tensor))
    return _constant(network, node.input[0]) if node.op_type in ("Identity", "Cast") else None


def _same(subject: Subject, one: Network, other: Network) -> bool:
    """Whether two float models compute the same, but for rounding."""
    first, second = (subject.models.run("same", network.proto, subject.samples[0]) for network in (one, other))
    if isinstance(first, Failed) or isinstance(second, Failed):
        return False
    for name, value in first.items():
        if value.dtype.kind == "f":
            exact = value.astype(np.float64)
            error = float(np.sqrt(np.mean(np.square(exact - second[name]))))
            if not error <= _SAME * float(np.sqrt(np.mean(np.square(exact)))) + 1e-12:
                return False
    return True


def _with_activations(subject: Subject, groups: Sequence[Group], original: Network | None) -> list[Group]:
    """The groups, with the Relu or Clip that a pair stands for.

    ONNX Runtime's quantizer drops a Relu whose result is quantized with the zero point at the end of the type: the pair cuts
    off negative values itself. The original tells, else tensors' names; else each pair whose zero point is there is one.
    """
    pairs = [pair for group in groups for pair in group.pairs if _may_be_activation(subject.network, pair)]
    named = {pair.tensor for pair in pairs if _NAMED.search(pair.tensor)}
    clips = {pair.tensor: _activation(subject, pair, original, named) for pair in pairs}
    return [
        replace(group, pairs=tuple(replace(pair, clip=clips.get(pair.tensor)) for pair in group.pairs))
        for group in groups
    ]


def _may_be_activation(network: Network, pair: Pair) -> bool:
    maker = network.producer.get(pair.tensor)
    if pair.kind != "activation" or maker is None or network.nodes[maker].op_type in _ACTIVATIONS:
        return False
    return Grid.of(pair.type_name) is not None and "float" not in pair.type_name


def _activation(subject: Subject, pair: Pair, original: Network | None, named: set[str]) -> Clip | None:
    index = None if original is None else _maker_of(original, pair.tensor)
    if original is not None and index is not None:
        node, here = original.nodes[index], subject.network.nodes[subject.network.producer[pair.tensor]]
        if node.op_type == here.op_type or node.op_type not in ("Relu", "Clip"):
            return None
        if node.op_type == "Relu":
            return 0.0, None
        low = clip_bound(original, node, 1, "min")
        return -np.inf if low is None else low, clip_bound(original, node, 2, "max")
    grid, scale = Grid.of(pair.type_name), constant_of(subject, pair.scale)
    zero = np.zeros(1) if pair.zero_point is None else constant_of(subject, pair.zero_point)
    if grid is None or scale is None or zero is None or scale.size != 1:
        return None
    at_end = float(zero.reshape(-1)[0]) == grid.low
    if not (pair.tensor in named or (at_end and not named)):
        return None
    top = (grid.high - float(zero.reshape(-1)[0])) * float(scale.reshape(-1)[0])
    return 0.0, _SIX if abs(top - _SIX) < _SIX / 1000 else None


def clip_bound(network: Network, node: onnx.NodeProto, place: int, name: str) -> float | None:
    """A bound of a Clip, in either of the two ways in which operator sets have it; ``None`` if it is not stored."""
    if len(node.input) > place and node.input[place]:
        value = _constant(network, node.input[place])
        return None if value is None else float(value.reshape(()))
    bound = attribute(node, name)
    return None if bound is None else float(bound)
