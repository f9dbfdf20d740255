"""OpenVINO as a target, for real: its CPU device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from building import save_proto, save_text
from conftest import CommandLine
from onnx import NodeProto, TensorProto, helper
from support import read_json, reproduced

from bisect_trt.errors import BisectError
from bisect_trt.targets.base import Looked, TargetSettings, reference_settings
from bisect_trt.targets.messages import BuildError
from bisect_trt.targets.runtime import Runtime, RuntimeSession

openvino = pytest.importorskip("openvino", reason="OpenVINO is not installed")
make = helper.make_node
PLAIN = TargetSettings("openvino")
X = np.arange(-3, 3, dtype=np.float32).reshape(2, 3)
FLOAT = TensorProto.FLOAT


def save(
    path: Path,
    nodes: Sequence[NodeProto],
    ends: dict[str, int] | None = None,
    *,
    weights: dict[str, Any] | None = None,
    shape: Sequence[int | str] = (2, 3),
) -> Path:
    """A model from ``x`` to what ``ends`` names, with their types."""
    outputs = [(name, kind, None) for name, kind in (ends or {"y": FLOAT}).items()]
    return save_proto(path, nodes, [("x", FLOAT, shape)], outputs, weights, domains=["mine"])


def load(path: Path, target: TargetSettings = PLAIN) -> RuntimeSession:
    return Runtime(target).load(path)


def test_outputs_of_any_type_by_their_names(tmp_path: Path) -> None:
    """Also those that OpenVINO merges, and those that no node computes."""
    kinds = {"h": 10, "b": 9, "i8": 3, "u8": 2, "i32": 6, "i64": 7, "d": 11, "bf": 16}
    nodes = [
        make("Relu", ["x"], ["r"]),
        make("Identity", ["r"], ["same"]),
        make("Identity", ["x"], ["in"]),
    ]
    nodes += [make("Cast", ["r"], [name], to=kind) for name, kind in kinds.items()]
    nodes += [make("Identity", ["w"], ["stored"]), make("ReduceSum", ["x"], ["scalar"], keepdims=0)]
    nodes += [make("TopK", ["x", "k"], ["a/b:0", "index\n"], axis=1)]
    ends = (
        dict.fromkeys(("r", "same", "in", "a/b:0", "index\n", "stored", "scalar"), FLOAT)
        | {"index\n": 7}
        | kinds
    )
    weights = {"w": np.array([1, 2], np.float32), "k": np.array([2], np.int64)}
    path = save(tmp_path / "m.onnx", nodes, ends, weights=weights)
    session = load(path)
    reference = load(path, reference_settings())
    found = session.run({"x": X})
    expected = reference.run({"x": X})
    assert list(found) == list(ends)
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        assert found[name].shape == value.shape, name
        np.testing.assert_array_equal(found[name], value)


@pytest.mark.parametrize("kind", ["Identity", "Dropout"])
def test_an_input_that_is_passed_on_is_fed_by_its_own_name(tmp_path: Path, kind: str) -> None:
    path = save(tmp_path / "m.onnx", [make(kind, ["x"], ["y"], name="n")])
    session = load(path)
    assert "x" in [info.name for info in session.inputs]
    np.testing.assert_array_equal(session.run({"x": X})["y"], X)


def test_a_low_precision_is_seen(tmp_path: Path) -> None:
    """By a hint or by rounding: either way a product has no more digits than that."""
    weights = {"w": np.full((3, 4), 1.0003)}
    path = save_text(
        tmp_path / "m.onnx", "(float[2, 3] x) => (float[2, 4] y)", "y = MatMul(x, w)", weights
    )
    full = load(path).run({"x": X})["y"]
    half = load(path, TargetSettings("openvino", bf16=True)).run({"x": X})["y"]
    error = np.abs(half - full).max() / np.abs(full).max()
    assert 2.0**-15 < error < 2.0**-7
    kept = load(path, TargetSettings("openvino", bf16=True, keep=("y",))).run({"x": X})["y"]
    np.testing.assert_array_equal(kept, full)


@pytest.mark.parametrize(
    ("own", "code", "complaint"),
    [
        (
            {"device": "XYZ"},
            "BT2003",
            r"has no device 'XYZ' here; it has: CPU.*\. Its message: .*not registered",
        ),
        ({"properties": (("NOSUCH", "1"),)}, "BT1002", "does not take NOSUCH:1 for CPU: "),
        (
            {"properties": (("INFERENCE_PRECISION_HINT", "i9"),)},
            "BT1002",
            "INFERENCE_PRECISION_HINT:i9 for CPU: .*bf16",
        ),
    ],
)
def test_what_it_does_not_take_is_no_failure_of_the_model(
    own: dict[str, Any], code: str, complaint: str
) -> None:
    with pytest.raises(BisectError, match=complaint) as refused:
        Runtime(PLAIN.with_own(**own))
    assert refused.value.code == code


@pytest.mark.parametrize(
    "node",
    [make("Mystery", ["r"], ["y"], domain="mine"), make("Reshape", ["r", "w"], ["y"])],
    ids=lambda n: n.op_type,
)
def test_the_same_refusal_of_another_model_has_the_same_signature(
    tmp_path: Path, node: NodeProto
) -> None:
    signatures = set()
    for number, name in enumerate(["r", "other_name"]):
        before = [
            make("Relu", ["x" if not place else f"b{place - 1}"], [f"b{place}"])
            for place in range(1 + 3 * number)
        ]
        changed = NodeProto()
        changed.CopyFrom(node)
        changed.input[0] = name
        nodes = [*before, make("Neg", [before[-1].output[0]], [name]), changed]
        path = save(
            tmp_path / "m.onnx",
            nodes,
            weights={"w": np.array([7, 2], np.int64)},
            shape=(2, 3 + number),
        )
        with pytest.raises(BuildError) as refused:
            load(path)
        signatures.add(
            refused.value.sign(["x", name, "w", "y", *(each.output[0] for each in before)])
        )
        assert ".cpp" not in refused.value.message
    assert len(signatures) == 1


@pytest.mark.slow
def test_diagnose_and_its_reproducer(cli: CommandLine) -> None:
    path = quantized(Path("model.onnx"))
    cli("diagnose", path, "--openvino", "-o", "out", "--json", "r.json").ended(0)
    assert "joined" in [culprit["name"] for culprit in read_json(Path("r.json"))["culprits"]]
    reproduced("out")


def quantized(path: Path) -> Path:
    """What OpenVINO 2024.2 to 2026.4 computes wrong on a CPU: the scale of a quantized Concat is lost before a Conv."""
    steps = np.arange(32) * 37 % 255 - 127
    weights = {
        "s": 0.03,
        "z": np.int8(0),
        "k": steps.reshape(4, 8, 1, 1).astype(np.int8),
        "ks": 2 / 4 / 127,
    }
    body = """t = Tanh(x) g = Sigmoid(t) joined = Concat<axis = 1>(t, g) q = QuantizeLinear(joined, s, z)
        d = DequantizeLinear(q, s, z) kd = DequantizeLinear(k, ks, z) c = Conv(d, kd) y = Tanh(c)"""
    return save_text(
        path, "(float[1, 4, 6, 6] x) => (float[a, b, c, d] y)", body, weights, opset=17
    )


def test_without_a_workaround_the_nodes_keep_their_proof(cli: CommandLine) -> None:
    """OpenVINO has no Det; `diagnose` proves that the node fails alone, and `workaround` finds no way around it."""
    save_text(
        Path("m.onnx"), "(float[2,3,3] x) => (float[2] y)", "a = Abs(x) b = Det(a) y = Neg(b)"
    )
    words = ("--openvino", "--no-other-release", "--json", "r.json", "-q")
    ran = cli("workaround", "m.onnx", *words).ended(3)
    result = ran.result
    assert [node["op"] for node in result["culprits"]] == ["Det"]
    assert result["minimality"] == "1-minimal"
    assert (result["status"], result["why"]) == ("inconclusive", "no workaround was found")
    assert "resume" not in ran.out  # nothing is left to do


def test_what_is_refused_for_an_operator_before_it_is_not_named(cli: CommandLine) -> None:
    """OpenVINO has no rule for a domain's alias; so it cannot tell the rank that the Conv behind it needs."""
    save(
        Path("m.onnx"),
        [
            make("Abs", ["x"], ["a"]),
            make("Relu", ["a"], ["r"], domain="ai.onnx"),
            make("Neg", ["r"], ["n"]),
            make("Conv", ["n", "w"], ["y"]),
        ],
        weights={"w": np.ones((1, 2, 1), np.float32)},
        shape=(1, 2, 3),
    )
    words = ("reduce", "m.onnx", "-o", "r.onnx", "--openvino", "--json", "r.json")
    result = cli(*words, "--no-other-release").ended(0).result
    assert [node["op"] for node in result["culprits"]] == ["Relu"]
    assert result["minimality"] == "1-minimal"


def test_what_makes_the_inputs_of_a_refused_operation_is_not_named(cli: CommandLine) -> None:
    save_text(
        Path("m.onnx"),
        "(float[2, 3] x) => (float[2, 3] y)",
        "r = Relu(x) s = Cast<to = 8>(r) c = Cast<to = 1>(s) y = Neg(c)",
    )
    words = ("reduce", "m.onnx", "-o", "r.onnx", "--openvino", "--json", "r.json")
    result = cli(*words, "--no-other-release").ended(0).result
    assert [node["outputs"] for node in result["culprits"]] == [["s"]]
    assert result["minimality"] == "1-minimal"


def test_the_reference_runs_what_makes_a_sequence(cli: CommandLine) -> None:
    """OpenVINO inserts into no sequence that is an output; the case with smaller tensors is computed by the others."""
    body = "a = Abs(x) s = SplitToSequence<axis = 0, keepdims = 0>(a) y = SequenceInsert(s, v)"
    save_text(
        Path("m.onnx"),
        "(float[3, 4] x) => (seq(float[4]) y)",
        body,
        {"v": np.ones(4, np.float32)},
    )
    words = ("reduce", "m.onnx", "-o", "r.onnx", "--openvino", "--json", "r.json")
    result = cli(*words, "--no-other-release").result
    assert result["fault"]["whose"] == "target"


def test_the_cause_of_a_wrong_value(cli: CommandLine) -> None:
    path = quantized(Path("model.onnx"))
    if cli("run", path, "--openvino").status == 0:
        pytest.skip("this release of OpenVINO computes it right")
    ran = cli("cause", path, "--openvino", "--json", "r.json").ended(0)
    assert ["option:LP_TRANSFORMS_MODE=NO"] in read_json(Path("r.json"))["cause"]
    passing = "passes with --openvino --openvino-property LP_TRANSFORMS_MODE:NO"
    assert passing in " ".join(ran.out.split())


def test_what_can_be_turned_is_taken(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [make("Relu", ["x"], ["y"])])
    given = PLAIN.with_own(properties=(("NUM_STREAMS", "1"),))
    trace = Runtime(given).trace(path)
    assert "EXECUTION_MODE_HINT" in trace["takes"]
    switches = given.target.switches(given, Looked(trace, frozenset({"Relu"}), frozenset()))
    assert "option:NUM_STREAMS" in [switch.name for switch in switches]
    assert not [
        switch for switch in switches if "LP_TRANSFORMS" in switch.name
    ]  # nothing is quantized
    for switch in switches:
        turned = switch.turn(given)
        assert turned != given
        np.testing.assert_array_equal(load(path, turned).run({"x": X})["y"], np.maximum(X, 0))
        assert np.float32(1e-40) * np.float32(1) > 0, (
            f"{switch.name} changed the arithmetic of this thread"
        )
