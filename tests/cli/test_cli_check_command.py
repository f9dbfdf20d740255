"""How a check command is run: where the candidate is, in which folder, with which environment, without a shell."""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from support import (
    QUICK_MODEL,
    arrays,
    assert_gone,
    chain,
    has,
    model_of,
    node_names,
    pids,
    read_json,
    script,
)

from bisect_trt.worker import process

pytestmark = pytest.mark.any_version
VARIABLES = ("MODEL", "INPUTS", "GOLDEN", "DIR")
WORDS = (
    *("$HOME", "*", ";", ">", "out put", "`id`", "&&"),
    *("-o", "x.onnx", "--onnxrt", "--json", "--unknown", "--check", "reduce", "-", "--", "--help"),
    *(
        "{other}",
        "{}",
        "{1}",
        "{a,b}",
        "${modle}",
        "{print $1}",
        "{ modle = 1 }",
        "{next}",
        "{exit}",
        "{print}",
    ),
)
"""What a shell, bisect-trt's own parser, or a replacement of placeholders would change."""


@pytest.fixture
def model(here: Path) -> Path:
    return chain(here / "model.onnx", 4)


def test_placeholders_and_environment_are_the_same_files(cli: CommandLine, model: Path) -> None:
    names = " ".join(f'"$BISECT_TRT_{name}"' for name in VARIABLES)
    check = script(
        Path("check"), f"printf '%s\\n' \"$@\" {names} -- >> seen; {has('<2>')} && exit 1; exit 0"
    )
    options = ["-o", "out.onnx", "--workers", "1"]  # some shells write each line by itself
    words = ["{model}", "--in={inputs},{golden}", "{dir}"]
    assert cli("reduce", model, *options, "--check", f"./{check}", *words).status == 0
    runs = [run.splitlines() for run in Path("seen").read_text().removesuffix("--\n").split("--\n")]
    assert len(runs) > 2
    for candidate, both, folder, *environment in runs:
        inputs, golden = both.removeprefix("--in=").split(",")
        assert environment == [candidate, inputs, golden, folder]
        assert all(Path(path).is_absolute() and Path(path).exists() for path in environment)


def test_inputs_and_golden_are_what_the_network_has_there(cli: CommandLine, model: Path) -> None:
    keep = 'cp "$1" "$2" "$3" "$(mktemp -d kept/XXXXXX)"'
    check = script(Path("check"), f"{keep}; {has('<2>')} && exit 1; exit 0")
    Path("kept").mkdir()
    options = [
        "-o",
        "out.onnx",
        "--no-shrink",
        "--workers",
        "1",
    ]  # no copy is cut short because it is moot
    cli(
        "reduce", model, *options, "--check", f"./{check}", "{model}", "{inputs}", "{golden}"
    ).ended(0)
    folders = list(Path("kept").iterdir())
    assert len(folders) > 2
    given = next(
        values["x"] for values in map(arrays, Path("kept").rglob("inputs.npz")) if "x" in values
    )
    for folder in folders:
        graph = onnx.load(str(next(folder.glob("*.onnx")))).graph
        inputs = arrays(folder / "inputs.npz")
        golden = arrays(folder / "golden.npz")
        assert set(inputs) == {value.name for value in graph.input}
        assert set(golden) == {value.name for value in graph.output}
        # Each node of the chain adds 1, so every tensor is the graph's input and its place.
        for values in (inputs, golden):
            for name in values:
                place = -1 if name == "x" else int(name[1:])
                np.testing.assert_allclose(values[name], given + place + 1, rtol=1e-6)


@pytest.mark.parametrize("quoted", [True, False])
def test_all_words_after_check_reach_it_as_they_are(
    cli: CommandLine, here: Path, monkeypatch: pytest.MonkeyPatch, model: Path, quoted: bool
) -> None:
    """It is found on PATH, runs in the user's folder, and its input is empty: it takes nothing of what a user types."""
    (here / "a bin").mkdir()
    body = f'pwd >> folders; test -z "$(cat)" || exit 125; printf "%s|" "$@" >> seen; {has("<2>")} && exit 1; exit 0'
    script(here / "a bin" / "in-path", body)
    monkeypatch.setenv("PATH", f"{here / 'a bin'}{os.pathsep}{os.environ['PATH']}")
    words = ["in-path", "{model}", *WORDS]
    options = ["-o", "out.onnx", "--workers", "1"]
    assert (
        cli(
            "reduce", model, *options, "--check", *([shlex.join(words)] if quoted else words)
        ).status
        == 0
    )
    path, *seen = Path("seen").read_text().split("|")[: len(WORDS) + 1]
    assert path.endswith(".onnx")
    assert seen == [*WORDS]
    assert set(Path("folders").read_text().splitlines()) == {str(here)}
    assert node_names(Path("out.onnx")) == ["<2>"]


@pytest.mark.parametrize(
    "fixed", ["bisect_trt_debug.onnx", "sub/mine.onnx", "polygraphy_debug.onnx"]
)
def test_fixed_path(cli: CommandLine, model: Path, fixed: str) -> None:
    """The default, another one, which wins over a placeholder, and Polygraphy's.

    What an interrupted run left there is ours.
    """
    path = Path(fixed)
    path.parent.mkdir(exist_ok=True)
    note = f'echo "$BISECT_TRT_MODEL" >> seen; cp -n {fixed} left 2>/dev/null || test -f {fixed} || exit 125'
    check = script(Path("check"), f"{note}; {has('<2>', model=fixed)} && exit 1; exit 0")
    options = ["--candidate", fixed] if path.name == "mine.onnx" else []
    words = [f"./{check}", *([fixed] if "polygraphy" in fixed else ["{model}"] if options else [])]
    for again in (False, True):
        cli(
            "reduce",
            model,
            "-o",
            f"out{again}.onnx",
            "--json",
            "r.json",
            *options,
            "--check",
            *words,
        ).ended(0)
        assert read_json(Path("r.json"))["probes"]["unresolved"] == 0
        assert node_names(Path(f"out{again}.onnx")) == ["<2>"]
        assert set(Path("seen").read_text().split()) == {str(path.absolute())}
        assert not path.exists()
        Path("left").rename(path)


@pytest.mark.parametrize("content", ["not a model", "model", "folder"])
def test_never_over_a_foreign_file(cli: CommandLine, model: Path, content: str) -> None:
    fixed = Path("bisect_trt_debug.onnx")
    if content == "folder":
        fixed.mkdir()
    else:
        fixed.write_bytes(model.read_bytes() if content == "model" else content.encode())
    before = None if fixed.is_dir() else fixed.read_bytes()
    ran = cli(
        "reduce",
        model,
        "-o",
        "out.onnx",
        "--check",
        f"./{script(Path('check'), 'touch ran; exit 1')}",
    )
    ran.refused("BT1006", fixed.name, "--candidate")
    assert not Path("ran").exists()
    assert fixed.is_dir() if before is None else fixed.read_bytes() == before


@pytest.mark.parametrize("end", ["stop", "return"])
def test_nothing_that_a_check_started_outlives_it(
    cli: CommandLine, model: Path, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "GRACE_SECONDS", 0.5)
    # A grandchild in the background, one that ignores SIGTERM among them.
    grandchild = (
        "sh -c \"trap '' TERM; echo \\$\\$ >> pids; exec sleep 300\" &\nsleep 300 & echo $! >> pids"
    )
    ends = {"stop": "trap '' TERM; sleep 300", "return": "exit 1"}
    wait = "while test ! -s pids; do sleep 0.01; done"
    part = f"if ! {{ {has(*(f'<{place}>' for place in range(4)))}; }}; then exit 0; fi"
    check = script(Path("check"), f"{part}\n{grandchild}\n{wait}\n{ends[end]}")
    began = time.monotonic()
    cli(
        "reduce",
        model,
        "-o",
        "out.onnx",
        "--no-shrink",
        "--timeout",
        "1",
        "--check",
        f"./{check}",
        "{model}",
    ).ended(0)
    assert time.monotonic() - began < 200
    started = pids(Path())
    assert len(started) >= 2
    assert_gone(started)


def test_weights_beside_a_fixed_path_are_never_taken_for_ours(cli: CommandLine) -> None:
    """A candidate with external weights reads the file beside it, so that must be the model's and not somebody's."""
    model = Path("elsewhere/m.onnx")
    model.parent.mkdir()
    add = onnx.helper.make_node("Add", ["x", "weight"], ["y"])
    proto = model_of([add], {"weight": np.ones((2, 3), np.float32)})
    onnx.save(proto, str(model), save_as_external_data=True, location="w.bin", size_threshold=0)
    check = "./" + script(Path("check"), "exit 1")
    Path("w.bin").write_bytes(b"\0" * 24)
    cli("reduce", model, "-o", "r.onnx", "--check", check).refused("BT1006", "w.bin")
    assert Path("w.bin").read_bytes() == b"\0" * 24
    Path("w.bin").write_bytes(Path("elsewhere/w.bin").read_bytes())
    assert cli("reduce", model, "-o", "r.onnx", "--check", check).status == 3  # nothing passes
    assert Path("w.bin").exists()
    Path("w.bin").unlink()
    assert cli("reduce", model, "-o", "r.onnx", "--overwrite", "--check", check).status == 3
    assert not Path("w.bin").exists()


# From the options to the answer; ``tests/probe/test_command_check.py`` has each row of the table,
# ``tests/answers`` more.


def test_another_way_to_break_is_shown_once(cli: CommandLine) -> None:
    model = chain(Path("model.onnx"), 8)
    body = f"if {has('<1>', '<6>')}; then echo boom; else echo 'the other thing'; fi; exit 1"
    check = f"./{script(Path('check'), body)}"
    ran = cli(
        "reduce", model, "-o", "out.onnx", "--fail-regex", "boom", "--check", check, "{model}"
    ).ended(3)
    assert ran.out.count("UNRESOLVED") > 1
    assert ran.out.count("the other thing") == 1


def test_the_last_line_of_the_check_stands_beside_its_exit_status(
    cli: CommandLine, model: Path
) -> None:
    check = script(
        Path("check"), f"{has('<2>')} || exit 0; echo loaded; echo 'cosine 0.31'; exit 3"
    )
    end = cli("reduce", model, "-o", "out.onnx", "--check", f"./{check}", "{model}")
    assert "Fails    exit status 3\n         The check printed: cosine 0.31\n" in end.out


@pytest.mark.parametrize("repeat", [(), ("--repeat", "2")])
def test_a_check_that_passes_at_first_may_fail_only_sometimes(
    cli: CommandLine, here: Path, repeat: tuple[str, ...]
) -> None:
    chain(here / "model.onnx", 3)
    ran = cli("reduce", "model.onnx", "-o", "out.onnx", *repeat, "--check", "true").ended(1)
    assert ("add --repeat 20" in " ".join(ran.out.split())) is not bool(repeat)


def test_a_check_that_cannot_judge_a_part_proves_nothing(cli: CommandLine, here: Path) -> None:
    """It feeds the whole model's input, and a part has other ones."""
    chain(here / "model.onnx")
    (here / "check.py").write_text(
        f"{QUICK_MODEL}graph = model.graph\n"
        "if graph.input[0].name != 'x':\n"
        "    raise KeyError('x')\n"
        "if any(node.name == '<2>' for node in graph.node):\n"
        "    raise ValueError('of <2>')\n"
    )
    words = ["reduce", "model.onnx", "-o", "o.onnx", "--overwrite", "--json", "r.json"]
    check = ["--check", sys.executable, "check.py", "{model}"]
    ran = cli(*words, *check).ended(3)
    assert ran.result["minimality"] == "unproven"
    assert all(word in ran.result["why"] for word in ("ValueError", "KeyError", "--fail-regex"))


def test_another_exit_status_that_counts_as_the_failure_is_named(
    cli: CommandLine, here: Path
) -> None:
    """Any status but 0 fails: the answer may be a node that ends in another way than the whole model."""
    body = f"{has('<6>')} && exit 2; {has('<2>')} && exit 3; exit 0"
    check = ["--check", "./" + script(Path("check"), body), "{model}"]
    words = ["reduce", chain(here / "model.onnx", 8), "-o", "out.onnx", "--json", "r.json"]
    line = "Candidates that end with exit 3 count as failing too (see --fail-code)"
    ran = cli(*words, *check).ended(0)
    assert line in " ".join(ran.out.split())
    ran = cli(*words, "--overwrite", "--fail-code", "2", *check).ended(0)
    assert node_names(here / "out.onnx") == ["<6>"]
    assert "count as failing" not in ran.out


def test_the_answer_has_the_reason_why_nothing_passes(
    cli: CommandLine, here: Path, model: Path
) -> None:
    check = script(here / "check.sh", f"{has('<1>')} && exit 1\nexit 125")
    words = ("reduce", model, "-o", "r.onnx", "--json", "r.json", "--check", check, "{model}")
    assert cli(*words).ended(3).result["why"].endswith(": exit status 125: cannot be judged")
