"""No host is looked up: a resolver that counts is loaded before that of the system in every process."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import CommandLine
from support import bisect_trt, overflowing, script

from bisect_trt.targets.messages import NO_TELEMETRY

COUNTER = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <unistd.h>

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **result) {
    int log = open(LOG, O_WRONLY | O_CREAT | O_APPEND, 0666);
    dprintf(log, "%s\n", node == NULL ? "?" : node);
    close(log);
    return EAI_NONAME;
}
"""


@pytest.fixture
def lookups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the hosts that processes look up, all of which fail."""
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip(
            "a resolver is loaded before that of the system by ld.so, and made by a C compiler"
        )
    log = tmp_path / "lookups"
    library = tmp_path / "counter.so"
    source = tmp_path / "counter.c"
    source.write_text(COUNTER.replace("LOG,", f'"{log}",'))
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    for name in NO_TELEMETRY:
        monkeypatch.setenv(name, "?")  # what a user has set does not matter
    log.touch()
    return log


def test_it_counts(lookups: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", "import socket\nsocket.getaddrinfo('host.invalid', 1)"], check=False
    )
    assert lookups.read_text().split() == ["host.invalid"]


WATCH = f"""
import os, sys
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name in ("onnxruntime", "openvino"):
            with open("seen", "a") as file:
                file.write(",".join(os.environ.get(name, "") for name in {sorted(NO_TELEMETRY)}) + "\\n")
sys.meta_path.insert(0, Watch())
"""
"""Notes the variables where a package of a runtime's name is imported, whatever its release does."""


@pytest.mark.parametrize(
    ("words", "processes"),
    [
        (("diagnose", "m.onnx", "--onnxrt", "--fp16", "-o", "shown"), 2),
        (("repeat", "m.onnx", "--onnxrt", "-n", "2", "--fresh-process"), 2),
        pytest.param(
            ("repeat", "m.onnx", "--onnxrt", "-n", "30", "--fresh-process"),
            30,
            marks=pytest.mark.slow,
        ),
        (("run", "m.onnx", "--onnxrt", "--on", f"python={sys.executable}"), 1),
        (("run", "m.onnx", "--openvino"), 1),
        (("doctor",), 0),
    ],
)
def test_no_host_is_looked_up_and_every_process_that_loads_a_runtime_has_the_variables(
    here: Path,
    lookups: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    processes: int,
) -> None:
    (here / "shadow").mkdir()
    (here / "shadow" / "sitecustomize.py").write_text(WATCH)
    monkeypatch.setenv("PYTHONPATH", str(here / "shadow"))
    overflowing(here / "m.onnx")
    assert bisect_trt(*words, cwd=here).status in (0, 1, 4)
    if words[0] == "diagnose":
        subprocess.run([sys.executable, "shown/reproduce.py"], check=False, cwd=here)
    assert lookups.read_text() == ""
    seen = [line for file in here.rglob("seen") for line in file.read_text().splitlines()]
    assert len(seen) >= processes
    assert {*seen} <= {",".join(NO_TELEMETRY[name] for name in sorted(NO_TELEMETRY))}


def test_a_check_command_has_the_variables(
    cli: CommandLine, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NO_TELEMETRY:
        monkeypatch.setenv(name, "?")
    overflowing(here / "m.onnx")
    check = script(
        here / "check",
        'echo "$ORT_DISABLE_TELEMETRY" >> checks; grep -q big_out "$1" && exit 1; exit 0',
    )
    cli(
        "reduce", "m.onnx", "-o", "small.onnx", "--check", f"./{Path(check).name}", "{model}"
    ).ended(0)
    assert {*(here / "checks").read_text().split()} == {"1"}
