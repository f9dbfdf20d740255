"""The reference runtime: the models it runs for their values, the weights it computes, the activations of the original."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
from msgspec import structs
from numpy.typing import NDArray
from onnx import numpy_helper

from bisect_trt.errors import ModelRefusedError, ResourceError
from bisect_trt.onnxlib.cleanup import constant_value, shape_value
from bisect_trt.onnxlib.cut import StoredValue, cut, mark_outputs, nothing_stored, plan_slices
from bisect_trt.onnxlib.functions import inline_functions
from bisect_trt.onnxlib.inputs import input_infos
from bisect_trt.onnxlib.network import Network, infer
from bisect_trt.onnxlib.nodes import opset_of
from bisect_trt.onnxlib.roundings import computed_wide
from bisect_trt.onnxlib.shapes import free_inputs, tensor_infos
from bisect_trt.probe.workspace import Workspace
from bisect_trt.search.oracle import Verdict
from bisect_trt.search.strategy import shortest_failing_prefix
from bisect_trt.targets.base import TargetSettings, reference_settings
from bisect_trt.tensors.files import Arrays, Values, load_npz, save_npz, shapes_of
from bisect_trt.tensors.info import TensorInfo, common, is_extension, tensor_of
from bisect_trt.tensors.store import ActivationStore, write_store
from bisect_trt.worker.pool import WorkerPool
from bisect_trt.worker.process import Cancel
from bisect_trt.worker.protocol import BuildEngine, Collect, Failed, Lower, OnModel, R_co

_SHAPE_SIZE = 64
"""Elements of an input that may be the shape of another tensor."""


class Models:
    """Runs models for their values, by default on the reference runtime; with ``build_only`` nothing is to be compared."""

    def __init__(
        self,
        workspace: Workspace,
        workers: WorkerPool,
        target: TargetSettings | None = None,
        warn: Callable[[str], object] = str,
    ) -> None:
        """Run none yet.

        Args:
            workspace: Gets the files of this session.
            workers: Run the models.
            target: What the reference is for, where that matters.
            warn: Prints that the reference computes in a wider type than the model has.
        """
        self.reference = reference_settings(target)
        self.build_only = target is not None and target.build_only
        self._reference_once = reference_settings(target, spinning=False)
        self._workspace = workspace
        self._scratch = workspace.scratch
        self.workers = workers
        self._warn = warn
        self.computes_wide = False

    def write(self, name: str, model: onnx.ModelProto) -> Path:
        """A file that holds a model; it lies beside the candidates, where the shared weights are."""
        path = self._scratch(f"{name}.onnx")
        path.write_bytes(model.SerializeToString())
        return path

    def feed(self, name: str, values: Values) -> Path:
        """A file that holds values."""
        path = self._scratch(f"{name}.npz")
        save_npz(path, values)
        return path

    def run(
        self,
        name: str,
        model: onnx.ModelProto,
        values: Values,
        target: TargetSettings | None = None,
        timeout: float | None = None,
        earlier: Sequence[Values] = (),
    ) -> Arrays | Failed:
        """Return the outputs of a model by name, or the reason why it does not run; ``name`` names its files.

        Args:
            name: The stem of the files that the model and its values are written to.
            model: The model; its weights may be external.
            values: The arrays of its inputs by name.
            target: The runtime; ``None`` for the reference.
            timeout: Seconds; ``None`` without a limit.
            earlier: What the same session runs before.
        """
        outputs = self._scratch(f"{name}.made.npz")
        before = [self.feed(f"{name}.in-{place}", each) for place, each in enumerate(earlier)]
        inputs = self.feed(f"{name}.in", values)
        file = self.write(name, model)
        failed = self.collect(file, inputs, outputs, target, timeout, earlier=before)
        return load_npz(outputs) if failed is None else failed

    def run_each(
        self, name: str, model: onnx.ModelProto, samples: Sequence[Values], timeout: float
    ) -> list[Arrays]:
        """Return the outputs for each of those samples on which a model runs; it is loaded once.

        Args:
            name: The stem of the files that the model and its values are written to.
            model: The model; its weights may be external.
            samples: The arrays of its inputs by name.
            timeout: Seconds for all samples.
        """
        file = self.write(name, model)
        fed = [self.feed(f"{name}.in-{place}", sample) for place, sample in enumerate(samples)]
        made = [self._scratch(f"{name}.made-{place}.npz") for place in range(len(fed))]
        for path in made:
            path.unlink(missing_ok=True)
        left = 0
        while left < len(fed):
            request = Collect(self._reference_once, file, tuple(fed[left:]), tuple(made[left:]))
            failed = self._collected(request, None, timeout)
            # A session ends with the first sample that it does not run.
            left = len(fed) if failed is None else 1 + left + sum(p.exists() for p in made[left:])
        return [load_npz(path) for path in made if path.exists()]

    def constants(self, network: Network, names: Sequence[str]) -> Arrays | Failed:
        """Return the values of tensors that nodes make and that depend on no input, or the reason why they cannot be computed."""
        nodes = network.leading_to({network.producer[name] for name in names})
        return self.run("constants", cut(network, nodes, {}, nothing_stored, names).proto, {})

    def collect(
        self,
        model: Path,
        inputs: Path,
        to: Path,
        target: TargetSettings | None = None,
        timeout: float | None = None,
        *,
        append: bool = False,
        earlier: Sequence[Path] = (),
    ) -> Failed | None:
        """Run a model and leave its outputs in a file or a store; why it is not run, if so.

        Args:
            model: The file of the model.
            inputs: The ``.npz`` of its inputs.
            to: The file or the store of its outputs.
            target: The runtime; ``None`` for the reference.
            timeout: Seconds; ``None`` without a limit.
            append: Whether the store keeps the tensors that it has.
            earlier: The inputs of runs before in the same session; their outputs are dropped.

        Raises:
            UnavailableError: The reference takes too long or too much memory, or another process
                ends the workers that run it.
        """
        fed = (*earlier, inputs)
        request = Collect(target or self._reference_once, model, fed, (to,) * len(fed), append)
        return self._collected(request, target, timeout)

    def _collected(
        self, request: Collect, target: TargetSettings | None, timeout: float | None
    ) -> Failed | None:
        settings = self.reference if target is None else target
        reply = (self.ask if target is None else self.workers.ask)(request, timeout)
        if isinstance(reply, Failed) and reply.kind in ("time-out", "memory") and target is None:
            raise ModelRefusedError(
                f"{settings.describe()} does not get to the end of a model: {reply.message}."
            )
        # Something outside ended the process, which says nothing about the model.
        if isinstance(reply, Failed) and reply.kind == "lost":
            raise ResourceError(
                f"{settings.describe()} could not run a model: {reply.message}. Free memory, or run fewer probes at a time "
                "(--workers 1), and start again."
            )
        return reply if isinstance(reply, Failed) else None

    def ask(
        self, request: OnModel[R_co], timeout: float | None = None, cancel: Cancel | None = None
    ) -> R_co | Failed:
        """Ask the reference runtime about a model: here, whatever places there are, and in fp32 where it has no bf16 kernels.

        Args:
            request: The question, with the settings of the reference.
            timeout: Seconds it may take.
            cancel: Ends it when set.
        """

        def ask(model: Path) -> R_co | Failed:
            return self.workers.ask(
                structs.replace(request, model=model), timeout, cancel, here=True
            )

        wide = self._widened(request.model) if self.computes_wide else None
        reply = ask(wide or request.model)
        # Only a refusal to build is about missing kernels.
        if self.computes_wide or not isinstance(reply, Failed) or reply.kind != "build":
            return reply
        wide = self._widened(request.model)
        again = reply if wide is None else ask(wide)
        if isinstance(again, Failed):
            return reply
        self.computes_wide = True
        self._warn(
            "ONNX Runtime has no bf16 kernels for this model on the CPU, so the reference computes in fp32, from the same "
            "weights and inputs."
        )
        return again

    def _widened(self, model: Path) -> Path | None:
        """Return a bf16 model that computes in fp32; ``None`` if it has no bf16 tensors."""
        low = inline_functions(onnx.load(str(model), load_external_data=False), ())
        wide = computed_wide(low)
        return None if wide == low else self.write(f"{model.parent.name}-{model.stem}.wide", wide)

    def build(
        self,
        name: str,
        model: onnx.ModelProto,
        values: Values,
        to: Path,
        target: TargetSettings,
        timeout: float | None = None,
    ) -> Failed | None:
        """Write the engine that a target makes of a model; why it is not built, if so.

        Args:
            name: The stem of the files that the model and its values are written to.
            model: The model.
            values: The arrays of its inputs by name; the engine is built for their shapes.
            to: The file of the engine.
            target: The target that builds it.
            timeout: Seconds; ``None`` without a limit.
        """
        target = target.with_own(save_engine=str(to.absolute()))
        request = BuildEngine(target, self.write(name, model), self.feed(name, values))
        reply = self.workers.ask(request, timeout)
        return reply if isinstance(reply, Failed) else None

    def lowered(self, model: Path, target: TargetSettings) -> onnx.ModelProto | Failed | None:
        """The form of a model that a target really runs; ``None`` if that is the model itself."""
        path = self._scratch("lowered.onnx")
        reply = self.workers.ask(Lower(target, model, path))
        if isinstance(reply, Failed):
            return reply
        return onnx.load(str(path), load_external_data=False) if reply else None


def stored_values(network: Network, models: Models) -> StoredValue:
    """Return a function that computes weights that nodes make, each once, on the reference runtime.

    It raises an ``UnavailableError`` if ONNX Runtime cannot compute a weight.
    """

    @cache
    def value(name: str) -> onnx.TensorProto:
        maker = network.producer[name]
        if (constant := constant_value(network.nodes[maker])) is not None:
            return constant
        values = models.constants(network, [name])
        if isinstance(values, Failed):
            raise ModelRefusedError(
                f"ONNX Runtime cannot compute the weight '{name}': {values.message}."
            )
        return numpy_helper.from_array(values[name], name)

    return value


class InferredValues:
    """Values that replace a model's activations where it is only built: zeros of the inferred types and shapes.

    What follows from shapes alone, such as the target of a Reshape, has its value.
    """

    def __init__(self, network: Network, inputs: Values, models: Models) -> None:
        """Infer the shapes, and compute what depends on them alone."""
        if not all(info.is_static for info in input_infos(network)):
            # The tensors are those of the values then.
            network = Network(free_inputs(network.proto, shapes_of(inputs)))
        self.network = network
        self._shapes: Arrays = {
            name: value
            for name, value in inputs.items()
            if value.dtype.kind in "iub" and value.size <= _SHAPE_SIZE
        }
        inferred = infer(network, follow_values=True)
        infos = network.infos if inferred is None else tensor_infos(inferred)
        static = {name: info for name, info in infos.items() if info.is_static}
        chosen = self._follow(static)
        names = network.made_by(chosen)
        if chosen:
            weights = [index for index in network.order if network.constant[index]]
            piece = cut(network, [*weights, *chosen], {**static}, nothing_stored, names)
            values = models.run(
                "shapes", piece.proto, {name: self._shapes[name] for name in piece.inputs}
            )
            self._shapes |= {} if isinstance(values, Failed) else values
        computed = {
            name: TensorInfo(name, value.dtype, value.shape) for name, value in self._shapes.items()
        }
        self.infos = {**static, **computed}

    def _follow(self, static: Mapping[str, TensorInfo]) -> list[int]:
        """Take the shapes of tensors in; return the nodes that depend on nothing but shapes."""
        network = self.network
        chosen: list[int] = []
        for index in network.order:
            node = network.nodes[index]
            reads = network.computed_reads(index)
            if node.op_type in ("Shape", "Size") and reads and reads[0] in static:
                self._shapes[node.output[0]] = shape_value(node, static[reads[0]])
            elif reads and all(
                name in self._shapes or network.producer.get(name) in chosen for name in reads
            ):
                chosen.append(index)
        return chosen

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return the value of a tensor."""
        info = self.infos[name]
        return (
            self._shapes[name]
            if name in self._shapes
            else np.zeros(cast("Any", info.shape), info.dtype)
        )


class Reference:
    """The activations of a model: ONNX Runtime on the CPU, optimisations off, every tensor kept on disk.

    Where ONNX Runtime has no kernel for a node (a TensorRT plugin), or fails in one, the tensors
    that depend on it stay unknown and everything else is still known.

    Attributes:
        inputs: The values of the graph's inputs.
        inputs_file: The same as a file, ``.npz``.
        store: The folder of the activations.
        infos: Type and shape of every tensor with a known value, the inputs too.
        missing: For each node that could not be run, why.
        lost: These nodes and all that depend on them: what they make is not known.
        refused: Why ONNX Runtime cannot run any model of this kind (of an IR version or operator
            set that it does not know, say), if so; then nothing is known but the inputs.
        more: The reference runs of the other input samples. The fields above then apply to every
            sample; a dimension that is not the same for all of them is free.
    """

    def __init__(
        self,
        network: Network,
        inputs: Values,
        workspace: Workspace,
        models: Models,
        number: int,
        limit: int,
    ) -> None:
        """Run the model on the input sample of a number.

        Past ``limit`` bytes of weights and tensors it is run in slices.

        Raises:
            UsageError: The run's folder cannot be written.
        """
        self.inputs = dict(inputs)
        self.missing: dict[int, Failed] = {}
        self.lost: frozenset[int] = frozenset()
        self.refused: str | None = None
        self.more: tuple[Reference, ...] = ()
        self._limit = limit
        self._network = network
        self._models = models
        suffix = "" if number == 1 else f"-{number}"
        self.inputs_file = models.feed(f"inputs{suffix}", self.inputs)
        self.store = workspace.scratch(f"activations{suffix}")
        self._fed = {
            name: TensorInfo(name, value.dtype, value.shape) for name, value in self.inputs.items()
        }
        self._values = (
            InferredValues(network, self.inputs, models) if models.build_only else self._run()
        )
        self.infos: Mapping[str, TensorInfo] = ChainMap(self._fed, self._values.infos)

    def add(self, other: Reference) -> None:
        """Take a further input sample in."""
        self.more += (other,)
        self.missing = {**other.missing, **self.missing}
        self.lost |= other.lost
        self.refused = self.refused or other.refused
        self.infos = {
            name: common(info, other.infos[name])
            for name, info in self.infos.items()
            if name in other.infos
        }

    def select(self, names: Sequence[str]) -> Arrays:
        """Return the known values of the tensors, in the given order; a sequence has the values of its members."""
        return {
            stored: self.inputs[stored] if stored in self.inputs else self._values[stored]
            for name in names
            for stored in self.stored_names(name)
        }

    def stored_names(self, name: str) -> Sequence[str]:
        """Return the names under which a tensor, or the members of a sequence, a map or an optional, are stored."""
        return [name] if name in self.infos else self._members.get(name, ())

    @cached_property
    def _members(self) -> dict[str, list[str]]:
        """The names of the members of sequences, maps and optionals, by the name of these."""
        stored: dict[str, list[str]] = {}
        for name in self._values.infos:
            if name.endswith("]") and name not in self._network.producer:
                stored.setdefault(tensor_of(name), []).append(name)
        return stored

    def compute(self, model: onnx.ModelProto, inputs: Values) -> Arrays | None:
        """The outputs of another model on the reference runtime; ``None`` if it does not run there."""
        if self._models.build_only:
            inferred = InferredValues(Network(model), inputs, self._models)
            return {
                name: inferred[name] for name in inferred.network.outputs if name in inferred.infos
            }
        outputs = self._models.run("piece", model, inputs)
        return None if isinstance(outputs, Failed) else outputs

    def _run(self) -> ActivationStore:
        """Run all nodes; where that does not work, all that do not depend on the ones that break it.

        Nodes that only make weights are tried with the others, so that the one to blame is found
        among them too.
        """
        nodes = list(self._network.order)
        problem = self._try(nodes)
        if (
            problem is not None
            and (refusal := self._collect(nothing_special(self._network.proto))) is not None
        ):
            self.refused = refusal.message
            nodes = []
            problem = self._try(nodes)
        while problem is not None:
            broken, problem = self._first_broken(nodes, problem)
            # Other nodes of an operator that is unknown need no run of their own.
            alike = [
                index
                for index in nodes
                if problem.kind == "build" and self._same_unknown(index, broken)
            ]
            self.missing |= dict.fromkeys([broken, *alike], problem)
            nodes = _without(self._network, nodes, {broken, *alike})
            problem = self._try(nodes)
        self.lost = frozenset(self._network.order).difference(nodes)
        return ActivationStore(self.store)

    def _first_broken(self, nodes: list[int], problem: Failed) -> tuple[int, Failed]:
        """The last node of the shortest prefix that does not run, and its message; ``problem`` belongs to all nodes."""
        problems = {len(nodes): problem}

        def ask(places: frozenset[int]) -> Verdict:
            answer = self._try([nodes[place] for place in sorted(places)])
            if answer is None:
                return Verdict.PASS
            problems[len(places)] = answer
            return Verdict.FAIL

        # The nodes are in topological order, so a prefix can always be run.
        length = shortest_failing_prefix(range(len(nodes)), frozenset(), ask)
        return nodes[length - 1], problems[length]

    def _same_unknown(self, index: int, broken: int) -> bool:
        """Whether a node has the operator of another that cannot be loaded, and that ONNX says nothing of.

        A graph made for TensorRT may hold a plugin a hundred times; the first tells of all.
        """
        one = self._network.nodes[index]
        reference = self._network.nodes[broken]
        equal = (one.op_type, one.domain) == (reference.op_type, reference.domain)
        return equal and not onnx.defs.has(
            reference.op_type, "" if reference.domain == "ai.onnx" else reference.domain
        )

    def _try(self, nodes: list[int]) -> Failed | None:
        """Run some nodes, with all that they depend on, and keep all they make; what is wrong if that fails."""
        network = self._network
        if not nodes:
            write_store(self.store, {})
            return None
        slices = plan_slices(network, nodes, self._limit)
        if len(slices) > 1:
            return self._collect_slices(slices)
        if len(nodes) == len(network.nodes):
            returned = [name for name in network.outputs if name in network.producer]
            return self._collect(
                mark_outputs(network, list(dict.fromkeys([*network.computed, *returned])), {})
            )
        # Weights that nodes compute are no activations, unless nothing else is left.
        computed = [index for index in nodes if not network.constant[index]] or nodes
        outputs = network.made_by(computed)
        return self._collect(cut(network, nodes, {}, nothing_stored, outputs).proto)

    def _collect_slices(self, slices: Sequence[Sequence[int]]) -> Failed | None:
        """Run one slice after the other, each on what those before it left on the disk."""
        network = self._network
        infos: Mapping[str, TensorInfo] = self._fed

        def made_again(name: str) -> bool:
            """Whether a tensor cannot be fed: each slice that reads it makes it again."""
            return (
                network.is_weight(name)
                or name not in network.infos
                or is_extension(network.infos[name].dtype)
            )

        for place, part in enumerate(slices):
            if place:
                infos = ChainMap(self._fed, ActivationStore(self.store).infos)
            outputs = network.made_by(part)
            if part is slices[-1]:
                # The weights too that the graph returns.
                outputs += [
                    name
                    for name in network.outputs
                    if name in network.producer and network.is_weight(name)
                ]
            nodes = network.leading_to({network.producer[name] for name in outputs}, made_again)
            piece = cut(network, nodes, infos, nothing_stored, list(dict.fromkeys(outputs)))
            problem = self._collect(piece.proto, append=place > 0)
            if problem is not None:
                return problem
        return None

    def _collect(self, model: onnx.ModelProto, *, append: bool = False) -> Failed | None:
        """Run a model and keep its outputs, beside those that are kept already if wanted, and fed by those."""
        path = self._models.write("reference", model)
        failed = self._models.collect(path, self.inputs_file, self.store, append=append)
        if failed is None or failed.kind != "crash":
            return failed
        return structs.replace(failed, message=failed.describe("ONNX Runtime"))


def nothing_special(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model like another in all but its nodes: it has one, which every runtime knows."""
    plain = onnx.ModelProto(
        ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions
    )
    if opset_of(model) is None:
        plain.opset_import.append(onnx.helper.make_opsetid("", 1))
    value = onnx.helper.make_tensor("value", onnx.TensorProto.FLOAT, [1], [0.0])
    plain.graph.name = "nothing_special"
    plain.graph.node.append(onnx.helper.make_node("Constant", [], ["constant"], value=value))
    plain.graph.output.append(
        onnx.helper.make_tensor_value_info("constant", onnx.TensorProto.FLOAT, [1])
    )
    return plain


def _without(network: Network, nodes: list[int], broken: set[int]) -> list[int]:
    """The nodes that do not depend on the broken ones; ``nodes`` are in topological order."""
    lost = set(broken)
    for index in nodes:
        if not lost.isdisjoint(network.parents(index)):
            lost.add(index)
    return [index for index in nodes if index not in lost]
