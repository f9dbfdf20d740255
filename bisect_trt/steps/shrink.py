"""Make the tensors of a minimal case smaller, as long as it fails."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from msgspec import Struct, structs
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from bisect_trt.onnxlib.cut import between, nothing_stored, splice
from bisect_trt.onnxlib.load import has_external_data
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import DEFAULT_DOMAINS, attribute, clone, drawing_nodes
from bisect_trt.onnxlib.shapes import (
    element_type,
    forget_shapes,
)
from bisect_trt.probe.candidate import Candidate
from bisect_trt.session.free_dims import Axis
from bisect_trt.session.session import Session
from bisect_trt.tensors.comparison import TensorComparison, required_severity
from bisect_trt.tensors.files import Values, shapes_of
from bisect_trt.tensors.info import count_nonfinite

MOST_PROBES = 40
"""Most probes of shrinking; each step that succeeds leaves a model that fails, so it can stop
anywhere."""
_FLOATS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE}
_UNCUT = {TensorProto.INT64, TensorProto.STRING}
"""Types of weights that are not cut: they are shapes, axes and indices."""
_PARAMETERS: Mapping[str, Mapping[int, bool]] = {
    **{key: {2: False} for key in ("Conv", "ConvTranspose")},
    "BatchNormalization": dict.fromkeys((1, 2, 3, 4), False),
    "InstanceNormalization": dict.fromkeys((1, 2), False),
    "QLinearConv": {4: True, 5: True, 8: False},
    **{key: {1: True, 2: True} for key in ("QuantizeLinear", "DequantizeLinear")},
}
"""Inputs with one axis that must be as long as the channels of the output, and whether one number
is allowed instead."""


class Piece(Struct, frozen=True):
    """A model and the values of its inputs."""

    proto: onnx.ModelProto
    inputs: Values

    @property
    def outputs(self) -> list[str]:
        """The names of its outputs."""
        return [value.name for value in self.proto.graph.output]

    @property
    def elements(self) -> int:
        """The number of elements of its inputs and weights."""
        weights: int = sum(math.prod(tensor.dims) for tensor in self.proto.graph.initializer)
        return weights + sum(value.size for value in self.inputs.values())


def keep_outputs(piece: Piece, names: Collection[str]) -> Piece:
    """Return the piece with some of its outputs, without the nodes and weights that only the others need."""
    network = Network(piece.proto)
    part = between(network, (), [name for name in piece.outputs if name in names])
    inputs = {name: value for name, value in piece.inputs.items() if name in part.inputs}
    return Piece(splice(network, part, {}, nothing_stored).proto, inputs)


def axes_by_size(piece: Piece) -> dict[int, list[Axis]]:
    """Return the axes of inputs and weights that are longer than 1, by size, the sizes of the largest tensors first."""
    volume: Counter[int] = Counter()
    axes: dict[int, list[Axis]] = {}
    # Axes of one size may be one dimension, so they are cut together; indices are cut and not
    # counted.
    shapes = {name: (value.shape, True) for name, value in piece.inputs.items()}
    for tensor in piece.proto.graph.initializer:
        if tensor.data_type not in _UNCUT:
            shapes[tensor.name] = tuple(tensor.dims), tensor.data_type in _FLOATS
    for name, (shape, counts) in shapes.items():
        for axis, size in enumerate(shape):
            axes.setdefault(size, []).append((name, axis))
        for size in set(shape) if counts else ():
            volume[size] += math.prod(shape)
    return {size: axes[size] for size, _ in volume.most_common() if size > 1}


def cut_axes(piece: Piece, windows: Mapping[Axis, slice]) -> Piece:
    """Return the piece with axes of its inputs and weights cut to windows.

    Axes that belong together must be cut together, or the model is inconsistent, which
    :func:`is_sound` or the reference shows.
    """

    def cut(name: str, value: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(
            value[tuple(windows.get((name, axis), slice(None)) for axis in range(value.ndim))],
            order="C",
        )

    proto = clone(piece.proto)
    inputs = {name: cut(name, value) for name, value in piece.inputs.items()}
    named = {name for name, _ in windows}
    for tensor in proto.graph.initializer:
        if tensor.name in named:
            shorter = cut(tensor.name, numpy_helper.to_array(tensor))
            tensor.CopyFrom(numpy_helper.from_array(shorter, tensor.name))
    shapes = shapes_of(inputs)
    shapes |= {tensor.name: tuple(tensor.dims) for tensor in proto.graph.initializer}
    for value in proto.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, shapes[value.name], strict=True):
            if not dim.dim_param:
                # Free dimensions stay free.
                dim.dim_value = size
    forget_shapes(proto.graph)
    return Piece(proto, inputs)


def with_output_shapes(model: onnx.ModelProto, golden: Values) -> onnx.ModelProto:
    """Return the model with the output shapes of a run, unless its inputs have free dimensions."""
    proto = clone(model)
    if any(
        dim.dim_param for value in proto.graph.input for dim in value.type.tensor_type.shape.dim
    ):
        return proto
    for value in proto.graph.output:
        if value.name in golden:
            array = golden[value.name]
            value.CopyFrom(
                helper.make_tensor_value_info(value.name, element_type(array.dtype), array.shape)
            )
    return proto


def is_sound(proto: onnx.ModelProto) -> bool:
    """Return whether a model passes ONNX's checker with strict shape inference, and has parameters for all channels."""
    try:
        onnx.checker.check_model(proto, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError):
        return False
    return _parameters_fit(Network(proto))


def _parameters_fit(network: Network) -> bool:
    """Return whether each layer has as many parameters as channels, as far as shapes are known.

    ONNX's shape inference does not check that, and a runtime may read past the end of a bias that
    is too short.
    """
    infos = {name: info.shape for name, info in network.infos.items() if info.is_static}
    infos |= {tensor.name: tuple(tensor.dims) for tensor in network.proto.graph.initializer}
    for node in network.nodes:
        shape = infos.get(node.output[0] if node.output else "") or ()
        # QuantizeLinear and DequantizeLinear name their axis; elsewhere channels are the second.
        axis = attribute(node, "axis", 1) if "Linear" in node.op_type[-6:] else 1
        if (
            node.domain not in DEFAULT_DOMAINS
            or not -len(shape) <= axis < len(shape)
            or attribute(node, "block_size", 0)
        ):
            continue
        for place, scalar in _PARAMETERS.get(node.op_type, {}).items():
            fitting = [(shape[axis],), *([(), (1,)] if scalar else [])]
            if infos.get(dict(enumerate(node.input)).get(place, ""), fitting[0]) not in fitting:
                return False
    return True


def shrink(session: Session, answer: Candidate) -> Candidate:
    """Return the smallest form of a candidate that still fails with the same signature, and as severely.

    Outputs are dropped, then axes shortened (batch, channels, height, width, sequence). A model
    that ONNX's checker refuses costs no probe, nor does one on which the reference fails or gives
    new NaN or Inf.

    Returns:
        A candidate that was seen to fail: a smaller one, or the same.
    """
    infos = session.subject.reference.infos
    console = session.console
    static = all(name in infos and infos[name].is_static for name in answer.inputs)
    if has_external_data(answer.proto) or not static:
        console.say("  its weights or inputs cannot be changed, so it stays as it is")
        return answer
    if drawing_nodes(answer.proto):
        console.say(
            "  it draws random numbers, and a few of them may match by chance, so it stays as it is"
        )
        return answer
    shrinker = _Shrinker(session, answer)
    before = shrinker.piece.elements
    shrinker.drop_outputs()
    shrinker.cut_all_axes()
    after = shrinker.piece.elements
    console.say(
        f"  {before} elements of inputs and weights became {after}, in {shrinker.probes} probes"
    )
    return shrinker.best


def _distance(comparisons: Sequence[TensorComparison]) -> float:
    """Return how far the worst output is off; infinite where no outputs were compared."""
    return max(
        (comparison.distance for comparison in comparisons if not comparison.passed),
        default=math.inf,
    )


class _Shrinker:
    """Tries smaller pieces one after the other, each made from the last one that failed in the same way."""

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
        self._golden: Values = {name: values[name] for name in answer.outputs if name in values}
        self._finite = {
            name for name, value in self._golden.items() if not any(count_nonfinite(value))
        }
        self._seen = session.outcome(record).comparisons
        # A case that is off by 30 quantization steps must not end as one that is off by a tie.
        self._least = required_severity(_distance(self._seen))

    def _try(self, piece: Piece, title: str) -> bool:
        """Keep a smaller piece if it fails in the same way."""
        golden = self._expected(piece) if self.probes < MOST_PROBES else None
        if golden is None:
            return False
        proto = with_output_shapes(piece.proto, golden)
        values = {**piece.inputs, **golden}
        outputs = tuple(piece.outputs)
        candidate = replace(
            self.best,
            made=proto,
            inputs=tuple(piece.inputs),
            outputs=outputs,
            title=title,
            values=values,
        )
        freed = self._session.subject.freed
        candidate = candidate if freed is None else freed.dress(candidate)
        self.probes += 1
        record = self._session.prober.probe(candidate)
        comparisons = self._session.outcome(record).comparisons
        is_same = record.fails and record.signature == self._signature
        # A milder failure may be another one, such as a tie of rounding.
        if not is_same or _distance(comparisons) < self._least:
            return False
        self.piece = structs.replace(piece, proto=proto)
        self.best = candidate
        self._golden = golden
        self._seen = comparisons
        return True

    def _expected(self, piece: Piece) -> Values | None:
        """Return the reference's outputs of a piece; ``None`` if it is unsound: a runtime may read past the end of a tensor."""
        if self._sound and not is_sound(piece.proto):
            return None
        golden = self._session.subject.reference.compute(piece.proto, piece.inputs)
        if golden is None or not all(value.size for value in golden.values()):
            return None
        # Shrinking must not replace the failure by a NaN of the reference's own.
        if any(any(count_nonfinite(golden[name])) for name in self._finite.intersection(golden)):
            return None
        return (
            golden if not self._sound or is_sound(with_output_shapes(piece.proto, golden)) else None
        )

    def drop_outputs(self) -> None:
        """Keep one output if it fails; else drop the outputs that are not needed."""
        names = self.piece.outputs
        if len(names) > 1 and not any(
            self._try(keep_outputs(self.piece, [name]), "one output") for name in names
        ):
            for name in names[::-1]:
                outputs = [output for output in self.piece.outputs if output != name]
                self._try(keep_outputs(self.piece, outputs), "fewer outputs")

    def cut_all_axes(self) -> None:
        """Shorten all axes of one size at once; if that ends early, each one alone."""
        for size, axes in axes_by_size(self.piece).items():
            length = self._shorten(axes, size)
            for axis in axes if length > 1 and len(axes) > 1 else ():
                self._shorten([axis], length)

    def _shorten(self, axes: Sequence[Axis], size: int) -> int:
        """Cut axes to 1 at the worst element if that fails; else halve them as long as a half fails.

        Returns:
            Their new length.
        """
        if self._cut(axes, size, 1):
            return 1
        upper = size
        while upper > 1:
            # The halves of an odd size overlap, so that all axes have one size.
            half = (upper + 1) // 2
            shortened = (half, upper) != (1, size) and self._cut(axes, upper, half)
            # Where the worst element is known, the far half is not worth a probe.
            located = self._worst(axes[0][1], upper) is not None
            if not shortened and (located or not self._cut(axes, upper, half, far=True)):
                break
            upper = half
        return upper

    def _cut(self, axes: Sequence[Axis], size: int, to: int, *, far: bool = False) -> bool:
        """Cut axes to windows of one length: the ones with the worst element, or the far ones."""
        windows: dict[Axis, slice] = {}
        for name, place in axes:
            worst = self._worst(place, size) or 0
            start = worst if to == 1 and not far else 0 if (worst < to) != far else size - to
            windows[name, place] = slice(start, start + to)
        return self._try(cut_axes(self.piece, windows), f"axes of {size} cut to {to}")

    def _worst(self, place: int, size: int) -> int | None:
        """Return where the worst element is along an output's axis of this size: the axis at this place, else the first."""
        places: dict[int, int] = {}
        for comparison in self._seen:
            if (
                not comparison.passed
                and comparison.worst is not None
                and comparison.name in self._golden
            ):
                axes = enumerate(
                    zip(comparison.worst.index, self._golden[comparison.name].shape, strict=True)
                )
                places |= {
                    axis: index
                    for axis, (index, length) in axes
                    if length == size and axis not in places
                }
        return places.get(place, next(iter(places.values()), None))
