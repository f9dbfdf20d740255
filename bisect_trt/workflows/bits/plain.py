"""The quantized model in floats: its weights dequantized, or those of the model that it was made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from onnx.external_data_helper import load_external_data_for_model

from bisect_trt.errors import UsageError
from bisect_trt.graph.externals import external_files
from bisect_trt.graph.load import load_model
from bisect_trt.graph.network import Network
from bisect_trt.graph.nodes import held
from bisect_trt.graph.qdq import Group, has_quantized, is_dequantize, is_quantize
from bisect_trt.graph.shapes import take_input_shapes
from bisect_trt.graph.unquantize import Stored, unquantize
from bisect_trt.probing.protocol import Failed
from bisect_trt.workflows.bits.implied import maker_of, with_implied
from bisect_trt.workflows.bits.stored import dequantized
from bisect_trt.workflows.subject import Subject

_SAME = 1e-3
"""Relative error up to which two float models compute the same."""
_MOVES = ("Transpose", "Reshape", "Identity", "Squeeze", "Unsqueeze", "Flatten", "Cast")
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Plain:
    """The model with nothing quantized of what is searched.

    Attributes:
        network: It.
        groups: Those that are searched, with the activations that pairs are.
        weights: The weights that are stored quantized, in floats, by the name of what dequantizes them makes.
        original: The model that it was made from, if that was given; with the same input shapes.
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
        """What the reference is a run of."""
        return self.network if self.original is None else self.original


def make_plain(subject: Subject, groups: Sequence[Group], original: Path | None) -> Plain:
    """Take out every group.

    Args:
        subject: The model.
        groups: Those that are searched.
        original: The model that it was made from, if that is known.

    Raises:
        UsageError: That has other inputs or outputs.
        UnavailableError: It cannot be read, or ONNX Runtime does not dequantize a weight.
    """
    network = subject.network
    pairs = [pair for group in groups for pair in group.pairs]
    stored = [network.nodes[i].output[0] for pair in pairs if not pair.quantize for i in pair.dequantize]
    weights = dequantized(subject, stored)
    source = None if original is None else _original(subject, original)
    groups = tuple(with_implied(subject, groups, weights, source))
    pairs = [pair for group in groups for pair in group.pairs]
    own = Network(unquantize(network, pairs, weights))
    if source is None:
        return Plain(own, groups, weights)
    found = {name: tensor for name in stored if (tensor := _of_original(network, source, name)) is not None}
    found = {name: value for name, value in found.items() if value.shape == tuple(weights[name].dims)}
    merged = {
        **weights,
        **{name: _stored(value, weights[name]) for name, value in found.items()},
    }
    mended = Network(unquantize(network, pairs, merged))
    if _same(subject, source, mended):
        missing = len(stored) - len(found)
        why = f"{missing} of {len(stored)} quantized weights are not found in {original}" if missing else None
        return Plain(mended, groups, merged, source, found, why)
    why = f"with the weights of {original} the model computes something else, so they are dequantized"
    return Plain(own, groups, weights, source, {}, why)


def _stored(value: NDArray[Any], like: TensorProto) -> TensorProto:
    dtype = numpy_helper.to_array(like).dtype
    return numpy_helper.from_array(np.asarray(value, dtype), like.name)


def _original(subject: Subject, path: Path) -> Network:
    """The model that it was made from, with its weights inside and of the shapes of the search."""
    proto = load_model(path)
    if external_files(proto):
        load_external_data_for_model(proto, str(path.parent))
    own = subject.network
    if has_quantized(proto):
        raise UsageError(f"--reference: {path} is quantized itself; give the model from before quantization.")
    _rename_outputs(proto, own)
    network = Network(proto)
    for what, mine, theirs in (
        ("inputs", own.inputs, network.inputs),
        ("outputs", own.outputs, network.outputs),
    ):
        if set(mine) != set(theirs):
            raise UsageError(
                f"--reference: {path} has the {what} {sorted(theirs)} and the quantized model {sorted(mine)}; give the "
                "model that it was quantized from."
            )
    take_input_shapes(proto, own)
    return Network(proto)


def _rename_outputs(proto: onnx.ModelProto, quantized: Network) -> None:
    """Call an output what the quantized model does, in place, which in PyTorch's exports is after what dequantizes it."""
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


def _of_original(network: Network, source: Network, name: str) -> NDArray[Any] | None:
    """The weight of the original that stands where a dequantized one does: the same input of the same operator."""
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
        other = source.nodes[twin].input[place]
        found = _constant(source, other)
        if found is not None:
            return found
    return None


def _twin(network: Network, source: Network, index: int, names: Mapping[str, int]) -> int | None:
    """The same operator in the original: by its name, else by what it makes."""
    node = network.nodes[index]
    if node.name and node.name in names and source.nodes[names[node.name]].op_type == node.op_type:
        return names[node.name]
    for name in node.output:
        maker = maker_of(source, name)
        if maker is not None and source.nodes[maker].op_type == node.op_type:
            return maker
    return None


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
    sample = subject.samples[0]
    made = [subject.models.run("same", network.proto, sample) for network in (one, other)]
    first, second = made
    if isinstance(first, Failed) or isinstance(second, Failed):
        return False
    for name, value in first.items():
        if value.dtype.kind != "f":
            continue
        error = float(np.sqrt(np.mean(np.square(value.astype(np.float64) - second[name]))))
        if not error <= _SAME * float(np.sqrt(np.mean(np.square(value.astype(np.float64))))) + 1e-12:
            return False
    return True
