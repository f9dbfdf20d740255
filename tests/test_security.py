"""What a stranger's files can do (docs/security.md): name things, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from hypothesis import given
from hypothesis import strategies as st
from support import line, model_of, overflowing

from bisect_trt.report.console import Console
from bisect_trt.worker import environments

HOSTILE = "\x1b[2J\x1b]0;owned\x07 \u202egnp.\u2066\r\nFirst mismatch: nothing.\n\t\x9b31m\u2028"
"""What clears a screen, names a window, turns text around, and pretends to be another line."""
SHADOWED = (
    "onnx",
    "numpy",
    "onnxruntime",
    "onnx_graphsurgeon",
    "rich",
    "json",
    "zipfile",
    "typing",
    "sitecustomize",
)


def named(name: str) -> onnx.ModelProto:
    """Overflows in fp16, in a node of a name."""
    return model_of(line([("Mul", "c", name), ("Sqrt", "", "end")]), {"c": 1e6})


def is_calm(text: str) -> bool:
    """Whether nothing in it moves a cursor or turns text around."""
    return all(line.isprintable() for line in text.split("\n"))


@pytest.mark.parametrize(
    "words",
    [
        (
            "diagnose",
            "model.onnx",
            "--onnxrt",
            "--fp16",
            "-v",
        ),  # has reduce, layerwise and precision in it
        ("run", "model.onnx", "--onnxrt", "--fp16", "-v"),
        ("inspect", "model.onnx", "--show", "layers", "attrs", "weights"),
        ("extract", "model.onnx", "-o", "piece.onnx", "--outputs", "nothing"),
    ],
    ids=lambda words: words[0],
)
def test_names_are_shown_and_do_nothing(cli: CommandLine, words: tuple[str, ...]) -> None:
    onnx.save(named(HOSTILE), "model.onnx")
    ran = cli(*words)
    assert is_calm(ran.out)
    assert is_calm(ran.err)
    assert "First mismatch: nothing." not in [
        line.strip() for line in (ran.out + ran.err).splitlines()
    ]
    if words[0] not in ("run", "extract"):  # they name the ends alone
        assert "\\x1b[2J" in ran.out + ran.err
    for page in Path.cwd().rglob("*.md"):
        assert is_calm(page.read_text(encoding="utf-8")), page


@given(st.text())
def test_whatever_is_said_is_one_line(text: str) -> None:
    class Wire(Console):
        def note(self, text: str) -> None:
            assert text.isprintable()

    console = Wire(-2)
    console.step(text)
    console.say(text)


def shadow(folder: Path, modules: tuple[str, ...] = SHADOWED) -> Path:
    """Leave modules of these names in a folder; the file that they would make."""
    folder.mkdir(exist_ok=True)
    for module in modules:
        (folder / f"{module}.py").write_text(
            f"open({str(folder / 'canary')!r}, 'w').close()\nraise SystemExit('imported')\n"
        )
    return folder / "canary"


DIAGNOSE = ("diagnose", "model.onnx", "--onnxrt", "--fp16", "-o", "reproducer", "--overwrite")


@pytest.mark.parametrize("words", [DIAGNOSE, ("doctor",)])
def test_nothing_in_the_folder_one_works_in_is_imported(words: tuple[str, ...], here: Path) -> None:
    """Nor in that of the reproducer, whose script is tried."""
    overflowing(here / "model.onnx")
    shadow(here)
    beside = shadow(here / "reproducer")
    command = [str(Path(sys.executable).with_name("bisect-trt")), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=here)
    assert not (here / "canary").exists()
    assert not beside.exists()
    assert done.returncode == 0, done.stdout + done.stderr


def test_nor_by_what_asks_a_package_index(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And an index that the folder names is not asked."""
    canary = shadow(here, ("pip", "venv", "ensurepip"))
    (here / "uv.toml").write_text('[pip]\nfind-links = ["https://127.0.0.1:9/"]\n')
    (here / "wheels").mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(here / "wheels"))
    assert environments.releases("bisect-trt-has-no-such-dependency") == []
    assert environments.find_python(f"{sys.version_info[0]}.{sys.version_info[1]}")
    words = [
        "pip",
        "install",
        "--dry-run",
        "--python",
        sys.executable,
        "bisect-trt-has-no-such-dependency",
    ]
    status, said = environments.run_tool([environments.uv(), *words])
    assert status != 0
    assert "127.0.0.1" not in said
    assert not canary.exists()


def test_nothing_is_written_through_a_link(cli: CommandLine, here: Path) -> None:
    overflowing(here / "model.onnx")
    (here / "precious").write_text("mine")
    (here / "reproducer").mkdir()
    for link in ("reproduce.py", "files"):
        path = here / "reproducer" / link
        path.symlink_to(here / "precious")
        cli(*DIAGNOSE).refused("BT1006", str(Path("reproducer", link)))
        assert (here / "precious").read_text() == "mine"
        path.unlink()


def test_values_are_never_unpickled(cli: CommandLine, here: Path) -> None:
    class Canary:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(here / "canary"),)

    overflowing(Path("model.onnx"))
    np.savez("values.npz", x=np.array([Canary()], dtype=object))
    for option in ("--load-inputs", "--load-outputs"):
        ran = cli("run", "model.onnx", "--onnxrt", option, "values.npz")
        assert ran.status in (2, 4), ran.err
    assert cli("inspect", "data", "values.npz").status in (2, 4)
    assert not (here / "canary").exists()
