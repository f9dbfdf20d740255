"""``diagnose`` from the outside: the examples answer as their READMEs promise, and the reproducer stands alone."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from building import ort_run, text_model
from conftest import CommandLine
from onnx import helper, numpy_helper
from pages import OF_EXAMPLES, Reader
from support import line, node_names, overflowing, read_json, reproduced, save

from bisect_trt.probe.workspace import Workspace
from bisect_trt.report.console import Console
from bisect_trt.session.subject import ModelSettings, Subject
from bisect_trt.steps.reproducer import without_paths

PROMISES = {
    "masked_attention": "/Where_output_0",
    "vit_overflow": "/blocks.6/norm1/Pow_output_0",
    "instance_norm": "/in1/ReduceSum_output_0",
}
"""The first tensor that mismatches in each example."""


@pytest.mark.timeout(1200)  # a page's commands, one after the other, on a network of 700 nodes
@pytest.mark.slow
@pytest.mark.parametrize("name", PROMISES)
def test_an_example_answers_as_its_readme_promises(name: str, tmp_path: Path) -> None:
    """What is printed is compared with the page; the reproducer stands alone, on the very tensor."""
    reader = Reader(tmp_path / "checkout")
    for page in OF_EXAMPLES[name]:
        reader.follow_page(page, compare=sqrt_of_infinity_is_infinite())
    (run,) = reader.folder.glob(".bisect-trt/*-diagnose-model")
    result = read_json(run / "result.json")
    assert (result["minimality"], result["first_mismatch"]["tensor"]) == (
        "1-minimal",
        PROMISES[name],
    )
    assert [culprit["outputs"] for culprit in result["culprits"]] == [[PROMISES[name]]]
    assert result["probes"]["run"] <= 60
    check_reproducer(PROMISES[name], reader.folder / result["artifacts"]["reproducer"], tmp_path)


def sqrt_of_infinity_is_infinite() -> bool:
    """ONNX Runtime 1.18 makes NaN of it, which spreads further than the README's Inf does."""
    root = ort_run(
        text_model("(float[64] x) => (float[64] y)", "y = Sqrt(x)"),
        {"x": np.full(64, np.inf, np.float32)},
    )
    return bool(np.isposinf(root["y"]).all())


def check_reproducer(tensor: str, folder: Path, tmp_path: Path) -> None:
    expected = {"model.onnx", "inputs.npz", "golden.npz", "reproduce.py", "README.md"}
    assert expected <= {path.name for path in folder.iterdir()}
    # From a bare copy, out of reach of what lies beside the folder.
    done = reproduced(shutil.copytree(folder, tmp_path / "copy"), "-I", cwd=tmp_path)
    assert f"MISMATCH {tensor}" in done.out
    assert done.err == ""
    source = (folder / "reproduce.py").read_text()
    imported = set(re.findall(r"^(?:import|from) (\w+)", source, re.MULTILINE))
    assert imported <= {"numpy", "onnxruntime", *sys.stdlib_module_names}
    readme = (folder / "README.md").read_text()
    assert tensor in readme
    assert onnx.__version__ in readme


def rounding_then_overflow(path: Path) -> Path:
    """``away`` and ``back`` round mildly in fp16, well before ``big`` makes 300000 of what is left."""
    steps = [
        ("Add", "much", "away"),
        ("Sub", "much", "back"),
        ("Mul", "big", "big"),
        ("Mul", "small", "small"),
    ]
    return save(path, line(steps), {"much": 120.0, "big": 3e5, "small": 1e-5})


def test_a_search_does_not_slide_from_an_overflow_to_rounding(cli: CommandLine) -> None:
    model = rounding_then_overflow(Path("model.onnx"))
    # Rounding alone is a mismatch: on its own it is what a search would find.
    mild = (
        cli("run", model, "--onnxrt", "--fp16", "--onnx-outputs", "back_out", "--json", "m.json")
        .ended(1)
        .result
    )
    assert mild["comparisons"][0]["kind"] == "mismatch"
    assert cli("reduce", model, "--onnxrt", "--fp16", "-o", "out.onnx").status == 0
    assert node_names(Path("out.onnx")) == ["big"]


def test_equal_infinities_are_named_where_nothing_fails(cli: CommandLine, here: Path) -> None:
    """``run`` calls them a mismatch, so the two would contradict each other without a word."""
    onnx.save(text_model("(float[4] x) => (float[4] y)", "y = Reciprocal(x)"), str(here / "m.onnx"))
    np.savez("m.npz", x=np.array([0, 1, 2, 3], np.float32))
    words = ("m.onnx", "--onnxrt", "--load-inputs", "m.npz")
    assert cli("run", *words).status == 1
    ran = cli("diagnose", *words).ended(1)
    assert "'y' has no elements, or some NaN or Inf" in " ".join(ran.out.split())


def test_rounding_beside_an_overflow_is_no_second_failure(cli: CommandLine) -> None:
    steps = [("Add", "much", "away"), ("Sub", "much", "back"), ("Mul", "big", "big")]
    model = save(Path("model.onnx"), line(steps), {"much": 120.0, "big": 3e5})
    words = ("reduce", model, "--onnxrt", "--fp16", "-o", "out.onnx", "--json", "r.json", "-v")
    ran = cli(*words).ended(0)
    assert "2 of 3 nodes  milder than the original's failure" in ran.out
    assert ran.result["more_failures"] is False


def test_a_cast_that_overflows_is_probed_with_its_readers(cli: CommandLine, here: Path) -> None:
    """The sums of a quantized layer exceed fp16; the Cast alone ends in the type of its case, which is not lowered."""
    body = "whole = Cast<to = 1>(sums) scaled = Mul(whole, scale) y = Tanh(scaled)"
    ends = "(int32[4] sums, float[4] scale) => (float[4] y)"
    onnx.save(text_model(ends, body), str(here / "m.onnx"))
    sums = np.array([116158, 2, 3, 4], np.int32)
    np.savez("m.npz", sums=sums, scale=np.full(4, 1e-6, np.float32))
    words = ("diagnose", "m.onnx", "--onnxrt", "--fp16", "--load-inputs", "m.npz")
    ran = cli(*words, "-v", "--json", "r.json").ended(0)
    assert "Reduce the whole model" not in ran.out
    assert [node["op"] for node in ran.result["culprits"]] == ["Mul"]


def test_an_overflow_comes_before_a_sensitive_layer(cli: CommandLine, here: Path) -> None:
    """A difference of large values loses its digits, which nothing after it shows; the squares after it overflow."""
    weights = {"thousand": np.float32(1000), "tiny": np.float32(1e-4), "one": np.float32(1)}
    body = """large = Add(x, thousand) back = Sub(large, thousand) small = Mul(back, tiny) near = Add(small, one)
        scaled = Mul(near, thousand) squares = Mul(scaled, scaled) more = Add(squares, one) y = Div(scaled, more)"""
    onnx.save(text_model("(float[8] x) => (float[8] y)", body, weights), str(here / "m.onnx"))
    ran = cli("diagnose", "m.onnx", "--onnxrt", "--fp16", "--json", "r.json").ended(0)
    assert ran.result["first_mismatch"]["node"]["name"] == "back"
    assert [node["name"] for node in ran.result["culprits"]] == ["squares"]


@pytest.mark.parametrize(
    ("much", "after", "culprit"),
    [
        (1000, "y = Softmax(masked)", "back"),
        (
            100,
            """part = Softmax(masked) scaled = Mul(part, thousand) squares = Mul(scaled, scaled)
            more = Add(squares, one) y = Div(scaled, more)""",
            "squares",
        ),
    ],
)
def test_a_mask_before_a_wrong_softmax_is_not_blamed(
    much: int, after: str, culprit: str, cli: CommandLine, here: Path
) -> None:
    """The Softmax is wrong as its scores lost digits, ``much`` or little; that the mask is -Inf in fp16 changes nothing."""
    mask = np.where(np.arange(8) < 3, 0, np.finfo(np.float32).min).astype(np.float32)
    weights = {"thousand": np.float32(1000), "one": np.float32(1), "mask": mask}
    weights["much"] = np.float32(much)
    body = f"far = Add(x, much) back = Sub(far, much) masked = Add(back, mask) {after}"
    onnx.save(text_model("(float[2,8] x) => (float[2,8] y)", body, weights), str(here / "m.onnx"))
    ran = cli("diagnose", "m.onnx", "--onnxrt", "--fp16", "--json", "r.json").ended(0)
    assert [node["name"] for node in ran.result["culprits"]] == [culprit]


def test_a_mask_of_several_layers_is_tried_after_an_overflow(cli: CommandLine, here: Path) -> None:
    """The mask is -Inf from the first layer on, where it is right, to the output, which the squares make NaN."""
    low = np.finfo(np.float32).min
    weights = {"half": np.float32(0.5), "zero": np.float32(0), "low": low, "big": np.float32(900)}
    body = """seen = Greater(keep, half) mask = Where(seen, zero, low) first = Add(x, mask) part = Softmax(first)
        scaled = Mul(part, big) squares = Mul(scaled, scaled) second = Add(squares, mask) y = Softmax(second)"""
    ends = "(float[8] keep, float[2,8] x) => (float[2,8] y)"
    onnx.save(text_model(ends, body, weights), str(here / "m.onnx"))
    keep = np.array([1, 1, 1, 0, 0, 0, 0, 0], np.float32)
    np.savez("m.npz", keep=keep, x=np.eye(2, 8, dtype=np.float32) * 3)
    words = ("diagnose", "m.onnx", "--onnxrt", "--fp16", "--load-inputs", "m.npz")
    ran = cli(*words, "--json", "r.json").ended(0)
    assert [node["name"] for node in ran.result["culprits"]] == ["squares"]


def test_layers_that_only_round_are_not_the_first_mismatch(cli: CommandLine) -> None:
    model = rounding_then_overflow(Path("model.onnx"))
    result = cli("layerwise", model, "--onnxrt", "--fp16", "--json", "r.json").ended(0).result
    assert result["first_mismatch"]["node"]["name"] == "big"
    assert [entry["node"]["name"] for entry in result["mild_origins"]] == ["back"]
    # Tolerances that are given are meant to the letter.
    given = ["--atol", "0.005", "--rtol", "0.01", "--json", "r.json"]
    result = cli("layerwise", model, "--onnxrt", "--fp16", *given).ended(0).result
    assert result["first_mismatch"]["node"]["name"] == "back"


@pytest.mark.slow
def test_of_many_samples_the_worst_few_are_looked_at(cli: CommandLine, here: Path) -> None:
    """Every tensor of each of hundreds would take hours.

    A run that goes on looks at the same ones.
    """
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


# The reproducer's folder as a bug report's attachment: its commands show the failure, other tools
# read it, nothing leaks.


SECRET = "Xyzzy"


def spoken(path: Path) -> Path:
    """A model that says everywhere where it comes from, and fails in fp16."""
    model = onnx.load(str(overflowing(path)))
    model.producer_version = model.domain = model.doc_string = model.graph.name = SECRET
    model.graph.doc_string = SECRET
    model.metadata_props.add(key=SECRET, value=SECRET)
    for node in model.graph.node:
        node.doc_string = f"File /home/{SECRET}/net.py, line 7"
    for value in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        value.doc_string = SECRET
    body = [helper.make_node("Neg", ["a"], ["b"])]
    unused = helper.make_function(
        "local", SECRET, ["a"], ["b"], body, [helper.make_opsetid("", 13)]
    )
    model.functions.append(unused)
    model.opset_import.append(helper.make_opsetid("local", 1))
    onnx.save(model, str(path))
    return path


def attachments(folder: Path) -> list[Path]:
    whole = ("mixed.onnx",)  # of the whole network, and the folder's README says to leave them out
    assert all(f"`{name}`" in (folder / "README.md").read_text() for name in whole)
    return [path for path in folder.rglob("*") if path.is_file() and path.name not in whole]


def commands_of(page: Path) -> list[list[str]]:
    fences = re.findall(r"^```\n(.+?)\n```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [shlex.split(text) for text in fences]


def test_the_command_shows_the_failure_and_nothing_of_the_original_leaves(cli: CommandLine) -> None:
    model = spoken(Path(f"{SECRET}.onnx"))
    ran = cli(
        "diagnose", model, "--onnxrt", "--fp16", "--zip", "-o", "out", "--json", "r.json"
    ).ended(0)
    assert re.search(r"^Wrote +out/, out\.zip$", ran.out, re.MULTILINE)
    probes = ran.result["probes"]["run"]
    assert re.findall(r"probe (\d+) ", ran.out)[-1] == str(probes)
    issue, readme = (Path("out", page).read_text() for page in ("NOTES.md", "README.md"))
    assert all(f"in {probes} probes" in page for page in (issue, readme))
    assert all(
        word in issue
        for word in ("big_out", onnx.__version__, "inf", "ONNX Runtime (CPU", "1-minimal")
    )
    command = commands_of(Path("out/NOTES.md"))[0]
    assert command == ["python", "reproduce.py"]
    reproduced("out")
    for path in attachments(Path("out")):
        assert SECRET.encode() not in path.read_bytes(), path
        assert str(Path.cwd()).encode() not in path.read_bytes(), path
    with zipfile.ZipFile("out.zip") as packed:
        names = {name.removeprefix("reproducer/") for name in packed.namelist()}
    assert SECRET not in "".join(names)
    assert names == {path.relative_to("out").as_posix() for path in attachments(Path("out"))}


@pytest.mark.parametrize("absolute", [False, True])
def test_a_refusal_is_told_without_the_paths_of_this_machine(absolute: bool, here: Path) -> None:
    path = Path(f"{SECRET}.onnx")
    folder = Path(f".bisect-trt/1-diagnose-{SECRET}")
    overflowing(path)
    with Subject(ModelSettings(path), Workspace(folder), Console(-1)) as subject:
        named = [folder / "candidates" / "1f0c" / "model.onnx", path]
        one, other = [here / each if absolute else each for each in named]
        said = without_paths(
            f"the target refuses the model: Load model from {one} failed: no Foo in '{other}'",
            subject,
        )
    wanted = (
        "the target refuses the model: Load model from model.onnx failed: no Foo in 'model.onnx'"
    )
    assert said == wanted


def test_an_anonymous_reproducer_fails_with_other_names_and_weights(cli: CommandLine) -> None:
    source = overflowing(Path("model.onnx"))
    cli("diagnose", source, "--onnxrt", "--fp16", "--anonymise", "--zip", "-o", "out").ended(0)
    model = onnx.load(str(Path("out/model.onnx")))
    names = [name for node in model.graph.node for name in (*node.input, *node.output)]
    assert all(re.fullmatch(r"t\d+", name) for name in names)
    with zipfile.ZipFile("out.zip") as packed:
        assert {name.partition("/")[0] for name in packed.namelist()} == {"reproducer"}
    assert [node.name for node in model.graph.node] == ["n0"]
    for path in attachments(Path("out")):
        assert b"big" not in path.read_bytes(), path
    reproduced("out")


def test_what_does_not_fail_with_other_weights_is_left_as_it_is(cli: CommandLine) -> None:
    # The overflow hangs on one weight that meets one large value.
    values = np.linspace(0, 100, 64, dtype=np.float32)
    fed = np.ones(64, np.float32)
    values[5], fed[5] = 100, 660
    mul = helper.make_node("Mul", ["x", "weight"], ["product"], name="mul")
    save(
        Path("model.onnx"), [mul], {"weight": values}, inputs={"x": [64]}, outputs={"product": [64]}
    )
    np.savez("x.npz", x=fed)
    options = [
        "--onnxrt",
        "--fp16",
        "--load-inputs",
        "x.npz",
        "--no-shrink",
        "--anonymise",
        "-o",
        "out",
    ]
    ran = cli("diagnose", "model.onnx", *options).ended(0)
    assert "Not anonymised: it does not fail with other weights." in ran.out
    model = onnx.load(str(Path("out/model.onnx")))
    assert [entry.name for entry in model.graph.node] == ["mul"]
    np.testing.assert_array_equal(numpy_helper.to_array(model.graph.initializer[0]), values)
    reproduced("out")
