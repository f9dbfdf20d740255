"""Every rewrite computes the same in fp32, and what it is for in fp16."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from building import ort_run, proto_of
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from support import examples

from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.rewrites import (
    ALL_RULES,
    NetworkView,
    can_bar,
    matches,
    splice_in,
    with_barriers,
)
from bisect_trt.onnxlib.roundings import lower_roundtrip

SHAPE = (2, 4, 6)
Nodes = list[onnx.NodeProto]
Weights = dict[str, np.ndarray]


def node(op: str, reads: str, makes: str, **attributes: Any) -> onnx.NodeProto:
    names = ["" if name == "_" else name for name in reads.split()]
    return helper.make_node(op, names, makes.split(), name=f"{op}:{makes}", **attributes)


def reduction(
    opset: int, op: str, reads: str, makes: str, axes: list[int]
) -> tuple[onnx.NodeProto, Weights]:
    if opset < (13 if op == "ReduceSum" else 18):
        return node(op, reads, makes, axes=axes, keepdims=1), {}
    name = f"axes_of_{makes}"
    return node(op, f"{reads} {name}", makes, keepdims=1), {name: np.array(axes, np.int64)}


def norm(opset: int, squared: str) -> tuple[Nodes, Weights]:
    mean, one = reduction(opset, "ReduceMean", "x", "m", [-1])
    square = node("Pow", "d two", "p") if squared == "Pow" else node("Mul", "d d", "p")
    variance, two = reduction(opset, "ReduceMean", "p", "v", [-1])
    nodes = [
        mean,
        node("Sub", "x m", "d"),
        square,
        variance,
        node("Add", "v eps", "ve"),
        node("Sqrt", "ve", "s"),
    ]
    weights = {**one, **two, "eps": np.array(1e-5, np.float32)}
    return [*nodes, node("Div", "d s", "y")], weights | (
        {"two": np.array(2, np.float32)} if squared == "Pow" else {}
    )


def divided(opset: int) -> tuple[Nodes, Weights]:
    total, axes = reduction(opset, "ReduceSum", "x", "t", [2])
    return [total, node("Div", "t n", "q"), node("Add", "x q", "y")], {
        **axes,
        "n": np.array(6, np.float32),
    }


def mean(opset: int) -> tuple[Nodes, Weights]:
    reduced, axes = reduction(opset, "ReduceMean", "x", "m", [1, 2])
    return [reduced, node("Add", "x m", "y")], axes


def root_of_squares(opset: int) -> tuple[Nodes, Weights]:
    reduced, axes = reduction(opset, "ReduceSum", "p", "v", [-1])
    return [node("Mul", "x x", "p"), reduced, node("Sqrt", "v", "s"), node("Div", "x s", "y")], axes


def length(opset: int) -> tuple[Nodes, Weights]:
    reduced, axes = reduction(opset, "ReduceL2", "x", "s", [-1])
    return [reduced, node("Div", "x s", "y")], axes


def scalar(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def power(by: float, _: int) -> tuple[Nodes, Weights]:
    """A power of values that are not negative, nor near 0."""
    nodes = [node("Abs", "x", "a"), node("Add", "a one", "b"), node("Pow", "b by", "y")]
    return nodes, {"one": scalar(1), "by": scalar(by)}


def operator(
    op: str, shape: tuple[int, ...], _: int, *, count: int = 2, **attributes: Any
) -> tuple[Nodes, Weights]:
    """A normalization with a scale, a bias, a mean and a variance of this shape, or the first of these."""
    values = np.random.default_rng(0).uniform(0.2, 2, (4, *shape)).astype(np.float32)
    weights = dict(zip(("scale", "bias", "mean", "variance")[:count], values, strict=False))
    return [node(op, " ".join(("x", *weights)), "y", **attributes)], weights


CASES: dict[str, tuple[str, Callable[[int], tuple[Nodes, Weights]]]] = {
    "squared norm": ("scaled-square", lambda opset: norm(opset, "Mul")),
    "norm by Pow": ("scaled-square", lambda opset: norm(opset, "Pow")),
    "root of squares": ("scaled-square", root_of_squares),
    "length": ("scaled-square", length),
    "layer norm": ("layer-norm", lambda opset: norm(opset, "Pow")),
    "mask": (
        "mask",
        lambda _: (
            [node("Add", "x mask", "a"), node("Softmax", "a", "y", axis=-1)],
            {"mask": np.array([0, -1e9, 0, -3.4e38, 0, 0], np.float32)},
        ),
    ),
    "sum over a count": ("mean-of-parts", divided),
    "mean": ("mean-of-parts", mean),
    **{f"power {by}": ("power", partial(power, by)) for by in (2, 3, 0.5, -0.5, -1)},
    "LayerNormalization": (
        "norm-in-parts",
        partial(operator, "LayerNormalization", (4, 6), axis=-2),
    ),
    "LayerNormalization without a bias": (
        "norm-in-parts",
        partial(operator, "LayerNormalization", (6,), count=1),
    ),
    "InstanceNormalization": (
        "norm-in-parts",
        partial(operator, "InstanceNormalization", (4,), epsilon=1e-3),
    ),
    "BatchNormalization": (
        "norm-in-parts",
        partial(operator, "BatchNormalization", (4,), count=4, epsilon=1e-3),
    ),
}
SINCE = {"LayerNormalization": 17, "LayerNormalization without a bias": 17, "layer norm": 17}


def made(nodes: Nodes, weights: Mapping[str, np.ndarray], opset: int) -> onnx.ModelProto:
    x, y = ((name, TensorProto.FLOAT, SHAPE) for name in "xy")
    model = proto_of(nodes, [x], [y], weights, opset=opset)
    onnx.checker.check_model(model, full_check=True)
    return model


def computed(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    return np.asarray(ort_run(model, {"x": x})["y"])


def rewritten(model: onnx.ModelProto, rule: str) -> onnx.ModelProto:
    view = NetworkView(Network(model))
    fragments = matches(view, rule)
    assert fragments, "the pattern is found"
    new = splice_in(view, fragments)
    onnx.checker.check_model(new, full_check=True)
    assert not [name for name in new.graph.output if name not in model.graph.output]
    return new


@pytest.mark.parametrize("opset", [13, 17, 18])
@pytest.mark.parametrize("case", CASES)
def test_a_rewrite_computes_the_same(case: str, opset: int) -> None:
    rule, build = CASES[case]
    if opset < SINCE.get(case, 0):
        pytest.skip(f"there is no such operator before opset {SINCE[case]}")
    model = made(*build(opset), opset)
    new = rewritten(model, rule)
    assert new.graph.node != model.graph.node

    @settings(max_examples=examples(15), deadline=None)
    @given(st.integers(0, 2**32 - 1), st.sampled_from([0.01, 1.0, 10.0]))
    def same(seed: int, size: float) -> None:
        x = (size * np.random.default_rng(seed).standard_normal(SHAPE)).astype(np.float32)
        expected = computed(model, x)
        tolerance = 1e-4 * float(np.sqrt(np.mean(np.square(expected, dtype=np.float64)))) + 1e-6
        np.testing.assert_allclose(computed(new, x), expected, rtol=1e-4, atol=tolerance)

    same()


def test_every_rule_is_tried() -> None:
    assert {rule for rule, _ in CASES.values()} == set(ALL_RULES)


@pytest.mark.parametrize(
    ("case", "size"),
    [("squared norm", 6e3), ("norm by Pow", 6e3), ("root of squares", 900), ("length", 900), ("layer norm", 6e3),
     ("mask", 1), ("sum over a count", 1.5e4)],
)  # fmt: skip
def test_a_rewrite_keeps_within_the_range_of_fp16(case: str, size: float) -> None:
    rule, build = CASES[case]
    model = made(*build(17), 17)
    new = rewritten(model, rule)
    x = np.full(SHAPE, size, np.float32) * (1 + np.arange(6, dtype=np.float32) / 12)
    expected = computed(model, x)
    assert np.isfinite(expected).all()
    got = computed(lower_roundtrip(new), x)
    np.testing.assert_allclose(got, expected, rtol=2e-2, atol=2e-2 * float(np.abs(expected).max()))
    if case not in (
        "mask",
        "length",
    ):  # -Inf of a mask is right by chance; inside of an operator nothing is rounded
        assert not np.allclose(computed(lower_roundtrip(model), x), expected, rtol=2e-2)


def test_what_is_read_elsewhere_stays() -> None:
    nodes, weights = norm(13, "Mul")
    shared = made([*nodes[:-1], node("Div", "d s", "z"), node("Mul", "z v", "y")], weights, 13)
    new = rewritten(shared, "scaled-square")
    assert "v" in {name for each in new.graph.node for name in each.output}
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    np.testing.assert_allclose(computed(new, x), computed(shared, x), rtol=1e-4)


def test_look_alikes_are_left() -> None:
    nodes = [
        node("Transpose", "x", "t", perm=[0, 2, 1]),
        node("Transpose", "t", "u", perm=[0, 2, 1]),
        node("Cast", "u", "c", to=TensorProto.DOUBLE),
        node("Cast", "c", "f", to=TensorProto.FLOAT),
        node("Pow", "f by", "p"),
        node("Add", "p small", "y"),
    ]
    model = made(nodes, {"by": scalar(1.7), "small": scalar(-1e4)}, 17)
    view = NetworkView(Network(model))
    assert not [name for name in ALL_RULES if matches(view, name)]


def test_weights_of_old_files_are_inputs_too() -> None:
    """Before IR version 4 every weight is listed among the inputs, new ones too, and none loses its value."""
    nodes, weights = norm(9, "Mul")
    model = made(nodes, weights, 9)
    model.ir_version = 3
    for tensor in model.graph.initializer:
        model.graph.input.append(
            helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        )
    new = rewritten(model, "scaled-square")
    stored = {tensor.name for tensor in new.graph.initializer}
    assert {value.name for value in new.graph.input} == stored | {"x"}


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
def test_an_einsum_barrier_hands_its_input_on(dtype: type) -> None:
    x: np.ndarray = np.arange(24).reshape(SHAPE[1:]).astype(dtype)
    if x.dtype.kind == "f":
        x[0, :3] = np.nan, np.inf, -0.0
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    model = proto_of(
        [node("Neg", "x", "a"), node("Neg", "a", "y")], [("x", kind, x.shape)], ["y"], opset=12
    )
    network = Network(model)
    assert can_bar(network.infos["a"], 12, "Einsum")
    barred = with_barriers(network, ["x", "a"], {"x": 2, "a": 2})
    assert [each.op_type for each in barred.graph.node] == ["Einsum", "Neg", "Einsum", "Neg"]
    assert ort_run(barred, {"x": x})["y"].tobytes() == x.tobytes()


def test_no_transpose_moves_through_an_einsum_barrier(tmp_path: Path) -> None:
    """Through a Max barrier it does, so two that cancel each other are lost."""
    import onnxruntime

    nodes = [
        node("Transpose", "x", "a", perm=[1, 0]),
        node("Neg", "a", "b"),
        node("Transpose", "b", "y", perm=[1, 0]),
    ]
    network = Network(proto_of(nodes, [("x", TensorProto.FLOAT, (4, 6))], ["y"], opset=17))
    left = {}
    for ranks in (None, {"b": 2}):
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
        content = with_barriers(network, ["b"], ranks).SerializeToString()
        onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        optimized = onnx.load(options.optimized_model_filepath).graph.node
        left[ranks is None] = sum(each.op_type == "Transpose" for each in optimized)
    assert left == {True: 0, False: 2}
