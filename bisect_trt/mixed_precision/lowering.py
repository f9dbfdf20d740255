"""Three ways of lowering a model but for some units: Casts in the graph, layer by layer on TensorRT, Q/DQ groups taken out.

A lowering makes the candidate of each set of units to keep, writes the answer, and reads it back to be probed.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

from bisect_trt.commands.subject import Subject
from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.onnxlib.load import load_model
from bisect_trt.onnxlib.lower import (
    LOW_TYPES,
    check_opset,
    emulate,
    first_output,
    lower_fp16,
    lower_io,
    plan_slots,
    store_weights,
)
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.qdq import Group
from bisect_trt.onnxlib.save import save_model
from bisect_trt.onnxlib.shapes import element_type, take_input_shapes
from bisect_trt.onnxlib.unquantize import Stored, unquantize
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.oracles import ENGINE
from bisect_trt.search.oracle import Subset
from bisect_trt.targets.settings import TargetSettings

OPERATOR = "op:"
"""Prefix of a pattern over operators instead of names."""
ENGINES = (".engine", ".plan", ".trt")
_QUANTIZED = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")
_MARK = "bisect-trt.precision"


class Lowering(ABC):
    """Makes a candidate of each set of units to keep.

    Attributes:
        units: The units that it may lower, in topological order.
    """

    def __init__(self, subject: Subject, units: Sequence[int]) -> None:
        self.units = tuple(units)
        self._subject = subject

    @abstractmethod
    def candidate(self, keep: Subset) -> Candidate:
        """The candidate to probe: ``keep`` in floats, the other ``units`` lowered."""

    @abstractmethod
    def write(self, keep: Subset, path: Path) -> None:
        """Write the answer for use.

        Raises:
            UsageError: It cannot be written.
        """

    @abstractmethod
    def read_back(self, keep: Subset, path: Path) -> Candidate:
        """The candidate that was written, with the input shapes of the search, to be probed once more."""

    def writes_model(self, path: Path) -> bool:  # noqa: ARG002 - all but one write models whatever the file is called
        """Whether what is written to ``path`` is an ONNX model."""
        return True

    def _load(self, path: Path) -> onnx.ModelProto:
        """A model that was written, with the input shapes of the search."""
        proto = load_model(path)
        self._subject.workspace.take_in(proto, path.parent)
        take_input_shapes(proto, self._subject.network)
        return proto


class CastLowering(Lowering):
    """By Casts in the ONNX graph: real low-precision nodes, and fp32 ones between Casts."""

    def __init__(
        self,
        subject: Subject,
        units: Sequence[int],
        precision: str,
        *,
        emulated: bool = False,
        by_arithmetic: bool = False,
        lower_ends: bool = False,
        keep_weights: bool = False,
    ) -> None:
        """Prepare.

        Args:
            subject: The model.
            units: What may be lowered.
            precision: ``fp16`` or ``bf16``.
            emulated: Whether candidates round to it in fp32 nodes, for ONNX Runtime's CPU provider and its like.
            by_arithmetic: Whether they do so without Casts.
            lower_ends: Whether graph inputs and outputs are lowered as well.
            keep_weights: Whether weights stay in fp32, and pass Casts.
        """
        super().__init__(subject, units)
        self._precision = precision
        self._low = LOW_TYPES[precision]
        self._emulated = emulated
        self._by_arithmetic = by_arithmetic
        self._ends = lower_ends
        self._keep_weights = keep_weights
        self._types = known_types(subject)
        network = subject.network
        self._proto = _sorted(network.proto, network)
        lowered = {network.order[unit] for unit in units}
        self._fixed = {first_output(node) for index, node in enumerate(network.nodes) if index not in lowered}

    def candidate(self, keep: Subset) -> Candidate:
        """A mixed model: ``keep`` in fp32, the other ``units`` in the low precision."""
        title = f"{len(keep)} of {len(self.units)} nodes in fp32"
        return self._candidate(self.lowered(keep), keep, title)

    def lowered(self, keep: Subset) -> onnx.ModelProto:
        """The mixed model, with the shapes of the search, as it is where nothing is emulated."""
        return self._lower(self._proto, keep)

    def write(self, keep: Subset, path: Path) -> None:
        """Write the model, of the shapes and with the weights of the original file.

        Raises:
            UsageError: It cannot be written.
        """
        source = self._subject.settings
        proto = source.load()
        model = self._lower(_sorted(proto, self._subject.network), keep)
        if not self._keep_weights:
            store_weights(model, source.weights, self._low)
        save_model(model, source.weights, path, beside=True)

    def read_back(self, keep: Subset, path: Path) -> Candidate:
        """The model that was written."""
        return self._candidate(self._load(path), keep, f"{path.name}, read back")

    def _lower(self, proto: onnx.ModelProto, keep: Subset) -> onnx.ModelProto:
        network = self._subject.network
        kept = {first_output(network.nodes[network.order[unit]]) for unit in keep}
        model = lower_fp16(proto, self._fixed | kept, self._types, self._low, store_weights=not self._keep_weights)
        return lower_io(model, self._low) if self._ends else model

    def _candidate(self, model: onnx.ModelProto, keep: Subset, title: str) -> Candidate:
        network = self._subject.network
        inputs, outputs = tuple(network.inputs), tuple(network.outputs)
        if self._emulated:
            model = emulate(model, self._low, arithmetic=self._by_arithmetic)
        values = None
        if self._ends and not self._emulated:
            values = dict(self._subject.reference.select([*inputs, *outputs]))
            values |= {name: values[name].astype(np.float16) for name in inputs if values[name].dtype == np.float32}
        return marked(Candidate(model, inputs, outputs, title, keep, values), self._precision)


class LayerLowering(Lowering):
    """By ``ILayer.precision`` and output types, obeyed: TensorRT 8.6 to 10.

    Attributes:
        cast: Writes the same answer as a model with Casts; ``None`` where none is the same.
    """

    def __init__(
        self,
        subject: Subject,
        units: Sequence[int],
        target: TargetSettings,
        cast: CastLowering | None,
        left: Collection[int] = (),
    ) -> None:
        """Prepare.

        Args:
            subject: The model.
            units: What may be lowered.
            target: TensorRT, in the low precision.
            cast: Writes the same answer as a model with Casts; ``None`` where none is the same.
            left: Nodes about which nothing is said: those that Q/DQ has in integers.
        """
        super().__init__(subject, units)
        self._target = target
        self.cast = cast
        network = subject.network
        lowered = {*left, *(network.order[unit] for unit in units)}
        self._fixed = [index for index in network.order if index not in lowered and not network.constant[index]]

    def candidate(self, keep: Subset) -> Candidate:
        """The original, and the layers that have to run in fp32."""
        return self._candidate(keep, f"{len(keep)} of {len(self.units)} nodes in fp32")

    def _candidate(self, keep: Subset, title: str) -> Candidate:
        # With nothing to keep it is the original, of which there may be an answer already.
        return replace(self._subject.original, title=title, units=keep, keep=self.names(keep) or None)

    def names(self, keep: Subset) -> tuple[str, ...]:
        """The nodes to keep as the target takes them: the first output of each, in topological order."""
        network = self._subject.network
        kept = {*self._fixed, *(network.order[unit] for unit in keep)}
        return tuple(first_output(network.nodes[index]) for index in network.order if index in kept)

    def writes_model(self, path: Path) -> bool:
        """Whether what is written is an ONNX model."""
        return self.cast is not None and path.suffix not in ENGINES

    def write(self, keep: Subset, path: Path) -> None:
        """Write the engine that passed; beside it, if ``path`` is a model, the same as a model with Casts.

        Where that engine is not kept any more, it is built again.

        Raises:
            UsageError: It cannot be written.
            UnavailableError: It cannot be built any more.
        """
        if self.cast is not None and self.writes_model(path):
            self.cast.write(keep, path)
        subject, engine = self._subject, engine_path(path)
        built = subject.workspace.files(self.candidate(keep).key).folder / ENGINE
        if built.exists():
            _copy(built, engine)
            return
        target = replace(self._target, keep=self.names(keep))
        failed = subject.models.build("answer", subject.network.proto, subject.reference.inputs, engine, target)
        if failed is not None:
            raise UnavailableError(f"the engine of the answer cannot be built: {failed.message}.")

    def read_back(self, keep: Subset, path: Path) -> Candidate:
        """The engine that was written: TensorRT may build another one of the same candidate."""
        engine = engine_path(path)
        return replace(self._candidate(keep, f"{engine.name}, read back"), engine=engine)


def _copy(engine: Path, to: Path) -> None:
    try:
        shutil.copyfile(engine, to)
    except OSError as error:
        raise UsageError(f"{to} cannot be written: {error.strerror}; name another file.") from error


def engine_path(path: Path) -> Path:
    """Where the engine of an answer lies."""
    return path if path.suffix in ENGINES else path.with_suffix(".engine")


class GroupLowering(Lowering):
    """By taking QuantizeLinear/DequantizeLinear pairs out of a quantized model.

    Attributes:
        groups: The groups, by unit.
    """

    def __init__(self, subject: Subject, groups: Sequence[Group], weights: Stored, precision: str) -> None:
        """Prepare.

        Args:
            subject: The quantized model.
            groups: What may be taken out.
            weights: Weights that are stored quantized, in floats, by the output of the node that dequantizes them.
            precision: The quantized types, in words.
        """
        super().__init__(subject, range(len(groups)))
        self.groups = tuple(groups)
        self._weights = weights
        self._precision = precision

    def candidate(self, keep: Subset) -> Candidate:
        """The quantized model without the pairs of some groups."""
        title = f"{len(keep)} of {len(self.units)} groups in floats"
        return self._candidate(self._without(self._subject.network, keep), keep, title)

    def floats(self, keep: Subset) -> Network:
        """The graph with ``keep`` in floats."""
        return Network(self._without(self._subject.network, keep))

    def write(self, keep: Subset, path: Path) -> None:
        """Write the model, of the shapes of the original file.

        Raises:
            UsageError: It cannot be written.
        """
        source = self._subject.settings
        model = onnx.ModelProto()
        model.CopyFrom(self._without(Network(source.load()), keep))
        save_model(model, source.weights, path, beside=True)

    def read_back(self, keep: Subset, path: Path) -> Candidate:
        """The model that was written."""
        return self._candidate(self._load(path), keep, f"{path.name}, read back")

    def _without(self, network: Network, keep: Subset) -> onnx.ModelProto:
        pairs = [pair for unit in sorted(keep) for pair in self.groups[unit].pairs]
        return unquantize(network, pairs, self._weights) if pairs else network.proto

    def _candidate(self, model: onnx.ModelProto, keep: Subset, title: str) -> Candidate:
        network = self._subject.network
        candidate = Candidate(model, tuple(network.inputs), tuple(network.outputs), title, keep)
        return marked(candidate, self._precision)


def marked(candidate: Candidate, precision: str) -> Candidate:
    """A candidate that runs as it is, not to be taken for one of the same content that the target lowers itself."""
    model = onnx.ModelProto()
    model.CopyFrom(candidate.proto)
    model.metadata_props.add(key=_MARK, value=precision)
    return replace(candidate, made=model)


def _sorted(proto: onnx.ModelProto, network: Network) -> onnx.ModelProto:
    """The model with its nodes in topological order, as lowering wants them; itself if they are."""
    if network.is_sorted:
        return proto
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    del model.graph.node[:]
    model.graph.node.extend(proto.graph.node[index] for index in network.order)
    return model


def known_types(subject: Subject) -> dict[str, int]:
    """ONNX's element type of each tensor, as it ran or else as inference says."""
    return {name: element_type(info.dtype) for name, info in subject.infos.items()}


def refuse_lowered(network: Network, name: str) -> None:
    """Make sure that a model is an fp32 one.

    Raises:
        UsageError: It has low-precision tensors already, or quantized ones.
    """
    quantized = [index for index, node in enumerate(network.nodes) if node.op_type in _QUANTIZED]
    if quantized:
        raise UsageError(
            f"{name} is quantized ({network.describe(quantized[0])}; {len(quantized)} such nodes in all), so what it "
            "computes in fp32 is not known; give the model from before quantization."
        )
    types = {n: v.type.tensor_type.elem_type for n, v in (network.declared | network.inferred).items()}
    lowered = [tensor for tensor, element in types.items() if element in LOW_TYPES.values()]
    if lowered:
        kind = TensorProto.DataType.Name(types[lowered[0]]).lower()
        raise UsageError(
            f"{name} is in low precision already ('{lowered[0]}' is {kind}; {len(lowered)} such tensors in all), so what "
            "it computes in fp32 is not known; give the fp32 model that it was made from."
        )


def lowerable_units(
    subject: Subject,
    precision: str,
    types: Mapping[str, int],
    include: Sequence[str],
    exclude: Sequence[str],
    left: Collection[int] = (),
) -> list[int]:
    """The units that compute in fp32 and may be lowered, in topological order.

    The others stay as they are: integers and bools, arithmetic on shapes, scales of Resize and the like, control flow,
    custom operators, what ONNX does not allow in the low precision, and what only makes weights.

    Args:
        subject: The model.
        precision: ``fp16`` or ``bf16``.
        types: ONNX's element type of each tensor.
        include: If any, only nodes that one of these patterns matches.
        exclude: No node that one of these matches.
        left: None of these nodes.

    Raises:
        UsageError: The opset is too old, a pattern matches no node, or nothing is left.
    """
    network = subject.network
    check_opset(network.proto, LOW_TYPES[precision])
    slots = plan_slots(network.proto, (), types, opaque=False, low=LOW_TYPES[precision])
    searched = [unit for unit in subject.units.searched if network.order[unit] not in left]
    units = [unit for unit in searched if (slot := slots[network.order[unit]]).inputs or slot.outputs]
    if not units:
        raise UsageError(
            f"{subject.settings.path} has no node that computes in fp32 and can be lowered to {precision}, so there is "
            "nothing to search."
        )
    wanted = _matching(network, "--include", include) if include else range(len(network.nodes))
    unwanted = _matching(network, "--exclude", exclude)
    chosen = [unit for unit in units if (index := network.order[unit]) in wanted and index not in unwanted]
    if not chosen:
        raise UsageError(
            f"--include and --exclude leave none of the {len(units)} nodes that can be lowered to {precision}; widen the "
            "patterns."
        )
    return chosen


def _matching(network: Network, option: str, patterns: Sequence[str]) -> Collection[int]:
    """The nodes that some pattern matches; each has to match one."""
    found: set[int] = set()
    for pattern in patterns:
        matched = [index for index, node in enumerate(network.nodes) if _matches(node, pattern)]
        if not matched:
            raise UsageError(
                f"{option} '{pattern}' matches no node of the model; a pattern is a glob over the names of nodes, or with "
                "op: before it over operators (op:Softmax)."
            )
        found.update(matched)
    return found


def _matches(node: onnx.NodeProto, pattern: str) -> bool:
    if pattern.startswith(OPERATOR):
        return fnmatchcase(node.op_type, pattern.removeprefix(OPERATOR))
    # A node without a name goes by what it makes, as in all messages.
    return fnmatchcase(node.name or next(filter(None, node.output), ""), pattern)
