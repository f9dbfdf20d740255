"""``precision`` from the outside: what has to stay in fp32, and the model that it writes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from conftest import CommandLine
from onnx import TensorProto, helper, numpy_helper
from support import SHAPE, TARGET, overflowing, read_json, save

from bisect_trt.onnxlib.network import Network
from bisect_trt.options.shared import Data
from bisect_trt.options.spec import written

FLOAT, FLOAT16, BFLOAT16 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16
LINE = ("precision", "model.onnx", "-o", "mixed.onnx", "--json", "r.json")


def kept(result: dict[str, Any]) -> list[str]:
    return [node["name"] or node["outputs"][0] for node in result["keep_fp32"]]


def check_mixed(path: Path, keep: list[str], low: int = FLOAT16) -> onnx.ModelProto:
    """A written model is valid, and typed as it was said to be."""
    onnx.checker.check_model(str(path), full_check=True)
    model = onnx.load(str(path))
    types = Network(model).element_types
    for node in model.graph.node:
        # What a node makes, or else reads: Resize reads scales in fp32 whatever it resizes.
        made, read = ({types[name] for name in names if name} & {FLOAT, low} for names in (node.output, node.input))
        floats = made or read
        if node.op_type not in ("Cast", "Constant") and floats:
            assert floats == ({FLOAT} if (node.name or node.output[0]) in keep else {low}), node.name
    return model


def test_only_boundaries_get_casts(cli: CommandLine) -> None:
    source = onnx.load(str(overflowing(Path("model.onnx"))))
    result = cli(*LINE, *TARGET).ended(0).result
    assert kept(result) == ["big", "small"]
    assert [node["name"] for node in result["culprits"]] == ["big", "small"]
    assert (result["lowered"], result["not_lowered"]) == (6, 0)
    assert result["artifacts"]["mixed"] == "mixed.onnx"
    mixed = check_mixed(Path("mixed.onnx"), ["big", "small"])
    assert sum(node.op_type == "Cast" for node in mixed.graph.node) == 4  # at both ends, and around the two nodes
    assert [(v.name, v.type) for v in (*mixed.graph.input, *mixed.graph.output)] == [
        (v.name, v.type) for v in (*source.graph.input, *source.graph.output)
    ]
    types = {tensor.name: tensor.data_type for tensor in mixed.graph.initializer}
    assert types == {"big": FLOAT, "small": FLOAT, "one_fp16": FLOAT16}
    x = np.ones(SHAPE, np.float32)
    (got,) = onnxruntime.InferenceSession("mixed.onnx", providers=["CPUExecutionProvider"]).run(None, {"x": x})
    (exact,) = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"]).run(None, {"x": x})
    np.testing.assert_allclose(got, exact, rtol=1e-2)


def test_what_holds_no_values_stays_out(cli: CommandLine) -> None:
    """Shapes, integers and their arithmetic are no units."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"], name="<shape>"),
        helper.make_node("Cast", ["shape"], ["sizes"], name="<sizes>", to=FLOAT),
        helper.make_node("Mul", ["sizes", "two"], ["double"], name="<double>"),
        helper.make_node("Cast", ["double"], ["wanted"], name="<wanted>", to=TensorProto.INT64),
        helper.make_node("Mul", ["x", "big"], ["y"], name="<y>"),
        helper.make_node("Mul", ["y", "small"], ["z"], name="<z>"),
        helper.make_node("Reshape", ["z", "flat"], ["r"], name="<r>"),
        helper.make_node("Tile", ["r", "once"], ["t"], name="<t>"),
    ]
    weights = {"two": np.array(2, np.float32), "big": np.array(1e5, np.float32), "small": np.array(1e-4, np.float32)}
    weights |= {"flat": np.array(SHAPE), "once": np.array([1, 1])}
    tensors = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    path = save(Path("model.onnx"), nodes, tensors)
    model = onnx.load(str(path))
    model.graph.output.append(helper.make_tensor_value_info("wanted", TensorProto.INT64, [2]))
    onnx.save(model, str(path))
    result = cli(*LINE, *TARGET).ended(0).result
    assert kept(result) == ["<y>", "<z>"]
    assert (result["lowered"], result["not_lowered"]) == (2, 4)


def test_a_diagnosis_leaves_the_fix_where_the_budget_ends(cli: CommandLine) -> None:
    """All that is asked before the minimal case is delivered, and one probe more."""
    overflowing(Path("model.onnx"))
    assert cli("diagnose", "model.onnx", *TARGET, "-o", "all", "--json", "r.json").status == 0
    log = cli("log", read_json(Path("r.json"))["artifacts"]["run"]).out
    delivered = next(line for line in log.splitlines() if "the reproducer, read back" in line).split()[0]
    ran = cli(
        "diagnose", "model.onnx", *TARGET, "-o", "out", "--json", "r.json", "--max-probes", str(int(delivered) + 1)
    )
    assert ran.status == 0, "what fails is proven all the same"
    assert "This goes on: bisect-trt precision model.onnx --onnxrt --fp16 -o mixed.onnx" in ran.out
    assert not Path("out/mixed.onnx").exists()
    assert Path("out/reproduce.py").exists()


def test_the_command_that_goes_on_asks_about_the_same(cli: CommandLine) -> None:
    overflowing(Path("model.onnx"))
    for number in range(2):
        np.savez(f"{number}.npz", x=np.full(SHAPE, number, np.float32))
    given = ["--load-inputs", "0.npz", "1.npz", "--atol", "b2_out:0.25", "--rtol", "b2_out:0.125"]
    line = ["diagnose", "model.onnx", *TARGET, "-o", "out", *given, "--workers", "1", "--overwrite", "--json", "r.json"]
    assert cli(*line).status == 0
    ran = cli(*line, "--max-probes", str(read_json(Path("r.json"))["probes"]["run"] - 2))
    (said,) = (line for line in ran.out.splitlines() if "This goes on: " in line)
    command = shlex.split(said.partition("This goes on: ")[2])
    assert set(given) <= set(command)
    ran = cli(*command[1:]).ended(0)
    assert "on 2 input samples" in ran.out
    random = [
        "--input-shapes",
        "x:[2,3]",
        "--val-range",
        "[0.5,2.0]",
        "x:[1.0,3.0]",
        "--seed",
        "7",
        "--iterations",
        "2",
    ]
    data = Data({"x": (2, 3)}, {"": (0.5, 2.0), "x": (1.0, 3.0)}, 7, iterations=2)
    assert written(data) == random
    assert cli("run", "model.onnx", "--onnxrt", *random).status == 0
