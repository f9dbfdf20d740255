"""No file is lost: what is written is compared with what is read before anything runs, and only a run's files are replaced."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from onnx import helper, numpy_helper
from support import SHAPE, TARGET, chain, has, model_of, node_names, overflowing, read_json, script

import bisect_trt
from bisect_trt.commands.table import COMMANDS
from bisect_trt.errors import SameFileError, UsageError
from bisect_trt.options.spec import entries
from bisect_trt.session.paths import Paths

pytestmark = pytest.mark.any_version
CHECK = ("--check", "./check", "{model}")


@pytest.fixture
def files(here: Path) -> dict[Path, bytes]:
    """The content of the files that command lines below name."""
    overflowing(Path("m.onnx"))
    Path("sub").mkdir()
    weight = numpy_helper.from_array(np.ones(SHAPE, np.float32), "w")
    onnx.save(
        model_of([helper.make_node("Add", ["x", "w"], ["y"])], {"w": weight}), "sub/outside.onnx"
    )
    model = onnx.load("sub/outside.onnx")
    onnx.save(
        model,
        "sub/outside.onnx",
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    np.savez("in.npz", x=np.ones(SHAPE, np.float32))
    np.savez("two-1.npz", x=np.ones(SHAPE, np.float32))
    np.savez("two-2.npz", x=np.zeros(SHAPE, np.float32))
    script(Path("check"), "grep -qa big_out $1 && exit 1; exit 0")
    Path("m-reproducer").mkdir()
    Path("loader.py").write_text(
        "import numpy as np\ndef load_data():\n    yield {'x': np.ones((2, 3), np.float32)}\n"
    )
    Path("link.onnx").symlink_to("m.onnx")
    os.link("in.npz", "hard.npz")
    return {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}


RUN = ("run", "m.onnx", "--onnxrt")
FED = (*RUN, "--load-inputs", "in.npz")
REDUCE = ("reduce", "m.onnx", "--overwrite", "-o")
CLASHES = [
    (*RUN, "--json", "m.onnx"),
    (*RUN, "--json", "sub/../link.onnx"),
    (*RUN, "--junit", "m.onnx"),
    (*RUN, "--report", "./m.onnx"),
    (*RUN, "--save-onnx", "m.onnx"),
    (*RUN, "--json", "m.onnx", "--atol", "none"),
    (*FED, "--save-inputs", "in.npz"),
    (*FED, "--save-outputs", "hard.npz"),
    (*RUN, "--load-inputs", "two.npz", "--save-outputs", "two.npz"),
    (*RUN, "--data-loader-script", "loader.py:load_data", "--json", "loader.py"),
    (*RUN, "--save-inputs", "new.npz", "--save-outputs", "sub/../new.npz"),
    (*RUN, "--save-onnx", "new.onnx", "--report", "new.onnx.data"),
    ("run", "sub/outside.onnx", "--onnxrt", "--json", "sub/weights.bin"),
    ("run", "--load-outputs", "in.npz", "two-1.npz", "--json", "two-1.npz"),
    (*REDUCE, "new.onnx", "--json", "new.onnx", *CHECK),
    (*REDUCE, "new.onnx", "--json", "new.inputs.npz", *CHECK),
    (*REDUCE, "new.onnx", "--min-good", "new.onnx", *CHECK),
    (*REDUCE, "new.onnx", "--candidate", "new.onnx", *CHECK),
    (*REDUCE, "m.onnx", *CHECK),
    (*REDUCE, "m.onnx", "--json", "in.npz", "--load-inputs", "in.npz", *CHECK),
    (*REDUCE, "check", *CHECK),
    (*REDUCE, "new.onnx", "--report", "check", *CHECK),
    ("diagnose", "m.onnx", *TARGET, "-o", ".", "--json", "model.onnx", "--overwrite"),
    ("diagnose", "m.onnx", *TARGET, "--json", "m-reproducer/README.md"),
    ("workaround", "m.onnx", *TARGET, "-o", "new.onnx", "--json", "new-mixed.onnx"),
    ("sanitize", "m.onnx", "-o", "link.onnx", "--overwrite"),
    ("convert", "m.onnx", "-o", "m.onnx", "--fp16", "--overwrite"),
    ("extract", "m.onnx", "-o", "m.onnx", "--overwrite"),
    ("inspect", "m.onnx", "--json", "m.onnx"),
    ("precision", "m.onnx", "-o", "m.onnx", *TARGET, "--overwrite"),
]


@pytest.mark.parametrize("folder", [".", "..", "/", "sub/"])
@pytest.mark.parametrize("words", [(*RUN, "--save-onnx"), ("extract", "m.onnx", "-o")])
def test_a_folder_in_the_place_of_a_model_is_refused(
    cli: CommandLine, files: dict[Path, bytes], words: tuple[str, ...], folder: str
) -> None:
    cli(*words, folder).refused("BT1006", "file")
    assert {path: path.read_bytes() for path in files} == files


@pytest.mark.parametrize("words", CLASHES, ids=" ".join)
def test_a_file_in_two_roles_is_refused(
    cli: CommandLine, files: dict[Path, bytes], words: tuple[str, ...]
) -> None:
    before = {*Path().rglob("*")}
    cli(*words).refused("BT1012", "name another file")
    assert {path: path.read_bytes() for path in files} == files
    assert {*Path().rglob("*")} - before - {Path(".bisect-trt")} == set()


def test_the_refusal_is_in_the_result_if_that_is_a_file_of_its_own(
    cli: CommandLine, files: dict[Path, bytes]
) -> None:
    ran = cli(*REDUCE, "m.onnx", "--json", "r.json", *CHECK).refused("BT1012")
    assert ran.result["error"]["code"] == "BT1012"
    assert {path: path.read_bytes() for path in files} == files


def test_the_folder_of_the_model_as_reproducer(cli: CommandLine, files: dict[Path, bytes]) -> None:
    shutil.copy("m.onnx", "model.onnx")
    content = Path("model.onnx").read_bytes()
    cli("diagnose", "model.onnx", *TARGET, "-o", ".", "--overwrite").refused("BT1012", "model.onnx")
    assert Path("model.onnx").read_bytes() == content
    assert not Path("README.md").exists()
    assert files


def test_files_in_one_role_are_no_clash(cli: CommandLine, files: dict[Path, bytes]) -> None:
    streams = ("--json", "/dev/null", "--report", "/dev/null", "--junit", "/dev/null")
    cli(*FED, "--load-inputs", "in.npz", "hard.npz", *streams).ended(0)
    for _ in range(2):  # the second time the files exist
        cli(*RUN, "--json", "r.json", "--save-outputs", "out.npz", "--report", "r.html").ended(0)
    cli(*REDUCE, "new.onnx", "--candidate", "c.onnx", "--check", "./check", "c.onnx").ended(0)
    assert {path: path.read_bytes() for path in files} == files


def test_python_calls_are_held_to_the_same(files: dict[Path, bytes]) -> None:
    with pytest.raises(SameFileError):
        bisect_trt.reduce("m.onnx", lambda _: True, output="m.onnx", overwrite=True)
    with pytest.raises(SameFileError):
        bisect_trt.samples(
            "m.onnx", lambda _: True, inputs="in.npz", output="in.npz", overwrite=True
        )
    assert {path: path.read_bytes() for path in files} == files
    assert not Path(".bisect-trt").exists()


def test_a_cache_may_be_read_and_written(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.write_bytes(b"timings")
    groups = COMMANDS["run"].groups
    Paths.of(groups, {"load_timing_cache": str(cache), "save_timing_cache": str(cache)}).refuse()
    with pytest.raises(SameFileError):
        Paths.of(groups, {"model": str(cache), "save_timing_cache": str(cache)}).refuse()


def test_every_option_that_names_a_file_is_compared() -> None:
    """A new option is held to this: a name that says "write" declares that it does."""
    groups = {group for command in COMMANDS.values() for group in command.groups}
    options = [entry for group in groups for entry in entries(group) if entry.names_file]
    words = ("save_", "output", "json", "report", "junit")
    assert [
        entry.name for entry in options if entry.name.startswith(words) and not entry.writes
    ] == []
    assert len([entry for entry in options if entry.writes]) >= 12


@pytest.mark.parametrize("name", ["poetry.lock", "poetry.new"])
def test_files_beside_the_candidate_stay(
    cli: CommandLine, files: dict[Path, bytes], name: str
) -> None:
    Path(name).write_text("mine")
    cli(*REDUCE, "new.onnx", "--candidate", "poetry", "--check", "./check", "poetry").ended(0)
    assert Path(name).read_text() == "mine"
    assert not Path("poetry").exists()
    assert {path: path.read_bytes() for path in files} == files
    assert [path.name for path in Path().iterdir() if path.name.startswith(".poetry")] == []


@pytest.fixture
def proven(cli: CommandLine, here: Path) -> Path:
    """The folder of a run with a proven answer."""
    chain(here / "chain.onnx", 6)
    script(Path("check"), f"{has('<3>')} && exit 1; exit 0")
    general = ("--json", "r.json", "--junit", "r.xml", "--report", "r.html")
    cli("reduce", "chain.onnx", "-o", "out.onnx", *general, *CHECK).ended(0)
    (run,) = Path(".bisect-trt").iterdir()
    return run


def kept(run: Path) -> dict[Path, bytes]:
    paths = [
        *(run / name for name in ("result.json", "report.html")),
        *map(Path, ("r.json", "r.xml", "r.html")),
    ]
    return {path: path.read_bytes() for path in paths}


@pytest.mark.parametrize("way", ["model", "check", "version", "disk"])
def test_a_refused_resume_keeps_the_answer(cli: CommandLine, proven: Path, way: str) -> None:
    before = kept(proven)
    assert read_json(Path("r.json"))["minimality"] == "1-minimal"
    if way == "model":
        model = onnx.load("chain.onnx")
        model.doc_string = "another"
        onnx.save(model, "chain.onnx")
    elif way == "check":
        Path("check").unlink()
    elif way == "version":
        binding = proven / "run.json"
        binding.write_text(binding.read_text().replace('"version": "', '"version": "0.'))
    else:
        Path("out.onnx").unlink()
        Path("out.onnx").mkdir()
    assert cli("resume", proven).status not in (0, 1, 3)
    assert kept(proven) == before


def test_a_refused_call_keeps_the_answer(here: Path) -> None:
    chain(here / "chain.onnx", 6)

    def wrong(path: str) -> bool:
        return "<3>" in node_names(Path(path))

    bisect_trt.reduce("chain.onnx", wrong, run="mine")
    before = Path("mine/result.json").read_bytes()
    chain(here / "chain.onnx", 7)
    with pytest.raises(UsageError):
        bisect_trt.reduce("chain.onnx", wrong, run="mine")
    assert Path("mine/result.json").read_bytes() == before


@pytest.mark.parametrize("name", ["out.onnx", "out.inputs.npz", "out.golden.npz"])
def test_resume_replaces_only_what_the_run_wrote(cli: CommandLine, proven: Path, name: str) -> None:
    cli("resume", proven).ended(0)
    before = kept(proven)
    Path(name).write_bytes(b"somebody's")
    cli("resume", proven).refused("BT1006", f"{name} exists")
    assert Path(name).read_bytes() == b"somebody's"
    assert kept(proven) == before
    Path(name).unlink()
    cli("resume", proven).ended(0)
    assert node_names(Path("out.onnx")) == ["<3>"]


def test_resume_replaces_only_its_reproducer(cli: CommandLine, here: Path) -> None:
    overflowing(here / "m.onnx")
    cli("diagnose", "m.onnx", *TARGET, "-o", "shown").ended(0)
    (run,) = Path(".bisect-trt").iterdir()
    cli("resume", run).ended(0)
    shutil.rmtree("shown")
    Path("shown").mkdir()
    Path("shown/model.onnx").write_bytes(b"somebody's")
    cli("resume", run).refused("BT1006", "shown exists")
    assert Path("shown/model.onnx").read_bytes() == b"somebody's"


def test_files_of_more_failures_are_looked_at_too(
    cli: CommandLine, files: dict[Path, bytes]
) -> None:
    Path("new-2.onnx").write_bytes(b"mine")
    cli("reduce", "m.onnx", "-o", "new.onnx", "--all", *CHECK).refused(
        "BT1006", "new-2.onnx exists"
    )
    Path("shown-3").mkdir()
    Path("shown-3/notes").write_text("mine")
    cli("diagnose", "m.onnx", *TARGET, "-o", "shown", "--all").refused("BT1006", "shown-3 exists")
    assert {path: path.read_bytes() for path in files} == files


def test_the_default_path_of_candidates_is_no_output(
    cli: CommandLine, files: dict[Path, bytes]
) -> None:
    check = ("--check", "./check", "bisect_trt_debug.onnx")
    cli(*REDUCE, "bisect_trt_debug.onnx", *check).refused("BT1012", "--candidate")
    assert cli(*REDUCE, "new.onnx", *check).status == 0
    assert {path: path.read_bytes() for path in files} == files
