"""``reproduce.py``: whatever the names in a model are, they are data; and it fails for its own failure alone."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from onnx import helper
from support import case_of, examples, model_of

from bisect_trt.report.parts import CauseDetail, Switches
from bisect_trt.report.reproducer import ISSUE, README, Reproducer, render_script
from bisect_trt.report.text import code, prose
from bisect_trt.targets.base import Script, TargetSettings
from bisect_trt.targets.messages import BuildError, names_of
from bisect_trt.targets.runtime import Runtime
from bisect_trt.tensors.comparison import ComparisonKind, TensorComparison

PIECES = [
    "@REFUSAL@", "@RUN@", "{model}", "%s", '"', "'", '"""', "\\", "\n", "\r", "\u2028", "`", "```", "|", "<b>", "</script>",
    "&", "*", "_", "#", "../", "/", ":", "$(x)", "\x1b[31m", "\u202e", "\x00", "é", "漢", "😀", "\udc80", "-", "1. ", " ",
    "[x](y)",
]  # fmt: skip
names = (
    st.lists(st.sampled_from(PIECES) | st.text(max_size=3), min_size=1, max_size=6)
    .map("".join)
    .filter(str.strip)
)
HINTS: dict[str, Any] = {"inputs": [], "outputs": [], "lowered": False, "nodes": []}


def rendered(runtime: str, name: str, failure: str = "build: no kernel") -> str:
    settings = TargetSettings(runtime, fp16=True, keep=(name,), held=True)
    how = settings.target.script(settings, {**HINTS, "nodes": [[name, [name, "out"]]]})
    seen = [TensorComparison(name, False, ComparisonKind.MISMATCH, atol=1e-3, rtol=float("inf"))]
    return render_script(
        how, seen, case_of(f"{failure} {name}", names=[name], answer=name, target=name)
    )


def shape_of(source: str) -> str:
    """The syntax tree but for its texts; dictionaries are sorted by none of them."""
    tree = ast.parse(source, feature_version=(3, 8))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return ast.dump(tree)


@cache
def plain_shape(runtime: str) -> str:
    return shape_of(rendered(runtime, "plain"))


@settings(max_examples=examples(40))  # of thousands of lines each
@given(names, st.sampled_from(["onnxrt", "trt", "onnx"]))
def test_names_are_never_code(name: str, runtime: str) -> None:
    source = rendered(runtime, name)
    assert shape_of(source) == plain_shape(runtime)
    compile(source, "reproduce.py", "exec")
    source.encode()
    assert source.replace("\n", "").isprintable()


def markdown(name: str) -> list[str]:
    model = model_of([helper.make_node("Neg", ["x"], ["y"])])
    node = model.graph.node[0]
    text = name.encode("utf-8", "replace").decode()
    node.name = node.op_type = node.input[0] = node.output[0] = text
    seen = [
        TensorComparison(name, False, ComparisonKind.SHAPE, reference_shape=(1,), target_shape=(2,))
    ]
    entry = Switches((name,), name, whole=True, case=False, seen=name, options=(name,), larger=name)
    cause = CauseDetail(name, "", 1, 1, (entry,), complete=True, doubted=())
    about: dict[str, Any] = {"fault": name, "cause": cause}
    here = TargetSettings()
    wrong = Reproducer(model, None, False, {}, {}, seen, name, here, "Found.", "shape", **about)
    refused = Reproducer(
        model, None, False, {}, {}, [], name, here, "Found.", "build: x", name, is_bug=False
    )
    parser = MarkdownIt("gfm-like", {"linkify": False})
    tokens = [
        token
        for case in (wrong, refused)
        for file in (ISSUE, README)
        for token in parser.parse(case.render(file))
    ]
    return [f"{token.type} {[child.type for child in token.children or ()]}" for token in tokens]


@given(names)
def test_names_are_never_markup(name: str) -> None:
    assert markdown(name) == markdown("plain")


@given(names)
def test_markdown_shows_what_it_is_given(name: str) -> None:
    text = f"x{name}x"
    (token,) = [t for t in MarkdownIt().parse(f"{code(text)}") if t.type == "inline"]
    assert token.children is not None
    shown = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
    assert [child.content for child in token.children] == [shown]
    (token,) = [t for t in MarkdownIt().parse(prose(text)) if t.type == "inline"]
    assert token.children is not None
    assert "".join(child.content for child in token.children) == shown


def doubled(folder: Path, node: onnx.NodeProto | None = None, *, weight: float = 2.0) -> None:
    """A model ``y = 2 x`` with what it should give for ``x = 3``, which is 6."""
    node = node or helper.make_node("Mul", ["x", "w"], ["y"], name="twice")
    model = model_of(
        [node], {"w": [weight]} if "w" in node.input else {}, inputs={"x": [1]}, outputs={"y": [1]}
    )
    model.opset_import.append(helper.make_opsetid("nobody", 1))
    onnx.save(model, str(folder / "model.onnx"))
    np.savez(folder / "inputs.npz", x=np.full(1, 3, np.float32))
    np.savez(folder / "golden.npz", y=np.full(1, 6, np.float32))


def reproduce(
    folder: Path, failure: str, *, runtime: str = "onnxrt", timeout: float | None = None
) -> tuple[int, str]:
    settings = TargetSettings(runtime)
    how = settings.target.script(settings, HINTS)
    seen = [TensorComparison("y", False, ComparisonKind.MISMATCH, atol=1e-3, rtol=1e-3)]
    case = case_of(
        failure,
        names=["x", "y"],
        timeout=timeout,
        answer="It\x1b[2J fails",
        target="Here\n",
        model="model.onnx",
    )
    source = render_script(how, seen, case)
    (folder / "reproduce.py").write_text(source, encoding="utf-8")
    command = [sys.executable, str(folder / "reproduce.py")]
    told = {**os.environ, "PYTHONPATH": str(folder / "installed")}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder.parent, env=told
    )
    assert "Traceback" not in done.stdout + done.stderr
    assert done.stdout.startswith("Here\\n: It\\x1b[2J fails\n")
    assert done.stdout.replace("\n", "").isprintable()  # no name and no message moves a cursor
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("weight", "failure", "status", "said"),
    [
        (2.5, "mismatch", 1, "MISMATCH y: [0] expected 6, got 7.5"),
        (2.0, "mismatch", 0, "match    y"),
        (2.0, "build: no kernel", 0, "match    y"),  # a refusal that is gone
        (2.5, "build: no kernel", 2, "is gone"),  # and is no wrong number
    ],
)
def test_a_failure_is_there_or_gone(
    tmp_path: Path, weight: float, failure: str, status: int, said: str
) -> None:
    doubled(tmp_path, weight=weight)
    for runtime in ("onnxrt", "onnx") if failure == "mismatch" else ("onnxrt",):
        found, out = reproduce(tmp_path, failure, runtime=runtime)
        assert (found, said in out) == (status, True)


def test_a_refusal_counts_by_its_signature(tmp_path: Path) -> None:
    doubled(tmp_path, helper.make_node("Nothing", ["x"], ["y"], domain="nobody"))
    with pytest.raises(BuildError) as refused:
        Runtime(TargetSettings()).load(tmp_path / "model.onnx")
    signature = refused.value.sign(names_of(onnx.load(str(tmp_path / "model.onnx")).graph))
    another = "inconclusive: that is another failure than the expected one"
    for failure, status, said in (
        (f"build: {signature}", 1, "REFUSED: "),
        ("build: out of memory", 2, another),
        ("mismatch", 2, another),
    ):
        found, out = reproduce(tmp_path, failure)
        assert (found, said in out) == (status, True)


@pytest.mark.parametrize(
    ("name", "content"), [("model.onnx", b"junk"), ("inputs.npz", None), ("golden.npz", b"junk")]
)
def test_a_file_that_cannot_be_read_is_no_failure(
    tmp_path: Path, name: str, content: bytes | None
) -> None:
    doubled(tmp_path, weight=2.5)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    status, out = reproduce(tmp_path, "mismatch")
    assert (status, "inconclusive: " in out) == (2, True)


CRASH = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)"


@pytest.mark.parametrize(
    ("source", "failure", "status", "said"),
    [
        (
            "raise ImportError('No module named onnxruntime')",
            "mismatch",
            2,
            "This needs onnxruntime and numpy.",
        ),
        (CRASH, "signal SIGSEGV", 1, "CRASHED"),
        (CRASH, "signal SIGABRT", 2, "inconclusive: "),
        (CRASH, "mismatch", 2, "inconclusive: "),
        ("import os\nos._exit(1)", "mismatch", 2, "inconclusive: "),
        ("raise KeyError('oops')", "run: KeyError", 1, "REFUSED: KeyError: 'oops'"),
        ("raise KeyError('oops')", "run: TypeError", 2, "inconclusive: KeyError"),
        (
            r"raise ValueError('\x1b[2J\nmatch')",
            "run: KeyError",
            2,
            r"inconclusive: ValueError: \x1b[2J\nmatch",
        ),
        ("import time\ntime.sleep(1000)", "time-out", 1, "TIME-OUT"),
    ],
)
def test_it_fails_for_its_own_failure_alone(
    tmp_path: Path, source: str, failure: str, status: int, said: str
) -> None:
    doubled(tmp_path)
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / "onnxruntime.py").write_text(source)  # in place of ONNX Runtime
    found, out = reproduce(tmp_path, failure, timeout=2 if failure == "time-out" else None)
    assert (found, said in out) == (status, True)


def test_a_runner_without_imports_is_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bare_runner.py").write_text("def make(settings):\n    return settings\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    script = render_script(Script("nothing", ("bare_runner",), {}), [], {})
    compile(script, "reproduce.py", "exec")
    assert "\ndef make(settings):" in script
