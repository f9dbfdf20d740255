"""Ladders of precisions: what cannot stay in 8 bits goes to fp16 where that passes, to fp32 else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from building import text_model
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from support import model_of

import bisect_trt
from bisect_trt.errors import UsageError

WIDTH = 32
BIG = 3e5
"""Past fp16's largest number."""


def layers(bad: dict[int, float], large: set[int], quantized: int = 5) -> onnx.ModelProto:
    """Five quantized layers: a bad scale where one is ``bad`` times what fits, results past fp16 in those that are ``large``."""
    rng = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def store(name: str, value: object, dtype: type = np.float32) -> str:
        weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def add(op: str, read: list[str], made: str, **attributes: int) -> str:
        nodes.append(helper.make_node(op, read, [made], name=made, **attributes))  # type: ignore[arg-type]  # attributes
        return made

    def pair(tensor: str, scale: str) -> str:
        step = add("QuantizeLinear", [tensor, scale, "z"], f"{scale}_q")
        return add("DequantizeLinear", [step, scale, "z"], f"{scale}_d")

    store("z", 0, np.int8)
    read = "x"
    for layer in range(quantized):
        weight = (
            rng.standard_normal((WIDTH, WIDTH))
            * 1.2
            / WIDTH**0.5
            * (BIG if layer in large else 1.0)
        )
        if layer == 1:  # as some exporters keep weights
            value = numpy_helper.from_array(weight.astype(np.float32))
            nodes.append(helper.make_node("Constant", [], ["w1"], value=value))
        else:
            store(f"w{layer}", weight)
        store(f"a{layer}", (4.0 if layer == 0 else 1.0) / 127 * bad.get(layer, 1.0))
        store(f"b{layer}", np.abs(weight).max() / 127)
        read = add(
            "MatMul", [pair(read, f"a{layer}"), pair(f"w{layer}", f"b{layer}")], f"matmul{layer}"
        )
        if layer in large:
            read = add("Mul", [read, store(f"small{layer}", 1 / BIG)], f"down{layer}")
        read = add("Tanh", [read], f"tanh{layer}")
    add("Softmax", [read], "y", axis=-1)
    return model_of(nodes, weights, inputs={"x": (4, WIDTH)}, outputs={"y": (4, WIDTH)})


def samples(count: int) -> list[dict[str, NDArray[Any]]]:
    rng = np.random.default_rng(1)
    return [{"x": rng.standard_normal((4, WIDTH)).astype(np.float32)} for _ in range(count)]


def on_ladder(
    folder: Path, model: onnx.ModelProto, ladder: str = "int8,fp16,fp32", fresh_samples: int = 10
) -> bisect_trt.PrecisionAnswer:
    onnx.save(model, folder / "model.onnx")
    given: dict[str, Any] = {
        "target": "onnxrt",
        "inputs": samples(3),
        "output": folder / "mixed.onnx",
        "sensitivity": False,
    }
    return bisect_trt.precision(
        folder / "model.onnx", ladder=ladder, fresh_samples=fresh_samples, **given
    )


def test_each_group_is_on_the_cheapest_rung_that_passes(tmp_path: Path) -> None:
    """And what was written has the types that the result says, and is right."""
    spoiled = layers({1: 30.0, 3: 40.0}, {3})
    result = on_ladder(tmp_path, spoiled)
    assert result.minimality == "1-minimal", result.why
    ladder = result.ladder
    assert ladder is not None
    rungs = {group.name: group.rung for group in result.groups}
    assert rungs == {
        "matmul0": "int8",
        "matmul1": "fp16",
        "matmul2": "int8",
        "matmul3": "fp32",
        "matmul4": "int8",
    }
    assert {"matmul3", "down3"} == {node.name for node in result.keep_fp32}
    on = {node.name: node.rung for node in ladder.nodes}
    assert ladder.counts == {rung: [*on.values()].count(rung) for rung in ("int8", "fp16", "fp32")}
    mixed = onnx.shape_inference.infer_shapes(onnx.load(tmp_path / "mixed.onnx"))
    types = {
        value.name: value.type.tensor_type.elem_type
        for value in (*mixed.graph.value_info, *mixed.graph.output)
    }
    for node in mixed.graph.node:
        if node.name in on:
            assert (types[node.output[0]] == TensorProto.FLOAT16) == (on[node.name] == "fp16"), (
                node.name
            )
    quantized = {node.name for node in mixed.graph.node if node.op_type == "QuantizeLinear"}
    assert quantized == {f"{kind}{layer}_q" for kind in "ab" for layer in (0, 2, 4)}
    assert result.validation is not None
    assert result.validation.passed == result.validation.samples == 10
    errors = []
    for path in ("mixed.onnx", "model.onnx"):
        runs = [
            onnxruntime.InferenceSession(tmp_path / path).run(None, sample)[0]
            for sample in samples(2)
        ]
        right = [floats(sample["x"]) for sample in samples(2)]
        errors.append(float(np.abs(np.subtract(runs, right)).mean()))
    assert errors[0] < errors[1] / 2


def floats(x: NDArray[Any]) -> NDArray[Any]:
    """What the layers compute where nothing is rounded."""
    rng = np.random.default_rng(0)
    for _ in range(5):
        x = np.tanh(x @ (rng.standard_normal((WIDTH, WIDTH)) * 1.2 / WIDTH**0.5))
    large = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(large / large.sum(-1, keepdims=True))


def test_nodes_alone(tmp_path: Path) -> None:
    """Without anything quantized it is the search of nodes."""
    result = on_ladder(tmp_path, floating(), "fp16,fp32", fresh_samples=0)
    assert result.ladder is not None
    on = {node.name: node.rung for node in result.ladder.nodes}
    assert on == {"up": "fp32", "down": "fp32", "y": "fp16"}


def floating() -> onnx.ModelProto:
    """Two nodes past fp16, and one that is not."""
    ends = f"(float[4, {WIDTH}] x) => (float[4, {WIDTH}] y)"
    return text_model(
        ends, "up = Mul(x, big) down = Mul(up, small) y = Tanh(down)", {"big": 1e5, "small": 1e-5}
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"ladder": "fp16,int8,fp32"},
            "precisions from the cheapest to fp32, such as int8,fp16,fp32",
        ),
        ({"ladder": "int8,fp16"}, "precisions from the cheapest to fp32, such as int8,fp16,fp32"),
        (
            {"ladder": "int8,fp16,fp32", "fp8": True},
            "--fp8 is not among the precisions of --ladder int8,fp16,fp32",
        ),
        ({"ladder": "fp8,fp16,fp32"}, "has nothing quantized for --fp8, but int8; give --int8."),
        # A calibration cache is TensorRT's, for models without Q/DQ.
        ({"low": "int8", "calibration_cache": "ranges"}, "no ranges are found: TensorRT"),
        ({"low": "fp16", "calibration_cache": "ranges"}, "no ranges are found: TensorRT"),
    ],
)
def test_ladders_that_cannot_be_climbed(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    onnx.save(layers({}, set(), 1), tmp_path / "model.onnx")
    with pytest.raises(UsageError) as raised:
        bisect_trt.precision(
            tmp_path / "model.onnx", target="onnxrt", output=tmp_path / "out.onnx", **options
        )
    assert message in str(raised.value)


# Where the target refuses what is lowered, that is what a search for precision says, and not that
# numbers are wrong.


pytestmark = pytest.mark.usefixtures("here")  # runs are kept where one works
NO = "no kernel for the node"


def quantized(path: Path, bad: dict[int, float]) -> Path:
    onnx.save(layers(bad, set(), 4), path)
    return path


def searched(path: Path, refuses: str) -> bisect_trt.PrecisionAnswer:
    """Search with a tool that hands models on, but for those of which a line of shell says that it ``refuses`` them."""
    tool = path.with_name("tool.sh")
    tool.write_text(
        f'has() {{ grep -qa "$1" "$model"; }}\nmodel=$1\nif {refuses}; then echo "{NO}" >&2; exit 1; fi\ncp "$1" "$2"\n'
    )
    given: dict[str, Any] = {
        "inputs": samples(1),
        "output": path.with_name("mixed.onnx"),
        "fresh_samples": 0,
        "sensitivity": False,
    }
    return bisect_trt.precision(
        path, low="int8", target="through", through=f"sh {tool} {{model}} {{out}}", **given
    )


def test_groups_that_are_refused(tmp_path: Path) -> None:
    """The one that is refused goes back to floats for that, whatever its scale; and that is said first."""
    result = searched(quantized(tmp_path / "model.onnx", {2: 1.5}), "has a2_q")
    (kept,) = result.keep_fp32
    assert (kept.name, kept.rule) == ("matmul2", "not run")
    assert kept.reason is not None
    assert kept.reason.startswith("without it: the tool refuses the model: ")
    assert kept.reason.endswith(NO)
    assert result.minimality == "1-minimal"
    assert result.why is not None
    assert result.why.startswith(
        "With all of it quantized no number is wrong: the tool refuses the model: "
    )
    assert result.report["story"]["answers"][0] == result.why


def test_one_is_refused_among_others_that_are_wrong(tmp_path: Path) -> None:
    """What is refused only without another is no wrong number, and the other is kept for its scale."""
    path = quantized(tmp_path / "model.onnx", {2: 0.05})
    result = searched(path, "has a1_q && ! has a2_q")
    assert {kept.name: kept.rule for kept in result.minimal} == {
        "matmul1": "not run",
        "matmul2": "clipping",
    }
    said = "with one of 1 of its units lowered the check ends in another way, which does not count as passing"
    assert result.why == said


@pytest.mark.parametrize(
    ("quantized_fails", "rung"), [("grep -qa a2_q {model}", "fp16"), ("false", "int8")]
)
def test_a_rung_that_crashes(tmp_path: Path, quantized_fails: str, rung: str) -> None:
    """On a ladder the nodes are found too that the target does not take in fp16, where quantized the model is wrong or passes."""
    path = quantized(tmp_path / "model.onnx", {})
    body = f"if grep -qa y_fp16 {{model}}; then kill -SEGV $$; fi; if {quantized_fails}; then exit 1; fi"
    check = ["sh", "-c", body]
    result = bisect_trt.precision(
        path, check=check, ladder=["int8", "fp16", "fp32"], output=tmp_path / "mixed.onnx"
    )
    assert result.ladder is not None
    on = {node.name: node.rung for node in result.ladder.nodes}
    assert on["matmul2"] == rung
    assert [(node.name, node.rule, node.reason) for node in result.keep_fp32] == [
        ("y", "not run", "without it: killed by SIGSEGV")
    ]


# One stored weight, or one scale, that several operators share: a bad scale there is found, whoever
# reads it.


WORDS = 40
TOKENS = 6


def pair(tensor: str, by: str = "") -> str:
    """A tensor quantized and dequantized, by a scale of its own if no other is named."""
    by = by or f"{tensor}_s"
    return f"{tensor}q = QuantizeLinear({tensor}, {by}, zero) {tensor}d = DequantizeLinear({tensor}q, {by}, zero)"


def tied(
    *, stored: bool, by_channel: bool, factor: float
) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """An embedding that is the head's weight too, its scale ``factor`` times what fits; quantized, and from before.

    It is ``stored`` quantized, and the head is quantized again by the same scale, as ONNX Runtime's
    quantizer does; or it is quantized for each of the two, by a scale for each word where that is
    asked.
    """
    rng = np.random.default_rng(7)
    table = rng.standard_normal((WORDS, 16)).astype(np.float32)
    layer = rng.standard_normal((16, 16)) / 4
    most = float(np.abs(table).max())
    scale = np.asarray(np.abs(table).max(axis=1) if by_channel else most, np.float32) / np.float32(
        127
    )
    steps = np.clip(np.rint(table / (scale[:, None] if by_channel else scale)), -128, 127)
    weights = {
        "m": 1.3,
        "layer": layer,
        "embed_s": most / 127,
        "mul0_s": most * 1.3 / 127,
        "mul1_s": most * 1.69 / 127,
    }
    weights |= {
        "layer_s": np.abs(layer).max() / 127,
        "tanh_s": 1 / 127,
        "shared": scale * factor,
        "table": table,
    }
    given: dict[str, Any] = {name: np.asarray(value, np.float32) for name, value in weights.items()}
    given |= {
        "zero": np.zeros((), np.int8),
        "zeros": np.zeros_like(scale, np.int8),
        "table_q": steps.astype(np.int8),
    }
    reads = [
        f"{name} = DequantizeLinear <axis = 0> (table_q, shared, zeros)"
        for name in ("t0", "t1")[: 2 - stored]
    ]
    if not stored:
        reads = [
            f"q{at} = QuantizeLinear <axis = 0> (table, shared, zeros) {each}"
            for at, each in enumerate(reads)
        ]
        reads = [each.replace("table_q", f"q{at}") for at, each in enumerate(reads)]
    head = pair("head", "shared") if stored else ""
    body = (
        f"{' '.join(reads)} embed = Gather <axis = 0> (t0, ids) {pair('embed')} mul0 = Mul(embedd, m) {pair('mul0')} "
        f"mul1 = Mul(mul0d, m) {pair('mul1')} {pair('layer')} hidden = MatMul(mul1d, layerd) tanh = Tanh(hidden) "
        f"{pair('tanh')} head = Transpose <perm = [1, 0]> ({'t0' if stored else 't1'}) {head} "
        f"logits = MatMul(tanhd, {'headd' if stored else 'head'})"
    )
    before = (
        "embed = Gather <axis = 0> (table, ids) mul0 = Mul(embed, m) mul1 = Mul(mul0, m) hidden = MatMul(mul1, layer) "
        "tanh = Tanh(hidden) head = Transpose <perm = [1, 0]> (table) logits = MatMul(tanh, head)"
    )
    ends = f"(int64[1, {TOKENS}] ids) => (float[1, {TOKENS}, {WORDS}] logits)"
    return text_model(ends, body, given), text_model(ends, before, given)


@pytest.mark.parametrize(
    ("stored", "by_channel", "factor"), [(True, False, 0.05), (False, True, 20.0)]
)
def test_a_bad_scale_of_a_tied_weight_is_the_answer(
    tmp_path: Path, stored: bool, by_channel: bool, factor: float
) -> None:
    """One group with all its readers, and no other scale is blamed."""
    quantized, before = tied(stored=stored, by_channel=by_channel, factor=factor)
    onnx.save(quantized, tmp_path / "quantized.onnx")
    onnx.save(before, tmp_path / "float.onnx")
    rng = np.random.default_rng(1)
    ids = [{"ids": rng.integers(0, WORDS, (1, TOKENS))} for _ in range(3)]
    known: dict[str, Any] = {
        "reference": tmp_path / "float.onnx",
        "output": tmp_path / "mixed.onnx",
        "inputs": ids,
    }
    result = bisect_trt.precision(
        tmp_path / "quantized.onnx",
        low="int8",
        target="onnxrt",
        sensitivity=False,
        fresh_samples=0,
        **known,
    )
    assert result.minimality == "1-minimal", result.why
    (kept,) = result.minimal
    assert kept.bad_scales == ("shared",)
    assert {"embed", "logits"} <= set(kept.operators or ())
