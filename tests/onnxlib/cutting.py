"""What the tests of cutting share: run a model with every tensor kept, and hold a cut against that and the definition."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np
import onnx
from building import BARE, ort_run, proto_of, tensor_info
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from bisect_trt.onnxlib.cut import Cut, cut
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.units import NetworkUnits
from bisect_trt.tensors.info import TensorInfo

Values = dict[str, Any]


def activations(model: ModelProto, feeds: Mapping[str, Any]) -> Values:
    """Every tensor that a node of the main graph makes, and the inputs."""
    marked = ModelProto()
    marked.CopyFrom(model)
    declared = {value.name: value for value in (*marked.graph.value_info, *marked.graph.output)}
    names = [name for node in model.graph.node for name in node.output if name]
    del marked.graph.output[:], marked.graph.value_info[:]
    marked.graph.output.extend(declared.get(name, BARE(name=name)) for name in names)
    return {**feeds, **ort_run(marked, feeds)}


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
        self.infos = {
            name: TensorInfo(name, value.dtype, value.shape) for name, value in arrays.items()
        }
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
        assert_same(
            ort_run(piece.proto, feeds), {name: self.values[name] for name in piece.outputs}
        )
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
    assert sorted(n.SerializeToString() for n in graph.node) == sorted(
        n.SerializeToString() for n in chosen
    )
    assert list(piece.inputs) == [value.name for value in graph.input][: len(piece.inputs)]
    assert list(piece.outputs) == [value.name for value in graph.output]
    made = {name for node in chosen for name in node.output if name}
    read = {name for node in chosen for name in _reads(node)}
    needed = read - made
    assert set(piece.inputs) == needed - _constants(model)
    weights = {tensor.name for tensor in graph.initializer}
    assert weights == needed & _constants(model)
    wanted = {value.name for value in model.graph.output} | {
        name for node in others for name in _reads(node) if name not in _constants(model)
    }
    # Beyond those only what nothing in the piece reads, which no runtime would compute if it were
    # no output.
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
    weights = {tensor.name for tensor in graph.initializer}
    fed = {value.name for value in graph.input} - weights
    while True:
        more = {
            name
            for node in graph.node
            if _draws(node) or _reads(node) & fed
            for name in node.output
            if name
        }
        if more <= fed:
            return weights | {name for node in graph.node for name in node.output if name} - fed
        fed |= more


def _draws(node: NodeProto) -> bool:
    return b"Random" in node.SerializeToString()  # its own operator, or one in a body of it


# Random models for property tests: everything that makes cutting hard, small enough to run a
# hundred of them.


SHAPE = (2, 3)
UNARY = ("Relu", "Neg", "Abs", "Identity", "Sigmoid", "Floor")
BINARY = ("Add", "Mul", "Sub", "Max")


class Builder:
    """Grows a model of float tensors of [2, 3], and single numbers that only make weights."""

    def __init__(self, draw: st.DrawFn, ir_version: int) -> None:
        self.draw = draw
        self.ir_version = ir_version
        self.nodes: list[NodeProto] = []
        self.weights: dict[str, NDArray[Any] | TensorProto] = {}
        self.tensors = ["x", "z"]
        self.constants: list[str] = []
        self._count = 0

    def name(self) -> str:
        self._count += 1
        return f"t{self._count}"

    def any(self) -> str:
        return self.draw(st.sampled_from(self.tensors))

    def weight(self, value: NDArray[Any], *, raw: bool = True) -> str:
        name = self.name()
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        typed = helper.make_tensor(name, kind, value.shape, value.ravel())
        self.weights[name] = value if raw else typed
        return name

    def node(
        self, op: str, inputs: list[str], outputs: list[str] | None = None, **attributes: Any
    ) -> str:
        made = [self.name()] if outputs is None else outputs
        self.nodes.append(
            helper.make_node(op, inputs, made, name=f"<{len(self.nodes)}>", **attributes)
        )
        return made[0]

    def constant(self) -> str:
        """A single number, made in one of the ways that exporters know."""
        number = np.array(self.draw(st.sampled_from([-1.0, 0.5, 2.0])), np.float32)
        way = self.draw(
            st.sampled_from(["initializer", "typed", "node", "of shape", "arithmetic", "again"])
        )
        if way == "again" and self.constants:
            return self.draw(st.sampled_from(self.constants))
        if way == "node":
            name = self.node("Constant", [], value=numpy_helper.from_array(number))
        elif way == "of shape":
            shape = self.weight(np.zeros(0, np.int64))
            name = self.node(
                "ConstantOfShape", [shape], value=numpy_helper.from_array(number.reshape(1))
            )
        elif way == "arithmetic" and self.constants:
            one, other = (self.draw(st.sampled_from(self.constants)) for _ in range(2))
            name = self.node("Add", [one, other])
        else:
            name = self.weight(number, raw=way != "typed")
        self.constants.append(name)
        return name

    def unary(self) -> None:
        self.tensors.append(self.node(self.draw(st.sampled_from(UNARY)), [self.any()]))

    def binary(self) -> None:
        first = self.any()
        second = (
            self.draw(st.sampled_from([first, *self.tensors]))
            if self.draw(st.booleans())
            else self.constant()
        )
        self.tensors.append(self.node(self.draw(st.sampled_from(BINARY)), [first, second]))

    def split(self) -> None:
        """Two halves of which one may be read by nobody, or have no name."""
        double = self.node("Concat", [self.any(), self.any()], axis=0)
        halves = [self.name(), self.name()]
        self.node("Split", [double, self.weight(np.array([2, 2]))], halves, axis=0)
        self.tensors += self.draw(st.sampled_from([halves, halves[:1], halves[1:]]))

    def clip(self) -> None:
        ends = self.draw(st.sampled_from([("", ""), ("lo", ""), ("", "hi"), ("lo", "hi")]))
        inputs = [self.any(), *(self.constant() if end else "" for end in ends)]
        self.tensors.append(self.node("Clip", inputs))

    def resize(self) -> None:
        scales = self.weight(np.ones(2, np.float32))
        self.tensors.append(self.node("Resize", [self.any(), "", scales], mode="nearest"))

    def lstm(self) -> None:
        """Without initial states, and with only its last output."""
        axes = self.weight(np.array([1]))
        shape = self.weight(np.array(SHAPE))
        weights = np.linspace(-1, 1, 12 * 3, dtype=np.float32).reshape(1, 12, 3)
        sequence = self.node("Unsqueeze", [self.any(), axes])
        inputs = [sequence, self.weight(weights), self.weight(weights), "", "", "", "", ""]
        cell = self.name()
        self.node("LSTM", inputs, ["", "", cell], hidden_size=3)
        self.tensors.append(self.node("Expand", [self.node("Squeeze", [cell, axes]), shape]))

    def condition(self) -> None:
        """An If of which each branch captures a tensor, one of them from within another If."""
        zero = self.constant()
        test = self.node("Greater", [self.node("ReduceMax", [self.any()], keepdims=0), zero])
        captured = [self.draw(st.sampled_from([*self.tensors, self.any()])) for _ in range(3)]
        inner = [self._branch(f"{test}_inner{i}", "Neg", captured[i]) for i in range(2)]
        both = helper.make_node(
            "If", [test], [f"{test}_both"], then_branch=inner[0], else_branch=inner[1]
        )
        then = helper.make_graph(
            [both], "then", [], [tensor_info(f"{test}_both", TensorProto.FLOAT, SHAPE)]
        )
        other = self._branch(f"{test}_else", "Abs", captured[2])
        self.tensors.append(self.node("If", [test], then_branch=then, else_branch=other))

    def _branch(self, name: str, op: str, captured: str) -> Any:
        out = tensor_info(f"{name}_out", TensorProto.FLOAT, SHAPE)
        return helper.make_graph([helper.make_node(op, [captured], [out.name])], name, [], [out])

    def sequence(self) -> None:
        made = self.node("SequenceConstruct", [self.any(), self.any()])
        place = self.node("Constant", [], value=numpy_helper.from_array(np.array(1)))
        self.tensors.append(self.node("SequenceAt", [made, place]))


@st.composite
def models(draw: st.DrawFn) -> ModelProto:
    """A model with inputs ``x`` and ``z``, of which a node may read none, one or both."""
    ir_version = draw(st.sampled_from([3, 8]))
    builder = Builder(draw, ir_version)
    steps: list[Callable[[], None]] = [
        *([builder.unary] * 3),
        *([builder.binary] * 4),
        builder.split,
        builder.clip,
        builder.resize,
        builder.lstm,
        builder.condition,
        builder.sequence,
    ]
    for _ in range(draw(st.integers(1, 9))):
        draw(st.sampled_from(steps))()
    computed = [name for name in builder.tensors if name not in {"x", "z"}]
    outputs = draw(st.lists(st.sampled_from(computed), min_size=1, max_size=3, unique=True))
    # Inputs and constants can be outputs too.
    outputs += draw(st.lists(st.sampled_from(["x", *builder.constants]), max_size=1))
    nodes = draw(st.permutations(builder.nodes)) if draw(st.booleans()) else builder.nodes
    inputs = [tensor_info(name, TensorProto.FLOAT, SHAPE) for name in ("x", "z")]
    if ir_version < 4:
        for name, value in builder.weights.items():
            tensor = (
                value if isinstance(value, TensorProto) else numpy_helper.from_array(value, name)
            )
            inputs.append(tensor_info(name, tensor.data_type, list(tensor.dims)))
    return proto_of(
        nodes, inputs, [BARE(name=name) for name in outputs], builder.weights, ir_version=ir_version
    )


def feeds() -> dict[str, NDArray[Any]]:
    """Values for the inputs, of both signs."""
    rng = np.random.default_rng(7)
    return {name: rng.normal(size=SHAPE).astype(np.float32) for name in ("x", "z")}
