"""A provider of a package, for real: QNN's HTP backend, whose simulator runs on a CPU."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from onnx import helper
from support import node_names, read_json, reproduced, save

needs_qnn = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime_qnn") is None, reason="onnxruntime-qnn is not installed"
)
HTP = ["--onnxrt", "--ep", "qnn"]
HTP += ["--provider-option", "backend_type:htp", "soc_model:57", "htp_arch:75"]


def overflowing(path: Path) -> Path:
    """A product of 16 million between two layers: HTP computes in fp16, and saturates."""
    nodes = [
        helper.make_node("Mul", ["x", "big"], ["scaled"], name="scale"),
        helper.make_node("Mul", ["scaled", "scaled"], ["squared"], name="square"),
        helper.make_node("Sqrt", ["squared"], ["rooted"], name="root"),
        helper.make_node("Add", ["rooted", "x"], ["added"], name="add"),
        helper.make_node("Relu", ["added"], ["y"], name="relu"),
    ]
    return save(path, nodes, {"big": np.float32(4000)})


def not_taken(path: Path) -> Path:
    """A determinant, which HTP does not compute."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="relu"),
        helper.make_node("Det", ["r"], ["d"], name="det"),
        helper.make_node("Add", ["d", "one"], ["y"], name="add"),
    ]
    return save(path, nodes, {"one": np.float32(1)}, inputs={"x": [2, 4, 4]}, outputs={"y": [2]})


@needs_qnn
def test_an_overflow_is_named_and_its_nodes_are_left_to_the_cpu(
    cli: CommandLine, here: Path
) -> None:
    """The written model is right on the device, which still runs the other nodes."""
    model = overflowing(here / "model.onnx")
    ran = cli("diagnose", model, *HTP, "--fp16", "-o", "out", "--json", "r.json")
    answer = read_json(Path("r.json"))
    assert ran.status == 0, ran.out + ran.err
    assert node_names(Path("out/model.onnx")) == ["square"]
    assert answer["fault"]["whose"] == "precision"
    assert reproduced(Path("out"))
    assert "Of 1 node 1 on QNNExecutionProvider." in Path("out/NOTES.md").read_text()
    ran = cli("run", "out/mixed.onnx", *HTP, "--fp16", "--json", "fixed.json")
    assert ran.status == 0, ran.out
    placed = {each["name"]: each["provider"] for each in read_json(Path("fixed.json"))["layers"]}
    assert placed["square"] == "CPUExecutionProvider"
    assert placed["add"] == "QNNExecutionProvider", placed


@needs_qnn
def test_a_fallback_is_told_and_may_be_a_failure(cli: CommandLine, here: Path) -> None:
    model = not_taken(here / "model.onnx")
    reason = "Det (1: Operators of type `Det` are not supported by QNN EP)"
    sentence = f"2 on QNNExecutionProvider; 1 on CPUExecutionProvider: {reason}."
    for command in ("run", "layerwise"):
        ran = cli(command, model, *HTP, "--fp16", "--report", "r.html")
        assert ran.status == (command == "layerwise"), ran.out
        assert sentence in " ".join(ran.out.split())
        assert sentence in Path("r.html").read_text()
    ran = cli("reduce", model, *HTP, "--fp16", "--all-on-ep", "-o", "small.onnx")
    assert ran.status == 0, ran.out + ran.err
    assert [node.op_type for node in onnx.load("small.onnx").graph.node] == ["Det"]


@needs_qnn
def test_a_backend_is_asked_for(cli: CommandLine, here: Path) -> None:
    ran = cli("run", overflowing(here / "model.onnx"), "--onnxrt", "--ep", "qnn")
    assert (ran.status, "BT1004" in ran.err, "backend_type:htp" in ran.err) == (2, True, True)


@needs_qnn
def test_a_compiled_context_is_compared_with_outputs_of_its_model(
    cli: CommandLine, here: Path
) -> None:
    onnxruntime = importlib.import_module("onnxruntime")
    onnxruntime_qnn = importlib.import_module("onnxruntime_qnn")
    overflowing(here / "model.onnx")
    name = onnxruntime_qnn.get_ep_name()
    if all(device.ep_name != name for device in onnxruntime.get_ep_devices()):
        onnxruntime.register_execution_provider_library(name, onnxruntime_qnn.get_library_path())
    devices = [each for each in onnxruntime.get_ep_devices() if each.ep_name == name][:1]
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("ep.context_enable", "1")
    options.add_session_config_entry("ep.context_file_path", "context.onnx")
    options.add_provider_for_devices(devices, dict(each.split(":") for each in HTP[4:]))
    onnxruntime.InferenceSession("model.onnx", options)
    cli("run", "model.onnx", "--onnxrt", "--save-outputs", "ref.npz").ended(0)
    compiled = ("run", "context.onnx", *HTP, "--fp16")
    (context,) = here.glob("*.bin")  # it is not in the model
    context.rename("elsewhere")
    assert "copy it beside the model" in cli(*compiled).ended(4).err
    Path("elsewhere").rename(context)
    assert "--load-outputs ref.npz" in cli(*compiled).ended(4).err
    ran = cli(*compiled, "--load-outputs", "ref.npz").ended(1)
    assert "'y': max error" in ran.out
    assert "Of 1 node 1 on QNNExecutionProvider." in ran.out


@needs_qnn
def test_it_is_given_alone(cli: CommandLine, here: Path) -> None:
    ran = cli("run", overflowing(here / "model.onnx"), "--onnxrt", "--ep", "qnn", "cpu")
    assert (ran.status, "BT1003" in ran.err) == (2, True)


@pytest.mark.parametrize(
    ("provider", "says"),
    [("nothing", "it has: "), ("mine=missing.so", "cannot load the execution provider mine")],
)
def test_a_provider_that_is_not_there(
    cli: CommandLine, here: Path, provider: str, says: str
) -> None:
    ran = cli("run", overflowing(here / "model.onnx"), "--onnxrt", "--ep", provider)
    assert (ran.status, "BT2003" in ran.err, says in ran.err) == (4, True, True), ran.err


def approximated(path: Path) -> Path:
    """MatMuls with Tanh and Sigmoid by turns, which HTP approximates; next to 0 the differences lose digits."""
    luck = np.random.default_rng(8)
    nodes = []
    weights = {"half": np.asarray(0.5, np.float32), "two": np.asarray(2, np.float32)}
    last = "x"
    for number in range(4):
        weights[f"w{number}"] = luck.normal(0, 0.35, (16, 16)).astype(np.float32)
        nodes.append(helper.make_node("MatMul", [last, f"w{number}"], [f"m{number}"]))
        last = f"a{number}"
        if number % 2:
            nodes.append(helper.make_node("Sigmoid", [f"m{number}"], [f"s{number}"]))
            nodes.append(helper.make_node("Sub", [f"s{number}", "half"], [f"d{number}"]))
            nodes.append(helper.make_node("Mul", [f"d{number}", "two"], [last]))
        else:
            nodes.append(helper.make_node("Tanh", [f"m{number}"], [last]))
    return save(path, nodes, weights, inputs={"x": [4, 16]}, outputs={last: [4, 16]})


@needs_qnn
@pytest.mark.slow
def test_approximations_of_functions_blame_nobody(cli: CommandLine, here: Path) -> None:
    words = ["reduce", approximated(here / "model.onnx"), *HTP, "--fp16", "-o", "small.onnx"]
    cli(*words, "--json", "r.json").ended(0)
    assert read_json(Path("r.json"))["fault"]["whose"] == "precision"


def quantized_norms(path: Path) -> Path:
    """Convolutions and norms of batches in 16 bits, each behind a Q/DQ pair, as ONNX Runtime's QNN configuration writes them."""
    from onnxruntime import quantization
    from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config

    class Samples(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            draw = np.random.default_rng(5).standard_normal
            self.samples = iter([{"x": draw((1, 8, 8, 8), np.float32)} for _ in range(8)])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.samples, None)

    luck = np.random.default_rng(2)
    nodes: list[onnx.NodeProto] = []
    weights: dict[str, np.ndarray] = {}
    last = "x"
    for number in range(2):
        kernel = luck.standard_normal((8, 8, 3, 3)) / 8
        ranges = {"scale": (0.5, 2), "bias": (0, 2), "mean": (-0.5, 0.5), "variance": (0.05, 1.5)}
        parameters = {f"{name}{number}": luck.uniform(*ends, 8) for name, ends in ranges.items()}
        stored = {f"kernel{number}": kernel, **parameters}
        weights |= {name: value.astype(np.float32) for name, value in stored.items()}
        reads = [f"c{number}", *parameters]
        nodes += [
            helper.make_node(
                "Conv", [last, f"kernel{number}"], reads[:1], name=f"conv{number}", pads=[1] * 4
            ),
            helper.make_node("BatchNormalization", reads, [f"n{number}"], name=f"norm{number}"),
            helper.make_node("Relu", [f"n{number}"], [f"r{number}"], name=f"relu{number}"),
        ]
        last = f"r{number}"
    sizes = [1, 8, 8, 8]
    floats = save(
        path.with_name("floats.onnx"), nodes, weights, inputs={"x": sizes}, outputs={last: sizes}
    )
    types = quantization.QuantType
    config = get_qnn_qdq_config(
        str(floats),
        Samples(),
        activation_type=types.QUInt16,
        weight_type=types.QInt8,
        per_channel=True,
    )
    quantization.quantize(str(floats), str(path), config)
    return path


@needs_qnn
@pytest.mark.slow
def test_a_quantized_operator_that_is_wrong_is_left_to_the_cpu(
    cli: CommandLine, here: Path
) -> None:
    model = quantized_norms(here / "model.onnx")
    cli("diagnose", model, *HTP, "--fp16", "-o", "out", "--json", "r.json").ended(0)
    answer = read_json(Path("r.json"))
    assert answer["fault"]["whose"] == "target"
    operators = {node["op"] for node in answer["culprits"]}
    assert operators == {"DequantizeLinear", "BatchNormalization", "QuantizeLinear"}
    assert {node["op"] for node in answer["keep_fp32"]} == {"BatchNormalization"}
    words = ("run", "out/mixed.onnx", *HTP, "--fp16", "--iterations", "40", "--json", "fixed.json")
    cli(*words).ended(0)
    placed = {each["name"]: each for each in read_json(Path("fixed.json"))["layers"]}
    providers = {each["provider"] for name, each in placed.items() if name.startswith("conv")}
    assert providers == {"QNNExecutionProvider"}
    assert not [
        each for each in placed.values() if each["provider"] in providers and each["reason"]
    ]
