"""Environments of packages are made once, whole or not at all, for an interpreter that the packages are for."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support import gone
from wheels import Index

from bisect_trt.errors import ExitStatus, UnavailableError, UsageError
from bisect_trt.worker.environments import (
    Environment,
    NoSuchRelease,
    find_python,
    folder,
    index_settings,
    interpreter,
    others,
    releases,
    uv,
)

OLDER = next((version for version in others() if version < f"3.{sys.version_info[1]}"), "")
MAKE = (
    "import sys; from bisect_trt.worker.environments import *; "
    "print(interpreter(Environment.parse(sys.argv[1]), lambda text: print('made', flush=True)))"
)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    """An index of a package with three releases, and no other."""
    found = Index(tmp_path / "index")
    for version in ("1.2", "1.10", "2.0rc1"):
        found.add("brittle", version, {"brittle.py": f"version = '{version}'\n"})
    found.tell(monkeypatch)
    return found


def said_by(python: Path, more: str = "numpy") -> str:
    done = subprocess.run(
        [python, "-c", f"import brittle, {more}; print(brittle.version)"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or done.stderr


@pytest.mark.usefixtures("index")
def test_it_is_made_once() -> None:
    told: list[str] = []
    python = interpreter(Environment.parse("brittle==1.2"), told.append)
    assert said_by(python) == "1.2"
    assert interpreter(Environment.parse("brittle == 1.2"), told.append) == python
    assert len(told) == 1
    assert "brittle==1.2 numpy" in told[0]
    with pytest.raises(NoSuchRelease, match="brittle==7") as raised:
        interpreter(Environment.parse("python=3 brittle==7"), told.append)
    assert raised.value.status is ExitStatus.UNAVAILABLE
    assert len(told) == 2
    assert interpreter(Environment.parse("brittle==1.2"), told.append) == python
    assert [each.name for each in folder().iterdir() if "making" in each.name] == []


@pytest.mark.usefixtures("index")
def test_an_interpreter_that_is_gone_has_it_made_again() -> None:
    python = interpreter(Environment.parse("brittle==1.2"))
    python.unlink()
    python.symlink_to("/nowhere/python")
    assert said_by(interpreter(Environment.parse("brittle==1.2"))) == "1.2"


@pytest.mark.skipif(not OLDER, reason="this is the oldest Python")
def test_an_interpreter_is_chosen_that_a_release_is_for(index: Index) -> None:
    try:
        older = find_python(OLDER)
    except UnavailableError as missing:
        pytest.skip(str(missing))
    tag = f"cp{OLDER.replace('.', '')}"
    index.add("brittle", "1.1", {"brittle.py": "import sys; version = sys.version_info[:2]\n"}, tag)
    assert said_by(interpreter(Environment.parse("brittle==1.1")), "sys") == f"(3, {OLDER[2:]})"
    asked = interpreter(Environment.parse(f"python={OLDER} brittle==1.10"))
    assert said_by(asked, "sys") == "1.10"
    assert os.path.realpath(asked) == os.path.realpath(older)
    assert releases("brittle") == ["1.2", "1.10"]
    assert releases("brittle", OLDER) == ["1.1", "1.2", "1.10"]


@pytest.mark.usefixtures("index")
def test_an_index_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(UnavailableError, match="UV_OFFLINE is set"):
        releases("brittle")
    monkeypatch.setenv("UV_OFFLINE", "0")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(UnavailableError, match="Check that the index is reachable") as raised:
        interpreter(Environment.parse("brittle==1.2"))
    assert "127.0.0.1" in str(raised.value)
    with pytest.raises(
        UnavailableError,
        match=r"the releases of brittle cannot be listed: .*Is the index reachable",
    ):
        releases("brittle")


@pytest.mark.usefixtures("index")
def test_uv_asks_no_index_if_pip_may_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_OFFLINE", "0")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(NoSuchRelease, match="brittle==7"):
        interpreter(Environment.parse("brittle==7"))


@pytest.mark.usefixtures("index")
def test_two_processes_make_it_once() -> None:
    command = [sys.executable, "-c", MAKE, "brittle==1.2"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = [process.communicate()[0].splitlines() for process in both]
    assert {lines[-1] for lines in printed} == {str(interpreter(Environment.parse("brittle==1.2")))}
    assert sorted(len(lines) for lines in printed) == [1, 2]


@pytest.mark.usefixtures("index")
def test_nothing_is_left_of_one_that_was_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", MAKE, "brittle==1.2"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "made\n"
        process.send_signal(signal.SIGKILL)
    assert not [each for each in folder().iterdir() if each.is_dir() and "making" not in each.name]
    assert gone(process.pid)
    assert said_by(interpreter(Environment.parse("brittle==1.2"))) == "1.2"
    assert not [each for each in folder().iterdir() if "making" in each.name]


@pytest.mark.parametrize(
    ("text", "requirements", "python"),
    [
        ("brittle==1.2", ("brittle==1.2", "numpy"), ""),
        ("python=3.11 brittle == 1.2 numpy <2", ("brittle==1.2", "numpy<2"), "3.11"),
        ("brittle numpy>=1.26, <2 python==3.12", ("brittle", "numpy>=1.26,<2"), "3.12"),
        ("onnxruntime==1.18.1", ("onnxruntime==1.18.1", "numpy<2"), ""),
        ("onnxruntime-gpu==1.19.0", ("onnxruntime-gpu==1.19.0", "numpy"), ""),
        ("onnxruntime", ("onnxruntime", "numpy"), ""),
    ],
)
def test_what_is_asked_for(text: str, requirements: tuple[str, ...], python: str) -> None:
    wanted = Environment.parse(text)
    assert wanted == Environment(requirements, python)
    assert Environment.parse(str(wanted)) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "",
        "python=3.11",
        "python=3.11 python=3.10 brittle",
        "-r r.txt",
        "brittle==",
        "brittle 'numpy",
        "./no.whl",
    ],
)
def test_what_is_no_environment(text: str) -> None:
    with pytest.raises(UsageError, match="env="):
        Environment.parse(text)


@pytest.mark.parametrize("asked", ["3.99", "/nowhere/python"])
def test_no_such_interpreter(asked: str) -> None:
    with pytest.raises(UnavailableError, match=asked):
        find_python(asked)


def test_a_plain_install_brings_uv() -> None:
    """And a package of conda depends on the same; there ONNX Runtime is no extra."""
    root = Path(__file__).parents[2]
    project = (
        (root / "pyproject.toml")
        .read_text("utf-8")
        .partition("\ndependencies = [")[2]
        .partition("\n]")[0]
    )
    recipe = (
        (root / "conda" / "recipe.yaml")
        .read_text("utf-8")
        .partition("\n  run:\n")[2]
        .partition("\n\n")[0]
    )
    plain = set(re.findall(r'^    "([\w-]+)', project, re.MULTILINE))
    assert "uv" in plain
    assert set(re.findall(r"^    - ([\w-]+)", recipe, re.MULTILINE)) == plain | {
        "python",
        "onnxruntime",
    }


def test_without_uv_nothing_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnavailableError, match="pip install uv"):
        uv()


def test_a_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BISECT_TRT_ENVS", str(tmp_path / "file" / "envs"))
    with pytest.raises(UnavailableError, match="BISECT_TRT_ENVS"):
        folder()


def test_uv_is_told_the_settings_of_pip_unless_it_has_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [each for each in os.environ if each.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "pip.conf").write_text(
        "[global]\nindex-url = https://two.example/simple\nfind-links = /a\n  /b\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_INDEX_URL", "https://one.example/simple")
    told = index_settings()
    assert (told["UV_DEFAULT_INDEX"], told["UV_FIND_LINKS"]) == (
        "https://one.example/simple",
        "/a,/b",
    )
    monkeypatch.setenv("UV_INDEX", "named=https://two.example/simple")
    assert index_settings() == {}
