"""What shrinking leaves: a model that ONNX's checker takes, its parameters as long as their channels, its axes cut one by one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from building import save_text
from conftest import CommandLine
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from support import arrays, examples, model_of, node_names

import bisect_trt
from bisect_trt.options.shared import Data
from bisect_trt.probe.workspace import Workspace
from bisect_trt.report.console import QuietConsole
from bisect_trt.session.subject import ModelSettings, Subject
from bisect_trt.steps.dynamic_dims import free, free_symbols
from bisect_trt.steps.shrink import Piece, axes_by_size, cut_axes, is_sound, keep_outputs
from bisect_trt.targets.base import TargetSettings
from bisect_trt.targets.trt.settings import TrtSettings

node = helper.make_node
CHANNELS = 32


def on_channels(nodes: list[NodeProto], weights: dict[str, NDArray[Any]]) -> ModelProto:
    made = model_of(
        nodes, weights, inputs={"x": [1, CHANNELS, 6, 6]}, outputs={"y": None}, opset=17
    )
    inferred = onnx.shape_inference.infer_shapes(made)
    del inferred.graph.value_info[:]
    return inferred


def floats(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def quantized_conv(element: type = np.int8) -> ModelProto:
    """As quantization tools write it: the weights of 8 bits and an fp32 bias, or one of 32 bits."""
    weights: dict[str, NDArray[Any]] = {
        "q": np.random.default_rng(0).integers(0, 100, (CHANNELS, CHANNELS, 1, 1)).astype(element),
        "scale": np.full(CHANNELS, 0.01, np.float32),
        "zero": np.zeros(CHANNELS, element),
        "b": floats(CHANNELS),
    }
    nodes = [
        node("DequantizeLinear", ["q", "scale", "zero"], ["w"], name="dequantize", axis=0),
        node("Conv", ["x", "w", "b"], ["y"], name="conv"),
    ]
    return on_channels(nodes, weights)


def plain_conv(op: str = "Conv", group: int = 1) -> ModelProto:
    shape = (CHANNELS, CHANNELS // group, 3, 3)
    return on_channels(
        [node(op, ["x", "w", "b"], ["y"], name="conv", group=group)],
        {"w": floats(*shape), "b": floats(CHANNELS)},
    )


def normalised(op: str, parameters: int) -> ModelProto:
    weights = {f"p{place}": np.abs(floats(CHANNELS)) + 1 for place in range(parameters)}
    return on_channels([node(op, ["x", *weights], ["y"], name="norm")], weights)


def integer_conv() -> ModelProto:
    rng = np.random.default_rng(0)
    weights: dict[str, NDArray[Any]] = {
        "one": np.array(0.05, np.float32),
        "none": np.array(0, np.uint8),
        "w": rng.integers(-50, 50, (CHANNELS, CHANNELS, 1, 1)).astype(np.int8),
        "ws": np.full(CHANNELS, 0.01, np.float32),
        "wz": np.zeros(CHANNELS, np.int8),
        "b": rng.integers(-50, 50, CHANNELS).astype(np.int32),
    }
    nodes = [
        node("QuantizeLinear", ["x", "one", "none"], ["xq"], name="quantize"),
        node(
            "QLinearConv",
            ["xq", "one", "none", "w", "ws", "wz", "one", "none", "b"],
            ["yq"],
            name="conv",
        ),
        node("DequantizeLinear", ["yq", "one", "none"], ["y"], name="dequantize"),
    ]
    return on_channels(nodes, weights)


MODELS: dict[str, Callable[[], ModelProto]] = {
    "int8 weights": quantized_conv,
    "uint8 weights": lambda: quantized_conv(np.uint8),
    "convolution": plain_conv,
    "grouped convolution": lambda: plain_conv(group=4),
    "depthwise convolution": lambda: plain_conv(group=CHANNELS),
    "transposed convolution": lambda: plain_conv("ConvTranspose"),
    "batch norm": lambda: normalised("BatchNormalization", 4),
    "instance norm": lambda: normalised("InstanceNormalization", 2),
    "integer convolution": integer_conv,
}


@pytest.mark.parametrize(
    "name", ["int8 weights", "grouped convolution", "batch norm", "integer convolution"]
)
def test_what_is_left_is_sound(name: str, here: Path) -> None:
    model = here / "model.onnx"
    onnx.save(MODELS[name](), str(model))
    last = node_names(model)[-1]
    result = bisect_trt.reduce(
        model, lambda path: last in node_names(path), output="out.onnx", run="run"
    )
    assert result.status == "found"
    left = onnx.load("out.onnx")
    assert is_sound(left)
    golden = arrays("out.golden.npz")
    assert all(np.isfinite(value).all() and np.abs(value).max() < 1e6 for value in golden.values())


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=examples(25), deadline=None)
@given(data=st.data())
def test_a_parameter_of_another_length_is_seen(name: str, data: st.DataObject) -> None:
    """Each parameter of one axis, made shorter: the checker takes most of them."""
    model = MODELS[name]()
    assert is_sound(model)
    tensor = data.draw(
        st.sampled_from([t for t in model.graph.initializer if list(t.dims) == [CHANNELS]])
    )
    length = data.draw(st.integers(2, CHANNELS - 1))
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor)[:length], tensor.name))
    assert not is_sound(model)


@pytest.mark.parametrize("element", [np.int8, np.uint8])
def test_the_axes_of_quantized_weights_are_cut_with_the_others(element: type) -> None:
    model = quantized_conv(element)
    piece = Piece(model, {"x": floats(1, CHANNELS, 6, 6)})
    piece = cut_axes(piece, dict.fromkeys(axes_by_size(piece)[CHANNELS], slice(0, 1)))
    assert is_sound(piece.proto)
    sizes = {tensor.name: list(tensor.dims) for tensor in piece.proto.graph.initializer}
    assert sizes == {"q": [1, 1, 1, 1], "scale": [1], "zero": [1], "b": [1]}


def test_fewer_outputs_need_fewer_inputs_and_weights() -> None:
    nodes = [
        node("Mul", ["x", "a"], ["left"]),
        node("Add", ["z", "b"], ["y"]),
        node("Neg", ["left"], ["right"]),
    ]
    model = on_channels(nodes, {"a": floats(1), "b": floats(1)})
    model.graph.input.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [1]))
    model.graph.output.append(helper.make_tensor_value_info("left", TensorProto.FLOAT, None))
    piece = keep_outputs(Piece(model, {"x": floats(1, CHANNELS, 6, 6), "z": floats(1)}), ["left"])
    assert (list(piece.inputs), piece.outputs) == (["x"], ["left"])
    assert [tensor.name for tensor in piece.proto.graph.initializer] == ["a"]
    assert [each.op_type for each in piece.proto.graph.node] == ["Mul"]


SIZE = 16


def square(path: Path, op: str, weight: np.ndarray) -> Path:
    """One node on a square input and a square weight."""
    return save_text(
        path,
        f"(float[{SIZE}, {SIZE}] x) => (float[{SIZE}, {SIZE}] y)",
        f"y = {op}(x, w)",
        {"w": weight},
    )


def lonely() -> np.ndarray:
    """One element, off the diagonal, that fp16 does not have."""
    weight = np.ones((SIZE, SIZE))
    weight[11, 3] = 1e5
    return weight


@pytest.mark.parametrize(
    ("op", "weight", "shapes", "probes"),
    [
        # Only the whole sum is too large; the outer axes are of the same size as the one that is
        # summed over.
        ("MatMul", np.full((SIZE, SIZE), 4100.0), [(1, SIZE), (SIZE, 1)], 12),
        ("Mul", lonely(), [(1, 1), (1, 1)], 6),
    ],
    ids=["one axis stays", "off the diagonal"],
)
def test_axes_of_one_size_that_are_not_cut_together(
    cli: CommandLine, op: str, weight: np.ndarray, shapes: list[tuple[int, ...]], probes: int
) -> None:
    options = ["--onnxrt", "--fp16", "--val-range", "[1,1]", "-o", "out.onnx"]
    ran = cli("reduce", square(Path("model.onnx"), op, weight), *options).ended(0)
    (left,) = onnx.load("out.onnx").graph.initializer
    assert [arrays("out.inputs.npz")["x"].shape, tuple(left.dims)] == shapes
    assert ran.out.count("  probe ") <= probes


# Which dimensions depend on those of the inputs, and the ranges that they have over a target's
# profile.


PROFILE = TargetSettings(
    "trt",
    own=TrtSettings(
        min_shapes=(("x", (1, 3, 4)),),
        opt_shapes=(("x", (2, 3, 4)),),
        max_shapes=(("x", (8, 3, 4)),),
    ),
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """x [n, 3, k] to rows [3n, k], to the sum over n, to a slice whose end does not depend on either."""
    body = "rows = Reshape(x, pair) total = ReduceSum<keepdims = 0>(rows, zero) twice = Concat<axis = 0>(x, x) relu = Relu(twice)"
    ends = "(float[n, 3, 4] x) => (float[] relu, float[] total)"
    weights = {"pair": np.array([-1, 4]), "zero": np.array([0])}
    return save_text(tmp_path / "model.onnx", ends, body, weights)


def test_shapes_and_ranges_are_those_of_reference_runs(model: Path, tmp_path: Path) -> None:
    settings = ModelSettings(model, Data({"x": (5, 3, 4)}))
    with Subject(settings, Workspace(tmp_path / "run"), QuietConsole()) as subject:
        symbols = free_symbols(subject, None)
        assert symbols == {"n": [("x", 0)]}
        freed = free(subject, symbols, None)
        shapes = {name: shape for name, shape in freed.shapes.items() if name != "relu"}
        assert shapes["x"] == ("n", 3, 4)
        assert [isinstance(dim, str) for dim in shapes["rows"]] == [True, False]
        assert shapes["rows"][0] != "n" != shapes["twice"][0]
        assert "total" not in freed.shapes
        assert free_symbols(subject, PROFILE) == {"n": [("x", 0)]}
        with_profile = free(subject, symbols, PROFILE)
        assert with_profile.ranges["x"] == ((1, 3, 4), (2, 3, 4), (8, 3, 4))
        assert with_profile.ranges["rows"] == ((3, 4), (6, 4), (24, 4))
        subject.free(with_profile)
        relu = next(
            unit
            for unit in subject.units.searched
            if subject.network.nodes[subject.network.order[unit]].name == "relu"
        )
        piece = subject.cut(frozenset({relu}))
        assert piece.inputs == ("twice",)
        assert piece.target is not None
        own = piece.target.of(TrtSettings)
        ranges = [dict(each)["twice"] for each in (own.min_shapes, own.opt_shapes, own.max_shapes)]
        assert ranges == [(2, 3, 4), (4, 3, 4), (16, 3, 4)]
