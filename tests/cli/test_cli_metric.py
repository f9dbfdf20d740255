"""A metric over a whole set says good or bad: in ``run``, ``precision``, ``reduce``, ``layerwise`` and ``diagnose``."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import zipfile
from dataclasses import replace
from itertools import islice, repeat
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from onnx import numpy_helper
from support import TARGET, chain, overflowing, read_json

from bisect_trt.commands.metric import _counted
from bisect_trt.probe.metric_check import Scale
from bisect_trt.report.console import Console
from bisect_trt.tensors.metrics import Evaluation, find_metric

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
RANGE = (0, 1)
def metric(outputs, reference, labels):
    return [float((o[next(iter(o))].argmax(axis=1) == l).mean()) for o, l in zip(outputs, labels)]
def whole(outputs, reference, labels):
    assert len(outputs) == len(reference) == len(labels)
    return float(numpy.mean([numpy.isfinite(next(iter(o.values()))).all() for o in outputs]))
def wrong(outputs, reference, labels):
    return 1 - whole(outputs, reference, labels)
"""
"""Every fourth sample overflows in fp16, and the two largest values of its first row are Inf then, of which one is right."""


@pytest.fixture
def model(here: Path) -> Path:
    (here / "data.py").write_text(LOADER)
    (here / "score.py").write_text(SCORE)
    return overflowing(here / "model.onnx")


DATA = ["--data-loader-script", "data.py"]


@pytest.mark.parametrize(
    ("asked", "bound", "status"),
    [
        (["top-1"], ["--max-drop", "50%"], 0),
        (["top-1"], ["--max-drop", "0.05"], 1),
        (["score.py"], ["--min", "0.95"], 1),
        (["score.py:whole"], ["--min", "0.7"], 0),
        (["score.py:wrong", "--lower-is-better"], ["--max", "0.1"], 1),
        (["cosine"], [], 0),
    ],
)
def test_run_scores_the_whole_set(
    cli: CommandLine, model: Path, asked: list[str], bound: list[str], status: int
) -> None:
    ran = cli("run", model, *TARGET, *DATA, "--metric", *asked, *bound, "--json", "r.json")
    assert ran.status == status, ran.err
    found = read_json(Path("r.json"))["metric"]
    assert (found["samples"], found["of"]) == (60, 60)
    assert found["passed"] is (None if not bound else status == 0)
    assert found["lower_is_better"] is ("--lower-is-better" in asked)
    better = (
        found["reference"] < found["candidate"] if found["lower_is_better"] else found["reference"] > found["candidate"]
    )
    assert better
    if asked == ["score.py:whole"]:
        assert found["candidate"] == 0.75
    labelled = cli(
        "run", model, *TARGET, *DATA, "--data-loader-func-name", "labels_beside", "--metric", *asked, "--json", "l.json"
    )
    assert labelled.status == 0
    assert read_json(Path("l.json"))["metric"]["candidate"] == found["candidate"]


def test_searches_find_what_costs_the_metric(cli: CommandLine, model: Path) -> None:
    scored = ["--metric", "score.py", "--max-drop", "0.05", *DATA]
    assert cli("precision", model, *TARGET, *scored, "-o", "mixed.onnx", "--json", "p.json").status == 0
    result = read_json(Path("p.json"))
    kept, found = result["keep_fp32"], result["metric"]
    assert result["minimality"] == "1-minimal"
    assert "confidence" in result["why"]
    assert found["candidate"] >= found["bound"] > found["original"] or found["original"] >= found["bound"]
    assert found["samples"] == found["of"] == 60
    assert min(probe["samples"] for probe in found["probes"]) < 60
    # What was written scores what it says, without any search.
    ran = cli("run", "mixed.onnx", "--onnxrt", *DATA, "--metric", "score.py", "--json", "m.json")
    assert ran.status == 0
    assert "big" in {node["name"] for node in kept}

    assert cli("reduce", model, *TARGET, *scored, "-o", "small.onnx", "--json", "r.json").status == 0
    result = read_json(Path("r.json"))
    assert {node["name"] for node in result["culprits"]} == {"big"}
    assert result["metric"]["candidate"] < result["metric"]["bound"]

    drawn = ["--save-error-plot", "curve.svg"] if importlib.util.find_spec("matplotlib") else []
    assert cli("layerwise", model, *TARGET, *scored, "--json", "l.json", *drawn).status == 0
    result = read_json(Path("l.json"))
    for words in ("units that the target computes", "within the bound", "<!-- big") if drawn else ():
        assert words in Path("curve.svg").read_text()  # matplotlib writes a text beside its outlines
    assert [node["name"] for node in result["culprits"]] == ["big"]
    assert [entry["passed"] for entry in result["metric"]["layers"]] == sorted(
        (entry["passed"] for entry in result["metric"]["layers"]), reverse=True
    )


@pytest.mark.slow
def test_a_diagnosis_finds_what_costs_the_metric(cli: CommandLine, model: Path) -> None:
    scored = ["--metric", "score.py", "--max-drop", "0.05", *DATA]
    assert cli("diagnose", model, *TARGET, *scored, "-o", "out", "--zip", "--json", "d.json").status == 0
    result = read_json(Path("d.json"))
    assert [node["name"] for node in result["culprits"]] == ["big"]
    assert result["metric"]["fixed"] >= result["metric"]["bound"] > result["metric"]["candidate"]
    assert {path.name for path in Path("out").iterdir()} >= {"model.onnx", "mixed.onnx", "data.py", "metric-score.py"}
    found, issue = result["metric"], Path("out/ISSUE.md").read_text()
    assert f"drops from 1 to {found['whole']:.6g}" in issue
    assert "run here, it shows the drop" in issue
    assert found["bound"] > found["whole"] == found["curve"][-1]["candidate"]
    assert all(entry["sample"] % 4 == 0 and entry["lost"] > 0 for entry in found["worst_samples"])
    assert "The samples that cost most" in Path(result["artifacts"]["report"]).read_text()
    # The script tells a model that drops from one that does not, wherever it is run.
    with zipfile.ZipFile("out.zip") as packed:
        packed.extractall("elsewhere")
    (script,) = Path("elsewhere").rglob("reproduce.py")
    fine = onnx.load(model)
    for tensor in fine.graph.initializer:
        if tensor.name in ("big", "small"):
            tensor.CopyFrom(numpy_helper.from_array(np.ones_like(numpy_helper.to_array(tensor)), tensor.name))
    onnx.save(fine, "fine.onnx")
    words = [[sys.executable, str(script), str(path)] for path in (model, Path("fine.onnx"))]
    statuses = [subprocess.run(each, check=False, capture_output=True).returncode for each in words]
    assert statuses == [1, 0]


def test_a_metric_that_does_not_drop(cli: CommandLine, model: Path) -> None:
    for command in (["precision", "-o", "o.onnx"], ["reduce", "-o", "o.onnx"], ["layerwise"], ["diagnose", "-o", "o"]):
        name, *rest = command
        ran = cli(
            name, model, *rest, *TARGET, *DATA, "--metric", "score.py:whole", "--max-drop", "40%", "--json", "r.json"
        )
        assert ran.status == 1
        found = read_json(Path("r.json"))
        assert (found["status"], found["metric"]["name"]) == ("not_reproduced", "score.py:whole")
    advice = ran.out.partition("What to try next:\n  - ")[2]  # diagnose's, the last
    assert advice.startswith("whether the labels and what is done to the inputs are the deployment's")
    assert "a smaller --max-drop" in advice


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max-drop", "1%"], "--max-drop is about a metric, and there is none"),
        (["--lower-is-better"], "--lower-is-better is about a metric, and there is none"),
        (["--metric", "top-1"], "--metric needs to know what is too bad"),
        (["--metric", "top-1", "--min", "0.5", "--max-drop", "1%"], "both say how good the metric has to be"),
        (["--metric", "top-1", "--max", "0.5"], "of this metric more is better; say --min"),
        (
            ["--metric", "score.py:wrong", "--lower-is-better", "--min", "0.5"],
            "of this metric less is better; say --max",
        ),
        (["--metric", "top-1", "--min", "2"], "of the reference itself is 1, which is worse than 2"),
        (["--metric", "top-1", "--max-drop", "much"], "--max-drop"),
        (["--metric", "top-1", "--max-drop", "1%", "--atol", "1"], "has no part in that; drop one of both"),
        (["--metric", "score.py:wrong", "--min", "nan"], "--min"),
        (["--metric", "nobody", "--min", "1"], "there is no metric of this name"),
    ],
)
def test_what_does_not_fit(cli: CommandLine, model: Path, options: list[str], message: str) -> None:
    ran = cli("reduce", model, *TARGET, "-o", "o.onnx", "--iterations", "3", *options)
    assert ran.status == 2
    assert message in ran.err


def test_saved_outputs_score_what_a_live_run_does(cli: CommandLine, model: Path) -> None:
    """With the same labels, curve, verdict and exit status; so does a target beside saved outputs of the reference."""
    assert cli("run", model, *TARGET, *DATA, "--save-outputs", "ours.npz").status == 1
    assert cli("run", model, "--onnxrt-reference", *DATA, "--save-outputs", "right.json").status == 0
    for asked in (["score.py", "--max-drop", "5%"], ["score.py:wrong", "--lower-is-better", "--max", "0.3"]):
        live = cli("run", model, *TARGET, *DATA, "--metric", *asked, "--json", "live.json")
        ways = [["--load-outputs", "ours.npz", "right.json"]]
        ways += [[str(model), *TARGET, "--load-outputs", "right.json"]] if asked[0] == "score.py" else []
        for way in ways:
            ran = cli("run", *way, *DATA, "--metric", *asked, "--json", "saved.json")
            assert ran.status == live.status
            assert read_json(Path("saved.json"))["metric"] == read_json(Path("live.json"))["metric"]
            assert "of right.json: " in ran.out
            assert "against right.json, on all 60 samples" in ran.out


def test_saved_outputs_and_their_labels(cli: CommandLine, here: Path) -> None:
    """Without labels the last one is the truth; labels may lie in files; and all have to be of as many samples."""
    (here / "ids.py").write_text(
        "import numpy\ndef load_data():\n    while True:\n        yield {}, numpy.array([0])\n"
    )
    for number, (right, ours) in enumerate([(0, 0), (1, 0), (2, 2), (0, 1)], 1):
        np.savez(f"right-{number}.npz", y=np.eye(3)[[right]], z=np.ones(2))
        np.savez(f"ours-{number}.npz", y=np.eye(3)[[ours]])
        np.savez(f"x-{number}.npz", labels=np.array([ours]), x=np.zeros(1))
    both = ["run", "--load-outputs", "ours.npz", "right.npz", "--metric", "top-1", "--json", "r.json"]
    assert cli(*both, "--min", "0.5").status == 0
    assert read_json(Path("r.json"))["metric"]["candidate"] == 0.5
    assert cli(*both, "--max-drop", "0.4").status == 1
    assert cli(*both, "--load-inputs", "x.npz").status == 0
    found = read_json(Path("r.json"))["metric"]
    assert (found["reference"], found["candidate"]) == (0.5, 1.0)
    ran = cli(*both, "--data-loader-script", "ids.py", "--iterations", "4")
    assert ran.status == 0
    found = read_json(Path("r.json"))["metric"]
    assert (found["reference"], found["candidate"]) == (0.5, 0.5)
    assert ran.err.count("ours.npz has no 'z'") == 1
    for words, gives in ((["ids.py"], "more than 4"), (["ids.py", "--iterations", "3"], "3")):
        ran = cli(*both, "--data-loader-script", *words)
        assert ran.status == 2
        assert f"right.npz holds 4 sample(s) and there are labels for {gives}; give those of" in ran.error
    ran = cli("run", "--load-outputs", "ours.npz", "--metric", "top-1")
    assert (ran.status, "ours.npz is one saved result" in ran.error) == (2, True)
    ran = cli("run", "--load-outputs", "ours.npz", "x.npz", "--metric", "top-1")
    assert (ran.status, "has none of the outputs to compare" in ran.error) == (2, True)
    ran = cli("run", "--load-outputs", "ours.npz", "right.npz", "--min", "1")
    assert (ran.status, "--min is about a metric, and there is none" in ran.error) == (2, True)


def test_a_script_that_keeps_what_it_saw(cli: CommandLine, model: Path) -> None:
    """As one that adds up: each side is scored on the set, once."""
    Path("sum.py").write_text("seen = []\ndef metric(outputs):\n    seen.extend(outputs)\n    return len(seen)\n")
    assert cli("run", model, *TARGET, *DATA, "--metric", "sum.py", "--json", "r.json").status == 0
    found = read_json(Path("r.json"))["metric"]
    assert (found["reference"], found["candidate"]) == (60, 60)


@pytest.mark.parametrize("name", ["each", "whole"])
def test_a_script_that_raises_on_nan(cli: CommandLine, model: Path, name: str) -> None:
    """As scikit-learn's do: what the reference has not is the candidate's, and the worst there is."""
    Path("strict.py").write_text(
        "import numpy\ndef each(outputs):\n    for o in outputs: numpy.asarray_chkfinite(next(iter(o.values())))\n"
        "    return [1.0] * len(outputs)\n"
        "def whole(outputs): return float(numpy.mean(each(outputs)))\n"
    )
    strict = ["--metric", f"strict.py:{name}", "--min", "0.9"]
    ran = cli("run", model, *TARGET, *DATA, *strict, "--json", "r.json")
    assert ran.status == 1
    assert not read_json(Path("r.json"))["metric"]["passed"]
    ran = cli("run", model, "--onnxrt", *DATA, *strict)
    assert ran.status == 0


def test_what_has_no_part_in_it(cli: CommandLine, model: Path) -> None:
    ran = cli("run", model, *TARGET, "--metric", "top-1", "--save-outputs", "o.npz")
    assert (ran.status, "--save-outputs has no part in that" in ran.error) == (2, True)
    ran = cli("reduce", model, "-o", "o.onnx", "--metric", "top-1", "--min", "1", "--check", "true", "{model}")
    assert (ran.status, "--metric scores what a target computes" in ran.error) == (2, True)
    (Path("nan.py")).write_text("def metric(outputs, reference, labels): return float('nan')\n")
    ran = cli("run", model, *TARGET, "--metric", "nan.py")
    assert (ran.status, "is NaN, so nothing can be held against it" in ran.error) == (2, True)
    (Path("inf.py")).write_text("def metric(outputs, reference): return float('inf')\n")
    ran = cli("run", model, *TARGET, "--metric", "inf.py", "--max-drop", "1%")
    assert (ran.status, "is inf, from which no drop can be measured" in ran.error) == (2, True)
    ran = cli("run", model, *TARGET, "--metric", "inf.py", "--min", "30")
    assert (ran.status, "inf.py:metric is inf, at least 30" in ran.out, "nan" in ran.out) == (0, True, False)
    Path("none.py").write_text(LOADER.replace("x.argmax(axis=1)", "numpy.full(2, -100)"))
    ran = cli("run", model, *TARGET, "--data-loader-script", "none.py", "--metric", "top-1")
    assert (ran.status, "no label of the set counts" in ran.error) == (2, True)


def test_a_set_that_the_reference_does_not_run_on(cli: CommandLine, here: Path) -> None:
    """A table of three entries, and an index past its end in the second sample."""
    import onnx
    from onnx import TensorProto, helper

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


def test_few_samples_are_warned_of(cli: CommandLine, here: Path) -> None:
    ran = cli("run", chain(here / "c.onnx"), "--onnxrt", "--iterations", "3", "--metric", "cosine", "--min", "0.9")
    assert ran.status == 0
    assert "3 samples are few for a metric" in ran.err


def test_how_sure_the_verdicts_are_of_a_metric_that_takes_the_whole_set() -> None:
    data = Evaluation(Path(), 300, labelled=False)
    metric = find_metric("top-1")
    for each, sure in ((metric, 0.99), (replace(metric, of_sample=None), 1.0)):
        scale = Scale(each, "top-1", by_sample=False, data=data, reference=1.0, bound=0.9, error=0.001)
        assert scale.confidence(10) == pytest.approx(sure)


def test_a_loader_that_never_ends_can_be_told(capsys: pytest.CaptureFixture[str]) -> None:
    """All are given on, and now and then there is a word."""
    assert len(list(islice(_counted(repeat(({}, None)), Console()), 25_000))) == 25_000
    said = capsys.readouterr()
    assert re.findall(r"(\d+) samples of the set so far", said.out + said.err) == ["10000", "20000"]
