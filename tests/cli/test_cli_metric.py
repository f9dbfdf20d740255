"""A metric over a whole set decides whether a model passes: in ``run``, ``precision``, ``reduce`` and ``diagnose``."""

from __future__ import annotations

import shlex
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from onnx import TensorProto, helper, numpy_helper
from support import TARGET, overflowing, read_json

LOADER = """
import numpy
def load_data():
    rng = numpy.random.default_rng(3)
    for number in range(60):
        x = rng.uniform(-2.9, -1.5, (2, 3)).astype(numpy.float32)
        if number % 4 == 0:
            x[0, :2] = 2.0, 3.0
        yield {"x": x}, x.argmax(axis=1)
def labels_beside():
    for sample, labels in load_data():
        yield {**sample, "labels": labels}
"""
SCORE = """
import numpy
def metric(outputs, reference, labels):
    return [float((o[next(iter(o))].argmax(axis=1) == l).mean()) for o, l in zip(outputs, labels)]
"""
WHOLE = """
import numpy
def metric(outputs, reference, labels):
    assert len(outputs) == len(reference) == len(labels)
    return float(numpy.mean([numpy.isfinite(next(iter(o.values()))).all() for o in outputs]))
def wrong(outputs, reference, labels):
    return 1 - metric(outputs, reference, labels)
"""
"""Every fourth sample overflows in fp16, and the two largest values of its first row are Inf then, of which one is right."""


@pytest.fixture
def model(here: Path) -> Path:
    (here / "data.py").write_text(LOADER)
    (here / "score.py").write_text(SCORE)
    (here / "whole.py").write_text(WHOLE)
    return overflowing(here / "model.onnx")


DATA = ["--data-loader-script", "data.py"]


@pytest.mark.parametrize(
    ("asked", "bound", "status"),
    [
        (["top-1"], ["--max-drop", "50%"], 0),
        (["score.py"], ["--min", "0.95"], 1),
        (["whole.py"], ["--min", "0.7"], 0),
        (["whole.py:wrong", "--lower-is-better"], ["--max", "0.1"], 1),
        (["cosine"], [], 0),
    ],
)
def test_run_scores_the_whole_set(
    cli: CommandLine, model: Path, asked: list[str], bound: list[str], status: int
) -> None:
    cli("run", model, *TARGET, *DATA, "--metric", *asked, *bound, "--json", "r.json").ended(status)
    found = read_json(Path("r.json"))["metric"]
    assert (found["samples"], found["of"]) == (60, 60)
    assert found["passed"] is (None if not bound else status == 0)
    assert found["lower_is_better"] is ("--lower-is-better" in asked)
    low, high = sorted((found["reference"], found["candidate"]))
    assert low < high == found["candidate" if found["lower_is_better"] else "reference"]
    if asked == ["whole.py"]:
        assert found["candidate"] == 0.75
        beside = ["--data-loader-script", "data.py:labels_beside"]
        assert cli("run", model, *TARGET, *DATA, *beside, "--metric", *asked, "--json", "l.json").status == 0
        assert read_json(Path("l.json"))["metric"]["candidate"] == found["candidate"]


def test_searches_find_what_costs_the_metric(cli: CommandLine, model: Path) -> None:
    scored = ["--metric", "score.py", "--max-drop", "0.05", *DATA]
    result = cli("precision", model, *TARGET, *scored, "-o", "mixed.onnx", "--json", "p.json").ended(0).result
    kept, found = result["keep_fp32"], result["metric"]
    assert result["minimality"] == "1-minimal"
    assert found["candidate"] >= found["bound"] > found["original"] or found["original"] >= found["bound"]
    assert found["samples"] == found["of"] == 60
    assert all("candidate" in probe for probe in found["probes"])
    # What was written scores what it says, without any search.
    cli("run", "mixed.onnx", "--onnxrt", *DATA, "--metric", "score.py", "--json", "m.json").ended(0)
    assert "big" in {node["name"] for node in kept}

    result = cli("reduce", model, *TARGET, *scored, "-o", "small.onnx", "--json", "r.json").ended(0).result
    assert {node["name"] for node in result["culprits"]} == {"big"}
    assert result["metric"]["candidate"] < result["metric"]["bound"]


@pytest.mark.slow
def test_a_diagnosis_finds_what_costs_the_metric(cli: CommandLine, model: Path) -> None:
    scored = ["--metric", "score.py", "--max-drop", "0.05", *DATA]
    result = cli("diagnose", model, *TARGET, *scored, "-o", "out", "--zip", "--json", "d.json").ended(0).result
    assert [node["name"] for node in result["culprits"]] == ["big"]
    assert result["metric"]["fixed"] >= result["metric"]["bound"] > result["metric"]["candidate"]
    found = result["metric"]
    assert {path.name for path in Path("out").iterdir()} >= {"model.onnx", "mixed.onnx"}
    assert found["bound"] > found["candidate"]
    with zipfile.ZipFile("out.zip") as packed:
        assert {Path(name).name for name in packed.namelist()} >= {"model.onnx", "mixed.onnx"}
    # The command tells a model that drops from one that does not.
    fine = onnx.load(model)
    for tensor in fine.graph.initializer:
        if tensor.name in ("big", "small"):
            tensor.CopyFrom(numpy_helper.from_array(np.ones_like(numpy_helper.to_array(tensor)), tensor.name))
    onnx.save(fine, "fine.onnx")
    options = shlex.split(next(command for command in result["next"] if command.startswith("bisect-trt run ")))[3:]
    assert [cli("run", path, *options).status for path in (model, Path("fine.onnx"))] == [1, 0]


def test_a_metric_that_does_not_drop(cli: CommandLine, model: Path) -> None:
    for command in (["precision", "-o", "o.onnx"], ["diagnose", "-o", "o"]):
        name, *rest = command
        scored = ["--metric", "whole.py", "--max-drop", "40%", "--json", "r.json"]
        ran = cli(name, model, *rest, *TARGET, *DATA, *scored).ended(1)
        found = ran.result
        assert (found["status"], found["metric"]["name"]) == ("not_reproduced", "whole.py:metric")
    assert "or a smaller --max-drop" in " ".join(ran.out.split())  # diagnose's, the last


def test_a_script_that_raises_on_nan(cli: CommandLine, model: Path) -> None:
    """As scikit-learn's do: what the reference has not is the candidate's, and the worst there is."""
    Path("strict.py").write_text(
        "import numpy\ndef each(outputs):\n    for o in outputs: numpy.asarray_chkfinite(next(iter(o.values())))\n"
        "    return [1.0] * len(outputs)\n"
    )
    strict = ["--metric", "strict.py:each", "--min", "0.9"]
    assert not cli("run", model, *TARGET, *DATA, *strict, "--json", "r.json").ended(1).result["metric"]["passed"]
    cli("run", model, "--onnxrt", *DATA, *strict).ended(0)


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["--metric", "top-1", "--save-outputs", "o.npz"], 2, "--save-outputs does not apply to --metric"),
        (["--metric", "nan.py"], 2, "is NaN, so no candidate can be compared with it"),
        (["--metric", "inf.py", "--max-drop", "1%"], 2, "is inf, so a drop from it is undefined"),
        (["--metric", "inf.py", "--min", "30"], 0, "inf.py:metric is inf"),
        (["--metric", "top-1", "--data-loader-script", "none.py"], 2, "no label of the set counts"),
    ],
)
def test_numbers_that_nothing_can_be_held_against(
    cli: CommandLine, model: Path, words: list[str], status: int, message: str
) -> None:
    for number in ("nan", "inf"):
        Path(f"{number}.py").write_text(f"def metric(outputs): return float('{number}')\n")
    Path("none.py").write_text(LOADER.replace("x.argmax(axis=1)", "numpy.full(2, -100)"))
    ran = cli("run", model, *TARGET, *words)
    assert (ran.status, message in ran.err + ran.out) == (status, True)


def test_a_set_that_the_reference_does_not_run_on(cli: CommandLine, here: Path) -> None:
    """A table of three entries, and an index past its end in the second sample."""
    table = helper.make_tensor("table", TensorProto.FLOAT, [3, 2], [0.0, 1, 2, 3, 4, 5])
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.INT64, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2])],
        [table],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), here / "g.onnx")
    (here / "data.py").write_text(
        "import numpy\ndef load_data():\n    for i in (1, 7): yield {'x': numpy.array([i])}\n"
    )
    ran = cli("run", "g.onnx", "--onnxrt", *DATA, "--metric", "cosine")
    assert (ran.status, "cannot run the model on all samples of the set" in ran.error) == (4, True)
