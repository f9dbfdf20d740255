"""TensorRT-RTX, the real one: models parsed and built without a GPU, through the target's runner.

Its API is that of TensorRT 11, so these tests hold for both. It is the extra
``bisect-trt[trt-rtx]``.
"""

from __future__ import annotations

import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from building import ort_run, save_proto, save_text, text_model
from conftest import CommandLine
from onnx import TensorProto, helper, numpy_helper
from support import overflowing, reproduced

from bisect_trt.commands.run import audit_precision
from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.targets.base import TargetSettings
from bisect_trt.targets.messages import BuildError
from bisect_trt.targets.runtime import Runtime
from bisect_trt.targets.trt.settings import RtxSettings

if sys.platform != "linux" or platform.machine() != "x86_64":
    pytest.skip("TensorRT-RTX has wheels for Linux on x86-64", allow_module_level=True)
RELEASE = tuple(map(int, metadata.version("tensorrt-rtx-cu12-bindings").split(".")[:2]))
quantizes = pytest.mark.skipif(
    RELEASE < (1, 7), reason="TensorRT-RTX 1.4 builds quantized networks on a GPU only"
)
X = {"x": np.ones((2, 6), np.float32)}
FLOAT = TensorProto.FLOAT
INT64 = TensorProto.INT64
NARROW = {"int8": "INT8", "fp8": "FLOAT8E4M3FN", "int4": "INT4", "fp4": "FLOAT4E2M1"}
"""ONNX's names of the types below 16 bits."""


def target(*precisions: str, keep: tuple[str, ...] = (), **own: Any) -> TargetSettings:
    """TensorRT-RTX that only builds: names of precisions, and its own settings."""
    low: dict[str, Any] = dict.fromkeys(precisions, True)
    return TargetSettings(
        "trt-rtx", **low, keep=keep, own=RtxSettings(**{"build_only": True, **own})
    )


def build(path: Path, settings: TargetSettings, feed: Any = None) -> Any:
    return Runtime(settings).load(path, feed or X)


def save(
    path: Path,
    nodes: list[Any],
    inputs: list[Any],
    outputs: list[Any],
    *weights: Any,
    opset: int = 17,
    ir: int = 8,
) -> Path:
    stored = {each.name: each for each in weights}
    return save_proto(
        path, nodes, inputs, outputs, stored, opset=opset, ir_version=ir, domains=["trt"]
    )


def quantized(path: Path, kind: str) -> Path:
    """A product of a quantized input and a quantized weight; 4 bits are of the weight alone, in blocks."""
    element = getattr(TensorProto, NARROW[kind], None)
    if element is None:
        pytest.skip("this release of ONNX does not have the type")
    one = {"int8": b"\x01", "fp8": b"\x38", "int4": b"\x11", "fp4": b"\x22"}[
        kind
    ]  # two values of 4 bits a byte
    narrow = onnx.TensorProto(
        name="q",
        data_type=element,
        dims=[32, 32],
        raw_data=one * (1024 // (2 if "4" in kind else 1)),
    )

    block = 16 if kind in ("int4", "fp4") else 0
    scale = np.full((32 // block, 32), 0.1, np.float32) if block else np.array(0.1, np.float32)
    nodes = []
    read = "x"
    if not block:
        zero = helper.make_tensor("z", element, [], [0])
        nodes = [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
            helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        ]
        read = "xd"
    blocks: dict[str, Any] = {"axis": 0, "block_size": block} if block else {}
    weights = [numpy_helper.from_array(scale, "s"), narrow, *([] if block else [zero])]
    scaled = ["q", "s"]
    if kind == "fp4":  # the scales of blocks are FP8, and have a scale of their own
        eight = onnx.TensorProto(name="s8", data_type=TensorProto.FLOAT8E4M3FN, dims=[2, 32])
        eight.raw_data = np.ones((2, 32), ml_dtypes.float8_e4m3fn).tobytes()
        weights = [narrow, eight, numpy_helper.from_array(np.array(0.1, np.float32), "s2")]
        nodes.append(helper.make_node("DequantizeLinear", ["s8", "s2"], ["s"]))
    nodes += [
        helper.make_node("DequantizeLinear", scaled, ["v"], **blocks),
        helper.make_node("MatMul", [read, "v"], ["y"], name="product"),
    ]
    ends = [("x", FLOAT, [32, 32])], [("y", FLOAT, [32, 32])]
    return save(path, nodes, *ends, *weights, opset=23, ir=11)


def test_a_shape_input_is_built_in(tmp_path: Path) -> None:
    ends = "(float[2, 6] x, int64[2] size) => (float[a, b] y)"
    path = save_text(tmp_path / "m.onnx", ends, "r = Reshape(x, size) y = Softmax(r)", opset=17)
    layers = build(path, target(), {**X, "size": np.array([3, 4])}).layers()
    assert {name for layer in layers for name in layer["tensors"]} == {"r", "y"}


@pytest.mark.parametrize("low", ["fp16", "bf16"])
def test_a_lowered_model_is_built_and_traced_back(low: str, tmp_path: Path) -> None:
    path = overflowing(tmp_path / "m.onnx", 1, 1)
    session = build(path, target(low, keep=("big_out",)))
    original = {name for node in onnx.load(path).graph.node for name in node.output}
    assert {name for layer in session.layers() for name in layer["tensors"]} == original
    found = {kind for layer in session.layers() for kind in layer["precisions"]}
    assert found == {"float32", "float16" if low == "fp16" else "bfloat16"}


@pytest.mark.parametrize(
    "own",
    [
        {"builder_flags": ("STRICT_NANS", "native_instancenorm")},
        {"builder_flags": ("VERSION_COMPATIBLE", "EXCLUDE_LEAN_RUNTIME")},
        {"builder_flags": ("WEIGHT_STREAMING",)},
        {"builder_settings": (("max_aux_streams", "0"), ("tiling_optimization_level", "fast"))},
        {"pool_limits": (("workspace", 1 << 26),)},
        {"builder_optimization_level": 0, "strongly_typed": True},
        {"min_shapes": (("x", (1, 6)),), "max_shapes": (("x", (4, 6)),)},
        {"compute_capabilities": ("SM80", "sm120")},
        {"tactic_sources": ()},
    ],
    ids=str,
)
def test_what_is_asked_for_is_built(own: dict[str, Any], tmp_path: Path) -> None:
    ends = "(float[n, 6] x) => (float[n, 6] y)"
    path = save_text(
        tmp_path / "m.onnx", ends, "y = MatMul(x, w)", {"w": np.ones((6, 6))}, opset=17
    )
    assert build(path, target(**own)).layers()
    engine = tmp_path / "m.engine"
    Runtime(target(**own, save_engine=str(engine))).load(path, X)
    assert engine.stat().st_size > 1000


@quantizes
@pytest.mark.parametrize("kind", NARROW)
def test_quantized_models_are_built(kind: str, tmp_path: Path) -> None:
    gpu = ("SM120",) if kind == "fp4" else ()
    session = build(
        quantized(tmp_path / "m.onnx", kind),
        target(compute_capabilities=gpu),
        {"x": np.ones((32, 32), np.float32)},
    )
    assert {layer["kind"] for layer in session.layers()} >= {"DEQUANTIZE", "MATRIX_MULTIPLY"}


@quantizes
def test_dynamic_quantization_to_fp4_is_built(tmp_path: Path) -> None:
    nodes = [
        helper.make_node(
            "TRT_FP4DynamicQuantize",
            ["x", "s"],
            ["q", "b"],
            domain="trt",
            axis=-1,
            block_size=16,
            scale_type=17,
        ),
        helper.make_node("DequantizeLinear", ["b", "s"], ["c"]),
        helper.make_node("DequantizeLinear", ["q", "c"], ["y"], axis=-1, block_size=16),
    ]
    scale = numpy_helper.from_array(np.array(0.1, np.float32), "s")
    ends = [("x", FLOAT, [32, 32])], [("y", FLOAT, [32, 32])]
    path = save(tmp_path / "m.onnx", nodes, *ends, scale, opset=23, ir=11)
    assert build(
        path, target(compute_capabilities=("SM120",)), {"x": np.ones((32, 32), np.float32)}
    ).layers()


@pytest.mark.parametrize(
    ("own", "says"),
    [
        (
            {"builder_flags": ("NO_SUCH",)},
            "--builder-flag: TensorRT-RTX .* has no 'NO_SUCH'; it has: .*STRICT_NANS",
        ),
        (
            {"builder_settings": (("max_aux_streams", "x"),)},
            "max_aux_streams: it takes a whole number, not 'x'",
        ),
        ({"builder_settings": (("tiling_optimization_level", "x"),)}, "it takes .*FULL, not 'x'"),
        ({"builder_settings": (("progress_monitor", "x"),)}, "has no such attribute"),
        ({"pool_limits": (("x", 1),)}, "--pool-limit: .* has no 'x'"),
        (
            {"compute_capabilities": ("SM90",)},
            "--compute-capability: .* has no 'SM90'; it has: .*sm89",
        ),
        (
            {"pin_tactics": ("a=0x1:0x2",)},
            "--pin-tactics: TensorRT-RTX chooses kernels when an engine runs",
        ),
    ],
)
def test_what_it_does_not_have_is_refused(own: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=says):
        build(overflowing(tmp_path / "m.onnx", 1, 1), target(**own))


def test_refitting_needs_a_gpu(tmp_path: Path) -> None:
    path = overflowing(tmp_path / "m.onnx", 1, 1)
    runtime = Runtime(target(builder_flags=("REFIT",)))
    if runtime.gpu_memory():
        assert runtime.load(path, X)
        return
    with pytest.raises(BuildError, match=r"CUDA_SUCCESS.* needs an NVIDIA GPU"):
        runtime.load(path, X)


@pytest.mark.parametrize("low", ["int8", "fp8"])
def test_precisions_of_the_builder_are_refused(low: str, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=f"--{low} is no option .* this is TensorRT-RTX .*; quantize the model"
    ):
        build(overflowing(tmp_path / "m.onnx", 1, 1), target(low))


def test_without_a_gpu_it_says_that_it_only_builds() -> None:
    try:
        runtime = Runtime(target(build_only=False))
    except UnavailableError as error:
        assert "add --build-only" in str(error)  # noqa: PT017 - where there is a GPU it runs
    else:
        assert runtime.facts["version"]


@pytest.mark.parametrize("operator", ["Loop", "Block"])
def test_a_node_within_another_is_named_and_the_parser_divides_the_model(
    operator: str, cli: CommandLine, here: Path
) -> None:
    """The model is Relu, a Loop or a function with a Det in it, Relu."""
    nodes = "size = Det(given) taken = Add(given, size)"
    function = f'<domain: "own", opset_import: ["" : 17]> Block (given) => (taken) {{ {nodes} }}'
    turn = f"turn (int64 i, bool go, float[2, 2] given) => (bool on, float[2, 2] taken) {{ on = Identity(go) {nodes} }}"
    calls = {"Loop": f"Loop<body = {turn}>(times, yes, first)", "Block": "own.Block(first)"}
    body = f"first = Relu(x) outer = {calls[operator]} last = Relu(outer)"
    weights = {"times": np.array(2), "yes": np.array(True)}
    model = text_model(
        "(float[2, 2] x) => (float[2, 2] last)", body, weights, opset=17, functions=function
    )
    for inner in (
        model.functions[0].node,
        *(each.attribute[0].g.node for each in model.graph.node if each.attribute),
    ):
        next(node for node in inner if node.op_type == "Det").name = "inner"
    onnx.save(model, here / "m.onnx")
    result = cli("run", "m.onnx", "--trt-rtx", "--build-only", "--json", "r.json").ended(1).result
    assert [each["node"] for each in result["partition"]["refused"]] == ["outer"]
    assert result["partition"]["parts"] == [["first"], ["last"]]
    assert "'inner'" in result["why"]
    assert "outer" in result["why"]


def test_a_refused_model_names_its_node(tmp_path: Path) -> None:
    signatures = set()
    for before in (0, 3):
        nodes = [
            helper.make_node("Relu", ["x" if not n else f"r{n}"], [f"r{n + 1}"])
            for n in range(before)
        ]
        nodes.append(
            helper.make_node("Det", [f"r{before}" if before else "x"], ["y"], name=f"odd {before}")
        )
        path = save(tmp_path / "m.onnx", nodes, [("x", FLOAT, [2, 2])], [("y", FLOAT, [])])
        with pytest.raises(
            BuildError, match=f"the ONNX parser refuses node 'odd {before}': "
        ) as error:
            build(path, target(), {"x": np.ones((2, 2), np.float32)})
        assert "Cuda Runtime" not in error.value.message
        signatures.add(error.value.sign())
    assert len(signatures) == 1


def chain(path: Path, length: int, *odd: int) -> Path:
    """A network of Relu nodes and of Reshape nodes to computed shapes, with nodes that TensorRT-RTX cannot build."""
    nodes = []
    last = "x"
    for place in range(length):
        made = f"t{place}"
        name = f"node {place}"
        if place in odd:
            reads = [last, *(f"scores {place}", f"most {place}")]
            nodes.append(
                helper.make_node("NonMaxSuppression", reads, [f"n{place}"], name=f"odd {place}")
            )
            nodes.append(helper.make_node("Cast", [f"n{place}"], [f"c{place}"], to=FLOAT))
            nodes.append(helper.make_node("ReduceSum", [f"c{place}"], [f"s{place}"], keepdims=0))
            nodes.append(helper.make_node("Add", [last, f"s{place}"], [made], name=name))
        elif place % 5 == 4:
            nodes.append(helper.make_node("Shape", [last], [f"shape{place}"]))
            nodes.append(helper.make_node("Reshape", [last, f"shape{place}"], [made], name=name))
        else:
            nodes.append(helper.make_node("Relu", [last], [made], name=name))
        last = made
    weights = [
        numpy_helper.from_array(np.ones((1, 1, 4), np.float32), f"scores {place}") for place in odd
    ]
    weights += [numpy_helper.from_array(np.array([2]), f"most {place}") for place in odd]
    return save(path, nodes, [("x", FLOAT, [1, 4, 4])], [(last, FLOAT, None)], *weights)


def no_activations(folder: Path) -> bool:
    """Whether the reference has kept nothing."""
    return not list(folder.glob("**/tensors.bin"))


def test_all_that_cannot_be_built_is_found_without_a_reference(
    cli: CommandLine, here: Path
) -> None:
    path = chain(here / "m.onnx", 60, 20, 40)
    words = ("--trt-rtx", "--build-only", "--all", "--json", "r.json")
    result = cli("reduce", path, "-o", "r.onnx", *words).ended(0).result
    assert no_activations(here)
    found = [failure["culprits"] for failure in (result, *result["failures"])]
    assert {culprit["name"] for culprits in found for culprit in culprits} == {"odd 20", "odd 40"}
    assert all(len(culprits) == 1 for culprits in found)
    assert result["minimality"] == "1-minimal"


def test_a_diagnosis_leaves_a_script_that_builds(cli: CommandLine, here: Path) -> None:
    path = chain(here / "m.onnx", 30, 12)
    result = (
        cli("diagnose", path, "-o", "case", "--trt-rtx", "--build-only", "--json", "r.json")
        .ended(0)
        .result
    )
    assert [culprit["name"] for culprit in result["culprits"]] == ["odd 12"]
    assert result["fault"]["whose"] == "target"
    assert "REFUSED" in reproduced("case").out
    assert "tensorrt-rtx-cu12-libs" in (here / "case" / "ISSUE.md").read_text()


def test_a_piece_that_the_reference_does_not_run_is_no_failure(
    cli: CommandLine, here: Path
) -> None:
    """Cut off from its condition, which is not computed here, the If takes the other branch, which no runtime can run."""
    then = "then () => (float[1] taken) { taken = Det(square) }"
    other = "other () => (float[1] gone) { last = ArgMax(x) far = Add(last, nine) gone = Gather(line, far) }"
    branches = f"<then_branch = {then}, else_branch = {other}>"
    body = (
        f"square = Abs(x) sum = ReduceSum(square) yes = Greater(sum, zero) y = If(yes) {branches}"
    )
    weights = {
        "nine": np.array([9]),
        "zero": np.array(0, np.float32),
        "line": np.ones(3, np.float32),
    }
    model = text_model("(float[1, 2, 2] x) => (float[1] y)", body, weights, opset=17)
    onnx.save(model, here / "m.onnx")
    words = ("--trt-rtx", "--build-only", "--json", "r.json")
    result = cli("diagnose", "m.onnx", "-o", "case", *words).ended(3).result
    assert {"If", "Greater"} <= {culprit["op"] for culprit in result["culprits"]}
    assert result["fault"]["whose"] == "target"
    ort_run(here / "case" / "model.onnx", dict(np.load(here / "case" / "inputs.npz")))


@pytest.mark.parametrize(
    "command",
    ["cause", "workaround -o p.onnx", "precision -o p.onnx --fp16", "sweep --shapes x:[1,4,{4,8}]"],
)
def test_other_searches_build_only(command: str, cli: CommandLine, here: Path) -> None:
    name, *rest = command.split()
    path = chain(here / "m.onnx", 12, 6)
    ran = cli(name, path, *rest, "--trt-rtx", "--build-only")
    assert ran.status in (0, 1, 3), ran
    assert no_activations(here)


def test_a_model_that_builds_is_no_failure(cli: CommandLine, here: Path) -> None:
    path = chain(here / "m.onnx", 30)
    assert cli("reduce", path, "-o", "r.onnx", "--trt-rtx", "--build-only").status == 1
    words = ("--trt-rtx", "--build-only", "--fp16", "--json", "r.json")
    audit = cli("run", path, *words).ended(0).result["precision_audit"]
    assert audit["asked"] == ["fp16"]
    assert audit["counts"]["float16" if "float16" in audit["counts"] else "fp16"] > 0


def test_a_typed_model_is_not_what_was_asked_for() -> None:
    layers = (
        [{"precisions": ["float32"]}] * 214
        + [{"precisions": ["float16"]}] * 16
        + [{"precisions": ["int64"]}]
    )
    audit = audit_precision(target("fp16"), layers)
    assert (audit.total, audit.counts) == (230, {"fp32": 214, "fp16": 16})
    assert "214 of 230 layers run in fp32" in audit.sentence
    assert "`convert` adds Casts" in audit.sentence
    assert "requested" not in audit_precision(target(), layers).sentence


def test_a_refusal_that_names_no_node_is_not_said_to_be_the_builders(
    cli: CommandLine, here: Path
) -> None:
    ends = "(float[4] x, int64[4] i, float[4] u) => (float[4] y)"
    body = 'a = Abs(x) s = ScatterElements<reduction = "mul">(a, i, u) y = Exp(s)'
    model = save_text(here / "m.onnx", ends, body, opset=18)
    ran = cli("run", model, "--trt-rtx", "--build-only").ended(1)
    said = " ".join(ran.out.split())
    assert "the ONNX parser refuses the model: Unsupported reduction type" in said
    assert "No single node is named as refused" in said
    found = cli("diagnose", model, "--trt-rtx", "--build-only", "--json", "r.json").ended(0).result
    assert [node["op"] for node in found["culprits"]] == ["ScatterElements"]


def test_debug_marks_keep_the_fusions(tmp_path: Path) -> None:
    """A mark as an output may keep a tensor from being fused away; a debug tensor is marked where none is lost."""
    body = "a = Mul(x, x) b = Add(a, x) c = Sigmoid(b) d = Softmax(c) e = Add(d, x) y = Neg(e)"
    model = save_text(tmp_path / "m.onnx", "(float[2, 6] x) => (float[2, 6] y)", body, opset=17)
    plain, debugged = (
        Runtime(target(debug_tensors=debug)).trace(model, X, "fusions") for debug in (False, True)
    )
    assert debugged["layers"] == plain["layers"]
    assert [layer["nodes"] for layer in plain["layers"]] == [["a", "b", "c", "d"], ["d", "e", "y"]]
