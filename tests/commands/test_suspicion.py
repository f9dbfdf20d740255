"""The rules that suspect nodes by the reference run: the right ones, by the right rule, and no others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from building import tensor_info, text_model
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from bisect_trt.mixed_precision.nodes import Sensitivity, make_nodes
from bisect_trt.mixed_precision.search import BREAKS, INSIDE, Low, PrecisionSettings, Suspect
from bisect_trt.onnxlib.roundings import lower_roundtrip
from bisect_trt.options.searches import PrecisionOptions
from bisect_trt.options.shared import Data
from bisect_trt.probe.workspace import Workspace
from bisect_trt.report.console import Console
from bisect_trt.session.subject import ModelSettings, Subject
from bisect_trt.tensors.files import save_npz
from bisect_trt.tensors.info import finite_range

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ROWS = 4
COLUMNS = 8
WEIGHTS: dict[str, Any] = {
    "one": 1.0,
    "c3": 3.0,
    "c4": 4.0,
    "c100": 100.0,
    "c300": 300.0,
    "c1000": 1e3,
    "c2000": 2e3,
    "c1e4": 1e4,
    "c5e4": 5e4,
    "c1e5": 1e5,
    "c1e6": 1e6,
    "masked": -1e9,
    "hundredth": 1e-2,
    "small": 1e-5,
    "tiny": 1e-9,
    "epsilon": 1e-12,
    "ones": np.ones(COLUMNS),
    "few": np.full(COLUMNS, 1e-5),
    "mask": np.array([-1e9, 0] * (COLUMNS // 2)),
}


def sketch(body: str, inputs: str = "x") -> onnx.ModelProto:
    """A model of these nodes, the outputs of which are what no other node reads."""
    ends = ", ".join(f"float[{ROWS}, {COLUMNS}] {name}" for name in inputs.split())
    model = text_model(f"({ends}) => ()", body, WEIGHTS, opset=17)
    read = {name for node in model.graph.node for name in node.input}
    made = (node.output[0] for node in model.graph.node if node.output[0] not in read)
    model.graph.output.extend(tensor_info(name, onnx.TensorProto.FLOAT, None) for name in made)
    return onnx.shape_inference.infer_shapes(model)


def odd_nodes() -> onnx.ModelProto:
    """Many small things that go wrong in fp16, and some that do not, none in another's way.

    ``x`` is 1 to 2, ``m`` is 0 and 1 in turn.
    """
    body = """relu = Relu(x) plain_add = Add(x, one) makes_big = Mul(x, c5e4) reads_big = Mul(makes_big, hundredth)
        big_weight = Div(x, c1e5) makes_tiny = Mul(x, tiny) divides_by_tiny = Div(x, makes_tiny) few_digits = Mul(x, few)
        zero = Sub(x, x) needed_epsilon = Add(zero, epsilon) root = Sqrt(needed_epsilon) divided = Div(zero, root)
        needless_epsilon = Add(x, epsilon) root_of_x = Sqrt(needless_epsilon)
        wide = Mul(x, c2000) norm = LayerNormalization<epsilon = 0.00001>(wide, ones)
        norm_of_x = LayerNormalization<epsilon = 0.000000000001>(x, ones)
        hundreds = Mul(x, c100) length = ReduceL2<axes = [1]>(hundreds)
        ten_thousands = Mul(x, c1e4) mean = ReduceMean<axes = [1]>(ten_thousands)
        up_to_8 = Mul(x, c4) exp_near_overflow = Exp(up_to_8) square_near_overflow = Mul(hundreds, hundreds) far_exp = Exp(x)
        thousand = Add(x, c1000) cancels = Sub(thousand, c1000) after = Mul(cancels, c3)
        times_mask = Mul(m, masked) adds_mask = Add(x, mask) softmax = Softmax<axis = 1>(adds_mask)"""
    return sketch(body, "x m")


@contextmanager
def subject_of(model: Path, inputs: Path | None, folder: Path) -> Iterator[Subject]:
    data = Data() if inputs is None else Data(load_inputs=(inputs,))
    with Subject(
        ModelSettings(model, data=data), Workspace(folder / "run"), Console(-1)
    ) as subject:
        yield subject


def by_name(subject: Subject, precision: str = "fp16") -> dict[str, Suspect]:
    network = subject.network
    options = PrecisionOptions(subject.settings.path, Path("mixed.onnx"))
    low: Low = "fp16" if precision == "fp16" else "bf16"
    space = make_nodes(subject, PrecisionSettings(options, low))
    space.measure_nodes()
    suspects = space.suspects
    assert [entry.score for entry in suspects] == sorted(
        (entry.score for entry in suspects), reverse=True
    )
    found = {network.nodes[network.order[entry.unit]].name: entry for entry in suspects}
    assert len(found) == len(suspects)
    return found


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    folder = tmp_path_factory.mktemp("odd")
    onnx.save(odd_nodes(), str(folder / "model.onnx"))
    values = {"x": np.linspace(1, 2, ROWS * COLUMNS), "m": np.arange(ROWS * COLUMNS) % 2}
    shaped = {
        name: value.reshape(ROWS, COLUMNS).astype(np.float32) for name, value in values.items()
    }
    save_npz(folder / "inputs.npz", shaped)
    with subject_of(folder / "model.onnx", folder / "inputs.npz", folder) as subject:
        yield subject


@pytest.fixture(scope="module")
def found(odd: Subject) -> dict[str, Suspect]:
    return by_name(odd)


@pytest.mark.parametrize(
    ("node", "band", "rule"),
    [
        ("makes_big", BREAKS, "overflow"),
        ("reads_big", BREAKS, "overflow"),
        ("big_weight", BREAKS, "overflow"),
        ("divides_by_tiny", BREAKS, "overflow"),
        ("root", BREAKS, "underflow"),
        ("exp_near_overflow", INSIDE, "headroom"),
        ("square_near_overflow", INSIDE, "headroom"),
        ("cancels", BREAKS, "own error"),
        ("thousand", BREAKS, "own error"),
        ("times_mask", BREAKS, "overflow"),
    ],
)
def test_each_rule_finds_its_node(
    found: dict[str, Suspect], node: str, band: float, rule: str
) -> None:
    assert found[node].rule == rule
    assert band <= found[node].score < band + 1


def test_harmless_nodes_are_no_suspects(found: dict[str, Suspect]) -> None:
    harmless = ["far_exp", "relu", "plain_add", "hundreds", "root_of_x", "needless_epsilon", "zero"]
    harmless += ["after"]  # rounded alone it reads the exact difference
    harmless += ["adds_mask", "softmax"]  # -Inf hides scores as well
    assert {name: found[name].reason for name in harmless if name in found} == {}


def test_in_bf16_only_digits_are_short(odd: Subject) -> None:
    """It has fp32's range: what overflows in fp16 is right there."""
    found = by_name(odd, "bf16")
    assert {entry.rule for entry in found.values()} == {"own error"}
    assert found["cancels"].score >= BREAKS


def test_what_the_reference_cannot_run_is_not_suspected_and_the_rest_is(tmp_path: Path) -> None:
    body = (
        "big = Mul(x, c1e6) plugin = own.Plugin(big) behind = Add(plugin, x) beside = Sub(big, x)"
    )
    onnx.save(sketch(body), str(tmp_path / "model.onnx"))
    with subject_of(tmp_path / "model.onnx", None, tmp_path) as subject:
        assert set(by_name(subject)) == {"big", "beside"}


def test_the_masks_whole_way_to_the_softmax_is_named(tmp_path: Path) -> None:
    make = EXAMPLES / "masked_attention" / "make_model.py"
    subprocess.run([sys.executable, str(make), "-o", str(tmp_path)], check=True)
    with subject_of(tmp_path / "model.onnx", tmp_path / "inputs.npz", tmp_path) as subject:
        found = {name: entry for name, entry in by_name(subject).items() if entry.score >= BREAKS}
    layers = [f"/layers.{layer}/attn" for layer in (0, 1)]
    assert set(found) == {
        "/Where",
        *(f"{layer}/{op}" for layer in layers for op in ("Add", "Softmax")),
    }
    assert {entry.rule for entry in found.values()} == {"overflow"}


values = arrays(np.float32, array_shapes(max_dims=2, max_side=6), elements=st.floats(width=32))


@given(values)
def test_a_range_is_that_of_the_finite_values(array: np.ndarray) -> None:
    finite = array[np.isfinite(array)]
    assert finite_range(array, 0.0) == ((finite.min(), finite.max()) if finite.size else (0, 0))


def test_the_error_of_each_node_alone_is_that_of_the_model_with_this_node_lowered(
    here: Path,
) -> None:
    body = """wide = Mul(x, c300) over = Mul(wide, wide) back = Mul(over, small) thousand = Add(back, c1000)
        cancels = Sub(thousand, c1000) same = Relu(cancels)"""
    onnx.save(sketch(body), str(here / "model.onnx"))
    x = np.random.default_rng(3).uniform(1, 2, (ROWS, COLUMNS)).astype(np.float32)
    save_npz(here / "x.npz", {"x": x})
    with subject_of(here / "model.onnx", here / "x.npz", here) as subject:
        network = subject.network
        named = [network.nodes[index].name for index in network.order]
        (measured,) = Sensitivity(subject, network.order, "fp16", {"same": (0.01, 0.0)}).errors(
            [{"x": x}]
        )
        golden = subject.reference.select(["same"])["same"]
        for unit, error in enumerate(measured):
            lowered = lower_roundtrip(
                network.proto, {name for name in named if name != named[unit]}
            )
            made = subject.models.run("alone", lowered, {"x": x})
            assert isinstance(made, dict)
            off = float(np.max(np.abs(made["same"] - golden)) / 0.01)
            assert error == pytest.approx(off, rel=1e-4) if np.isfinite(off) else np.isinf(error)
        assert np.isinf(measured[named.index("over")])
        assert measured[named.index("thousand")] > 10
        assert (
            Sensitivity(subject, range(10**9), "fp16", {"same": (0.01, 0.0)}).errors([{"x": x}])
            == []
        )


def test_outputs_that_no_node_makes_do_not_change_what_is_measured(here: Path) -> None:
    """Some exporters return inputs, weights and lists as well."""
    plain = sketch("wide = Mul(x, c300) over = Mul(wide, wide) back = Mul(over, small)")
    more = sketch("wide = Mul(x, c300) over = Mul(wide, wide) back = Mul(over, small)")
    more.graph.node.append(onnx.helper.make_node("SplitToSequence", ["x"], ["list"], "list"))
    more.graph.output.extend(
        [
            *(tensor_info(name, onnx.TensorProto.FLOAT, None) for name in ("x", "c300")),
            onnx.helper.make_tensor_sequence_value_info("list", onnx.TensorProto.FLOAT, None),
        ]
    )
    found = []
    for name, model in (("plain", plain), ("more", more)):
        onnx.save(model, str(here / f"{name}.onnx"))
        (here / name).mkdir()
        with subject_of(here / f"{name}.onnx", None, here / name) as subject:
            found.append(by_name(subject))
    assert found[0] == found[1]
    assert "over" in found[0]


def test_nodes_are_not_measured_where_that_takes_too_long(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples of several sizes count with their sizes; a run past its time is no error."""
    model = text_model("(float[N, 8] x) => (float[N, 8] y)", "t = Tanh (x) y = Neg (t)", {})
    onnx.save(model, str(here / "model.onnx"))
    for rows in (4000, 5000):
        save_npz(here / f"{rows}.npz", {"x": np.ones((rows, 8), np.float32)})
    data = Data(load_inputs=(here / "4000.npz", here / "5000.npz"))
    settings = ModelSettings(here / "model.onnx", data=data)
    with Subject(settings, Workspace(here / "run"), Console(-1)) as subject:
        samples = subject.samples[:1]
        allowed = {"y": (0.01, 0.0)}
        assert Sensitivity(subject, range(10**6), "fp16", allowed).errors(samples) == []
        order = subject.network.order
        assert len(Sensitivity(subject, order, "fp16", allowed).errors(samples)) == 1
        # Of a large network few samples are measured, in all.
        monkeypatch.setattr("bisect_trt.mixed_precision.nodes._MOST_WORK", 5e5)
        meter = Sensitivity(subject, order, "fp16", allowed)
        assert [len(meter.errors(samples * 2)) for _ in range(2)] == [2, 0]
        monkeypatch.setattr("bisect_trt.mixed_precision.nodes._MOST_WORK", 1e10)
        monkeypatch.setattr("bisect_trt.mixed_precision.nodes._PATIENCE", 1e-4)
        # So many rows that no run is done before it is first looked at.
        large = [{"x": np.ones((1_000_000, 8), np.float32)}]
        assert Sensitivity(subject, order, "fp16", allowed).errors(large) == []


@pytest.mark.parametrize("inside", [False, True])
def test_nodes_in_bodies_are_not_measured_so_none_is_known_to_lose_values(
    here: Path, *, inside: bool
) -> None:
    """Then rounding that adds up is not distinguished from lost digits, and the search goes on to its end."""
    t = "If (c) <then_branch = a () => (float[4] p) { p = Tanh (x) }, else_branch = b () => (float[4] q) { q = Neg (x) }>"
    body = f"c = IsNaN (n) t = {t if inside else 'Tanh (x)'} y = Neg (t)"
    model = text_model("(float[4] x, float n) => (float[4] y)", body, {})
    onnx.save(model, str(here / "model.onnx"))
    with subject_of(here / "model.onnx", None, here) as subject:
        options = PrecisionOptions(subject.settings.path, Path("mixed.onnx"))
        space = make_nodes(subject, PrecisionSettings(options, "fp16"))
        space.measure_nodes()
        assert space.measured is not inside
