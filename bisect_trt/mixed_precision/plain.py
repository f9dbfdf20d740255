"""A quantized model in floats: its weights dequantized, or taken from the model before quantization."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import onnx
from msgspec import Struct, structs
from onnx import TensorProto, numpy_helper

from bisect_trt.errors import ModelRefusedError, UnsuitableModelError
from bisect_trt.onnxlib.inputs import take_input_shapes
from bisect_trt.onnxlib.load import load_all_inside, load_model, read_weight
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import attribute, is_dequantize
from bisect_trt.onnxlib.qdq import Group, Pair, Stored, has_quantized, unquantize
from bisect_trt.report.mixed import OTHER_WEIGHTS, WEIGHTS_MISSING
from bisect_trt.session.subject import Subject
from bisect_trt.tensors.files import Values
from bisect_trt.tensors.info import Array
from bisect_trt.worker.protocol import Failed

_SAME = 1e-3
"""Relative error up to which two float models compute the same."""
_NAMED = re.compile(r"(?i)(?<![a-z])(relu6?|clip)(?![a-z])")
_ACTIVATIONS = (
    "Relu",
    "Clip",
    "LeakyRelu",
    "PRelu",
    "ThresholdedRelu",
    "Elu",
    "Selu",
    "Celu",
    "HardSwish",
    "Max",
    "Gelu",
    "Mish",
    # Swish and GELU are exported as products with the values before them.
    "Mul",
)
_STEPS = {"uint8": (0, 255), "int8": (-128, 127), "uint16": (0, 65535), "int16": (-32768, 32767)}
"""The ends of the types in which a pair may replace a Relu."""
_SIX = 6.0
_ALIKE = 0.97
"""The least cosine between a weight and its rounding to four bits or more."""
_FEW_VALUES = 4
"""Fewer values may have the direction of another weight by chance."""


class Plain(Struct, frozen=True):
    """The model with nothing quantized of what is searched.

    Attributes:
        network: The model.
        groups: The groups that are searched, each pair with the activation function that it
            replaces.
        weights: The weights that are stored quantized, in floats, by the output of the node that
            dequantizes them.
        original: The model before quantization, if given; with the same input shapes.
        taken: The weights that were taken from that, by the same names.
        why: Why not all were taken, if so.
    """

    network: Network
    groups: tuple[Group, ...]
    weights: Stored
    original: Network | None = None
    taken: Values | None = None
    why: str | None = None

    @property
    def truth(self) -> Network:
        """The model that the reference runs."""
        return self.network if self.original is None else self.original


def make_plain(subject: Subject, groups: Sequence[Group], original: Path | None) -> Plain:
    """Take out every group.

    Raises:
        UsageError: That has other inputs or outputs.
        UnavailableError: It cannot be read, or ONNX Runtime does not dequantize a weight.
    """
    network = subject.network.flat
    pairs = [pair for group in groups for pair in group.pairs]
    stored = [
        network.nodes[index].output[0]
        for pair in pairs
        if not pair.quantize
        for index in pair.dequantize
    ]
    weights = _dequantized(subject, stored)
    source = None if original is None else _original(subject, original)
    clips = _activations(subject, pairs)
    groups = tuple(
        structs.replace(
            group,
            pairs=tuple(structs.replace(pair, clip=clips.get(pair.tensor)) for pair in group.pairs),
        )
        for group in groups
    )
    pairs = [*chain.from_iterable(group.pairs for group in groups)]
    if source is not None:
        found = _originals(weights, stored, source)
        merged = weights | {
            name: numpy_helper.from_array(
                value.astype(numpy_helper.to_array(weights[name]).dtype), name
            )
            for name, value in found.items()
        }
        restored = Network(unquantize(subject.network, pairs, merged))
        # A float file with the same names may hold other weights than those that were quantized.
        if _same(subject, source, restored):
            missing = len(stored) - len(found)
            why = WEIGHTS_MISSING.format(missing, len(stored), original) if missing else None
            return Plain(restored, groups, merged, source, found, why)
    why = OTHER_WEIGHTS.format(original)
    own = Network(unquantize(subject.network, pairs, weights))
    return (
        Plain(own, groups, weights)
        if source is None
        else Plain(own, groups, weights, source, {}, why)
    )


def constant_of(subject: Subject, name: str | None, network: Network | None = None) -> Array | None:
    """The value of a tensor that depends on no input, in the quantized model or another network; ``None`` for another one.

    Args:
        subject: The quantized model.
        name: The tensor; ``None`` has no value.
        network: The network that has the tensor, if it is another one.
    """
    network = network or subject.network.flat
    maker = network.producer.get(name or "")
    if name is None or (
        name not in network.initializers and (maker is None or not network.constant[maker])
    ):
        return None
    try:
        value = stored_value(network, name, subject.workspace.weights.folder_of(network.proto))
    except Exception:
        # Its file is gone, or it is of a type that NumPy lacks: ONNX and NumPy raise their own.
        return None
    values = {name: value} if value is not None else subject.models.constants(network, [name])
    return None if isinstance(values, Failed) else np.asarray(values[name])


def stored_value(network: Network, name: str, folder: Path = Path()) -> Array | None:
    """The value of an initializer or of a Constant node; ``None`` for another tensor."""
    tensor = network.stored(name)
    return None if tensor is None else read_weight(tensor, folder)


def _dequantized(subject: Subject, names: Sequence[str]) -> dict[str, TensorProto]:
    """The values of weights, computed by the reference runtime all at once.

    Raises:
        UnavailableError: It cannot.
    """
    values = subject.models.constants(subject.network.flat, names) if names else {}
    if isinstance(values, Failed):
        raise ModelRefusedError(
            f"ONNX Runtime does not dequantize the model's weights: {values.message}."
        )
    return {name: numpy_helper.from_array(np.asarray(values[name]), name) for name in names}


def _originals(
    weights: Mapping[str, TensorProto], names: Sequence[str], source: Network
) -> dict[str, Array]:
    """Return the weights of the original that dequantized ones are the rounding of, by the names of these.

    Args:
        weights: The dequantized weights by name.
        names: Those that are looked up.
        source: The model before quantization.
    """
    twins = {name: find_rounded(numpy_helper.to_array(weights[name]), source) for name in names}
    return {name: value for name, value in twins.items() if value is not None}


def _original(subject: Subject, path: Path) -> Network:
    """The model before quantization, with its weights inside, the shapes of the search and the names of its outputs.

    Raises:
        UsageError: It is quantized itself, or has other inputs or outputs.
    """
    proto = load_model(path)
    load_all_inside(proto, path.parent)
    quantized = subject.network
    graph = proto.graph
    if has_quantized(proto):
        raise UnsuitableModelError(
            f"--reference: {path} is quantized itself; give the model from before quantization."
        )
    # Quantizers rename outputs; as many in the same order are the same ones.
    theirs = [value.name for value in graph.output]
    if len(theirs) == len(quantized.outputs) and not set(quantized.outputs) <= set(theirs):
        _rename_outputs(proto, quantized)
    network = Network(proto)
    for kind, mine, wanted in (
        ("inputs", quantized.inputs, network.inputs),
        ("outputs", quantized.outputs, network.outputs),
    ):
        if set(mine) != set(wanted):
            raise UnsuitableModelError(
                f"--reference: {path} has the {kind} {sorted(wanted)} and the quantized model {sorted(mine)}; give the "
                "model that it was quantized from."
            )
    take_input_shapes(proto, quantized)
    return Network(proto)


def _rename_outputs(proto: onnx.ModelProto, quantized: Network) -> None:
    """Rename outputs by their order where they are dequantized in the quantized model: PyTorch names them after the last node."""
    for value, name in zip(proto.graph.output, quantized.outputs, strict=True):
        maker = quantized.producer.get(name)
        if name != value.name and maker is not None and is_dequantize(quantized.nodes[maker]):
            proto.graph.node.append(
                onnx.helper.make_node("Identity", [value.name], [name], name=f"{name}/renamed")
            )
            value.name = name


def find_rounded(rounded: Array, source: Network) -> Array | None:
    """Return the weight of the original that a dequantized one is the rounding of, at any scale, by their values alone."""
    best = None
    highest = _ALIKE
    for name, tensor in source.initializers.items():
        if tuple(tensor.dims) != rounded.shape or rounded.size < _FEW_VALUES:
            continue
        value = stored_value(source, name)
        if value is not None and value.dtype.kind == "f":
            cosine = _cosine(value.astype(np.float64), rounded.astype(np.float64))
            if cosine >= highest:
                best = value
                highest = cosine
    return best


def _cosine(one: Array, second: Array) -> float:
    """Return the cosine of two tensors, or the median over their slices: a scale may be wrong in a few channels."""
    whole = [(one.reshape(1, -1), second.reshape(1, -1))]
    pairs = whole + [
        (
            np.moveaxis(one, axis, 0).reshape(length, -1),
            np.moveaxis(second, axis, 0).reshape(length, -1),
        )
        for axis, length in enumerate(one.shape[:2])
        if one.size >= _FEW_VALUES * length
    ]
    norm = np.linalg.norm
    # The bound keeps slices that are all zero from dividing by zero.
    return max(
        float(np.median((a * b).sum(1) / np.maximum(norm(a, axis=1) * norm(b, axis=1), 1e-300)))
        for a, b in pairs
    )


def _same(subject: Subject, one: Network, rounded: Network) -> bool:
    """Return whether two float models compute the same except for rounding."""
    first, second = (
        subject.models.run("same", network.proto, subject.samples[0]) for network in (one, rounded)
    )
    if isinstance(first, Failed) or isinstance(second, Failed):
        return False
    exact = {
        name: value.astype(np.float64) for name, value in first.items() if value.dtype.kind == "f"
    }
    # A few large differences are another model; many small ones are rounding of fp32.
    norm = np.linalg.norm
    return all(
        norm(value - second[name]) <= _SAME * norm(value) + 1e-12 for name, value in exact.items()
    )


def _activations(subject: Subject, pairs: Sequence[Pair]) -> dict[str, float]:
    """Return the upper bound of the Relu or Relu6 that pairs replace, by the tensors that they quantize.

    ONNX Runtime's quantizer drops a Relu if its result is quantized with the zero point at the end
    of the type, because the pair cuts off negative values. The tensors' names show which pairs
    these are; else each pair with such a zero point is one.
    """
    network = subject.network.flat
    activations = dict[str, float]()
    may = [pair for pair in pairs if pair.kind == "activation" and pair.type_name in _STEPS]
    makers = {pair.tensor: network.producer.get(pair.tensor) for pair in may}
    kinds = {
        tensor: network.nodes[maker].op_type
        for tensor, maker in makers.items()
        if maker is not None
    }
    may = [pair for pair in may if kinds.get(pair.tensor, "Relu") not in _ACTIVATIONS]
    named = {pair.tensor for pair in may if _NAMED.search(pair.tensor)}
    for pair in may:
        scale = constant_of(subject, pair.scale)
        zero = np.zeros(1) if pair.zero_point is None else constant_of(subject, pair.zero_point)
        if scale is None or zero is None or scale.size != 1:
            continue
        (lowest, highest), middle = _STEPS[pair.type_name], float(zero.reshape(-1)[0])
        # A quantizer with its zero point at the lowest value replaces a Relu; one with room up to
        # 6, a Relu6.
        if pair.tensor in named or (middle == lowest and not named):
            top = (highest - middle) * float(scale.reshape(-1)[0])
            activations[pair.tensor] = _SIX if abs(top - _SIX) < _SIX / 1000 else math.inf
    return activations


def clip_bound(network: Network, node: onnx.NodeProto, place: int, name: str) -> float | None:
    """A bound of a Clip, in either of the two ways in which operator sets have it; ``None`` if it is not stored.

    Args:
        network: The model of the node.
        node: The Clip.
        place: The input that holds the bound from operator set 11 on.
        name: The attribute that holds it before.
    """
    if len(node.input) > place and node.input[place]:
        value = stored_value(network, node.input[place])
        return None if value is None else float(value.reshape(()))
    bound = attribute(node, name)
    return None if bound is None else float(bound)
