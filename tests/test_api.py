"""The Python functions: the same answers as the command line, no output, typed and stable."""

from __future__ import annotations

import inspect
import json
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from support import arrays, chain, node_names, overflowing, read_json, reproduced

import bisect_trt
from bisect_trt import UsageError
from bisect_trt.commands.table import COMMANDS
from bisect_trt.options.shared import General
from bisect_trt.options.spec import entries
from bisect_trt.report.console import in_notebook
from bisect_trt.session import source

COMPARES = "model inputs target **options"
SEARCHES = "model check * inputs target **options"
PARAMETERS = {
    **dict.fromkeys(("diagnose", "workaround", "cause", "sweep", "layerwise", "compare"), COMPARES),
    **dict.fromkeys(("reduce", "precision", "releases", "repeat", "samples"), SEARCHES),
    "assert_matches": "model inputs target * reproducer **options",
}
"""The promise to whoever calls them."""


def parameters(function: Callable[..., object]) -> str:
    words: list[str] = []
    for entry in inspect.signature(function).parameters.values():
        if entry.kind is entry.KEYWORD_ONLY and "*" not in words:
            words.append("*")
        words.append(f"**{entry.name}" if entry.kind is entry.VAR_KEYWORD else entry.name)
    return " ".join(words)


def test_the_public_names_and_signatures_are_those_promised() -> None:
    answers = {f"{name.capitalize()}Answer" for name in PARAMETERS if name != "assert_matches"}
    kinds = {"Answer", *answers, "Verdict", "BisectError", "UsageError", "UnavailableError"}
    assert set(bisect_trt.__all__) == set(PARAMETERS) | kinds
    assert {name: parameters(getattr(bisect_trt, name)) for name in PARAMETERS} == PARAMETERS
    assert set(bisect_trt.__all__) <= set(dir(bisect_trt))
    with pytest.raises(AttributeError):
        bisect_trt.nothing  # noqa: B018 - asked for, and no more


def test_help_says_of_every_parameter_what_it_is() -> None:
    for name, promised in PARAMETERS.items():
        text = inspect.getdoc(getattr(bisect_trt, name)) or ""
        said = re.findall(
            r"^    ([*\w]+): [A-Z`]", text.partition("Args:")[2].partition("\n\n")[0], re.MULTILINE
        )
        assert said == promised.replace("* ", "").split()
        assert all(each in text for each in ("\n\nRaises:\n", "UsageError: ", "UnavailableError: "))


@pytest.mark.any_version
def test_every_option_of_a_command_is_one_of_its_function(here: Path) -> None:
    """What is refused is the value, never the name."""
    overflowing(here / "model.onnx")
    refused = []
    for name in sorted({*PARAMETERS} - {"assert_matches"}):
        groups = COMMANDS["run" if name == "compare" else name].groups
        own: dict[str, object] = {"shapes": "x:[1..2]"} if name == "sweep" else {}
        every = (each for group in groups[1:] if group is not General for each in entries(group))
        for entry in (each for each in every if each.name not in PARAMETERS[name].split()):
            with pytest.raises(UsageError) as raised:
                getattr(bisect_trt, name)("model.onnx", **{**own, entry.name: object()})
            refused += [(name, entry.name)] * ("has no option" in str(raised.value))
    assert not refused


def test_importing_the_package_imports_nothing_else() -> None:
    """Nor does a function, before it is called; and none of them a command line."""
    code = f"import sys, bisect_trt; {'; '.join(f'bisect_trt.{name}' for name in PARAMETERS)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"onnx", "numpy", "click", "typer", "rich", "bisect_trt.cli"} & set(
        done.stdout.split()
    )


def test_no_function_imports_the_command_line_or_leaves_a_process(here: Path) -> None:
    overflowing(here / "model.onnx")
    calls = [
        f"bisect_trt.{name}('model.onnx', target='onnxrt')" for name in ("compare", "layerwise")
    ]
    code = f"import sys, bisect_trt; {'; '.join(calls)}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-W", "default::ResourceWarning", "-c", code],
        capture_output=True,
        text=True,
        check=True,
    )
    assert not done.stderr  # where Python says what was left open or running
    assert not {"click", "typer", "bisect_trt.cli"} & set(done.stdout.split())


def wrong(path: Path, inputs: dict[str, np.ndarray], golden: dict[str, np.ndarray]) -> bool:
    """Whether the node named ``<2>`` is in the candidate, and its values lie beside it."""
    assert set(inputs) == {entry.name for entry in onnx.load(str(path)).graph.input}
    assert golden
    return "<2>" in node_names(path)


def test_a_function_that_returns_true_is_a_failure(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    result = bisect_trt.reduce(chain(Path("model.onnx")), wrong, output="small.onnx")
    assert (result.status, result.proven) == ("found", True)
    assert [culprit.name for culprit in result.culprits] == ["<2>"]
    assert node_names(here / "small.onnx") == ["<2>"]
    assert capfd.readouterr() == ("", "")
    folder = Path(str(result.artifacts["run"]))
    assert (folder / "report.html").exists()
    assert json.loads((folder / "result.json").read_text()) == json.loads(
        json.dumps(result.to_json())
    )


def raises_assertion(path: Path) -> None:
    assert "<1>" not in node_names(path), "one is wrong"


def raises_another(path: Path) -> bool:
    if "<0>" not in node_names(path):
        raise RuntimeError("cannot say")
    return "<1>" in node_names(path)


def says_verdict(path: Path) -> bisect_trt.Verdict:
    return bisect_trt.Verdict.FAIL if "<1>" in node_names(path) else bisect_trt.Verdict.PASS


@pytest.mark.parametrize(
    ("check", "left"),
    [(raises_assertion, ["<1>"]), (raises_another, ["<0>", "<1>"]), (says_verdict, ["<1>"])],
)
def test_what_a_function_may_say(
    check: Callable[[Path], object], left: list[str], here: Path
) -> None:
    result = bisect_trt.reduce(chain(here / "model.onnx"), check)
    assert node_names(Path(str(result.artifacts["reduced"]))) == left


def test_a_model_in_memory_and_inputs_in_memory(
    here: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = onnx.load(str(overflowing(here / "model.onnx")))
    before = model.SerializeToString()
    inputs = {"x": np.full((2, 3), 0.5, np.float32)}
    with caplog.at_level(logging.INFO, "bisect_trt"):
        result = bisect_trt.diagnose(model, fp16=True, inputs=inputs, zip=True, shrink=False)
    assert result.proven
    assert [culprit.name for culprit in result.culprits] == ["big"]
    assert result.first_mismatch is not None
    assert result.first_mismatch.tensor == "big_out"
    folder = Path(str(result.artifacts["reproducer"]))
    np.testing.assert_allclose(arrays(folder / "inputs.npz")["a2_out"], 3.5)
    assert Path(f"{folder}.zip").exists()
    assert model.SerializeToString() == before
    assert any("fails alone" in record.message for record in caplog.records)


def test_compare_reads_options_as_the_command_line_does(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = overflowing(here / "model.onnx")
    result = bisect_trt.compare(model, fp16=True, atol={"": 1e-3, "b2_out": 10.0}, rtol=1e-3)
    assert result.comparisons[0].atol == 10.0
    assert capfd.readouterr().out == ""
    assert bisect_trt.compare(
        model, verbose=True, val_range=(0.25, 0.5), input_shapes={"x": [2, 3]}
    ).proven
    assert "All 1 match." in capfd.readouterr().out


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("compare", {"target": "tflite"}, "'tflite'"),
        ("compare", {"target": None}, "target"),
        ("compare", {"target": None, "providers": ["cpu"]}, "--providers"),
        ("compare", {"atoll": 1}, "'atoll'"),
        ("compare", {"timeout": -1}, "^timeout: -1 "),
        (
            "compare",
            {"target": "trt", "builder_optimization_level": 6},
            "^builder_optimization_level: 6 ",
        ),
        ("compare", {"check_error_stat": "cosine"}, "^check_error_stat: cosine"),
        ("compare", {"input_shapes": {"z": [1]}}, "'z'"),
        ("compare", {"inputs": {"z": np.ones(3, np.float32)}}, "'z'"),
        ("reduce", {}, "check"),
        ("reduce", {"check": str}, "returns a str"),
        ("reduce", {"check": wrong, "target": "onnxrt", "fp16": True}, "target='onnxrt'"),
        ("reduce", {"check": wrong, "mode": "fast"}, "^mode: fast"),
        (
            "reduce",
            {"check": wrong, "reduce_inputs": False, "reduce_outputs": False},
            "nothing to reduce",
        ),
        ("reduce", {"check": {"x": np.ones(1)}, "target": "onnxrt"}, "a function, a command"),
        ("reduce", {"check": "onnxrt", "fp16": True}, "target='onnxrt'"),
        ("precision", {"check": wrong, "target": "trt"}, "target='trt'"),
        ("sweep", {"shapes": "x:[1..2]", "check": 5}, "^check: .* not 5"),
        ("sweep", {"shapes": "x:[2,3]", "target": "onnxrt"}, "no dimension to sweep"),
        ("diagnose", {"fp16": True, "run": "mine"}, "mine exists"),
    ],
)
def test_mistakes_are_exceptions_with_a_sentence(
    name: str, options: dict[str, Any], message: str, here: Path
) -> None:
    (here / "mine").mkdir()
    (here / "mine" / "file").touch()
    with pytest.raises(UsageError, match=message):
        getattr(bisect_trt, name)(chain(here / "model.onnx"), **options)
    assert [path.name for path in (here / "mine").iterdir()] == ["file"]


def test_a_model_that_is_not_there_leaves_no_run(here: Path) -> None:
    with pytest.raises(bisect_trt.UnavailableError, match="no such file"):
        bisect_trt.compare("nothing.onnx")
    assert not [*here.glob(".bisect-trt/*nothing*")]


def test_one_text_is_one_value(here: Path) -> None:
    model = overflowing(here / "model.onnx")
    assert (
        len(bisect_trt.compare(model, onnx_outputs="mark all", save_outputs="y.npz").comparisons)
        == 8
    )
    assert [c.name for c in bisect_trt.compare(model, onnx_outputs="big_out").comparisons] == [
        "big_out"
    ]
    assert bisect_trt.compare(model, onnx_outputs="mark all", load_outputs="y.npz").proven


KILLED = """
import os, signal, pathlib
import bisect_trt
from support import node_names

def wrong(path):
    calls = pathlib.Path("calls")
    made = len(calls.read_text()) if calls.exists() else 0
    calls.write_text("x" * (made + 1))
    if made == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return "<9>" in node_names(path)

def go(**options):
    return bisect_trt.reduce("model.onnx", wrong, run="here", **options)
"""


@pytest.mark.any_version
def test_a_call_that_was_killed_goes_on(
    here: Path, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain(here / "model.onnx", 20)
    (here / "killed.py").write_text(KILLED)
    folders = [str(here), str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-c", "import killed; killed.go()"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    monkeypatch.syspath_prepend(here)
    killed = import_module("killed")
    result = killed.go(workers=1)  # what a verdict is about did not change
    assert [culprit.name for culprit in result.culprits] == ["<9>"]
    assert result.proven
    calls = len(Path("calls").read_text())
    probes = read_json(here / "here" / "result.json")["report"]["probes"]
    assert (
        calls == sum(probe["runs"] for probe in probes) + 1
    )  # the one that was killed was asked again, no other
    assert killed.go().culprits == result.culprits
    assert len(Path("calls").read_text()) == calls
    with pytest.raises(UsageError, match=r"options changed"):
        killed.go(mode="linear")
    with pytest.raises(UsageError, match="check changed"):
        bisect_trt.reduce("model.onnx", says_verdict, run="here")
    (read_back,) = (
        probe["number"] for probe in probes if probe["title"] == "the result, read back"
    )
    assert f"{read_back:>4} FAIL" in cli("log", "here").out
    cli("resume", "here").refused("BT2006", "run='here'")


def test_a_model_too_large_for_one_message(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = onnx.load(str(chain(here / "model.onnx")))
    monkeypatch.setattr(source, "_PROTO_LIMIT_BYTES", 10)
    with pytest.raises(bisect_trt.UsageError, match="larger than 2 GiB"):
        bisect_trt.compare(model)


def test_assert_matches(here: Path) -> None:
    bisect_trt.assert_matches(chain(here / "right.onnx"))
    with pytest.raises(AssertionError, match=r"1 of 1 outputs do not match") as failure:
        bisect_trt.assert_matches(overflowing(here / "model.onnx"), fp16=True, reproducer="bug")
    assert "'b2_out'" in str(failure.value)
    assert all(f"\n{row} " in str(failure.value) for row in ("Fails", "Nodes", "Why", "Wrote"))
    assert "Wrote    bug/" in str(failure.value)
    reproduced("bug")


def test_values_stand_behind_the_model(here: Path) -> None:
    model = overflowing(here / "model.onnx")
    small, large = ({"x": np.full((2, 3), value, np.float32)} for value in (-2.9, 3.0))
    np.savez(here / "small.npz", x=small["x"])
    assert bisect_trt.compare(model, large, "onnxrt", fp16=True).status == "not_reproduced"
    for values in (small, here / "small.npz", "small.npz"):
        assert bisect_trt.compare(model, values, fp16=True).status == "found"
    assert not bisect_trt.sweep(model, small, "onnxrt", shapes="x:[{2,3},3]", fp16=True).proven


def test_a_function_says_at_which_sizes_it_fails(here: Path) -> None:
    model = onnx.load(overflowing(here / "model.onnx"))
    found = bisect_trt.sweep(
        model, shapes="x:[{1,2,5},3]", check=lambda _, inputs: len(inputs["x"]) > 1
    )
    assert found.sweep is not None
    assert found.sweep.dimensions[0].fail == (2, 5)
    assert (found.sweep.command or "").startswith("bisect_trt.reduce(")


def test_a_script_that_imports_a_kernel_is_no_notebook(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing is displayed on its standard output."""
    import_module("ipykernel")
    import_module("IPython")
    assert not in_notebook()
    overflowing(here / "model.onnx")
    bisect_trt.compare(here / "model.onnx", target="onnxrt", fp16=True)
    assert capfd.readouterr().out == ""
