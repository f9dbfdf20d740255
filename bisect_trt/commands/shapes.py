"""Shapes of candidates: dimensions that have to stay free for the failure, and tensors that can be smaller.

The first probe is about the model as it is in its file. Candidates have fixed shapes if it fails
with fixed shapes too. If it passes with them, candidates keep the dimensions that depend on input
dimensions. Reference runs at other sizes show which these are, one run for each dimension of the
inputs, and their ranges over a target's profile. The tensors of the minimal case are made smaller
last.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from bisect_trt.commands.session import Session
from bisect_trt.commands.subject import Subject
from bisect_trt.onnxlib.cut import between, nothing_stored, splice
from bisect_trt.onnxlib.load import has_external_data
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import DEFAULT_DOMAINS, attribute, clone, drawing_nodes
from bisect_trt.onnxlib.shapes import (
    Shape,
    element_type,
    fix_input_shapes,
    forget_shapes,
    free_inputs,
)
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.oracles import BuiltinCheck
from bisect_trt.probe.prober import reconfirm
from bisect_trt.probe.reference import Reference
from bisect_trt.probe.user_checks import PromptCheck
from bisect_trt.search.oracle import Verdict
from bisect_trt.targets.base import ShapeRange
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.comparison import TensorComparison, required_severity
from bisect_trt.tensors.files import Values, shapes_of
from bisect_trt.tensors.info import TensorInfo, count_nonfinite
from bisect_trt.tensors.inputs import resized

Axis = tuple[str, int]
"""A tensor's name, and one of its dimensions."""
MOST_PROBES = 40
"""Most probes of shrinking; each step that succeeds leaves a model that fails, so it can stop
anywhere."""
_SCRATCH_SAMPLE = 1_000_000
"""The sample number of runs that only compute shapes."""
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


@dataclass(frozen=True)
class Freed:
    """The free dimensions of candidates, and the profile that the target needs for them.

    Attributes:
        network: The model with free dimensions of its inputs.
        shapes: The shapes of the tensors that depend on one, with names in place of sizes.
        target: The target, if it has a profile for the model's inputs.
        ranges: The shapes of tensors over that profile: smallest, usual, largest.
    """

    network: Network
    shapes: Mapping[str, Shape]
    target: TargetSettings | None
    ranges: Mapping[str, ShapeRange]

    def infos(self, known: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
        """Types and shapes of tensors, with their free dimensions."""
        return {
            name: replace(info, shape=self.shapes.get(name, info.shape))
            for name, info in known.items()
        }

    def dress(self, candidate: Candidate) -> Candidate:
        """The candidate with the profile that it needs, if the target has one."""
        if self.target is None:
            return candidate
        ranges: dict[str, ShapeRange] = {}
        for value in candidate.proto.graph.input:
            dims = [dim.dim_value or None for dim in value.type.tensor_type.shape.dim]
            if (
                value.name in self.ranges
                and None in dims
                and len(dims) == len(self.ranges[value.name][0])
            ):
                low, usual, high = (
                    tuple(dim or size for dim, size in zip(dims, shape, strict=True))
                    for shape in self.ranges[value.name]
                )
                ranges[value.name] = (low, usual, high)
        return replace(candidate, target=self.target.target.spanning(self.target, ranges))


def profile_of(target: TargetSettings | None) -> Mapping[str, ShapeRange]:
    """The shapes for which a target is built: smallest, usual, largest; none where it needs no profile."""
    return {} if target is None else target.target.profile(target)


def free_symbols(subject: Subject, target: TargetSettings | None) -> dict[str, list[Axis]]:
    """The free dimensions of the inputs: those without a size in the file, or those for which the profile has a range."""
    profile = profile_of(target)
    symbols: dict[str, list[Axis]] = {}
    for name, value in subject.samples[0].items():
        for axis, dim in enumerate(subject.declared.get(name, ())):
            free = not profile and not isinstance(dim, int)
            if name in profile:
                free = profile[name][0][axis : axis + 1] != profile[name][2][axis : axis + 1]
            if free and axis < value.ndim:
                symbols.setdefault(dim if isinstance(dim, str) else f"{name}_{axis}", []).append(
                    (name, axis)
                )
    return symbols


def target_of(session: Session) -> TargetSettings | None:
    """The target of the built-in check; ``None`` for another check."""
    check = session.prober.check
    return check.target if isinstance(check, BuiltinCheck) else None


def free_where_needed(session: Session) -> bool:
    """Probe a failing model with fixed shapes; unless it fails with these too, keep its dimensions free from here on.

    It is asked where no candidate with fixed shapes fails: one that fails is proof enough.

    Returns:
        Whether they are kept.
    """
    subject = session.subject
    console = session.console
    prober = session.prober
    target = target_of(session)
    symbols = free_symbols(subject, target)
    if not symbols or subject.freed is not None or isinstance(prober.check, PromptCheck):
        return False
    names = ", ".join(symbols)
    console.step(
        f"It fails with free dimensions ({names}), as in its file: does it fail with fixed shapes?"
    )
    profile = profile_of(target)
    fixed = subject.fixed
    if target is not None and profile:
        fixed = replace(fixed, target=target.target.spanning(target, {}))
    record = prober.probe(fixed)
    if record.verdict is Verdict.PASS:
        record = reconfirm(
            prober, subject.original, fixed
        ).record  # fixed shapes must pass each time
    if record.verdict is Verdict.FAIL:
        console.say("  yes, so candidates have fixed shapes")
        return False
    answer = (
        "it passes"
        if record.verdict is Verdict.PASS
        else f"it breaks in another way ({record.reason})"
    )
    console.say(f"  no, {answer}: candidates keep the free dimensions")
    subject.free(free(subject, symbols, target))
    return True


def free(
    subject: Subject, symbols: Mapping[str, Sequence[Axis]], target: TargetSettings | None
) -> Freed:
    """Find the tensors that depend on dimensions of the inputs, by running the reference at other sizes."""
    sample = subject.samples[0]
    profile = profile_of(target)
    declared: dict[str, list[int | str | None]] = {
        name: list(value.shape) for name, value in sample.items()
    }
    other: dict[Axis, int] = {}
    for number, (symbol, places) in enumerate(symbols.items(), 1):  # each changes by another number
        for name, axis in places:
            declared[name][axis] = symbol
        name, axis = places[0]
        size = sample[name].shape[axis]
        within = [shape[axis] for shape in profile.get(name, ())]
        allowed = (each for each in (size + number, size - number, *within) if each != size)
        fits = (each for each in allowed if not within or min(within) <= each <= max(within))
        other |= dict.fromkeys(places, next(fits))
    network = Network(free_inputs(subject.network.proto, declared, forget=False))

    def run_at(changed: Mapping[Axis, int]) -> dict[str, Sequence[int]]:
        """Return the shapes of all tensors at other sizes; the sample's values are repeated or cut."""
        inputs = {
            name: resized(
                value,
                tuple(changed.get((name, axis), size) for axis, size in enumerate(value.shape)),
            )
            for name, value in sample.items()
        }
        run = Reference(
            network, inputs, subject.workspace, subject.models, _SCRATCH_SAMPLE, subject.swap_limit
        )
        return _static(run.infos)

    here = _static(subject.reference.infos)
    there = run_at(other)
    shapes: dict[str, Shape] = {}
    for name, sizes in here.items():
        changed = there.get(name, sizes)
        if changed != sizes and len(changed) == len(sizes):
            names = declared.get(name) or [f"{name}_{axis}" for axis in range(len(sizes))]
            changes = zip(names, sizes, changed, strict=True)
            shapes[name] = tuple(symbol if one != two else one for symbol, one, two in changes)
    places = [place for each in symbols.values() for place in each if place[0] in profile]
    ends = (
        [run_at({(n, axis): profile[n][end][axis] for n, axis in places}) for end in range(3)]
        if profile
        else []
    )
    ranges: dict[str, ShapeRange] = {}
    for name, sizes in here.items():
        if ends and all(len(end.get(name, ())) == len(sizes) for end in ends):
            low, usual, high = (end[name] for end in ends)
            # One size may fall while another grows.
            lowest, highest = (
                tuple(map(pick, zip(low, high, sizes, strict=True))) for pick in (min, max)
            )
            ranges[name] = (lowest, tuple(np.clip(usual, lowest, highest).tolist()), highest)
    return Freed(network, shapes, target, ranges)


def _static(infos: Mapping[str, TensorInfo]) -> dict[str, Sequence[int]]:
    return {
        name: [int(dim or 0) for dim in info.shape]
        for name, info in infos.items()
        if info.shape is not None
    }


def _free_places(answer: Candidate) -> dict[str, list[Axis]]:
    """The places of the inputs where each free dimension stands."""
    places: dict[str, list[Axis]] = {}
    for value in answer.proto.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_param:
                places.setdefault(dim.dim_param, []).append((value.name, axis))
    return places


def needed_dimensions(session: Session, answer: Candidate) -> Candidate:
    """Return the answer with fixed shapes if it fails with them; ``dynamic`` in the result says whether it does not."""
    subject, console, freed = session.subject, session.console, session.subject.freed
    if freed is None:
        return answer
    names = ", ".join(_free_places(answer))
    console.step(f"Does it need its free dimensions ({names or 'none are left'})?")
    fixed = clone(answer.proto)
    fix_input_shapes(fixed, shapes_of(subject.values(answer, answer.inputs)))
    fixed = with_output_shapes(fixed, subject.values(answer, answer.outputs))
    static = freed.dress(replace(answer, made=fixed, title="the answer, with fixed shapes"))
    needed = bool(names) and session.prober.probe(static).verdict is not Verdict.FAIL
    session.result.extra["dynamic"] = {"needed": needed, "dimensions": []}
    console.say(
        f"  yes, it fails only with {names} free"
        if needed
        else "  no: it fails with fixed shapes too"
    )
    return answer if needed else static


def tell_dynamic(session: Session, answer: Candidate) -> None:
    """Print the free dimensions that the answer needs, and put them into the result with their sizes after shrinking."""
    known = session.result.extra.get("dynamic")
    if not known or not known["needed"]:
        return
    values = session.subject.values(answer, answer.inputs)
    for symbol, places in _free_places(answer).items():
        inputs = [
            {"name": name, "axis": axis, "size": int(values[name].shape[axis])}
            for name, axis in places
        ]
        known["dimensions"].append({"name": symbol, "inputs": inputs})
    names = ", ".join(f"'{each['name']}'" for each in known["dimensions"])
    session.console.answer(
        f"  The model must stay dynamic in {names}: with fixed shapes it passes."
    )


@dataclass(frozen=True)
class Piece:
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
    kept = between(network, (), [name for name in piece.outputs if name in names])
    inputs = {name: value for name, value in piece.inputs.items() if name in kept.inputs}
    return Piece(splice(network, kept, {}, nothing_stored).proto, inputs)


def axes_by_size(piece: Piece) -> dict[int, list[Axis]]:
    """Return the axes of inputs and weights that are longer than 1, by size, the sizes of the largest tensors first."""
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
            if not dim.dim_param:  # free dimensions stay free
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
        made = infos.get(node.output[0] if node.output else "") or ()
        axis = attribute(node, "axis", 1) if "Linear" in node.op_type[-6:] else 1
        if (
            node.domain not in DEFAULT_DOMAINS
            or not -len(made) <= axis < len(made)
            or attribute(node, "block_size", 0)
        ):
            continue
        for place, scalar in _PARAMETERS.get(node.op_type, {}).items():
            fitting = [(made[axis],), *([(), (1,)] if scalar else [])]
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
    known = all(name in infos and infos[name].is_static for name in answer.inputs)
    if has_external_data(answer.proto) or not known:
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
    return max((each.distance for each in comparisons if not each.passed), default=math.inf)


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
        seen = self._session.outcome(record).comparisons
        is_same = record.verdict is Verdict.FAIL and record.signature == self._signature
        if not is_same or _distance(seen) < self._least:
            return False
        self.piece = replace(piece, proto=proto)
        self.best = candidate
        self._golden = golden
        self._seen = seen
        return True

    def _expected(self, piece: Piece) -> Values | None:
        """Return the reference's outputs of a piece; ``None`` if it is unsound: a runtime may read past the end of a tensor."""
        if self._sound and not is_sound(piece.proto):
            return None
        golden = self._session.subject.reference.compute(piece.proto, piece.inputs)
        if golden is None or not all(value.size for value in golden.values()):
            return None
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
                rest = [other for other in self.piece.outputs if other != name]
                self._try(keep_outputs(self.piece, rest), "fewer outputs")

    def cut_all_axes(self) -> None:
        """Shorten all axes of one size at once; if that ends early, each one alone."""
        for size, axes in axes_by_size(self.piece).items():
            left = self._shorten(axes, size)
            for axis in axes if left > 1 and len(axes) > 1 else ():
                self._shorten([axis], left)

    def _shorten(self, axes: Sequence[Axis], size: int) -> int:
        """Cut axes to 1 at the worst element if that fails; else halve them as long as a half fails.

        Returns:
            Their new length.
        """
        if self._cut(axes, size, 1):
            return 1
        left = size
        while left > 1:
            half = (
                left + 1
            ) // 2  # the halves of an odd size overlap, so that all axes have one size
            near = (half, left) != (1, size) and self._cut(axes, left, half)
            known = (
                self._worst(axes[0][1], left) is not None
            )  # then the far half is not worth a probe
            if not near and (known or not self._cut(axes, left, half, far=True)):
                break
            left = half
        return left

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
        found: dict[int, int] = {}
        for seen in self._seen:
            if not seen.passed and seen.worst is not None and seen.name in self._golden:
                axes = enumerate(zip(seen.worst.index, self._golden[seen.name].shape, strict=True))
                found |= {
                    axis: index
                    for axis, (index, length) in axes
                    if length == size and axis not in found
                }
        return found.get(place, next(iter(found.values()), None))
