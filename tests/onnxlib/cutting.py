"""What the tests of cutting share: run a model with every tensor kept, and hold a cut against that and the definition."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from bisect_trt.onnxlib.cut import Cut, cut
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.units import NetworkUnits
from bisect_trt.tensors.info import TensorInfo

Values = dict[str, Any]
tensor_info = helper.make_tensor_value_info
BARE = ValueInfoProto
ONNXRUNTIME = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])


def model_of(
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[str | ValueInfoProto],
    weights: Mapping[str, NDArray[Any] | np.generic | TensorProto] | None = None,
    *,
    opset: int = 17,
    ir_version: int = 8,
    domains: Iterable[str] = (),
    **fields: Any,
) -> ModelProto:
    """Make a model; outputs without a declaration get what ONNX infers."""
    declared = [value if isinstance(value, ValueInfoProto) else BARE(name=value) for value in outputs]
    tensors = [
        value if isinstance(value, TensorProto) else numpy_helper.from_array(np.asarray(value), name)
        for name, value in (weights or {}).items()
    ]
    graph = helper.make_graph(list(nodes), "test", list(inputs), declared, tensors)
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version, **fields)


def run(model: ModelProto | Path, feeds: Mapping[str, Any]) -> Values:
    """What ONNX Runtime gives with optimisations off; an optional value is in a list, as a sequence is."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    outputs = session.get_outputs()
    values = session.run([output.name for output in outputs], dict(feeds))
    return {
        output.name: [value] if output.type.startswith("optional") else value
        for output, value in zip(outputs, values, strict=True)
    }


def activations(model: ModelProto, feeds: Mapping[str, Any]) -> Values:
    """Every tensor that a node of the main graph makes, and the inputs."""
    marked = ModelProto()
    marked.CopyFrom(model)
    declared = {value.name: value for value in (*marked.graph.value_info, *marked.graph.output)}
    names = [name for node in model.graph.node for name in node.output if name]
    del marked.graph.output[:], marked.graph.value_info[:]
    marked.graph.output.extend(declared.get(name, BARE(name=name)) for name in names)
    return {**feeds, **run(marked, feeds)}


class Cutter:
    """Cuts a model as a search does, with its activations at hand.

    Attributes:
        network: The model.
        values: Its activations.
        units: What a search walks.
    """

    def __init__(self, model: ModelProto, values: Mapping[str, Any]) -> None:
        self.network = Network(model)
        self.values = values
        arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
        self.infos = {name: TensorInfo(name, value.dtype, value.shape) for name, value in arrays.items()}
        self.units = NetworkUnits(self.network, arrays, self.infos)

    def stored(self, name: str) -> TensorProto:
        return numpy_helper.from_array(self.values[name], name)

    def cut(self, units: Iterable[int], *, bare: bool = True) -> tuple[Cut, frozenset[int]]:
        """The cut of some units, completed, and its node numbers."""
        complete = self.units.bare if bare else self.units.with_weights
        nodes = self.units.to_nodes(complete(units))
        return cut(self.network, nodes, self.infos, self.stored), nodes

    def check(self, units: Iterable[int], *, bare: bool = True) -> Cut:
        """Hold the cut of some units against the definition of a cut; returns it."""
        piece, nodes = self.cut(units, bare=bare)
        check_definition(self.network.proto, piece, nodes)
        onnx.checker.check_model(piece.proto)
        feeds = {name: self.values[name] for name in piece.inputs}
        assert_same(run(piece.proto, feeds), {name: self.values[name] for name in piece.outputs})
        return piece

    def unit(self, output: str) -> int:
        """The unit that makes a tensor."""
        return self.network.rank[self.network.producer[output]]


def cutter(model: ModelProto, feeds: Mapping[str, Any] | None = None) -> Cutter:
    """A cutter for a model that ONNX Runtime runs."""
    return Cutter(model, activations(model, feeds or {}))


def assert_same(given: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """The same tensors, bit for bit; sequences element by element."""
    assert given.keys() == wanted.keys()
    for name, value in wanted.items():
        _assert_same_value(given[name], value, name)


def _assert_same_value(given: object, wanted: object, name: str) -> None:
    assert type(given) is type(wanted), name
    if isinstance(wanted, np.ndarray):
        assert isinstance(given, np.ndarray)
        assert (given.dtype, given.shape) == (wanted.dtype, wanted.shape), name
        if wanted.dtype == object:
            assert given.tolist() == wanted.tolist(), name
        else:
            assert given.tobytes() == wanted.tobytes(), name
    elif isinstance(wanted, list):
        assert isinstance(given, list)
        assert len(given) == len(wanted), name
        for one, other in zip(given, wanted, strict=True):
            _assert_same_value(one, other, name)
    else:
        assert given == wanted, name


def check_definition(model: ModelProto, piece: Cut, nodes: Collection[int]) -> None:
    """What a cut is, by the words of the design, with nothing of the code under test."""
    chosen = [model.graph.node[index] for index in nodes]
    others = [node for index, node in enumerate(model.graph.node) if index not in nodes]
    graph = piece.proto.graph
    assert piece.proto.opset_import == model.opset_import
    assert (piece.proto.ir_version, piece.proto.functions) == (model.ir_version, model.functions)
    assert sorted(n.SerializeToString() for n in graph.node) == sorted(n.SerializeToString() for n in chosen)
    assert list(piece.inputs) == [value.name for value in graph.input][: len(piece.inputs)]
    assert list(piece.outputs) == [value.name for value in graph.output]
    made = {name for node in chosen for name in node.output if name}
    read = {name for node in chosen for name in _reads(node)}
    needed = read - made
    assert set(piece.inputs) == needed - _constants(model)
    weights = {tensor.name for tensor in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    assert weights == needed & _constants(model)
    wanted = {value.name for value in model.graph.output} | {
        name for node in others for name in _reads(node) if name not in _constants(model)
    }
    # Beyond those only what nothing in the piece reads, which no runtime would compute if it were no output.
    extra = set(piece.outputs) - (wanted & made)
    assert set(piece.outputs) >= wanted & made
    assert not extra & read
    # The order is a topological one.
    seen = set(piece.inputs) | weights
    for node in graph.node:
        assert seen >= _reads(node)
        seen.update(node.output)


def _reads(node: NodeProto) -> set[str]:
    names = set(node.input)
    for attribute in node.attribute:
        for body in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
            names |= _captures(body)
    return names - {""}


def _captures(body: GraphProto) -> set[str]:
    inner = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
    inner |= {name for node in body.node for name in node.output}
    outer = {value.name for value in body.output}
    for node in body.node:
        outer |= _reads(node)
    return outer - inner


def _constants(model: ModelProto) -> set[str]:
    """The tensors that depend on no input, by hand: to a fixed point, in whatever order the nodes stand."""
    graph = model.graph
    weights = {tensor.name for tensor in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    fed = {value.name for value in graph.input} - weights
    while True:
        more = {name for node in graph.node if _draws(node) or _reads(node) & fed for name in node.output if name}
        if more <= fed:
            return weights | {name for node in graph.node for name in node.output if name} - fed
        fed |= more


def _draws(node: NodeProto) -> bool:
    return b"Random" in node.SerializeToString()  # its own operator, or one in a body of it
