"""The model of a run: its graph, its inputs, the reference activations, and the candidates cut from it."""

from __future__ import annotations

import copy
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx
from msgspec import Struct, field, structs
from onnx.helper import make_tensor_value_info

from bisect_trt.errors import ModelFileError, RuntimeMissingError, UnavailableError
from bisect_trt.onnxlib.cut import cut, mark_outputs
from bisect_trt.onnxlib.inputs import input_infos, table_sizes, take_input_shapes
from bisect_trt.onnxlib.load import load_model, needed_ir_version
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import Node, clone, keep_only, share_names
from bisect_trt.onnxlib.qdq import make_ends_float
from bisect_trt.onnxlib.shapes import (
    element_type,
    fix_input_shapes,
    free_inputs,
    input_sizes,
    resized,
    sizes_at,
    to_info,
)
from bisect_trt.onnxlib.state import State, find_state, make_steps
from bisect_trt.options.shared import Data, Loop
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.prober import Prober
from bisect_trt.probe.reference import Models, Reference
from bisect_trt.probe.workspace import Workspace
from bisect_trt.report.console import Console
from bisect_trt.report.parts import Model, StepsWay
from bisect_trt.report.result import Result
from bisect_trt.search.oracle import Subset
from bisect_trt.session.facts import ModelFacts
from bisect_trt.session.free_dims import Freed
from bisect_trt.targets.base import TargetSettings
from bisect_trt.targets.runtime import Lowering
from bisect_trt.tensors.files import Values, common_shapes, sha256_of
from bisect_trt.tensors.info import tensor_of
from bisect_trt.tensors.inputs import LABELS, Sample, given_samples, loaded_names, make_inputs
from bisect_trt.tensors.inputs import resized as resized_values
from bisect_trt.tensors.store import swap_limit
from bisect_trt.worker.deadline import Deadline
from bisect_trt.worker.place import Place, Seen
from bisect_trt.worker.pool import WorkerPool, visible_gpus
from bisect_trt.worker.protocol import About, Failed

_KNOWN_IR = 10
"""The newest IR version that every supported release of ONNX Runtime reads, from 1.18 on."""


class ModelSettings(Struct, frozen=True):
    """The model and its input data.

    Attributes:
        stays_free: Whether the command keeps the file's free dimensions, so that no warning about
            their sizes is needed.
        older: Whether models are written with the lowest IR version that they need, for older
            runtimes.
        loop: Whether it is run step after step, and with which state.
        module: Whether a PyTorch module, which may take inputs that the model lacks, is the
            reference.
        float_ends: Whether it takes and returns floats in place of quantized values.
    """

    path: Path
    data: Data = field(default_factory=Data)
    loop: Loop = field(default_factory=Loop)
    most: int | None = None
    stays_free: bool = False
    older: bool = False
    module: bool = False
    float_ends: bool = False

    def load(self) -> onnx.ModelProto:
        """Return the model with the IR version in which candidates are written.

        Raises:
            UnavailableError: As :func:`load_model`; and UsageError.
        """
        model = load_model(self.path, self.data.external_data_dir)
        if self.older:
            model.ir_version = needed_ir_version(model)
        if self.float_ends:
            make_ends_float(model)
        return model

    @property
    def weights(self) -> Path:
        """The folder of the files of its weights."""
        return (self.data.external_data_dir or self.path.parent).absolute()


class Subject(ModelFacts):
    """A model, its reference activations, and the candidates that can be cut from it.

    Attributes:
        settings: The model's path and input data.
        network: Its graph, with the free dimensions of the file.
        workspace: The run's folder.
        workers: Processes that run models.
        models: Runs models in them.
        samples: The input values, one or more samples.
        seen: The packages and devices of each place that was examined.
        declared: The shapes that its file gives the inputs, by name.
        assumed: The shapes of the inputs with free dimensions that were set to 1, by name.
        truth: The graph that the reference runs: the model's own, unless ``precision --reference``
            gives another.
        console: Prints warnings.
        state: What a step of a loop takes from the one before.
        stream: What each step of a loop is fed beside that.
        wrong_steps: Returns what some other wrong steps of the loop are fed; a fix should hold on them.
        run_fixed: Runs the loop of a mixed-precision form of the model with its own state; see :class:`LoopRun`.
    """

    state = State({}, {})
    stream: Sequence[Sample] = ()
    wrong_steps: Callable[[], Sequence[Sample]] = list
    run_fixed: Callable[[onnx.ModelProto, TargetSettings], StepsWay | None] | None = None
    # Whether it has warned of tensors without a reference value.
    _warned = False

    def __init__(
        self,
        settings: ModelSettings,
        workspace: Workspace,
        console: Console,
        *,
        fresh_process: bool = False,
        timeout: float | None = None,
        target: TargetSettings | None = None,
        places: tuple[Place, ...] = (),
        deadline: Deadline | None = None,
    ) -> None:
        """Read the model and make its inputs; any run may take ``timeout`` seconds, but at least 30, until the ``deadline``.

        Raises:
            UnavailableError: The model cannot be read.
            UsageError: Inputs or shapes do not fit it.
        """
        self.settings = settings
        self.workspace = workspace
        # A killed run leaves files.
        workspace.clear()
        self.console = console
        self.workers = WorkerPool(
            workspace.folder,
            visible_gpus(),
            fresh_process=fresh_process,
            memory_limit=settings.data.memory_limit,
            timeout=timeout,
            places=places,
            bring=workspace.weights.bring,
            deadline=deadline,
        )
        self.models = Models(workspace, self.workers, target, console.warn)
        proto = load_model(settings.path, settings.data.external_data_dir)
        if settings.float_ends:
            make_ends_float(proto)
        self._lower_version(proto)
        feed_defaults(proto, settings.data)
        if settings.module:
            self._add_inputs(proto)
        self.workspace.weights.refer(proto, settings.weights)
        try:
            self.network = Network(proto)
        except UnavailableError as error:
            raise ModelFileError(f"{settings.path}: {error}") from error
        self.seen: dict[Place, Seen] = {}
        self._about: dict[TargetSettings, Lowering] = {}
        self.feed(self.settings)

    def _add_inputs(self, proto: onnx.ModelProto) -> None:
        """Declare each input of the first sample that the model lacks; the module may take it."""
        samples = given_samples(self.settings.data)
        names = {LABELS, *(value.name for value in proto.graph.input)}
        for name, value in samples[0].items() if samples else ():
            if name not in names:
                self.console.warn(
                    f"the model has no input '{name}'; the samples' values of it go to the module alone"
                )
                proto.graph.input.append(
                    make_tensor_value_info(name, element_type(value.dtype), value.shape)
                )

    def feed(self, settings: ModelSettings) -> None:
        """Make the inputs that settings name; of a loop these are the first step's, and all of them are in ``stream``.

        Raises:
            UsageError: Inputs or shapes do not fit the model.
        """
        self.settings = settings
        self.samples = self._make_samples()
        self.truth = self.network
        self.anew(self._run_reference)

    def _lower_version(self, proto: onnx.ModelProto) -> None:
        """Give a model the lowest IR version that it needs, if a runtime may refuse its own."""
        declared = proto.ir_version
        needed = needed_ir_version(proto)
        if needed == declared or not (self.settings.older or declared > _KNOWN_IR):
            return
        proto.ir_version = needed
        self.ir_version = {"file": declared, "written": needed}
        self._probes_file = not self.settings.older
        self.settings = structs.replace(self.settings, older=True)
        first = "; the first probe is about your file as it is" if self._probes_file else ""
        self.console.warn(
            f"Older runtimes reject IR version {declared}, and the model needs only {needed}. Models are written with version "
            f"{needed}{first}."
        )

    def say_sizes(self) -> None:
        """Warn about free dimensions that were set to 1."""
        for name, shape in self.assumed.items():
            self.console.warn(
                f"the input '{name}' has free dimensions; {list(shape)} is used (--input-shapes sets them)"
            )

    @property
    def data(self) -> Data:
        """The source of input values; random indices of a table, such as tokens, are drawn from all of its entries."""
        data = self.settings.data
        if "" in data.val_range:
            return data
        ranges = {name: (0, size - 1) for name, size in table_sizes(self.network).items() if size}
        return replace(data, val_range={**ranges, **data.val_range})

    def _make_samples(self) -> list[Sample]:
        """Return the input values; ``network`` keeps the free dimensions of the file.

        Only where the user's shapes contradict the file does the network declare other ones.
        """
        data = self.data
        proto = self.network.proto
        infos = {
            value.name: info for value in proto.graph.input if (info := to_info(value)) is not None
        }
        self.declared = {name: info.shape for name, info in infos.items() if info.shape is not None}
        samples = None
        free = sizes_at(data.input_shapes, None)
        self.ranged = free != sizes_at(data.input_shapes, 0)
        shapes: Mapping[str, Sequence[int | None]] = {}
        loop = self.settings.loop
        if loop.steps is not None:
            self.state = find_state(self.network, loop.state)
            self.stream = make_steps(self.network, self.state, data, loop.steps)
            samples = self.stream[:1]
        elif data.given:
            samples = make_inputs(
                resized(input_infos(self.network), free), data, self.settings.most
            )
        if samples is not None:
            shapes = common_shapes(samples)
        # The model must hold at both ends of the ranges, as a profile has to.
        smallest, sizes = (
            input_sizes(
                proto, {**shapes, **sizes_at(data.input_shapes, share)}, assume=samples is None
            )
            for share in (0, 1)
        )
        contradicted = smallest.contradicted | sizes.contradicted
        self.assumed = sizes.assumed
        if not self.settings.stays_free:
            self.say_sizes()
        # The user's sizes win: from here on the model declares them.
        if contradicted:
            given = {name: free.get(name, sizes.shapes[name]) for name in contradicted}
            self.network = Network(free_inputs(proto, self._with_symbols(given)))
        if samples is None:
            inputs = resized(input_infos(self.network), sizes.shapes)
            if self.ranged and data.iterations is None:
                data = replace(data, iterations=2)
            samples = make_inputs(inputs, data, self.settings.most)
            if self.ranged:
                samples = [
                    self.in_range(sample, number / max(len(samples) - 1, 1))
                    for number, sample in enumerate(samples)
                ]
        self._warn_of_names(samples)
        return samples

    def _with_symbols(
        self, shapes: Mapping[str, Sequence[int | str | None]]
    ) -> dict[str, list[int | str | None]]:
        """Return shapes with the names that the file has for free dimensions."""
        return {
            name: [
                dim if size is None and isinstance(dim, str) else size
                for dim, size in zip(self.declared[name], shape, strict=True)
            ]
            for name, shape in shapes.items()
        }

    def in_range(self, sample: Sample, share: float) -> Sample:
        """Return a sample in sizes of the ranges of ``--input-shapes``, its values repeated or cut.

        Args:
            sample: The sample.
            share: The place of the sizes in the ranges, from 0, the smallest, to 1, the largest.
        """
        shapes = sizes_at(self.settings.data.input_shapes, share)
        sizes = input_sizes(self.network.proto, shapes, assume=False).shapes
        return {
            name: resized_values(
                value,
                [
                    dim if isinstance(dim, int) else size
                    for dim, size in zip(sizes[name], value.shape, strict=True)
                ],
            )
            for name, value in sample.items()
        }

    def with_sizes(self, labelled: Iterable[tuple[Sample, Any]]) -> Iterator[tuple[Sample, Any]]:
        """Yield further samples with their labels; candidates keep the dimensions free in which these differ."""
        for sample, labels in labelled:
            if common_shapes([*self.samples, sample]) != common_shapes(self.samples):
                self.samples.append(sample)
                self.anew(self._run_reference)
            yield sample, labels

    def _warn_of_names(self, samples: Sequence[Sample]) -> None:
        """Warn about a named dimension that has two sizes in one sample."""
        for number, sample in enumerate(samples, 1):
            sizes: dict[str, tuple[str, int]] = {}
            for name, value in sample.items():
                for dim, size in zip(self.declared.get(name, ()), value.shape, strict=False):
                    first, expected = (
                        sizes.setdefault(dim, (name, size))
                        if isinstance(dim, str)
                        else (name, size)
                    )
                    if size != expected:
                        self.console.warn(
                            f"the dimension '{dim}' is {expected} in '{first}' and {size} in '{name}' of sample {number}; "
                            "a runtime may require one size"
                        )
                        return

    def __enter__(self) -> Subject:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def about(self, target: TargetSettings) -> Lowering:
        """Return how a model is lowered for a target: by the target, layer by layer, or by Casts; the worker is asked once.

        Raises:
            UnavailableError: It is not installed, or has no GPU, or crashes when it starts.
            UsageError: It has no such option.
        """
        if target not in self._about:
            reply = self.workers.ask(About(target))
            if isinstance(reply, Failed):
                raise RuntimeMissingError(
                    f"{target.describe()} does not start: {reply.message}; run `bisect-trt doctor` for details."
                )
            self._about[target] = "layer" if reply.get("lowers_by") == "layer" else "cast"
        return self._about[target]

    def free(self, freed: Freed) -> None:
        """Keep these dimensions free in all later candidates."""
        expected = self.expected
        self.freed = freed
        self.network = freed.network
        self.anew(lambda: expected)

    def other(self, path: Path, reference: Reference) -> Subject:
        """Return the subject of a model derived from this one, with the same inputs and expected outputs."""
        subject = copy.copy(self)
        subject.settings = structs.replace(
            self.settings,
            path=path,
            data=replace(self.settings.data, external_data_dir=None),
        )
        proto = self.workspace.read_back(path)
        take_input_shapes(proto, self.network)
        subject.network = Network(proto)
        subject.anew(lambda: reference)
        return subject

    def of_body(self, model: onnx.ModelProto, values: Sample, number: int) -> Subject:
        """Return the subject of a model inside this one, which has one sample of its own.

        Args:
            model: The model.
            values: The values of its inputs.
            number: A number for its activations, which no sample has.
        """
        subject = copy.copy(self)
        subject.network = subject.truth = Network(model)
        subject.samples = [values]
        subject.freed = None
        subject.ir_version = None
        subject.anew(lambda: subject.run_reference(subject.network, number))
        return subject

    def close(self) -> None:
        """End the workers, and remove the activations and the candidate at the fixed path."""
        self.workers.close()
        self.workspace.close()

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the model's file."""
        return sha256_of(self.settings.path)

    @property
    def free_shapes(self) -> list[str]:
        """The inputs with dimensions that the file leaves free, these from 1 to 64, as words of ``sweep --shapes``."""
        return [
            f"{name}:[{','.join(str(dim) if isinstance(dim, int) else '1..64' for dim in shape)}]"
            for name, shape in self.declared.items()
            if any(not isinstance(dim, int) for dim in shape)
        ]

    @cached_property
    def swap_limit(self) -> int:
        """Bytes of weights and tensors above which tensors are computed slice by slice."""
        return swap_limit(self.settings.data.array_swap_mb)

    def run_reference(self, network: Network, start: int = 1) -> Reference:
        """Return the values of a network's tensors on each sample, in folders that are numbered from ``start`` on."""
        first, *references = (
            Reference(network, sample, self.workspace, self.models, number, self.swap_limit)
            for number, sample in enumerate(self.samples, start)
        )
        for reference in references:
            first.add(reference)
        return first

    def _run_reference(self) -> Reference:
        """Return the expected values of every tensor."""
        return self.run_reference(self.truth)

    def _warn_of_missing(self, first: Reference) -> None:
        """Warn about tensors without a reference value, once."""
        self._warned = True
        if first.refused is not None:
            self.console.warn(
                f"ONNX Runtime cannot run this model: {first.refused}. No tensor has reference values, so only candidates "
                "that start at the graph's inputs are cut."
            )
        for index, failed in first.missing.items():
            self.console.warn(
                f"ONNX Runtime cannot run {self.truth.describe(index)}: {failed.message}. Tensors that depend on it have no "
                "reference values, so no candidate starts at them."
            )

    @property
    def has_reference(self) -> bool:
        """Whether the reference has run."""
        return "expected" in vars(self)

    @property
    def reference(self) -> Reference:
        """The expected values of every tensor; the first use warns where some are missing."""
        if not self._warned:
            self._warn_of_missing(self.expected)
        return self.expected

    @property
    def lowering(self) -> str:
        """The command that lowers the IR version, where the first probe has the file's; else empty."""
        return self.sanitizing("ir") if self._probes_file else ""

    @property
    def renaming(self) -> str:
        """The command that renames nodes with the same name, a sentence after a space; empty if names are unique."""
        if not share_names(self.network.proto):
            return ""
        return f" `{self.sanitizing('named')}` gives each node a unique name."

    def sanitizing(self, suffix: str, *words: str) -> str:
        """Return the command that writes the model in another form, to a file with a suffix."""
        output = str(self.sanitized(suffix))
        return shlex.join(["bisect-trt", "sanitize", str(self.settings.path), "-o", output, *words])

    def sanitized(self, suffix: str) -> Path:
        """Return the file that :meth:`sanitizing` writes."""
        return Path(f"{self.settings.path.stem}-{suffix}.onnx")

    @property
    def fixed(self) -> Candidate:
        """The model with the input shapes of the samples; dimensions that differ between samples stay free."""
        proto = clone(self.network.proto)
        fix_input_shapes(proto, common_shapes(self.samples), assume=False)
        return replace(self.original, made=proto, title="the original, with fixed shapes")

    def rest(self, taken: Subset) -> Candidate | None:
        """Return the model without some units and what depends on them for a value; ``None`` if nothing is left."""
        units = self.units.independent(taken.intersection(self.units.searched) or taken)
        if not units:
            return None
        candidate = self.cut(self.units.with_weights(units))
        return replace(candidate, title=f"the rest: {candidate.title}")

    def cut(
        self, units: Subset, *, held: bool = False, outputs: Sequence[str] | None = None
    ) -> Candidate:
        """Return the candidate that consists of some units.

        Args:
            units: The units.
            held: Whether the target must use its low precision.
            outputs: Its outputs; by default all tensors that something outside reads.
        """
        bare = self.units.bare(units)
        piece = cut(
            self.network,
            map(self.network.order.__getitem__, bare),
            self.infos,
            self.constants,
            outputs,
        )
        title = f"{self.units.count(bare)} of {len(self.units)} nodes"
        last = self.network.describe(self.network.order[max(bare)])
        self.console.progress.piece = f": up to {last}"
        candidate = Candidate(piece, piece.inputs, piece.outputs, title, bare, held=held)
        return candidate if self.freed is None else self.freed.dress(candidate)

    def values(self, candidate: Candidate, names: Sequence[str]) -> Values:
        """Return the known values of some of a candidate's inputs or outputs."""
        if candidate.values is not None:
            return {
                name: value
                for name, value in candidate.values.items()
                if name in names or tensor_of(name) in names
            }
        return [self.reference, *self.reference.more][candidate.sample - 1].select(names)

    def earlier(self, candidate: Candidate) -> list[Values]:
        """Return the inputs of the samples before the one that a candidate fails on, which its probes run in the same session."""
        numbers = range(1, candidate.sample if candidate.values is None else 1)
        return [self.values(replace(candidate, sample=each), candidate.inputs) for each in numbers]

    def feeds(self) -> list[Path]:
        """Write the values of each sample for workers; return the files."""
        return [
            self.models.feed(f"inputs-{number}", sample)
            for number, sample in enumerate(self.samples, 1)
        ]

    def marked(self, names: Iterable[str]) -> onnx.ModelProto:
        """Return the model with these tensors as its outputs."""
        return mark_outputs(self.network, list(names), self.infos)

    def describe_searched(self, units: Iterable[int]) -> list[Node]:
        """Return the nodes of some units for the result, without nodes that only compute weights."""
        order = (self.network.order[unit] for unit in sorted(units))
        return self.describe_nodes(index for index in order if not self.network.constant[index])

    def describe_nodes(self, nodes: Iterable[int]) -> list[Node]:
        """Return nodes for the result: name, operator, outputs, and the PyTorch module, if the file records it."""
        return [self.network.plain(index) for index in nodes]

    def record(self, result: Result, prober: Prober | None = None) -> None:
        """Put the model and the counts of probes into a result."""
        result.model = Model(
            path=str(self.settings.path),
            sha256=self.sha256,
            nodes=len(self.network.nodes),
            units=self.network.constant.count(False),
        )
        result.artifacts["run"] = str(self.workspace.folder)
        if self.ir_version is not None:
            result.ir_version = dict(self.ir_version)
        if self.seen:
            result.places = [
                {**runtime.to_json(), "said": runtime.describe()} for runtime in self.seen.values()
            ]
        if prober is not None:
            result.probes = {**prober.ledger.counts(), "wasted": prober.wasted}


def feed_defaults(proto: onnx.ModelProto, data: Data) -> None:
    """Make inputs with a default, which is an initializer of their name, plain inputs where values are given for them.

    Args:
        proto: The model, which is changed in place.
        data: The files with values.

    Raises:
        UsageError: A file cannot be read.
    """
    graph = proto.graph
    defaults = {value.name for value in graph.input} & {tensor.name for tensor in graph.initializer}
    if defaults and (fed := defaults & loaded_names(data)):
        keep_only(
            graph.initializer, [tensor for tensor in graph.initializer if tensor.name not in fed]
        )
