"""Three ways to lower a model except some units: Casts in the graph, layer by layer on TensorRT, Q/DQ groups taken out.

A lowering makes the candidate of each set of units to keep, writes the answer, and reads it back to
be probed.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain
from pathlib import Path

import onnx
from msgspec import Struct, structs
from onnx import TensorProto

from bisect_trt.errors import (
    ConflictError,
    ModelRefusedError,
    OutputFileError,
    UnknownNameError,
    UnsuitableModelError,
    UsageError,
    ValueRefusedError,
)
from bisect_trt.mixed_precision.search import Lowering, PrecisionSettings
from bisect_trt.onnxlib.bodies import has_body
from bisect_trt.onnxlib.cleanup import QUANTIZING
from bisect_trt.onnxlib.functions import inline_functions
from bisect_trt.onnxlib.host import keep_on_host, with_inferred_shapes
from bisect_trt.onnxlib.low_census import lowered_inside
from bisect_trt.onnxlib.low_plan import LOW_TYPES, Slots, check_opset, plan_slots
from bisect_trt.onnxlib.lower import lower_fp16
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import Node, clone, first_output, keep_only
from bisect_trt.onnxlib.qdq import Group, Stored, has_quantized, unquantize
from bisect_trt.onnxlib.roundings import emulate
from bisect_trt.onnxlib.save import save_model
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.engine_cache import ENGINE
from bisect_trt.report.mixed import UNUSED_RANGES
from bisect_trt.search.keep import keep_if_enough
from bisect_trt.search.oracle import Subset, Verdict
from bisect_trt.session.places import require_target
from bisect_trt.session.subject import Subject
from bisect_trt.targets.base import TargetSettings
from bisect_trt.worker.protocol import Failed

OPERATOR = "op:"
"""Prefix of a pattern over operators instead of names."""
ENGINES = (".engine", ".plan", ".trt")
_MOST_QUESTIONS = 16
"""The largest number of questions about operators that a runtime may refuse."""


class CastLowering(Lowering):
    """By Casts in the ONNX graph: real low-precision nodes, and fp32 ones between Casts.

    On a device that computes in the low precision itself there are no Casts: it leaves fp32 nodes
    to the CPU.
    """

    def __init__(self, subject: Subject, units: NodeUnits, settings: PrecisionSettings) -> None:
        """``units`` may be lowered; ``settings`` has the precision and the target."""
        super().__init__(subject, units.all, settings.precision)
        self._node_units = units
        self._settings = settings
        self._low = LOW_TYPES[settings.precision]
        self._emulated = settings.emulated
        target = settings.target
        self._on_device = target is not None and target.target.computes_low(target)
        self._types = subject.element_types
        network = subject.network
        self._proto = _sorted(network.proto, network)
        self.inner = units.inner
        lowered = {network.order[unit] for unit in units.main}
        self._fixed = units.excluded | {
            first_output(node)
            for index, node in enumerate(network.nodes)
            if index not in lowered and not has_body(network.proto, node)
        }

    def in_bf16(self) -> Candidate | None:
        """Return the whole model in bf16; ``None`` where it is that already, or has no such operators."""
        if self._settings.precision == "bf16" or self._on_device:
            return None
        try:
            check_opset(self._subject.network.proto, TensorProto.BFLOAT16)
        except UsageError:
            # The opset is too old for bf16.
            return None
        settings = structs.replace(self._settings, precision="bf16")
        return CastLowering(self._subject, self._node_units, settings).candidate(frozenset())

    def candidate(self, keep: Subset) -> Candidate:
        """A mixed model: ``keep`` in fp32, the other ``units`` in the low precision."""
        return self._made(
            self._lower(self._proto, keep), keep, f"{len(keep)} of {len(self.units)} nodes in fp32"
        )

    def write(self, keep: Subset, path: Path) -> None:
        """Write the model, with the weights of the original file."""
        source = self._subject.settings
        model = self._lower(_sorted(source.load(), self._subject.network), keep, source.weights)
        save_model(model, source.weights, path, beside=True)

    def find_refused(self) -> tuple[list[str], str]:
        """Find the operators that the target does not run in the low precision, where that is emulated, and its message.

        Returns:
            None also where it does not run most operators: then what is written is for another
            machine, and is not run here.
        """
        target = self._settings.target
        if not self._emulated or target is None:
            return [], ""
        plain = replace(target, fp16=False, bf16=False)
        subject = self._subject
        operators = defaultdict[str, set[int]](set)
        for unit in self.units:
            inner = self.inner.get(unit)
            network = subject.network
            op = network.nodes[network.order[unit]].op_type if inner is None else inner.op
            operators[op].add(unit)
        names = list(operators)
        messages = list[str]()

        def ask(places: Subset) -> Verdict:
            keep = frozenset(chain.from_iterable(operators[names[place]] for place in places))
            model = self._lower(self._proto, keep)
            reply = subject.models.run("refused", model, subject.samples[0], plain)
            if not isinstance(reply, Failed):
                return Verdict.PASS
            messages.append(reply.message)
            return Verdict.FAIL

        if ask(frozenset()) is Verdict.PASS:
            return [], ""
        fewest = keep_if_enough(len(names), _MOST_QUESTIONS, ask)
        if fewest is None or not fewest.proven or 2 * len(fewest.units) > len(names):
            return [], ""
        return [names[place] for place in sorted(fewest.units)], messages[0]

    def _lower(
        self, proto: onnx.ModelProto, keep: Subset, weights: Path | None = None
    ) -> onnx.ModelProto:
        network = self._subject.network
        wide = {
            self.inner[unit].outputs[0]
            if unit in self.inner
            else first_output(network.nodes[network.order[unit]])
            for unit in keep
        }
        # The last node of a function has the address of the call.
        flat = inline_functions(proto, self._node_units.excluded)
        if self._on_device:
            infos = self._subject.infos
            if self._subject.free_shapes:
                infos = with_inferred_shapes(network, infos)
            return keep_on_host(flat, wide, infos)
        return lower_fp16(flat, self._fixed | wide, self._types, self._low, weights)

    def _made(self, model: onnx.ModelProto, keep: Subset, title: str) -> Candidate:
        if self._emulated:
            model = emulate(model, self._low)
        return super()._made(model, keep, title)


class LayerLowering(Lowering):
    """By ``ILayer.precision`` and output types, obeyed: TensorRT 8.6 to 10.

    Attributes:
        cast: Writes the same answer as a model with Casts; ``None`` where none is the same.
    """

    def __init__(
        self,
        subject: Subject,
        units: Sequence[int],
        precision: str,
        target: TargetSettings,
        cast: CastLowering | None,
        excluded: Collection[int] = (),
    ) -> None:
        """Lower for a target; nodes that are ``excluded``, because Q/DQ quantizes them, get no precision."""
        super().__init__(subject, units, precision)
        self._target = target
        self.cast = cast
        network = subject.network
        lowered = {*excluded, *(network.order[unit] for unit in units)}
        self._fixed = [
            index for index in network.order if index not in lowered and not network.constant[index]
        ]

    def candidate(self, keep: Subset) -> Candidate:
        """The original, and the layers that have to run in fp32."""
        # With nothing to keep it is the original, of which there may be an answer already.
        title = f"{len(keep)} of {len(self.units)} nodes in fp32"
        return replace(
            self._subject.original, title=title, units=keep, keep=self._names(keep) or None
        )

    def _names(self, keep: Subset) -> tuple[str, ...]:
        """The nodes to keep as the target takes them: the first output of each, in topological order."""
        network = self._subject.network
        wide = {*self._fixed, *(network.order[unit] for unit in keep)}
        return tuple(first_output(network.nodes[index]) for index in network.order if index in wide)

    def writes_model(self, path: Path) -> bool:
        """Whether an ONNX model is written, beside the engine."""
        return self.cast is not None and path.suffix not in ENGINES

    def write(self, keep: Subset, path: Path) -> None:
        """Write the engine that passed, built again if it is gone; beside it the same as a model with Casts.

        Raises:
            UsageError: It cannot be written.
            UnavailableError: It cannot be built any more.
        """
        if self.cast is not None and self.writes_model(path):
            self.cast.write(keep, path)
        subject = self._subject
        engine = engine_path(path)
        # The engine that passed is the answer; another build may take other tactics.
        built = subject.workspace.files(self.candidate(keep).key).folder / ENGINE
        if built.exists():
            try:
                shutil.copyfile(built, engine)
            except OSError as error:
                raise OutputFileError(
                    f"{engine} cannot be written: {error.strerror}; name another file."
                ) from error
            return
        target = replace(self._target, keep=self._names(keep))
        failed = subject.models.build(
            "answer", subject.network.proto, subject.reference.inputs, engine, target
        )
        if failed is not None:
            raise ModelRefusedError(f"the engine of the answer cannot be built: {failed.message}.")

    def read_back(self, keep: Subset, path: Path) -> Candidate:
        """The engine that was written: TensorRT may build another one of the same candidate."""
        engine = engine_path(path)
        return replace(self.candidate(keep), title=f"{engine.name}, read back", engine=engine)


def engine_path(path: Path) -> Path:
    """The path of an answer's engine."""
    return path if path.suffix in ENGINES else path.with_suffix(".engine")


class GroupLowering(Lowering):
    """By taking QuantizeLinear/DequantizeLinear pairs out of a quantized model."""

    def __init__(
        self, subject: Subject, groups: Sequence[Group], weights: Stored, precision: str
    ) -> None:
        """Take pairs out of ``groups``; ``weights`` are those that are stored quantized, in floats, by the dequantized tensor."""
        super().__init__(subject, range(len(groups)), precision)
        self._groups = groups
        self._weights = weights

    def candidate(self, keep: Subset) -> Candidate:
        """The quantized model without the pairs of some groups."""
        model = self._without(self._subject.network, keep)
        return self._made(model, keep, f"{len(keep)} of {len(self.units)} groups in floats")

    def floats(self, keep: Subset) -> Network:
        """The graph with ``keep`` in floats."""
        return Network(self._without(self._subject.network, keep))

    def write(self, keep: Subset, path: Path) -> None:
        """Write the model without the pairs."""
        source = self._subject.settings
        save_model(self._without(Network(source.load()), keep), source.weights, path, beside=True)

    def _without(self, network: Network, keep: Subset) -> onnx.ModelProto:
        pairs = [pair for unit in sorted(keep) for pair in self._groups[unit].pairs]
        return (
            unquantize(network, pairs, self._weights)
            if pairs
            else inline_functions(network.proto, ())
        )


def _sorted(proto: onnx.ModelProto, network: Network) -> onnx.ModelProto:
    """The model with its nodes in topological order, as lowering wants them; itself if they are."""
    if network.is_sorted:
        return proto
    model = clone(proto)
    keep_only(model.graph.node, [proto.graph.node[index] for index in network.order])
    return model


def low_slots(subject: Subject, precision: str) -> list[Slots]:
    """The positions of each node that are in the low precision where nothing is kept."""
    return plan_slots(subject.network.proto, (), subject.element_types, LOW_TYPES[precision])


def refuse_lowered(network: Network, name: str) -> None:
    """Make sure that a model is an fp32 one.

    Raises:
        UsageError: It has low-precision tensors already, or quantized ones.
    """
    types = network.element_types
    lowered = [
        f"{network.describe(index)} quantizes"
        for index, node in enumerate(network.nodes)
        if node.op_type in QUANTIZING
    ]
    for tensor, element in types.items():
        if element in LOW_TYPES.values():
            lowered.append(f"'{tensor}' is {TensorProto.DataType.Name(element).lower()}")
    if lowered:
        raise UnsuitableModelError(
            f"{name} is quantized or in low precision already ({lowered[0]}; {len(lowered)} such nodes and tensors in all), so "
            "its fp32 values are not known; give the fp32 model that it was made from."
        )


class NodeUnits(Struct, frozen=True):
    """The nodes that may be lowered.

    Attributes:
        main: Nodes of the main graph, in topological order, by their places in it.
        inner: Nodes in bodies and functions, by numbers past these places.
        excluded: The addresses of nodes that stay in fp32 with all in their bodies.
    """

    main: list[int]
    inner: dict[int, Node]
    excluded: frozenset[str]

    @property
    def all(self) -> list[int]:
        """All units."""
        return [*self.main, *self.inner]


def lowerable_units(
    subject: Subject,
    precision: str,
    include: Sequence[str],
    exclude: Sequence[str],
    left: Collection[int] = (),
    *,
    with_insides: bool = True,
) -> NodeUnits:
    """The nodes that compute in fp32 and may be lowered.

    The others stay as they are: integers and bools, arithmetic on shapes, scales of Resize and the
    like, custom operators, what ONNX does not allow in the low precision, and what only makes
    weights.

    Args:
        subject: The model.
        precision: ``fp16`` or ``bf16``.
        include: Patterns of the nodes to search; all without any.
        exclude: Patterns of nodes that stay in fp32.
        left: Nodes that are no units.
        with_insides: Whether nodes in bodies and functions are units too.

    Raises:
        UsageError: The opset is too old, a pattern matches no node, or nothing is left.
    """
    network = subject.network
    low = LOW_TYPES[precision]
    check_opset(network.proto, low)
    slots = low_slots(subject, precision)
    types = subject.element_types
    searched = [unit for unit in subject.units.searched if network.order[unit] not in left]
    units = [
        unit
        for unit in searched
        if slots[network.order[unit]].inputs or slots[network.order[unit]].outputs
    ]
    closed = {
        first_output(node)
        for node in network.nodes
        if not with_insides and has_body(network.proto, node)
    }
    inner = lowered_inside(network, closed, types, low)
    if not units and not inner:
        raise UnsuitableModelError(
            f"{subject.settings.path} has no node that computes in fp32 and can be lowered to {precision}, so there is "
            "nothing to search."
        )
    named = {first_output(node): network.plain(index) for index, node in enumerate(network.nodes)}
    named |= inner
    excluded = closed | _matching(named, "--exclude", exclude)
    wanted = _matching(named, "--include", include) if include else named.keys()
    if include:
        # To keep what is wanted leaves the others.
        excluded |= lowered_inside(network, excluded | wanted, types, low).keys()
    left_inside = lowered_inside(network, excluded, types, low)
    chosen = NodeUnits(
        [
            unit
            for unit in units
            if first_output(network.nodes[network.order[unit]]) in wanted - excluded
        ],
        dict(enumerate(left_inside.values(), len(network.order))),
        frozenset(excluded),
    )
    if not chosen.all:
        raise UnsuitableModelError(
            f"--include and --exclude leave none of the {len(units) + len(inner)} nodes that can be lowered to {precision}; "
            "widen the patterns."
        )
    return chosen


def _matching(named: Mapping[str, Node], option: str, patterns: Sequence[str]) -> AbstractSet[str]:
    """The addresses of the nodes that some pattern matches; each has to match one."""
    addresses = set[str]()
    for pattern in patterns:
        glob = pattern.removeprefix(OPERATOR)
        by_op = pattern.startswith(OPERATOR)
        matched = {
            address
            for address, node in named.items()
            if fnmatchcase(node.op if by_op else node.name or address, glob)
        }
        if not matched:
            raise UnknownNameError(
                f"{option} '{pattern}' matches no node of the model; a pattern is a glob over the names of nodes, or with "
                "op: before it over operators (op:Softmax)."
            )
        addresses |= matched
    return addresses


def make_lowering(
    subject: Subject, settings: PrecisionSettings, excluded: Collection[int] = ()
) -> Lowering:
    """The way of lowering nodes that the target needs.

    Args:
        subject: The model.
        settings: The precision, the target, and the patterns of the user.
        excluded: Indices of nodes that are not lowered.

    Raises:
        UsageError: A pattern matches nothing, or there is nothing to lower.
    """
    # A calibrated layer that is kept runs in half precision, so that is what units have to allow.
    lowest = "fp16" if settings.calibrated else settings.precision
    target = settings.target
    options = settings.options
    by_casts = not settings.by_layer and not settings.calibrated
    find_units = partial(
        lowerable_units, subject, lowest, options.include, left=excluded, with_insides=by_casts
    )
    units = find_units(options.exclude)
    cast = None if settings.calibrated else CastLowering(subject, units, settings)
    refused, message = ([], "") if cast is None or not by_casts else cast.find_refused()
    if target is not None and refused:
        subject.console.warn(
            f"{target.target.title} does not run {', '.join(refused)} in {lowest}, so it stays in fp32: {message}"
        )
        stays = [*options.exclude, *(f"{OPERATOR}{operator}" for operator in refused)]
        cast = CastLowering(subject, find_units(stays), settings)
    if target is not None and settings.by_layer:
        return LayerLowering(subject, units.main, lowest, target, cast, excluded)
    assert cast is not None, "a calibrated model is lowered layer by layer"
    return cast


def is_calibrated(subject: Subject, settings: PrecisionSettings) -> bool:
    """Whether 8 bits are the target's own choice: the model has no Q/DQ, and the target calibrates.

    Raises:
        UnavailableError: The target is not there.
        UsageError: Ranges are given to a search that has no use for them.
    """
    target = settings.target
    able = target is not None and target.int8 and target.target.engines
    if able and target is not None and not has_quantized(subject.network.proto):
        require_target(subject, target)
        if subject.about(target) == "layer":
            return True
    if settings.options.calibration_cache is not None:
        raise ConflictError(
            f"--calibration-cache: of {subject.settings.path} {UNUSED_RANGES}; drop it."
        )
    return False


def calibrate(subject: Subject, settings: PrecisionSettings) -> PrecisionSettings:
    """Return the settings with ranges, which are calibrated if missing.

    Raises:
        UnavailableError: The model cannot be built in INT8.
        UsageError: The answer is to be something that has no place for it.
    """
    target = settings.target
    output = settings.output
    # Without one nothing would be calibrated.
    assert target is not None
    if settings.rungs:
        raise UnsuitableModelError(
            f"--ladder: {subject.settings.path} has no Q/DQ to take out, and TensorRT chooses among the types itself; drop it."
        )
    if output.suffix not in ENGINES:
        raise ValueRefusedError(
            f"-o {output}: INT8 by calibration is in no ONNX model, so the answer is an engine; name it "
            f"{output.with_suffix('.engine')}."
        )
    cache = settings.options.calibration_cache or subject.workspace.folder / "calibration.cache"
    if not cache.is_file():
        _find_ranges(subject, target, cache)
    calibrated = target.target.calibrating(target, (), cache)
    return structs.replace(
        settings, target=calibrated, precision="bf16", bits=(), by_layer=True, calibrated=True
    )


def _find_ranges(subject: Subject, target: TargetSettings, cache: Path) -> None:
    """Build once with the samples of the search."""
    samples = [
        subject.models.feed(f"calibration-{number}", sample)
        for number, sample in enumerate(subject.samples, 1)
    ]
    subject.console.step(f"Find the ranges for INT8 on {len(samples)} input samples: {cache}")
    engine = subject.workspace.scratch("calibration.engine")
    calibrating = target.target.calibrating(target, samples, cache)
    failed = subject.models.build(
        "calibration", subject.network.proto, subject.samples[0], engine, calibrating
    )
    engine.unlink(missing_ok=True)
    if failed is not None or not cache.is_file():
        reason = "it leaves no ranges" if failed is None else failed.message
        raise ModelRefusedError(
            f"{target.describe()} cannot calibrate {subject.settings.path}: {reason}; `convert --int8` is that step."
        )
