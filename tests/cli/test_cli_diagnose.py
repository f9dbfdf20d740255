"""``diagnose`` from the outside: the examples answer as their READMEs promise, and the reproducer stands alone."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import CommandLine
from onnx import TensorProto, helper, numpy_helper
from pages import OF_EXAMPLES, Reader
from support import arrays, node_names, overflowing, read_json, rest_slow, save


@dataclass(frozen=True)
class Example:
    """What an example's README says.

    The first tensor that mismatches, who makes it, how many origins there are, and which operators stay in fp32.
    """

    name: str
    tensor: str
    op: str
    origins: int
    mended: frozenset[str]


PROMISES = (
    Example("masked_attention", "/Where_output_0", "Where", 1, frozenset({"Where", "Add", "Softmax"})),
    Example("vit_overflow", "/blocks.6/norm1/Pow_output_0", "Pow", 13, frozenset({"Pow", "ReduceMean"})),
    Example("instance_norm", "/in1/ReduceSum_output_0", "ReduceSum", 1, frozenset({"ReduceSum", "Div"})),
)


def reproduce(folder: Path, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run the script from a bare copy of its folder, out of reach of what lies beside it."""
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    command = [sys.executable, "-I", str(copy / "reproduce.py")]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)


@pytest.mark.timeout(1200)  # a page's commands, one after the other, on a network of 700 nodes
@pytest.mark.parametrize("promise", rest_slow(PROMISES), ids=lambda example: example.name)
def test_an_example_answers_as_its_readme_promises(promise: Example, tmp_path: Path) -> None:
    reader = Reader(tmp_path / "checkout")
    for page in OF_EXAMPLES[promise.name]:
        reader.follow_page(page, compare=sqrt_of_infinity_is_infinite())
    (run,) = reader.folder.glob(".bisect-trt/*-diagnose-model")
    result = read_json(run / "result.json")
    check_answer(promise, reader.printed("bisect-trt diagnose"), result)
    reproducer = reader.folder / result["artifacts"]["reproducer"]
    check_model(promise, reproducer)
    check_reproducer(promise, reproducer, tmp_path)


def sqrt_of_infinity_is_infinite() -> bool:
    """ONNX Runtime 1.18 makes NaN of it, which spreads further than the README's Inf does."""
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [64]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Sqrt", ["x"], ["y"])], "sqrt", info[:1], info[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (root,) = session.run(None, {"x": np.full(64, np.inf, np.float32)})
    return bool(np.isposinf(root).all())


def check_answer(promise: Example, printed: str, result: dict[str, Any]) -> None:
    assert (result["status"], result["minimality"]) == ("found", "1-minimal")
    assert result["first_mismatch"]["tensor"] == promise.tensor
    assert result["first_mismatch"]["node"]["op"] == promise.op
    if sqrt_of_infinity_is_infinite():
        assert len(result["origins"]) == promise.origins
    assert [(culprit["op"], culprit["outputs"]) for culprit in result["culprits"]] == [(promise.op, [promise.tensor])]
    assert {node["op"] for node in result["minimal"]} == promise.mended
    assert (len(result["minimal"]) <= 26, result["probes"]["run"] <= 60) == (True, True)
    assert result["latency_ms"] is None
    for word in (f"{promise.op} '", "reproduce.py"):
        assert word in printed


def check_reproducer(promise: Example, folder: Path, tmp_path: Path) -> None:
    expected = {"model.onnx", "inputs.npz", "golden.npz", "reproduce.py", "README.md"}
    assert expected <= {path.name for path in folder.iterdir()}
    done = reproduce(folder, tmp_path)
    assert done.returncode == 1, done.stderr
    assert f"MISMATCH {promise.tensor}" in done.stdout
    assert done.stderr == ""
    source = (folder / "reproduce.py").read_text()
    imported = set(re.findall(r"^(?:import|from) (\w+)", source, re.MULTILINE))
    assert imported <= {"numpy", "onnxruntime", *sys.stdlib_module_names}
    readme = (folder / "README.md").read_text()
    assert promise.tensor in readme
    assert onnx.__version__ in readme


def check_model(promise: Example, folder: Path) -> None:
    model = onnx.load(str(folder / "model.onnx"))
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node] == [promise.op]
    inputs, golden = arrays(folder / "inputs.npz"), arrays(folder / "golden.npz")
    assert set(inputs) == {value.name for value in model.graph.input}
    assert list(golden) == [promise.tensor]


def rounding_then_overflow(path: Path) -> Path:
    """``away`` and ``back`` round mildly in fp16, well before ``big`` makes 300000 of what is left."""
    weights = {"much": 120.0, "big": 3e5, "small": 1e-5}
    steps = [("Add", "much", "away"), ("Sub", "much", "back"), ("Mul", "big", "big"), ("Mul", "small", "small")]
    nodes, last = [], "x"
    for op, weight, name in steps:
        nodes.append(helper.make_node(op, [last, weight], [f"{name}_out"], name=name))
        last = f"{name}_out"
    tensors = [numpy_helper.from_array(np.array(v, np.float32), name) for name, v in weights.items()]
    return save(path, nodes, tensors)


def test_a_search_does_not_slide_from_an_overflow_to_rounding(cli: CommandLine) -> None:
    model = rounding_then_overflow(Path("model.onnx"))
    # Rounding alone is a mismatch: on its own it is what a search would find.
    mild = cli("run", model, "--onnxrt", "--fp16", "--onnx-outputs", "back_out", "--json", "mild.json")
    assert mild.status == 1, mild.out
    assert read_json(Path("mild.json"))["comparisons"][0]["kind"] == "mismatch"
    assert cli("reduce", model, "--onnxrt", "--fp16", "-o", "out.onnx").status == 0
    assert node_names(Path("out.onnx")) == ["big"]


def test_layers_that_only_round_are_not_the_first_mismatch(cli: CommandLine) -> None:
    model = rounding_then_overflow(Path("model.onnx"))
    result = cli("layerwise", model, "--onnxrt", "--fp16", "--json", "r.json").ended(0).result
    assert result["first_mismatch"]["node"]["name"] == "big"
    assert [entry["node"]["name"] for entry in result["mild_origins"]] == ["back"]
    # Tolerances that are given are meant to the letter.
    given = ["--atol", "0.005", "--rtol", "0.01"]
    assert cli("layerwise", model, "--onnxrt", "--fp16", *given, "--json", "r.json").status == 0
    assert read_json(Path("r.json"))["first_mismatch"]["node"]["name"] == "back"


@pytest.mark.slow
def test_of_many_samples_the_worst_few_are_looked_at(cli: CommandLine, here: Path) -> None:
    """Every tensor of each of hundreds would take hours. A run that goes on looks at the same ones."""
    overflowing(here / "model.onnx")
    Path("data.py").write_text(
        "import numpy as np\n\n\ndef load_data():\n"
        "    for n in range(18):\n        yield {'x': np.full((2, 3), 0 if n in (4, 15) else -2, np.float32)}\n"
    )
    words = ["--onnxrt", "--fp16", "--atol", "0.01", "--data-loader-script", "data.py"]
    first = cli("diagnose", "model.onnx", *words, "-o", "out", "--json", "r.json").ended(0).result
    assert first["looked_at"] == {"of": 18, "fail": [5, 16], "stay": [5, 16]}
    Path("r.json").unlink()
    cli("resume", first["artifacts"]["run"]).ended(0)
    again = read_json(Path("r.json"))
    assert (again["culprits"], again["looked_at"]) == (first["culprits"], first["looked_at"])
