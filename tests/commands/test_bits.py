"""Which quantized groups have to go back to floats: models that ONNX Runtime's own quantizer made, with planted bad scales."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import onnxruntime
import pytest
from building import ort_run, save_text, text_model
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from packaging.version import Version
from support import bisect_trt as command_line
from support import model_of, rest_slow

import bisect_trt
from benchmarks.bits import Float, bert, quantize, resnet, spoil
from bisect_trt.errors import UsageError
from bisect_trt.mixed_precision.plain import find_rounded
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import all_nodes

pytestmark = [
    # The quantizer of ONNX Runtime 1.18 asks onnx 1.16 for a table that is going.
    pytest.mark.filterwarnings("ignore:.*TENSOR_TYPE_TO_NP_TYPE:DeprecationWarning"),
    pytest.mark.usefixtures("here"),  # runs are kept where one works
]
Arrays = dict[str, NDArray[Any]]


def searched_in(folder: Path, **options: Any) -> bisect_trt.PrecisionAnswer:
    """What is found in ``model.onnx`` of a folder, whose mixed model lies beside it; nothing is measured beside the search."""
    given: dict[str, Any] = {
        "low": "int8",
        "target": "onnxrt",
        "output": folder / "mixed.onnx",
        "sensitivity": False,
        "fresh_samples": 0,
    }
    return bisect_trt.precision(folder / "model.onnx", **{**given, **options})


def planted(
    source: Float, path: Path, count: int, seed: int, **how: bool
) -> tuple[set[str], list[Arrays]]:
    """Write a spoiled model; the names of its bad scales, and samples."""
    quantize(source, path, samples=8, **how)
    model = onnx.load(path)
    rng = np.random.default_rng(seed)
    done = spoil(model, count, rng)
    onnx.save(model, path)
    return set(done), [source.draw(rng) for _ in range(3)]


@pytest.mark.parametrize(
    ("source", "count", "how"),
    rest_slow(
        [
            (resnet(3, 2), 2, {}),
            (resnet(4, 2), 3, {"per_channel": False, "signed": True}),
            (bert(5, 1), 1, {"signed": True}),
        ]
    ),
)
def test_planted_scales_are_found_exactly(
    tmp_path: Path, source: Float, count: int, how: dict[str, bool]
) -> None:
    """And the model without them is like the float one, which the search has not seen."""
    path = tmp_path / "model.onnx"
    bad, samples = planted(source, path, count, seed=count, **how)
    result = searched_in(tmp_path, inputs=samples, fresh_samples=20)
    groups = result.groups
    wanted = {group.id for group in groups if bad & set(group.scales)}
    assert {entry.group for entry in result.keep_fp32} == wanted
    assert {name for entry in result.keep_fp32 for name in entry.bad_scales or ()} == bad
    # A group in floats has all of its operators in floats.
    assert "It passes without" not in result.summary()
    assert result.minimality == "1-minimal"
    left = {
        node.input[1]
        for node in onnx.load(tmp_path / "mixed.onnx").graph.node
        if node.op_type == "QuantizeLinear"
    }
    assert not bad & left
    spoiled = onnx.load(path)
    mixed = onnx.load(tmp_path / "mixed.onnx")
    for sample in samples:
        right, before, after = (
            next(iter(ort_run(each, sample).values())) for each in (source.model, spoiled, mixed)
        )
        assert np.abs(after - right).mean() < np.abs(before - right).mean() / 2


@pytest.mark.slow
def test_groups_that_cost_least_alone_are_tried_first(tmp_path: Path) -> None:
    """Where rounding adds up in many groups, fewer of them stay in floats, after fewer probes."""
    source = bert(5, 1)
    quantize(source, tmp_path / "model.onnx", samples=8)
    inputs = [source.draw(np.random.default_rng(seed)) for seed in range(3)]
    tolerance: dict[str, Any] = {"atol": 0.013, "rtol": 0.0, "check_error_stat": "mean"}
    ordered, unordered = (
        searched_in(tmp_path, inputs=inputs, sensitivity=measured, overwrite=True, **tolerance)
        for measured in (True, False)
    )
    assert len(ordered.keep_fp32) < len(unordered.keep_fp32)
    assert (ordered.probes_minimal or 0) < (unordered.probes_minimal or 0)


@pytest.mark.slow
def test_command_line_and_json(tmp_path: Path) -> None:
    """With nothing given but the model: a scale without room for the values is named, with what would fit."""
    path = tmp_path / "model.onnx"
    quantize(resnet(6, 1), path, samples=8)
    model = onnx.load(path)
    name = "/layer0/act1/Relu_output_0_scale"
    scale = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    was = numpy_helper.to_array(scale)
    scale.CopyFrom(numpy_helper.from_array((was / 20).astype(np.float32), name))
    onnx.save(model, path)
    words = ["model.onnx", "--int8", "--onnxrt", "-o", "mixed.onnx", "--json", "r.json"]
    ran = command_line("precision", *words, cwd=tmp_path).ended(0)
    assert "1 group in floats" in ran.out
    found = ran.result
    assert found["minimality"] == "1-minimal"
    (kept,) = found["keep_fp32"]
    assert kept["bad_scales"] == [name]
    assert kept["op"] == "Conv"
    assert kept["rule"] == "clipping"
    assert [entry["group"] for entry in found["minimal"]] == [kept["group"]]
    group = found["groups"][kept["group"]]
    assert name in group["scales"]
    assert group["error_alone_quantized"] > 1 > group["error_alone_removed"]
    others = [each for each in found["groups"] if not each["kept"]]
    assert all(each["error_alone_removed"] > 1 for each in others)
    assert found["validation"]["samples"] == 200
    assert "clipping" in (tmp_path / found["artifacts"]["run"] / "report.html").read_text()


def other_names(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with other names inside, as another exporter or a rewriting tool gives them."""
    ends = {value.name for value in (*model.graph.input, *model.graph.output)}

    def renamed(name: str) -> str:
        return name if name in ends or not name else f"renamed/{name[::-1]}"

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for number, node in enumerate(copy.graph.node):
        node.name = f"n{number}"
        node.input[:] = map(renamed, node.input)
        node.output[:] = map(renamed, node.output)
    for weight in copy.graph.initializer:
        weight.name = renamed(weight.name)
    del copy.graph.value_info[:]
    return copy


@pytest.mark.parametrize("renamed", rest_slow([True, False]))
def test_all_taken_out_is_the_float_model(tmp_path: Path, *, renamed: bool) -> None:
    """With the Relu that the quantizer dropped put back, and the original's weights where that is given."""
    source = resnet(7, 2)
    path = tmp_path / "model.onnx"
    bad, samples = planted(source, path, 5, seed=1)
    onnx.save(other_names(source.model) if renamed else source.model, tmp_path / "float.onnx")
    model = onnx.load(path)
    stored = next(t for t in model.graph.initializer if t.name.endswith("conv2.w_scale"))
    stored.CopyFrom(
        numpy_helper.from_array(numpy_helper.to_array(stored) * np.float32(8), stored.name)
    )
    onnx.save(model, path)
    result = searched_in(tmp_path, inputs=samples, reference=tmp_path / "float.onnx")
    groups = result.groups
    wanted = {group.id for group in groups if (bad | {stored.name}) & set(group.scales)}
    assert {entry.group for entry in result.keep_fp32} == wanted


def test_a_weight_is_found_by_its_values_though_channels_have_a_wrong_scale() -> None:
    rng = np.random.default_rng(3)
    weights = {f"w{place}": rng.normal(size=(8, 3, 5)).astype(np.float32) for place in range(9)}
    source = Network(graph([onnx.helper.make_node("Sum", [*weights], ["y"])], weights))
    for axis in (0, 1):
        scale = np.ones((8, 1, 1) if axis == 0 else (3, 1), np.float32)
        scale[1] = 40
        rounded = np.rint(weights["w4"] * 50) / 50 * scale
        found = find_rounded(rounded * np.float32(8), source)
        assert found is not None
        np.testing.assert_array_equal(found, weights["w4"])
    assert find_rounded(rng.normal(size=(8, 3, 5)).astype(np.float32), source) is None


def graph(
    nodes: list[onnx.NodeProto], weights: Arrays, opset: int = 13, shape: tuple[int, ...] = (2, 8)
) -> onnx.ModelProto:
    return model_of(nodes, weights, inputs={"x": shape}, outputs={"y": None}, opset=opset)


def layers(kind: str, bad: dict[int, float]) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Four layers, quantized as ONNX Runtime's quantizer does not, and in floats; some scales are ``bad`` times too large."""
    rng = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    floats: list[onnx.NodeProto] = []
    weights: Arrays = {}
    read = plain = "x"

    def constant(name: str, value: onnx.TensorProto) -> None:
        nodes.append(helper.make_node("Constant", [], [name], value=value))

    for layer in range(4):
        weight = (rng.standard_normal((32, 32)) / 32**0.5).astype(np.float32)
        weights[f"w{layer}"] = weight
        worse = bad.get(layer, 1.0)
        if kind == "int4":  # weights alone, a scale for each block
            scale = np.abs(weight.reshape(2, 16, 32)).max(1) / 7
            steps = np.rint(weight / np.repeat(scale, 16, 0)).clip(-8, 7).astype(np.int8)
            constant(
                f"q{layer}",
                helper.make_tensor("q", TensorProto.INT4, [32, 32], steps.flatten().tolist()),
            )
            constant(f"s{layer}", numpy_helper.from_array(scale * np.float32(worse)))
            read_as = [f"q{layer}", f"s{layer}"]
            nodes.append(
                helper.make_node("DequantizeLinear", read_as, [f"d{layer}"], axis=0, block_size=16)
            )
        else:
            constant(f"z{layer}", helper.make_tensor("z", TensorProto.FLOAT8E4M3FN, [], [0]))
            constant(f"w{layer}", numpy_helper.from_array(weight))
            for name, size, tensor in (
                ("a", 3.5 * worse, read),
                ("b", np.abs(weight).max(), f"w{layer}"),
            ):
                scale, zero, *named = (
                    f"{name}{layer}s",
                    f"z{layer}",
                    f"{name}{layer}q",
                    f"{name}{layer}d",
                )
                constant(scale, numpy_helper.from_array(np.asarray(size / 448, np.float32)))
                for op, source, to in zip(
                    ("Quantize", "Dequantize"), (tensor, named[0]), named, strict=True
                ):
                    nodes.append(helper.make_node(f"{op}Linear", [source, scale, zero], [to], to))
            read = f"a{layer}d"
        other = f"d{layer}" if kind == "int4" else f"b{layer}d"
        made = "y" if layer == 3 else f"m{layer}"
        nodes.append(helper.make_node("MatMul", [read, other], [made], f"matmul{layer}"))
        floats.append(helper.make_node("MatMul", [plain, f"w{layer}"], [made], f"matmul{layer}"))
        if made != "y":
            for some in (nodes, floats):
                some.append(helper.make_node("Tanh", [made], [f"t{layer}"], f"tanh{layer}"))
        read = plain = f"t{layer}"
    opset = 21 if kind == "int4" else 19
    quantized = graph(nodes, {}, opset, (4, 32))
    original = graph(floats, weights, opset, (4, 32))
    quantized.ir_version = original.ir_version = 10
    return quantized, original


@pytest.mark.parametrize(("kind", "bad"), [("fp8", {2: 1 / 300}), ("int4", {1: 6.0})])
def test_other_ways_to_quantize(tmp_path: Path, kind: str, bad: dict[int, float]) -> None:
    """Constants by nodes, weights that are quantized as the model runs, 8-bit floats, blocks of 4 bits that are stored."""
    if kind == "int4" and Version(onnxruntime.__version__) < Version("1.20"):
        pytest.skip("this ONNX Runtime has no kernels for blocks of 4 bits")
    quantized, original = layers(kind, bad)
    onnx.save(quantized, tmp_path / "model.onnx")
    onnx.save(original, tmp_path / "float.onnx")
    rng = np.random.default_rng(1)
    samples = [{"x": rng.standard_normal((4, 32)).astype(np.float32)} for _ in range(2)]
    reference = tmp_path / "float.onnx" if kind == "int4" else None
    result = searched_in(tmp_path, low=kind, inputs=samples, reference=reference, fresh_samples=10)
    assert [entry.name for entry in result.keep_fp32] == [f"matmul{layer}" for layer in sorted(bad)]
    assert result.minimality == "1-minimal"


ENDS = "(float[2, 8] x) => (float[m, n] y)"
PAIR = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)"
CONSTANTS = "s = Constant <value = float {0.02}> () z = Constant <value = int8 {0}> ()"
SCALE: Arrays = {
    "s": np.full((), 0.02, np.float32),
    "z": np.zeros((), np.int8),
    "w": np.ones((8, 8), np.int8),
}
FLOAT = text_model(ENDS, "y = Tanh(x)")
OTHER = text_model(ENDS.replace("y", "other"), "other = Tanh(x)")
PASSES = text_model(ENDS, f"{PAIR} y = Tanh(d)", SCALE)
BACK = "y = DequantizeLinear(p, s, z)"
INTEGER = text_model(
    ENDS, f"q = QuantizeLinear(x, s, z) p = QLinearMatMul(q, s, z, w, s, z, s, z) {BACK}", SCALE
)
LOOKED_UP = text_model(ENDS, f"ids = Cast <to = 7> (x) p = Gather(w, ids) {BACK}", SCALE)
JOINED = text_model(ENDS, f"q = QuantizeLinear(x, s, z) p = Concat <axis = 0> (q, w) {BACK}", SCALE)
FUNCTION = '<domain: "own", opset_import: ["" : {opset}, "own" : 1]>'
CALLING = text_model(
    ENDS,
    "y = own.f1(x)",
    functions=f"{FUNCTION.format(opset=12)} f0 (x) => (y) {{ {CONSTANTS} {PAIR} y = Tanh(d) }} "
    f"{FUNCTION.format(opset=12)} f1 (x) => (y) {{ y = own.f0(x) }}",
)
"""Stored quantized values that are looked up by an input, or go on with others; Q/DQ in a function of
operators that the model's own operator set defines differently."""


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (
            FLOAT,
            {"low": "int8"},
            "has no QuantizeLinear or DequantizeLinear node, so there is nothing to search",
        ),
        (
            INTEGER,
            {"low": "int8"},
            "operators that compute with integers themselves (QLinearMatMul)",
        ),
        (JOINED, {"low": "int8"}, "Concat 'p' moves it from a quantized weight"),
        (LOOKED_UP, {"low": "int8"}, "Gather 'p' moves it from a quantized weight"),
        (
            CALLING,
            {"low": "int8"},
            "f0 'y' has Q/DQ nodes inside, which are not searched: its function cannot be inlined",
        ),
        (PASSES, {"low": "fp8"}, "has nothing quantized for --fp8, but int8; give --int8."),
        (
            PASSES,
            {"low": "int8", "fp16": True},
            "--fp16 and --int8 are two searches for this target",
        ),
        (
            PASSES,
            {"low": "fp16", "reference": "float"},
            "--reference is the model before quantization",
        ),
        (PASSES, {"low": "int8", "reference": "model"}, "model.onnx is quantized itself"),
        (PASSES, {"low": "int8", "reference": "other"}, "other.onnx has the outputs ['other']"),
    ],
)
def test_what_cannot_be_searched(
    tmp_path: Path, model: onnx.ModelProto, options: dict[str, Any], message: str
) -> None:
    for name, each in (("model", model), ("float", FLOAT), ("other", OTHER)):
        onnx.save(each, tmp_path / f"{name}.onnx")
    if "reference" in options:
        options = {**options, "reference": tmp_path / f"{options['reference']}.onnx"}
    with pytest.raises(UsageError) as raised:
        searched_in(tmp_path, **options)
    assert message in str(raised.value)


def layer(number: int, name: str, to: str) -> str:
    """A product whose input and weight are quantized."""
    return (
        f"q{number} = QuantizeLinear({name}, s{number}, z) d{number} = DequantizeLinear(q{number}, s{number}, z) "
        f"v{number} = DequantizeLinear(w{number}, s, z) {to} = MatMul(d{number}, v{number})"
    )


BODY = f"{layer(1, 'h', 'm1')} t1 = Tanh(m1) {layer(2, 't1', 'm2')} t2 = Tanh(m2) {layer(3, 't2', 'm3')}"
LOOP = "n = Constant <value = int64 {2}> () on = Constant <value = bool {1}> () y = Loop (n, on, x) <body = b "
STEP = "(int64 i, bool go, float[2, 8] h) => (bool went, float[2, 8] r) { went = Identity(go)"
CALL = "f(x, w1, w2, w3, s, s1, s2, s3, z)"
HOLDERS = {
    "If": "h = Relu(x) zero = Constant <value = float {0}> () sum = ReduceSum <keepdims = 0> (h) c = Less(zero, sum) "
    f"y = If (c) <then_branch = b () => (float[2, 8] m3) {{ {BODY} }}, "
    f"else_branch = o () => (float[2, 8] m4) {{ {layer(4, 'h', 'm4')} }}>",
    "same names": "h = Relu(x) on = Constant <value = bool {1}> () "
    f"y = If (on) <then_branch = b () => (float[2, 8] m3) {{ {BODY} }}, "
    f"else_branch = o () => (float[2, 8] m3) {{ {BODY} }}>",
    "nested": f"{LOOP} {STEP} r = If (go) <then_branch = t () => (float[2, 8] m3) {{ {BODY} }}, "
    "else_branch = e () => (float[2, 8] same) { same = Identity(h) }> }>",
    "function": f"y = own.{CALL}",
}
NAMES = {
    "If": "y/m2",
    "same names": "y/m2",
    "nested": "y/r/m2",
    "function": "m2__1",
}


FITTING = {
    **SCALE,
    **{f"w{number}": (100 * np.eye(8)).astype(np.int8) for number in range(1, 5)},
    **dict.fromkeys(("s", "s1", "s2", "s3", "s4"), np.float32(0.01)),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_groups_in_bodies_and_functions(tmp_path: Path, holder: str) -> None:
    """The group is named by the nodes around; the written model keeps the others, and computes as with a scale that fits."""
    functions = f"{FUNCTION.format(opset=13)} {CALL.replace('x', 'h')} => (m3) {{ {BODY} }}"
    functions = functions if holder == "function" else ""
    paths = [tmp_path / name for name in ("fits.onnx", "model.onnx", "mixed.onnx")]
    for path, scale in zip(paths, (0.01, 0.6), strict=False):
        model = text_model(ENDS, HOLDERS[holder], {**FITTING, "s2": scale}, functions=functions)
        onnx.save(model, path)
    rng = np.random.default_rng(3)
    samples = [{"x": rng.uniform(-1, 1, (2, 8)).astype(np.float32)} for _ in range(3)]
    result = searched_in(tmp_path, inputs=samples)
    (kept,) = result.keep_fp32
    assert kept.scales == ("s2", "s")
    assert kept.name == NAMES[holder]
    assert result.minimality == "1-minimal"
    nodes = all_nodes(onnx.load(paths[2]))
    left = sum(node.op_type == "QuantizeLinear" for node in nodes)
    assert left == {"If": 3, "same names": 5}.get(holder, 2)
    fits, spoiled, mixed = (ort_run(path, samples[0])["y"] for path in paths)
    assert np.abs(mixed - fits).max() < 0.05 < np.abs(spoiled - fits).max()


def test_a_ladder_with_groups_in_a_body(tmp_path: Path) -> None:
    model = text_model(ENDS, HOLDERS["If"], {**FITTING, "s2": 0.6})
    onnx.save(model, tmp_path / "model.onnx")
    result = searched_in(tmp_path, low=None, ladder="int8,fp16,fp32")
    assert result.ladder is not None
    assert {node.name: node.rung for node in result.ladder.nodes}["y"] == "int8"


def test_an_output_named_after_what_dequantizes_it(tmp_path: Path) -> None:
    """As PyTorch's exports do; the output of the model from before has the name of what is quantized."""
    body = f"{PAIR} y = Tanh(d) qy = QuantizeLinear(y, small, z) y_dequantized = DequantizeLinear(qy, small, z)"
    model = text_model(ENDS.replace("y", "y_dequantized"), body, {**SCALE, "small": 1 / 127})
    for name, each in (("model", model), ("float", FLOAT)):
        onnx.save(each, tmp_path / f"{name}.onnx")
    result = searched_in(tmp_path, reference=tmp_path / "float.onnx", atol=1e-6)
    assert [entry.name for entry in result.keep_fp32] == ["y"]
    x = np.linspace(-2, 2, 16, dtype=np.float32).reshape(2, 8)
    assert np.allclose(
        ort_run(tmp_path / "mixed.onnx", {"x": x})["y_dequantized"], np.tanh(x), atol=1e-6
    )


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (1, "the check fails with all 1 group in floats too"),
        (125, "the check cannot judge the model with all 1 group in floats"),
    ],
)
def test_what_is_not_a_matter_of_quantization(tmp_path: Path, code: int, message: str) -> None:
    onnx.save(PASSES, tmp_path / "model.onnx")
    result = searched_in(tmp_path, target=None, check=f"sh -c 'exit {code}'")
    assert result.status == "not_reproduced"
    assert message in str(result.why)


# What a scale needs room for: what the readers of a tensor see of it, and not a mask; and where no
# scale has room for all.


ROWS = 6
WIDTH = 16


def pair(tensor: str) -> str:
    """A tensor quantized and dequantized, by a scale of its own."""
    return f"{tensor}q = QuantizeLinear({tensor}, {tensor}s, z) {tensor}d = DequantizeLinear({tensor}q, {tensor}s, z)"


def searched(
    path: Path, body: str, scales: dict[str, float], last: float = 1.0, **weights: np.ndarray
) -> bisect_trt.PrecisionAnswer:
    """What is found in a model of x; scales are how far values of 127 steps reach, and the last sample ``last`` times as far."""
    given = {**weights, "z": np.zeros((), np.int8)} | {
        f"{name}s": room / 127 for name, room in scales.items()
    }
    onnx.save(
        text_model(f"(float[{ROWS}, {WIDTH}] x) => (float[{ROWS}, {WIDTH}] y)", body, given), path
    )
    rng = np.random.default_rng(1)
    samples = [
        {"x": (size * rng.standard_normal((ROWS, WIDTH))).astype(np.float32)}
        for size in (1.0, 1.0, last)
    ]
    return searched_in(path.parent, inputs=samples, fresh_samples=20)


RNG = np.random.default_rng(0)
FIRST, SECOND = (RNG.standard_normal((WIDTH, WIDTH)) / 4 for _ in range(2))


@pytest.mark.parametrize("gate", rest_slow(["Sigmoid(x)", "HardSigmoid(x)"]))
def test_a_gated_activation_is_not_taken_for_a_relu(tmp_path: Path, gate: str) -> None:
    """Its small negative values are within a step of zero, so its zero point may be the lowest; their sum is lost."""
    body = f"""g = {gate} a = Mul(x, g) aq = QuantizeLinear(a, scale, zero)
    ad = DequantizeLinear(aq, scale, zero) y = MatMul(ad, ones)"""
    weights = {"scale": np.array(0.6), "zero": np.array(0, np.uint8), "ones": np.ones((64, 4))}
    save_text(
        tmp_path / "model.onnx", "(float[2, 64] x) => (float[2, 4] y)", body, weights, opset=17
    )
    samples = [{"x": np.random.default_rng(5).uniform(-2, 0, (2, 64)).astype(np.float32)}]
    found = searched_in(tmp_path, inputs=samples)
    assert [entry.op for entry in found.keep_fp32] == ["MatMul"]


@pytest.mark.parametrize("reader", rest_slow(["Clip(td, low, high)", "Relu(td)"]))
def test_what_a_reader_cuts_off_needs_no_room(tmp_path: Path, reader: str) -> None:
    """ONNX Runtime's quantizer calibrates what is before a Relu to the range of what is behind it."""
    body = f"{pair('x')} t = MatMul(xd, w) {pair('t')} c = {reader} {pair('c')} y = MatMul(cd, v)"
    top = 6.0 if "Clip" in reader else 24.0
    found = searched(
        tmp_path / "model.onnx", body, {"x": 160, "t": top, "c": top},
        w=np.where(np.arange(WIDTH) < WIDTH // 2, 6, -6) * np.abs(FIRST), v=SECOND, low=np.zeros(()), high=np.full((), 6.0),
    )  # fmt: skip
    assert [entry.bad_scales for entry in found.keep_fp32] == [("xs",)]
    assert not [
        each for group in found.groups for each in group.tensors if each.bad and each.scale != "xs"
    ]
