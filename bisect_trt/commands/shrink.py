"""After the nodes: make the tensors of the minimal case smaller, for as long as it fails in the same way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from bisect_trt.commands.session import Session
from bisect_trt.onnxlib.cut import between, nothing_stored, splice
from bisect_trt.onnxlib.load import has_external_data
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import DEFAULT_DOMAINS, attribute, clone, drawing_nodes
from bisect_trt.onnxlib.shapes import element_type, forget_shapes
from bisect_trt.probe.candidate import Candidate
from bisect_trt.search.oracle import Verdict
from bisect_trt.tensors.info import count_nonfinite

MOST_PROBES = 40
"""Most probes of shrinking; each step that succeeds leaves a model that fails, so it can stop anywhere."""
Axis = tuple[str, int]
"""A tensor's name, and which of its axes."""
_Arrays = Mapping[str, NDArray[Any]]
_FLOATS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE}
_UNCUT = {TensorProto.INT64, TensorProto.STRING}
"""Types of weights whose axes stay: they are shapes, axes and indices."""
_PARAMETERS = {
    **dict.fromkeys(("Conv", "ConvTranspose"), (2,)),
    "BatchNormalization": (1, 2, 3, 4),
    "InstanceNormalization": (1, 2),
    "QLinearConv": (4, 5, 8),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), (1, 2)),
}
"""Inputs of one axis that have to be as long as the channels of what is made."""
_QUANTIZING = {("QuantizeLinear", 1), ("QuantizeLinear", 2), ("DequantizeLinear", 1), ("DequantizeLinear", 2)}
_ONE_FOR_ALL = _QUANTIZING | {("QLinearConv", 4), ("QLinearConv", 5)}
"""Those that may be one number instead."""


@dataclass(frozen=True)
class Piece:
    """A model and what to feed it.

    Attributes:
        proto: The model; treat it as read-only.
        inputs: Values of its inputs, by name, in the graph's order.
    """

    proto: onnx.ModelProto
    inputs: _Arrays

    @property
    def outputs(self) -> list[str]:
        """Names of its outputs."""
        return [value.name for value in self.proto.graph.output]

    @property
    def elements(self) -> int:
        """How many numbers its inputs and weights have."""
        weights = sum(int(np.prod(tensor.dims, dtype=np.int64)) for tensor in self.proto.graph.initializer)
        return weights + sum(value.size for value in self.inputs.values())


def keep_outputs(piece: Piece, names: Collection[str]) -> Piece:
    """Return the same with only some of its outputs, and without the nodes and weights that only others needed."""
    network = Network(piece.proto)
    kept = between(network, (), [name for name in piece.outputs if name in names])
    inputs = {name: value for name, value in piece.inputs.items() if name in kept.inputs}
    return Piece(splice(network, kept, {}, nothing_stored).proto, inputs)


def axes_by_size(piece: Piece) -> dict[int, list[Axis]]:
    """Return the axes over 1 of inputs and weights by their size, the sizes of the largest tensors first."""
    volume: Counter[int] = Counter()
    axes: dict[int, list[Axis]] = {}
    shapes = {name: (value.shape, True) for name, value in piece.inputs.items()}
    for tensor in piece.proto.graph.initializer:
        if tensor.data_type not in _UNCUT:
            shapes[tensor.name] = tuple(tensor.dims), tensor.data_type in _FLOATS
    for name, (shape, counts) in shapes.items():
        for axis, size in enumerate(shape):
            axes.setdefault(size, []).append((name, axis))
        for size in set(shape) if counts else ():
            volume[size] += int(np.prod(shape, dtype=np.int64))
    return {size: axes[size] for size, _ in volume.most_common() if size > 1}


def cut_axes(piece: Piece, windows: Mapping[Axis, slice]) -> Piece:
    """Return the same with axes of its inputs and of its weights cut to windows.

    Axes that belong together have to be cut together: else the result is no consistent model, which :func:`is_sound` or
    the reference run shows.
    """

    def cut(name: str, value: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(value[tuple(windows.get((name, axis), slice(None)) for axis in range(value.ndim))], order="C")

    proto = clone(piece.proto)
    inputs = {name: cut(name, value) for name, value in piece.inputs.items()}
    named = {name for name, _ in windows}
    for tensor in proto.graph.initializer:
        if tensor.name in named:
            shorter = cut(tensor.name, numpy_helper.to_array(tensor))
            tensor.CopyFrom(numpy_helper.from_array(shorter, tensor.name))
    shapes = {name: value.shape for name, value in inputs.items()}
    shapes |= {tensor.name: tuple(tensor.dims) for tensor in proto.graph.initializer}
    for value in proto.graph.input:
        kind, dims = value.type.tensor_type.elem_type, value.type.tensor_type.shape.dim
        sizes = zip(dims, shapes[value.name], strict=True)
        kept = [dim.dim_param or size for dim, size in sizes]  # what is free stays so
        value.CopyFrom(helper.make_tensor_value_info(value.name, kind, kept))
    forget_shapes(proto.graph)
    return Piece(proto, inputs)


def with_output_shapes(piece: Piece, golden: _Arrays) -> onnx.ModelProto:
    """Return the model with its outputs declared as they came out of a run, where its inputs have fixed shapes."""
    proto = clone(piece.proto)
    if any(dim.dim_param for value in proto.graph.input for dim in value.type.tensor_type.shape.dim):
        return proto
    for value in proto.graph.output:
        if value.name in golden:
            array = golden[value.name]
            value.CopyFrom(helper.make_tensor_value_info(value.name, element_type(array.dtype), array.shape))
    return proto


def is_sound(proto: onnx.ModelProto) -> bool:
    """Return whether a model passes ONNX's checker, with strict shape inference, and parameters as long as their channels."""
    try:
        onnx.checker.check_model(proto, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError):
        return False
    return _parameters_fit(Network(proto))


def _parameters_fit(network: Network) -> bool:
    """Return whether each layer's parameters are as long as its channels, as far as shapes are known.

    ONNX's shape inference does not look at them, and a runtime may read past the end of a bias that is too short.
    """
    infos = {name: info.shape for name, info in network.infos.items() if info.is_static}
    infos |= {tensor.name: tuple(tensor.dims) for tensor in network.proto.graph.initializer}
    for node in network.nodes:
        made = infos.get(node.output[0] if node.output else "") or ()
        axis = attribute(node, "axis", 1) if "Linear" in node.op_type[-6:] else 1
        if node.domain not in DEFAULT_DOMAINS or not -len(made) <= axis < len(made) or attribute(node, "block_size", 0):
            continue
        for place in _PARAMETERS.get(node.op_type, ()):
            fitting = [(made[axis],), *([(), (1,)] if (node.op_type, place) in _ONE_FOR_ALL else [])]
            if infos.get(dict(enumerate(node.input)).get(place, ""), fitting[0]) not in fitting:
                return False
    return True


def shrink(session: Session, answer: Candidate) -> Candidate:
    """Return the smallest form of a candidate that still fails with the same signature.

    Fewer outputs, then shorter axes (batch, channels, height, width, sequence). A model that ONNX's checker refuses is no
    candidate and costs no probe, nor is one on which the reference fails or gives NaN or Inf where it gave none.

    Returns:
        A candidate that was seen to fail: a smaller one, or the same.
    """
    infos, console = session.subject.reference.infos, session.console
    known = all(name in infos and infos[name].is_static for name in answer.inputs)
    if has_external_data(answer.proto) or not known:
        console.say("  its weights or inputs cannot be changed, so it is left as it is")
        return answer
    if drawing_nodes(answer.proto, {}, unsure=True):
        console.say(
            "  it draws random numbers, of which a few may come out the same on both sides, so it is left as it is"
        )
        return answer
    shrinker = _Shrinker(session, answer)
    before = shrinker.piece.elements
    shrinker.drop_outputs()
    shrinker.cut_all_axes()
    after = shrinker.piece.elements
    console.say(f"  {before} elements of inputs and weights became {after}, in {shrinker.probes} probes")
    return shrinker.best


class _Shrinker:
    """Tries smaller pieces one after the other; each that fails in the same way is the next to start from."""

    def __init__(self, session: Session, answer: Candidate) -> None:
        self.best = answer
        self.probes = 0
        self._session = session
        record = session.prober.probe(answer)
        self._signature = record.signature
        values = session.subject.values(answer, (*answer.inputs, *answer.outputs))
        order = [value.name for value in answer.proto.graph.input if value.name in answer.inputs]
        self.piece = Piece(answer.proto, {name: values[name] for name in order})
        self._sound = is_sound(answer.proto)
        self._golden: Mapping[str, NDArray[Any]] = {name: values[name] for name in answer.outputs if name in values}
        self._finite = {name for name, value in self._golden.items() if not any(count_nonfinite(value))}
        self._seen = session.outcome(record).comparisons

    def _try(self, piece: Piece, title: str) -> bool:
        """Take a smaller piece if it fails in the same way."""
        golden = self._expected(piece) if self.probes < MOST_PROBES else None
        if golden is None:
            return False
        proto = with_output_shapes(piece, golden)
        values, outputs = {**piece.inputs, **golden}, tuple(piece.outputs)
        candidate = replace(
            self.best, made=proto, inputs=tuple(piece.inputs), outputs=outputs, title=title, values=values
        )
        freed = self._session.subject.freed
        candidate = candidate if freed is None else freed.dress(candidate)
        self.probes += 1
        record = self._session.prober.probe(candidate)
        if record.verdict is not Verdict.FAIL or record.signature != self._signature:
            return False
        self.piece, self.best, self._golden = replace(piece, proto=proto), candidate, golden
        self._seen = self._session.outcome(record).comparisons
        return True

    def _expected(self, piece: Piece) -> Mapping[str, NDArray[Any]] | None:
        """Return the outputs of a sound piece; ``None`` for others: a runtime may read past the ends of their tensors."""
        if self._sound and not is_sound(piece.proto):
            return None
        golden = self._session.subject.reference.compute(piece.proto, piece.inputs)
        if golden is None or not all(value.size for value in golden.values()):
            return None
        if any(any(count_nonfinite(golden[name])) for name in self._finite.intersection(golden)):
            return None
        return golden if not self._sound or is_sound(with_output_shapes(piece, golden)) else None

    def drop_outputs(self) -> None:
        """One output, if one will do; else leave out what can be."""
        names = self.piece.outputs
        if len(names) > 1 and not any(self._try(keep_outputs(self.piece, [name]), "one output") for name in names):
            for name in names[::-1]:
                rest = [other for other in self.piece.outputs if other != name]
                self._try(keep_outputs(self.piece, rest), "fewer outputs")

    def cut_all_axes(self) -> None:
        """All axes of one size at once; where that ends early, each by itself."""
        for size, axes in axes_by_size(self.piece).items():
            left = self._shorten(axes, size)
            for axis in axes if left > 1 and len(axes) > 1 else ():
                self._shorten([axis], left)

    def _shorten(self, axes: Sequence[Axis], size: int) -> int:
        """Cut axes to 1, where the worst element is, if that will do; else halve them for as long as one half will.

        Returns:
            How long they are then.
        """
        if self._cut(axes, size, 1):
            return 1
        left = size
        while left > 1:
            half = (left + 1) // 2  # of an odd size the halves overlap, so that all axes stay of one size
            near = (half, left) != (1, size) and self._cut(axes, left, half)
            known = self._worst(axes[0][1], left) is not None  # then the other half is not worth a probe
            if not near and (known or not self._cut(axes, left, half, far=True)):
                break
            left = half
        return left

    def _cut(self, axes: Sequence[Axis], size: int, to: int, *, far: bool = False) -> bool:
        """Cut axes to windows of one length: those with the worst element, or the other halves."""
        windows: dict[Axis, slice] = {}
        for name, place in axes:
            worst = self._worst(place, size) or 0
            start = worst if to == 1 and not far else 0 if (worst < to) != far else size - to
            windows[name, place] = slice(start, start + to)
        return self._try(cut_axes(self.piece, windows), f"axes of {size} cut to {to}")

    def _worst(self, place: int, size: int) -> int | None:
        """Where the worst element is along an output's axis of a size: the axis at the same place, else the first."""
        wrong = [
            seen for seen in self._seen if not seen.passed and seen.worst is not None and seen.name in self._golden
        ]
        found: dict[int, int] = {}
        for seen in wrong:
            assert seen.worst is not None
            for axis, index in enumerate(seen.worst.index):
                if self._golden[seen.name].shape[axis] == size:
                    found.setdefault(axis, index)
        return found.get(place, next(iter(found.values()), None))
