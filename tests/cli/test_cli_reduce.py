"""``reduce`` from the outside: what it finds, and what it writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import CommandLine
from light import Light
from onnx import helper
from support import arrays, chain, has, read_json, script

TENSOR = helper.make_tensor_value_info


@pytest.fixture
def model(here: Path) -> Path:
    return chain(here / "model.onnx", 12)


def failing_with(*tags: str) -> list[str]:
    """A check that fails while the model has all of the nodes."""
    return ["--check", "./" + script(Path("check"), f"{has(*tags)} && exit 1; exit 0"), "{model}"]


def test_one_node_of_a_real_network(light: Light, cli: CommandLine) -> None:
    (required,) = light.choose(1, seed=0)
    cli("reduce", light.path, "-o", "out.onnx", "--no-shrink", "--json", "r.json", *failing_with(required)).ended(0)
    assert light.left(Path("out.onnx")) == [required]
    result = read_json(Path("r.json"))
    original = next(node for node in onnx.load(str(light.path)).graph.node if node.name == required)
    assert result["culprits"] == [{"name": required, "op": original.op_type, "outputs": list(original.output)}]
    assert result["minimality"] == "1-minimal"
    assert result["model"]["units"] == len(light.computing)
    # Bisection, the proof and the re-check; not one probe a node.
    assert result["probes"]["run"] <= np.log2(len(light.computing)) + 6


@pytest.mark.parametrize("option", ["--no-shrink", "--overwrite"])
def test_the_result_runs_on_the_values_beside_it(cli: CommandLine, model: Path, option: str) -> None:
    cli("reduce", model, "-o", "out.onnx", option, "--json", "r.json", *failing_with("<3>", "<4>")).ended(0)
    onnx.checker.check_model("out.onnx", full_check=True)
    session = onnxruntime.InferenceSession("out.onnx", providers=["CPUExecutionProvider"])
    artifacts = read_json(Path("r.json"))["artifacts"]
    inputs, golden = arrays(artifacts["inputs"]), arrays(artifacts["golden"])
    (given,) = session.run(None, inputs)
    np.testing.assert_array_equal(given, golden["t4"])
    np.testing.assert_array_equal(given, inputs["t2"] + 2)
    assert given.shape == ((2, 3) if option == "--no-shrink" else (1, 1))


def test_artifacts_are_sorted(cli: CommandLine, model: Path) -> None:
    body = f"echo log > a.log; echo $# > b.txt; {has('<7>')} && exit 1; {has('<2>')} && exit 125; exit 0"
    check = ["--check", "./" + script(Path("check"), body), "{model}"]
    options = ["--artifacts", "a.log", "b.txt", "never.txt", "--artifacts-dir", "kept", "--json", "r.json"]
    assert cli("reduce", model, "-o", "out.onnx", *options, *check).status == 0
    probes = read_json(Path("r.json"))["probes"]
    for verdict, folder in (("fail", "bad"), ("pass", "good")):
        for name in ("a.log", "b.txt"):
            assert len(list(Path("kept", folder).glob(f"*{name}"))) == probes[verdict]
    assert not Path("a.log").exists()
    assert not list(Path("kept").rglob("*never*"))


def test_free_dimensions_become_1_with_a_warning(cli: CommandLine, model: Path) -> None:
    proto = onnx.load(str(model))
    proto.graph.input[0].CopyFrom(TENSOR("x", 1, ["batch", 3]))
    proto.graph.output[0].CopyFrom(TENSOR("t11", 1, ["batch", 3]))
    onnx.save(proto, str(model))
    ran = cli("reduce", model, "-o", "one.onnx", "--no-shrink", *failing_with("<3>")).ended(0)
    assert "'x'" in ran.err
    assert "[1, 3]" in ran.err
    ran = cli("reduce", model, "-o", "five.onnx", "--no-shrink", "--input-shapes", "x:5x3", *failing_with("<3>"))
    assert (ran.status, ran.err) == (0, "")
    for name, batch in (("one", 1), ("five", 5)):
        (value,) = onnx.load(f"{name}.onnx").graph.input
        assert [dim.dim_value for dim in value.type.tensor_type.shape.dim] == [batch, 3]
