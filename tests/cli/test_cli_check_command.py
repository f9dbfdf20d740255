"""How a check command is run: where the candidate is, in which folder, with which environment, without a shell."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from support import arrays, assert_gone, chain, has, node_names, read_json, script

pytestmark = pytest.mark.any_version

VARIABLES = ("MODEL", "INPUTS", "GOLDEN", "DIR")


@pytest.fixture
def model(here: Path) -> Path:
    return chain(here / "model.onnx", 4)


def test_placeholders_and_environment_are_the_same_files(cli: CommandLine, model: Path) -> None:
    names = " ".join(f'"$BISECT_TRT_{name}"' for name in VARIABLES)
    check = script(Path("check"), f"printf '%s\\n' \"$@\" {names} -- >> seen; {has('<2>')} && exit 1; exit 0")
    words = ["{model}", "--in={inputs},{golden}", "{dir}", "{other}", "{}"]
    options = ["-o", "out.onnx", "--workers", "1"]  # some shells write each line by itself
    assert cli("reduce", model, *options, "--check", f"./{check}", *words).status == 0
    runs = [run.splitlines() for run in Path("seen").read_text().removesuffix("--\n").split("--\n")]
    assert len(runs) > 2
    for candidate, both, folder, other, empty, *environment in runs:
        assert (other, empty) == ("{other}", "{}")
        inputs, golden = both.removeprefix("--in=").split(",")
        assert environment == [candidate, inputs, golden, folder]
        assert all(Path(path).is_absolute() and Path(path).exists() for path in environment)


def test_inputs_and_golden_are_what_the_network_has_there(cli: CommandLine, model: Path) -> None:
    keep = 'cp "$1" "$2" "$3" "$(mktemp -d kept/XXXXXX)"'
    check = script(Path("check"), f"{keep}; {has('<2>')} && exit 1; exit 0")
    Path("kept").mkdir()
    options = ["-o", "out.onnx", "--no-shrink", "--workers", "1"]  # no copy is cut short because it is moot
    ran = cli("reduce", model, *options, "--check", f"./{check}", "{model}", "{inputs}", "{golden}")
    assert ran.status == 0
    folders = list(Path("kept").iterdir())
    assert len(folders) > 2
    given = next(values["x"] for values in map(arrays, Path("kept").rglob("inputs.npz")) if "x" in values)
    for folder in folders:
        graph = onnx.load(str(next(folder.glob("*.onnx")))).graph
        inputs, golden = arrays(folder / "inputs.npz"), arrays(folder / "golden.npz")
        assert set(inputs) == {value.name for value in graph.input}
        assert set(golden) == {value.name for value in graph.output}
        # Each node of the chain adds 1, so every tensor is the graph's input and its place.
        for values in (inputs, golden):
            for name in values:
                place = -1 if name == "x" else int(name[1:])
                np.testing.assert_allclose(values[name], given + place + 1, rtol=1e-6)


@pytest.mark.parametrize("quoted", [True, False])
def test_there_is_no_shell(cli: CommandLine, model: Path, quoted: bool) -> None:
    check = script(Path("a check"), f"printf '%s|' \"$@\" >> seen; {has('<2>')} && exit 1; exit 0")
    words = ["$HOME", "*", ";", ">", "out put", "`id`", "&&"]
    line = f"'./{check}' {{model}} {' '.join(repr(word) for word in words)}"
    argv = [line] if quoted else [f"./{check}", "{model}", *words]
    assert cli("reduce", model, "-o", "out.onnx", "--check", *argv).status == 0
    path, *seen = Path("seen").read_text().split("|")[: len(words) + 1]
    assert path.endswith(".onnx")
    assert seen == words


def test_all_that_follows_belongs_to_the_check(cli: CommandLine, model: Path) -> None:
    check = script(Path("check"), f"printf '%s|' \"$@\" >> seen; {has('<2>')} && exit 1; exit 0")
    words = ["-o", "x.onnx", "--onnxrt", "--json", "--unknown", "--check", "reduce", "-", "--", "--help"]
    assert cli("reduce", model, "-o", "out.onnx", "--check", f"./{check}", "{model}", *words).status == 0
    assert Path("seen").read_text().split("|")[1 : len(words) + 1] == words
    assert node_names(Path("out.onnx")) == ["<2>"]


def test_it_runs_where_the_user_is(cli: CommandLine, here: Path, monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    (here / "bin").mkdir()
    script(here / "bin" / "in-path", f"pwd >> seen; {has('<2>')} && exit 1; exit 0")
    monkeypatch.setenv("PATH", f"{here / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert cli("reduce", model, "-o", "out.onnx", "--check", "in-path", "{model}").status == 0
    assert set(Path("seen").read_text().split()) == {str(here)}


def test_its_input_is_empty(cli: CommandLine, model: Path) -> None:
    # A check that reads its input must not wait for, or take, what the user types.
    check = script(Path("check"), f'test -z "$(cat)" || exit 125; {has("<2>")} && exit 1; exit 0')
    assert cli("reduce", model, "-o", "out.onnx", "--check", f"./{check}", "{model}").status == 0


@pytest.mark.parametrize("named", [False, True])
def test_fixed_path(cli: CommandLine, model: Path, named: bool) -> None:
    fixed = Path("sub/mine.onnx") if named else Path("bisect_trt_debug.onnx")
    fixed.parent.mkdir(exist_ok=True)
    note = f'echo "$BISECT_TRT_MODEL" >> seen; test -f {fixed} || exit 125'
    check = script(Path("check"), f"{note}; {has('<2>', model=str(fixed))} && exit 1; exit 0")
    options = ["--candidate", fixed] if named else []
    ran = cli("reduce", model, "-o", "out.onnx", "--json", "r.json", *options, "--check", f"./{check}")
    assert ran.status == 0
    assert read_json(Path("r.json"))["probes"]["unresolved"] == 0
    assert node_names(Path("out.onnx")) == ["<2>"]
    assert set(Path("seen").read_text().split()) == {str(fixed.absolute())}
    assert not fixed.exists()


def test_candidate_wins_over_a_placeholder(cli: CommandLine, model: Path) -> None:
    check = script(Path("check"), f'test "$1" = "$PWD/mine.onnx" || exit 125; {has("<2>")} && exit 1; exit 0')
    ran = cli("reduce", model, "-o", "out.onnx", "--candidate", "mine.onnx", "--check", f"./{check}", "{model}")
    assert ran.status == 0
    assert node_names(Path("out.onnx")) == ["<2>"]
    assert not Path("mine.onnx").exists()


@pytest.mark.parametrize("content", ["not a model", "model", "folder"])
def test_never_over_a_foreign_file(cli: CommandLine, model: Path, content: str) -> None:
    fixed = Path("bisect_trt_debug.onnx")
    if content == "folder":
        fixed.mkdir()
    else:
        fixed.write_bytes(model.read_bytes() if content == "model" else content.encode())
    before = None if fixed.is_dir() else fixed.read_bytes()
    ran = cli("reduce", model, "-o", "out.onnx", "--check", f"./{script(Path('check'), 'touch ran; exit 1')}")
    assert ran.status == 2
    assert "bisect_trt_debug.onnx" in ran.error
    assert "--candidate" in ran.error
    assert not Path("ran").exists()
    assert fixed.is_dir() if before is None else fixed.read_bytes() == before


def test_what_an_interrupted_run_left_at_the_fixed_path_is_ours(cli: CommandLine, model: Path) -> None:
    fixed = Path("bisect_trt_debug.onnx")
    check = script(Path("check"), f"cp -n {fixed} left; {has('<2>', model=str(fixed))} && exit 1; exit 0")
    assert cli("reduce", model, "-o", "out.onnx", "--check", f"./{check}").status == 0
    Path("left").rename(fixed)
    assert cli("reduce", model, "-o", "again.onnx", "--check", f"./{check}").status == 0
    assert node_names(Path("again.onnx")) == ["<2>"]
    assert not fixed.exists()


@pytest.mark.parametrize("end", ["hang", "stop", "return"])
def test_nothing_that_a_check_started_outlives_it(cli: CommandLine, model: Path, end: str) -> None:
    # A grandchild in the background, one that ignores SIGTERM among them.
    grandchild = "sh -c \"trap '' TERM; echo \\$\\$ >> pids; exec sleep 300\" &\nsleep 300 & echo $! >> pids"
    ends = {"hang": "wait", "stop": "trap '' TERM; sleep 300", "return": "exit 1"}
    wait = "while test ! -s pids; do sleep 0.01; done"
    part = f"if ! {{ {has(*(f'<{place}>' for place in range(4)))}; }}; then exit 0; fi"
    check = script(Path("check"), f"{part}\n{grandchild}\n{wait}\n{ends[end]}")
    began = time.monotonic()
    ran = cli("reduce", model, "-o", "out.onnx", "--no-shrink", "--timeout", "1", "--check", f"./{check}", "{model}")
    assert ran.status == 0
    assert time.monotonic() - began < 200
    pids = [int(line) for line in Path("pids").read_text().split()]
    assert len(pids) >= 2
    assert_gone(pids)


def test_weights_beside_a_fixed_path_are_never_taken_for_ours(cli: CommandLine) -> None:
    """A candidate with external weights reads the file beside it, so that must be the model's and not somebody's."""
    model = Path("elsewhere/m.onnx")
    model.parent.mkdir()
    big = onnx.numpy_helper.from_array(np.ones((2, 3), np.float32), "weight")
    value = onnx.helper.make_tensor_value_info
    ends = [value("x", onnx.TensorProto.FLOAT, [2, 3])], [value("y", onnx.TensorProto.FLOAT, [2, 3])]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Add", ["x", "weight"], ["y"])], "graph", *ends, [big])
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(proto, str(model), save_as_external_data=True, location="w.bin", size_threshold=0)
    check = "./" + script(Path("check"), "exit 1")
    Path("w.bin").write_bytes(b"\0" * 24)
    refused = cli("reduce", model, "-o", "r.onnx", "--check", check)
    assert refused.status == 2
    assert "w.bin" in refused.error
    assert Path("w.bin").read_bytes() == b"\0" * 24
    Path("w.bin").write_bytes(Path("elsewhere/w.bin").read_bytes())
    assert cli("reduce", model, "-o", "r.onnx", "--check", check).status == 0
    assert Path("w.bin").exists()
    Path("w.bin").unlink()
    assert cli("reduce", model, "-o", "r.onnx", "--overwrite", "--check", check).status == 0
    assert not Path("w.bin").exists()


def test_braces_that_are_no_placeholder_stay(cli: CommandLine, model: Path) -> None:
    words = ["{other}", "{}", "{1}", "{a,b}", "${modle}", "{print $1}", "{ modle = 1 }", "{next}", "{exit}", "{print}"]
    check = script(
        Path("check"), f"shift; printf '%s|' \"$@\" > seen; {has('<2>', model='$BISECT_TRT_MODEL')}; exit $((!$?))"
    )
    options = ["-o", "out.onnx", "--no-shrink", "--workers", "1"]  # none is ended while it writes
    ran = cli("reduce", model, *options, "--check", f"./{check}", "{model}", *words)
    assert ran.status == 0
    assert Path("seen").read_text().split("|")[:-1] == words


SAID = "  the check printed: "
OTHERWISE = "if that is not your failure, describe your failure with --fail-regex or --fail-code"


def test_what_a_check_said_that_fails_by_its_exit_status_is_shown_once(cli: CommandLine, model: Path) -> None:
    ran = cli("reduce", model, "-o", "out.onnx", "--check", "python3", "nocheck.py", "{model}")
    said = [line for line in ran.out.splitlines() if line.startswith(SAID)]
    assert len(said) == 1
    assert "nocheck.py': [Errno 2] No such file or directory\"" in said[0]
    assert said[0].endswith(OTHERWISE)
    assert ran.out.index("probe 1 ") < ran.out.index(SAID) < ran.out.index("probe 2 ")


@pytest.mark.parametrize(
    ("body", "options"),
    [
        ("", []),
        ("echo 'it is wrong'", ["--fail-regex", "wrong"]),
        ("echo 'it is wrong'", ["--fail-code", "1"]),
    ],
)
def test_nothing_is_asked_where_it_is_plain(cli: CommandLine, model: Path, body: str, options: list[str]) -> None:
    check = script(Path("check"), f"{has('<2>')} || exit 0; {body or ':'}; exit 1")
    ran = cli("reduce", model, "-o", "out.onnx", *options, "--check", f"./{check}", "{model}")
    assert ran.status == 0
    assert SAID not in ran.out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--onnxrt", "--fp16"], "--onnxrt --fp16"),
        (["--onnxrt", "--providers", "cpu"], "--onnxrt --providers cpu"),
        ([], ""),
    ],
)
def test_a_target_beside_a_check_is_said_to_be_idle(
    cli: CommandLine, model: Path, options: list[str], said: str
) -> None:
    check = script(Path("check"), f"{has('<2>')} && exit 1; exit 0")
    line = ["-o", "out.onnx", "--no-shrink", "--json", "r.json", *options, "--check", f"./{check}", "{model}"]
    ran = cli("reduce", model, *line)
    assert ran.status == 0
    assert [text for text in ran.out.splitlines() if "has no effect" in text] == (
        [f"{said} has no effect beside --check"] if said else []
    )
    assert ran.out.find("has no effect") < ran.out.index("probe 1 ")


def test_a_check_that_was_written_for_polygraphy_finds_the_candidate(cli: CommandLine, here: Path) -> None:
    model = chain(here / "model.onnx", 4)
    check = script(here / "check", f"{has('<2>', model='polygraphy_debug.onnx')} && exit 1; exit 0")
    words = ("--json", "r.json", "--check", check, "polygraphy_debug.onnx")
    assert cli("reduce", model, "-o", "out.onnx", "--no-shrink", *words).status == 0
    assert node_names(here / "out.onnx") == ["<2>"]
    assert not (here / "polygraphy_debug.onnx").exists()
