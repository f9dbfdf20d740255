"""The release in which a failure appeared and the one in which it went, over an index of the tests' own.

Its releases of ONNX Runtime are the one that is installed here, with failures of their own.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from building import save_text
from conftest import CommandLine
from onnx import helper
from support import arrays, bisect_trt, chain, line, model_of, onnx_tool, rest_slow, save
from wheels import Index

import bisect_trt as api
from bisect_trt.onnxlib.network import Network
from bisect_trt.probe.oracles import outcome_of_failure
from bisect_trt.probe.outcome import Ending, Outcome
from bisect_trt.report.outcomes import describe_outcome
from bisect_trt.steps import arbitration, second_opinion
from bisect_trt.steps.release_boundary import is_same_refusal
from bisect_trt.targets.base import Package
from bisect_trt.targets.messages import BuildError, RunError
from bisect_trt.worker.environments import Environment, with_numpy
from bisect_trt.worker.protocol import Failed

REAL = str(Path(str(importlib.util.find_spec("onnxruntime").origin)).parent)  # type: ignore[union-attr]  # it is installed
SHIM = f"""
__path__ = [{REAL!r}]
__file__ = {REAL + "/__init__.py"!r}
with open(__file__) as _source:
    exec(compile(_source.read(), __file__, "exec"))
__version__ = "VERSION"
"""
WRONG = """
class InferenceSession(InferenceSession):
    def run(self, *arguments, **others):
        return [each + 1 for each in super().run(*arguments, **others)]
"""
SLOW = """
import time
class InferenceSession(InferenceSession):
    def run(self, *arguments, **others):
        time.sleep(0.003)
        return super().run(*arguments, **others)
"""
REFUSES = """
def InferenceSession(*_, **__):
    raise capi.onnxruntime_pybind11_state.Fail(
        "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Add node. Name:'<1>' Status Message: "
        + "size" * int("VERSION"[2:]) + " is not what it was"
    )
"""
TOO_OLD = """
def InferenceSession(*_, **__):
    raise capi.onnxruntime_pybind11_state.Fail(
        "Unsupported model IR version: 8, max supported IR version: 3. "
        + "The operator schemas and other functionality may change before the next release of ONNX. " * 3
    )
"""
LACKS = """
def InferenceSession(*_, **__):
    raise capi.onnxruntime_pybind11_state.NotImplemented(
        "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for Fused(VERSION) node with name ''"
    )
"""
UNFUSED = """
REAL = InferenceSession
def InferenceSession(model, options, *arguments, **others):
    options.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
    return REAL(model, options, *arguments, **others)
"""
SIGNED = """
class InferenceSession(InferenceSession):
    def run(self, outputs, fed, *arguments):
        (x,) = fed.values()
        return [x / x.sum(1, keepdims=True)]
"""
LAST_NODE = """
REAL = InferenceSession
def InferenceSession(model, *_, **__):
    content = model if isinstance(model, bytes) else open(model, "rb").read()
    names = [number for number in range(9) if b"<%d>" % number in content]
    if 1 not in names or names == [1]:
        return REAL(model, *_, **__)
    last = next(number for number in names if number != 1) if len(names) == 2 else names[-1]
    raise capi.onnxruntime_pybind11_state.Fail(
        "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Add node. "
        + "Name:'<%d>' Status Message: no" % last
    )
"""
OFF_ABOVE_ONE = """
class InferenceSession(InferenceSession):
    def run(self, *arguments, **others):
        return [each + (each > 1) for each in super().run(*arguments, **others)]
"""
KEEPS = """
class InferenceSession(InferenceSession):
    runs = 0
    def run(self, *arguments, **others):
        self.runs += 1
        return [each + (self.runs > 2) for each in super().run(*arguments, **others)]
"""
KINDS = {
    "A": OFF_ABOVE_ONE,
    "K": KEEPS,
    "D": UNFUSED,
    "E": SIGNED,
    "L": LAST_NODE,
    "N": LACKS,
    "P": "",
    "F": WRONG,
    "S": SLOW,
    "R": REFUSES,
    "O": TOO_OLD,
    "G": TOO_OLD.replace(
        "Unsupported model IR version: 8",
        "ONNX Runtime only guarantees support for released versions. Opset 20 is under development and "
        "support for this is limited. It may change",
    ),
    "B": "raise ImportError('built for another world')",
}


def releases(folder: Path, history: str, major: int = 1) -> Index:
    """An index with the releases 1.0, 1.1, ... of a runtime; each letter says what is wrong with one."""
    index = Index(folder / "index")
    for number, letter in enumerate(history):
        version = f"{major}.{number}"
        text = (SHIM + KINDS[letter]).replace("VERSION", version)
        index.add("onnxruntime", version, {"onnxruntime/__init__.py": text})
    return index


def ask(here: Path, *words: str | Path) -> tuple[int, dict[str, Any], str]:
    ran = bisect_trt("releases", "--json", "result.json", *words, cwd=here)
    assert "Traceback" not in ran.out + ran.err
    return ran.status, json.loads((here / "result.json").read_text()), ran.out + ran.err


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    chain(tmp_path / "model.onnx")
    return tmp_path


def seen(letters: str) -> dict[str, str]:
    words = {
        "P": "PASS",
        "N": "FAIL",
        "F": "FAIL",
        "R": "FAIL",
        "O": "UNRESOLVED",
        "B": "UNRESOLVED",
    }
    return {f"1.{number}": words[letter] for number, letter in enumerate(letters)}


@pytest.mark.parametrize(
    ("history", "status", "boundaries", "verdicts", "said"),
    rest_slow(
        [
            ("PFP", 0, ("1.1", "1.2"), "PFP", ""),
            ("OPFFP", 0, ("1.2", "1.4"), "OPFFP", "Unsupported model IR version"),
            # A release that cannot be imported may hide where it appeared: said, and not proven.
            ("PBRR", 3, ("1.2", None), "PBRR", "built for another world"),
            # An operator that the newest release lacks is the failure; where the newest passes, it
            # is a matter of age.
            ("PNN", 0, ("1.1", None), "PNN", "Fused"),
            ("NP", 1, (None, None), "OP", "Fused"),
            ("O", 4, (None, None), "O", "Unsupported model IR version"),
        ]
    ),
)
def test_boundaries(
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    history: str,
    status: int,
    boundaries: tuple[str | None, str | None],
    verdicts: str,
    said: str,
) -> None:
    releases(here, history).tell(monkeypatch)
    ended, result, printed = ask(here, "model.onnx", "--onnxrt")
    assert (ended, result["releases"]) == (status, seen(verdicts))
    # Why it fails, and in which release where the newest is right.
    fails = f"Fails    onnxruntime {result['failing'][-1][-1]}: " if boundaries[1] else "Fails    "
    assert (fails in printed) == (status in (0, 3))
    assert (result["first_failing"], result["first_passing"]) == boundaries
    assert said in json.dumps(result["reasons"])


def test_no_upgrade_is_a_fix_where_other_inputs_fail(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The given input alone passes in the newer releases."""
    releases(here, "FAA").tell(monkeypatch)
    save_text(here / "relu.onnx", "(float[8] x) => (float[8] y)", "y = Relu(x)")
    np.savez(here / "x.npz", x=np.linspace(-2, 1, 8, dtype=np.float32))
    status, result, out = ask(here, "relu.onnx", "--onnxrt", "--load-inputs", "x.npz")
    assert (status, result["first_passing"], result["minimality"]) == (3, "1.1", "unproven")
    assert result["upgrade"] is None
    assert "Fix" not in out
    for release in ("1.1", "1.2"):
        assert re.search(rf"onnxruntime {release} fails on \d+ of 20 other inputs", result["why"])


@pytest.mark.parametrize("every", rest_slow([False, True]))
def test_a_matrix_bisects_the_releases_of_each_row(
    here: Path, monkeypatch: pytest.MonkeyPatch, every: bool
) -> None:
    releases(here, "PPPPFF").tell(monkeypatch)
    words = ["--onnxrt", "--over", "release=1.1..1.5", "--json", "result.json"]
    ran = bisect_trt("matrix", "model.onnx", *words, *(["--all"] if every else []), cwd=here)
    cells = json.loads((here / "result.json").read_text())["cells"]
    verdicts = {cell["values"][0]: cell["verdict"] for cell in cells}
    assert ran.status == 1
    assert {"1.1", "1.3", "1.4", "1.5"} <= set(verdicts)
    assert len(verdicts) == 4 + every
    assert all((verdict == "FAIL") == (name >= "1.4") for name, verdict in verdicts.items())


@pytest.mark.slow
def test_samples_of_several_lengths_are_run_in_each_release(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    releases(here, "PFP").tell(monkeypatch)
    save_text(here / "text.onnx", "(float[1, n] x) => (float[1, n] y)", "y = Tanh(x)")
    for size in (6, 7, 12):
        np.savez(here / f"{size}.npz", x=np.ones((1, size), np.float32))
    files = ("--load-inputs", "6.npz", "7.npz", "12.npz")
    status, result, _ = ask(here, "text.onnx", "--onnxrt", *files)
    assert (status, result["first_failing"], result["first_passing"]) == (0, "1.1", "1.2")


@pytest.mark.slow
def test_the_release_since_which_a_model_is_slow(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    releases(here, "PS").tell(monkeypatch)
    status, result, _ = ask(
        here, "model.onnx", "--onnxrt", "--slower-than", "1.3", "--baseline", "onnxruntime==1.0"
    )
    assert (status, result["first_failing"], result["releases"]) == (
        0,
        "1.1",
        {"1.0": "PASS", "1.1": "FAIL"},
    )


SAYS = "Non-zero status code returned while running {} node. Name:'{}' Status Message: {}"


@pytest.mark.parametrize(
    ("kind", "message", "same"),
    [
        ("run", SAYS.format("Add", "<1>", "src->SizeInBytes() == size was false"), True),
        ("run", "in Add node <1>: another message altogether", True),
        ("run", SAYS.format("Add", "<2>", "output.SizeInBytes() == size was false"), False),
        ("build", SAYS.format("Add", "<1>", "output.SizeInBytes() == size was false"), False),
        ("run", SAYS.format("Add", "made", "output.SizeInBytes() == size was false"), True),
        ("run", SAYS.format("Add", "made", "src->SizeInBytes() == size was false"), False),
        ("run", SAYS.format("Mul", "made", "output.SizeInBytes() == size was false"), False),
        ("run", "an Add of these types is not supported", False),
        ("run", "out of memory", False),
    ],
)
def test_a_failure_is_known_in_other_words_by_node_kind_and_operator(
    tmp_path: Path, kind: str, message: str, same: bool
) -> None:
    def refusal(kind: str, message: str) -> Outcome:
        failure = (BuildError if kind == "build" else RunError)(message)
        return Outcome(Ending.BROKEN, f"{kind}: {failure.sign()}", failure.message)

    model = Network(onnx.load(chain(tmp_path / "model.onnx")))
    original = refusal("run", SAYS.format("Add", "<1>", "output.SizeInBytes() == size was false"))
    assert is_same_refusal(original, refusal(kind, message), model) is same


def test_only_the_words_of_the_runtime_name_a_node() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["target"], name="model"),
        helper.make_node("Sigmoid", ["target"], ["y"], name="refuses"),
    ]
    network = Network(model_of(nodes, {}, inputs={"x": (1,)}, outputs={"y": (1,)}))
    one, other = (
        outcome_of_failure(Failed("build", f"no kernel of {op}", f"build: no kernel of {op}"))
        for op in ("Relu", "Sigmoid")
    )
    assert "the target refuses the model" in describe_outcome(one)
    assert not is_same_refusal(one, other, network)


def test_a_package_of_several_wheels_is_installed_without_what_they_depend_on() -> None:
    package = Package("brittle", parts=("brittle-libs", "brittle-bindings"))
    wanted = Environment(with_numpy(package.requirements("1.5")), alone=True)
    assert Environment.parse(str(wanted)) == wanted
    assert str(wanted) == "--no-deps brittle-libs==1.5 brittle-bindings==1.5 numpy"


@pytest.mark.slow
def test_a_check_command_in_each(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The history need not be one stretch; what was seen is said."""
    index = Index(here / "index")
    for number in range(6):
        index.add("brittle", f"1.{number}", {"brittle.py": f"version = {number}"})
    index.add("helper", "3.0", {"helper.py": "bad = {0, 3}"})
    index.tell(monkeypatch)
    check = "import sys, brittle, helper; sys.exit(125 if brittle.version == 5 else int(brittle.version in helper.bad))"
    words = ["model.onnx", "--package", "brittle", "--with", "helper", "--all"]
    status, result, out = ask(
        here, *words, "--workers", "2", "--check", "{python}", "-c", check, "{model}"
    )
    assert (status, result["first_failing"], result["first_passing"]) == (0, "1.3", "1.4")
    assert list(result["releases"].values()) == [
        "FAIL",
        "PASS",
        "PASS",
        "FAIL",
        "PASS",
        "UNRESOLVED",
    ]
    assert result["failing"] == [["1.0", "1.0"], ["1.3", "1.3"]]
    table = [line.split()[:2] for line in out.splitlines() if line.startswith("  1.")]
    assert table == [[*each] for each in result["releases"].items()]
    words[-1:] = ["--from", "1.0", "--to", "1"]
    status, some, _ = ask(here, *words, "--check", "{python}", "-c", "import helper", "{model}")
    assert (status, len(some["releases"])) == (1, 6)


@pytest.mark.slow
def test_a_reproducers_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its values are fed, and Python gives what the command line gives."""
    releases(here, "PF").tell(monkeypatch)
    folder = here / "reproducer"
    folder.mkdir()
    chain(folder / "model.onnx")
    np.savez(folder / "inputs.npz", x=np.full((2, 3), 7, np.float32))
    result = api.releases(folder, target="onnxrt", all=True)
    assert (result.status, result.first_failing, result.releases) == (
        "found",
        "1.1",
        seen("PF"),
    )
    candidates = Path(str(result.artifacts["run"])) / "candidates"
    assert {float(arrays(path)["x"][0, 0]) for path in candidates.glob("*/inputs.npz")} == {7.0}


def test_a_reproducers_folder_with_samples_before(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each release runs them in the same session, in their order."""
    releases(here, "PK").tell(monkeypatch)
    folder = here / "reproducer"
    folder.mkdir()
    chain(folder / "model.onnx")
    for place, name in enumerate(("earlier-1", "earlier-2", "inputs")):
        np.savez(folder / f"{name}.npz", x=np.full((2, 3), place, np.float32))
    status, result, printed = ask(here, folder, "--onnxrt")
    assert (status, result["first_failing"]) == (0, "1.1")
    assert "sample 3: " in printed
    assert "sample 2: " not in printed


@pytest.mark.slow
def test_the_last_step_of_a_diagnosis(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says the command, or does it; both boundaries go into the bug report, and the script was run with both."""
    releases(here, "PFP").tell(monkeypatch)
    chain(here / "model.onnx", 1)
    words = [
        "diagnose",
        "model.onnx",
        "--onnxrt",
        "--on",
        "env=onnxruntime==1.1",
        "--json",
        "result.json",
        "-o",
        "out",
    ]
    ran = bisect_trt(*words, cwd=here)
    result = json.loads((here / "result.json").read_text())
    assert "releases" not in result
    # Only a diagnosis in the place looks for its failure: the case may fail elsewhere in another
    # way.
    (command,) = (each for each in result["next"] if "--releases" in each)
    ran = bisect_trt(*shlex.split(command)[1:], "--json", "result.json", cwd=here)
    result = json.loads((here / "result.json").read_text())
    # Nothing passes in the release that fails, so no node is proven to be to blame.
    assert (ran.status, result["first_failing"], result["first_passing"]) == (3, "1.1", "1.2")
    assert result["releases"] == seen("PFP")
    issue = (here / "out" / "NOTES.md").read_text()
    assert issue.startswith("> **Fixed in a newer release**")
    # There is nothing to file, so no question of a tracker is answered.
    assert "fixed in a newer release?** " not in issue


def test_the_newer_release_of_this_environment_is_the_fix(
    cli: CommandLine, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    releases(here, "F").tell(monkeypatch)
    chain(here / "model.onnx", 1)
    words = [
        "model.onnx",
        "--onnxrt",
        "--on",
        "env=onnxruntime==1.0",
        "--json",
        "result.json",
        "-o",
        "out",
    ]
    result = cli("diagnose", *words).ended(3).result  # nothing passes in the release that fails
    assert result["upgrade"].startswith("upgrade to ONNX Runtime ")
    assert (
        (here / "out" / "NOTES.md")
        .read_text()
        .startswith("> **Fixed in a newer release**: upgrade to ONNX Runtime")
    )


@pytest.mark.slow
def test_the_newest_release_is_no_fix_where_other_inputs_fail(
    cli: CommandLine, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    releases(here, "FA", major=99).tell(monkeypatch)
    save_text(here / "relu.onnx", "(float[8] x) => (float[8] y)", "y = Relu(x)")
    np.savez(here / "x.npz", x=np.linspace(-2, 1, 8, dtype=np.float32))
    words = ["--onnxrt", "--load-inputs", "x.npz", "--on", "env=onnxruntime==99.0", "-o", "out"]
    ran = cli("diagnose", "relu.onnx", *words, "--json", "r.json")
    assert "upgrade" not in ran.result
    assert "99.1 passes on the same inputs, but" in (here / "out" / "ISSUE.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("history", "options", "upgrade", "tried"),
    [
        (
            "FP",
            [],
            "upgrade to onnxruntime 99.1, which passes (releases finds the first that does)",
            "onnxruntime 99.0 fails, 99.1 passes.",
        ),
        ("FF", [], None, "onnxruntime 99.0 fails, and 99.1, the newest release, fails too."),
        ("F", [], None, "onnxruntime 99.0, the newest release, fails."),
        ("FP", ["--no-other-release"], None, "Not known: no newer release"),
    ],
)
def test_the_newest_release_on_the_index_is_the_fix(
    cli: CommandLine,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    history: str,
    options: list[str],
    upgrade: str | None,
    tried: str,
) -> None:
    """The release of this environment is older than the failing one, so it is not asked."""
    releases(here, history, major=99).tell(monkeypatch)
    chain(here / "model.onnx", 1)
    words = ["--onnxrt", "--on", "env=onnxruntime==99.0", "--json", "r.json", "-o", "out"]
    ran = cli("diagnose", "model.onnx", *words, *options)
    assert ran.result.get("upgrade") == upgrade
    issue = (here / "out" / ("ISSUE.md" if upgrade is None else "NOTES.md")).read_text()
    assert issue.startswith("> **Fixed in a newer release**") is (upgrade is not None)
    asked = f"**Is it a regression, or fixed in a newer release?** {tried}"
    assert (asked in issue) is (upgrade is None)
    assert (f"Fix: {upgrade}." in ran.out) is (upgrade is not None)


@pytest.fixture
def doubted(here: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A model and inputs of which ONNX's evaluator, with a vote here, and this ONNX Runtime compute different values."""
    monkeypatch.setattr(second_opinion, "objection", lambda _: "")
    releases(here, "PE", major=99).tell(monkeypatch)
    path = save_text(
        "lp.onnx", "(float[2, 3] x) => (float[2, 3] y)", "y = LpNormalization<p = 1, axis = 1>(x)"
    )
    np.savez(here / "x.npz", x=np.array([[1, -2, 4], [3, -1, -1]], np.float32))
    return [str(path), "--onnxrt", "--load-inputs", "x.npz", "--json", "result.json"]


@pytest.mark.slow
def test_a_release_is_not_blamed_for_the_error_of_the_reference(
    cli: CommandLine, doubted: list[str]
) -> None:
    result = cli("releases", *doubted).ended(0).result
    assert "LpNormalization" in result["reference_doubt"]
    verdicts = {"99.0": "FAIL", "99.1": "PASS"}
    assert (result["releases"], result["first_passing"]) == (verdicts, "99.1")


@pytest.mark.slow
@pytest.mark.parametrize("forbids", [False, True])
def test_the_same_error_on_both_sides_is_seen(
    cli: CommandLine, doubted: list[str], *, forbids: bool
) -> None:
    options = ["--no-other-release"] if forbids else []
    ran = cli("diagnose", *doubted, "-o", "out", *options)
    assert ran.status == 1
    assert "differ first in LpNormalization 'y'" in ran.result["reference_doubt"]
    upgrade = (
        None
        if forbids
        else "upgrade to onnxruntime 99.1, which passes (releases finds the first that does)"
    )
    assert ran.result.get("upgrade") == upgrade


COMPARING = {
    "diagnose": ["-o", "out"],
    "layerwise": [],
    "cause": [],
    "reduce": ["-o", "reduced.onnx"],
    "workaround": ["-o", "patched.onnx"],
}
"""Commands that compare a target with the reference and blame a side, with the options that they need."""


@pytest.mark.parametrize("command", rest_slow([*COMPARING], now=2))
@pytest.mark.parametrize(
    ("text", "doubts"),
    [("y = LRN<size = 3>(x)", True), ("y = Relu(x)", False)],
    ids=["no vote", "the evaluator agrees"],
)
def test_the_newest_release_is_asked_where_the_evaluator_has_no_vote(
    cli: CommandLine,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    text: str,
    *,
    doubts: bool,
) -> None:
    releases(here, "F", major=99).tell(monkeypatch)
    path = save_text("m.onnx", "(float[1, 3, 2, 2] x) => (float[1, 3, 2, 2] y)", text)
    ran = cli(command, path, "--onnxrt", "--json", "r.json", *COMPARING[command])
    assert ran.status == 1
    assert ("onnxruntime 99.0 computes other" in ran.result.get("reference_doubt", "")) is doubts
    assert ("--on env=onnxruntime==99.0" in ran.out + ran.err) is doubts
    assert (here / "envs").exists() is doubts


UNDOUBTED = {
    "fp16": (
        "(float16[2, 64] x) => (float16[2, 64] y)",
        "a = Mul(x, big) y = LayerNormalization(a, scale)",
        17,
    ),
    "optional": (
        "(float[2, 3] x) => (float[2, 3] y, float[2, 3] o)",
        "y = Tanh(x) o = Optional(y)",
        18,
    ),
    "random": (
        "(float[2, 64] x) => (float[2, 64] y)",
        "r = RandomNormalLike(x) y = Add(x, r)",
        18,
    ),
    "4 bits": (
        "(float[2, 64] x) => (float[2, 64] y)",
        "a = Mul(x, nine) b = Cast<to = 22>(a) y = Cast<to = 1>(b)",
        21,
    ),
}
"""Healthy models of which a runtime may compute, draw or return something else."""


@pytest.mark.parametrize("kind", UNDOUBTED)
def test_no_release_is_blamed_for_a_healthy_model(
    cli: CommandLine, here: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    ends, body, opset = UNDOUBTED[kind]
    weights = {"big": np.float16(400), "scale": np.ones(64, np.float16), "nine": np.float32(9)}
    path = save_text(here / "m.onnx", ends, body, weights, opset=opset)
    if kind == "optional":
        model = onnx.load(path)
        tensor = model.graph.output[1].type
        model.graph.output[1].type.CopyFrom(onnx.helper.make_optional_type_proto(tensor))
        onnx.save(model, path)
    releases(here, "F" if kind == "random" else "P", major=99).tell(monkeypatch)
    ran = cli("diagnose", "m.onnx", "--onnxrt", "--json", "r.json")
    assert ran.status == 1
    assert "reference_doubt" not in ran.result
    assert "upgrade" not in ran.result


@pytest.mark.slow
@pytest.mark.parametrize("reaches", [True, False])
def test_the_newest_release_is_asked_where_the_release_here_is_blamed(
    cli: CommandLine, here: Path, monkeypatch: pytest.MonkeyPatch, *, reaches: bool
) -> None:
    """Node fusion drops an edge, which the newest release does not."""
    releases(here, "D", major=99).tell(monkeypatch)
    if not reaches:
        monkeypatch.delenv("PIP_NO_INDEX")
    nodes = "same = Cast<to = 1>(x) one = Constant<value_float = 1.0>() inverse = Div(one, s)"
    body = f"s = Sigmoid(x) {nodes} y = Mul(same, inverse)"
    path = save_text("m.onnx", "(float[2, 3] x) => (float[2, 3] y)", body)
    ran = cli("diagnose", path, "--onnxrt", "--json", "r.json", "-o", "out").ended(0)
    upgrade = (
        "upgrade to onnxruntime 99.0, which passes (releases finds the first that does)"
        if reaches
        else None
    )
    assert ran.result.get("upgrade") == upgrade
    issue = (here / "out" / ("NOTES.md" if reaches else "ISSUE.md")).read_text()
    assert issue.startswith("> **Fixed in a newer release**") is reaches
    if reaches:
        for command in ("cause", "reduce", "workaround"):  # marks hide this failure
            options = ["--json", "r.json", *COMPARING[command]]
            result = cli(command, path, "--onnxrt", *options).ended(0).result
            assert (result["fault"]["whose"], result["upgrade"]) == ("target", upgrade), command
        options = ["--json", "r.json", "--no-other-release"]
        assert "upgrade" not in cli("cause", path, "--onnxrt", *options).result
    assert ("was not tried, because no package index answers" in ran.out) is not reaches


@pytest.mark.slow
@pytest.mark.parametrize("command", COMPARING)
def test_the_upgrade_is_named_where_the_reference_is_to_blame(
    cli: CommandLine, doubted: list[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """The target is the newer release, which is right."""
    monkeypatch.setattr(arbitration, "objection", lambda _: "")
    ran = cli(command, *doubted, "--on", "env=onnxruntime==99.1", *COMPARING[command])
    assert ran.result["fault"]["whose"] == "reference"
    assert (
        ran.result["upgrade"]
        == "upgrade to onnxruntime 99.1, which passes (releases finds the first that does)"
    )
    assert (
        "Fix: upgrade to onnxruntime 99.1, which passes (releases finds the first that does)."
        in ran.out
    )
    if command == "diagnose":
        issue = Path("out/NOTES.md").read_text()
        assert (
            "Fix: upgrade to onnxruntime 99.1, which passes (releases finds the first that does)."
            in issue.partition("\n")[0]
        )


ONE_MORE = """
node = model.graph.node[-1]
if node.op_type == "LRN":
    node.output[0] = "before"
    model.graph.initializer.add(name="one", data_type=1, float_data=[1])
    model.graph.node.add(op_type="Add", input=["before", "one"], output=["y"])
"""


@pytest.mark.parametrize(
    ("newest", "whose"), rest_slow([("F", "reference"), ("P", "unknown")], now=1)
)
def test_a_newer_reference_decides_where_the_evaluator_has_no_vote(
    cli: CommandLine, here: Path, monkeypatch: pytest.MonkeyPatch, newest: str, whose: str
) -> None:
    """A newer reference that computes what another runtime does is right; one that does not shows nothing."""
    releases(here, newest, major=99).tell(monkeypatch)
    tensor = "float[1, 3, 2, 2]"
    path = save_text("m.onnx", f"({tensor} x) => ({tensor} y)", "y = LRN<size = 3>(x)")
    words = ["--through", onnx_tool(ONE_MORE), "-o", "out", "--json", "r.json"]
    ran = cli("diagnose", path, *words).ended(0)
    assert ran.result["fault"]["whose"] == whose
    upgrade = (
        "upgrade to onnxruntime 99.0, which passes (releases finds the first that does)"
        if newest == "F"
        else None
    )
    assert ran.result.get("upgrade") == upgrade
    notes = here / "out" / "NOTES.md"
    assert notes.exists() is (whose == "reference")
    if notes.exists():
        assert notes.read_text().startswith("> **Not a bug report.** The reference is off")


@pytest.mark.slow
def test_the_newest_release_is_the_upgrade_where_the_first_that_passes_fails_otherwise(
    cli: CommandLine, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The case is fixed in a release that fails the whole model on other inputs, so nothing is to be filed."""
    releases(here, "FAP").tell(monkeypatch)
    save_text(here / "relu.onnx", "(float[8] x) => (float[8] y)", "y = Relu(x)")
    np.savez(here / "x.npz", x=np.linspace(-2, 1, 8, dtype=np.float32))
    words = ["--onnxrt", "--load-inputs", "x.npz", "--on", "env=onnxruntime==1.0", "-o", "out"]
    ran = cli("diagnose", "relu.onnx", *words, "--releases", "--json", "r.json")
    assert ran.result["first_passing"] == "1.1"
    assert ran.result["upgrade"] == "upgrade to onnxruntime 1.2 or later"
    notes = (here / "out" / "NOTES.md").read_text()
    assert re.search(r"1\.1 fails on \d+ of 20 other inputs", notes)


@pytest.mark.slow
def test_the_newer_of_two_releases_is_named_where_nobody_decides(
    cli: CommandLine, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    releases(here, "F", major=99).tell(monkeypatch)
    path = save_text(
        "m.onnx", "(float[1, 3, 2, 2] x) => (float[1, 3, 2, 2] y)", "y = LRN<size = 3>(x)"
    )
    on = ["--on", "env=onnxruntime==99.0", "--json", "r.json"]
    fault = cli("layerwise", path, "--onnxrt", *on).ended(0).result["fault"]
    assert fault["whose"] == "unknown"
    assert "99.0 is newer than the reference" in fault["sentence"]


@pytest.mark.slow
def test_the_boundaries_are_those_of_the_minimal_case(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message about the whole model names another node than one about the minimal case."""
    releases(here, "PLLP").tell(monkeypatch)
    chain(here / "model.onnx", 4)
    words = [
        "diagnose",
        "model.onnx",
        "--onnxrt",
        "--on",
        "env=onnxruntime==1.1",
        "--json",
        "result.json",
        "-o",
        "out",
    ]
    ran = bisect_trt(*words, "--releases", cwd=here)
    result = json.loads((here / "result.json").read_text())
    assert {each["name"] for each in result["culprits"]} in ({"<0>", "<1>"}, {"<1>", "<2>"}), (
        ran.out
    )
    assert (result["first_failing"], result["first_passing"]) == ("1.1", "1.3")


def test_an_index_without_such_releases(
    cli: CommandLine, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    releases(here, "PP").tell(monkeypatch)
    cli("releases", chain(Path("model.onnx")), "--onnxrt", "--from", "9").refused(
        "BT2005", "from 9"
    )


@pytest.mark.parametrize(
    ("history", "status", "said"),
    [
        ("OOPP", 1, "1.1 and older cannot run it (it does not support the model: "),
        ("PP", 1, "Try older releases (--from)"),
        ("OF", 0, "max supported IR version: 3), fails in 1.1"),
        ("GF", 0, "model: Opset 20 is under development and support for this is limited), fails"),
    ],
)
def test_old_releases_that_refuse_the_model_are_no_hint(
    here: Path, monkeypatch: pytest.MonkeyPatch, history: str, status: int, said: str
) -> None:
    releases(here, history).tell(monkeypatch)
    ended, _, out = ask(here, "model.onnx", "--onnxrt")
    assert ended == status
    assert said in " ".join(out.split())
    assert ("Try older" in out) == (history == "PP")


@pytest.fixture
def brittle(here: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The options that name three releases of a package, which say their number."""
    index = Index(here / "index")
    for number in range(3):
        index.add("brittle", f"1.{number}", {"brittle.py": f"version = {number}"})
    index.tell(monkeypatch)
    return ["model.onnx", "--package", "brittle", "--check", "{python}"]


def test_a_check_that_passes_in_no_release_proves_nothing(here: Path, brittle: list[str]) -> None:
    status, result, out = ask(here, *brittle, "missing.py", "{model}")
    assert (status, result["minimality"]) == (3, "unproven")
    assert "passes in no release" in " ".join(out.split())


def test_a_check_judges_a_model_that_is_refused_here(here: Path, brittle: list[str]) -> None:
    save(here / "model.onnx", line([("Relu", "", "t0"), ("NoSuchOperator", "", "t1")]))
    (here / "check.py").write_text("import brittle\nraise SystemExit(brittle.version < 1)\n")
    status, result, _ = ask(here, *brittle, "check.py", "{model}")
    assert (status, result["first_passing"]) == (0, "1.1")


def test_a_release_that_refuses_the_file_has_no_verdict(here: Path, brittle: list[str]) -> None:
    (here / "check.py").write_text(
        "import brittle\n"
        "if brittle.version < 1:\n"
        "    raise SystemExit('Unsupported model IR version: 11, max supported IR version: 9')\n"
        "raise SystemExit(brittle.version < 2)\n"
    )
    status, result, out = ask(here, *brittle, "check.py", "{model}")
    assert (status, result["first_failing"], result["first_passing"]) == (0, None, "1.2")
    assert list(result["releases"].values()) == ["UNRESOLVED", "FAIL", "PASS"]
    assert result["reasons"]["1.0"].startswith("it does not support the model: Unsupported")
    assert "no verdict in 1.0 (it does not support the model: " in " ".join(out.split())


def test_a_function_cannot_be_a_check(here: Path) -> None:
    with pytest.raises(api.UsageError, match="releases runs checks in other interpreters"):
        api.releases(here / "model.onnx", lambda _: True, package="onnxruntime")


def test_the_interpreter_at_hand_stands_for_it_elsewhere(cli: CommandLine, here: Path) -> None:
    check = ["--check", "{python}", "-c", "exit(1)", "{model}"]
    assert (
        cli("reduce", chain(here / "model.onnx"), "-o", "out.onnx", *check).status == 3
    )  # nothing passes
    log = next((here / ".bisect-trt").glob("*/candidates/*/command.txt")).read_text()
    assert log.startswith(sys.executable)
