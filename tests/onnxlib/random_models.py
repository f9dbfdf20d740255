"""Random models for property tests: everything that makes cutting hard, small enough to run a hundred of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from cutting import BARE, model_of, tensor_info
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

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

    def node(self, op: str, inputs: list[str], outputs: list[str] | None = None, **attributes: Any) -> str:
        made = [self.name()] if outputs is None else outputs
        self.nodes.append(helper.make_node(op, inputs, made, name=f"<{len(self.nodes)}>", **attributes))
        return made[0]

    def constant(self) -> str:
        """A single number, made in one of the ways that exporters know."""
        number = np.array(self.draw(st.sampled_from([-1.0, 0.5, 2.0])), np.float32)
        way = self.draw(st.sampled_from(["initializer", "typed", "node", "of shape", "arithmetic", "again"]))
        if way == "again" and self.constants:
            return self.draw(st.sampled_from(self.constants))
        if way == "node":
            name = self.node("Constant", [], value=numpy_helper.from_array(number))
        elif way == "of shape":
            shape = self.weight(np.zeros(0, np.int64))
            name = self.node("ConstantOfShape", [shape], value=numpy_helper.from_array(number.reshape(1)))
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
        second = self.draw(st.sampled_from([first, *self.tensors])) if self.draw(st.booleans()) else self.constant()
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
        axes, shape = self.weight(np.array([1])), self.weight(np.array(SHAPE))
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
        both = helper.make_node("If", [test], [f"{test}_both"], then_branch=inner[0], else_branch=inner[1])
        then = helper.make_graph([both], "then", [], [tensor_info(f"{test}_both", TensorProto.FLOAT, SHAPE)])
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
    # Inputs and weights can be outputs too.
    weights = [name for name in builder.constants if name in builder.weights]
    outputs += draw(st.lists(st.sampled_from(["x", *weights]), max_size=1))
    nodes = draw(st.permutations(builder.nodes)) if draw(st.booleans()) else builder.nodes
    inputs = [tensor_info(name, TensorProto.FLOAT, SHAPE) for name in ("x", "z")]
    if ir_version < 4:
        for name, value in builder.weights.items():
            tensor = value if isinstance(value, TensorProto) else numpy_helper.from_array(value, name)
            inputs.append(tensor_info(name, tensor.data_type, list(tensor.dims)))
    return model_of(nodes, inputs, [BARE(name=name) for name in outputs], builder.weights, ir_version=ir_version)


def feeds() -> dict[str, NDArray[Any]]:
    """Values for the inputs, of both signs."""
    rng = np.random.default_rng(7)
    return {name: rng.normal(size=SHAPE).astype(np.float32) for name in ("x", "z")}
