"""No host is looked up: a resolver that counts is loaded before that of the system in every process."""

from __future__ import annotations

import os
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
        monkeypatch.delenv(name, raising=False)
    log.touch()
    return log


def test_it_counts(lookups: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", "import socket\nsocket.getaddrinfo('host.invalid', 1)"], check=False
    )
    assert lookups.read_text().split() == ["host.invalid"]


@pytest.mark.parametrize(
    "words",
    [
        ("diagnose", "m.onnx", "--onnxrt", "--fp16", "-o", "shown"),
        ("repeat", "m.onnx", "--onnxrt", "-n", "3", "--fresh-process"),
        pytest.param(
            ("repeat", "m.onnx", "--onnxrt", "-n", "30", "--fresh-process"),
            marks=pytest.mark.slow,
        ),
        ("run", "m.onnx", "--onnxrt", "--on", f"python={sys.executable}"),
        ("run", "m.onnx", "--openvino"),
        ("doctor",),
    ],
    ids=" ".join,
)
def test_no_host_is_looked_up(here: Path, lookups: Path, words: tuple[str, ...]) -> None:
    overflowing(here / "m.onnx")
    assert bisect_trt(*words, cwd=here).status in (0, 1, 4)
    if words[0] == "diagnose":
        subprocess.run([sys.executable, "shown/reproduce.py"], check=False, cwd=here)
    assert lookups.read_text() == ""


RECORD = f"""
import os, sys
open("seen", "a").write(",".join(os.environ.get(name, "") for name in {sorted(NO_TELEMETRY)}) + "\\n")
"""


def test_every_process_that_loads_a_runtime_has_the_variables(
    cli: CommandLine, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the release: a package of the runtime's name notes the variables when it is imported."""
    for name in NO_TELEMETRY:
        monkeypatch.setenv(name, "?")  # what a user has set does not matter
    (here / "shadow").mkdir()
    (here / "shadow" / "sitecustomize.py").write_text(
        "import sys, os\n"
        "class Watch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name in ('onnxruntime', 'openvino'):\n"
        f"            {'; '.join(RECORD.strip().splitlines())}\n"
        "sys.meta_path.insert(0, Watch())\n"
    )
    overflowing(here / "m.onnx")
    environment = {**os.environ, "PYTHONPATH": str(here / "shadow")}
    program = [sys.executable, "-m", "bisect_trt"]
    lines = (
        "diagnose m.onnx --onnxrt --fp16 -o shown",
        f"run m.onnx --onnxrt --on python={sys.executable}",
    )
    for line in (*lines, "run m.onnx --openvino"):
        subprocess.run(
            [*program, *line.split()], check=False, cwd=here, env=environment, capture_output=True
        )
    subprocess.run([sys.executable, "shown/reproduce.py"], check=False, cwd=here, env=environment)
    seen = [line for file in here.rglob("seen") for line in file.read_text().splitlines()]
    wanted = ",".join(NO_TELEMETRY[name] for name in sorted(NO_TELEMETRY))
    assert len(seen) >= 4
    assert {*seen} == {wanted}
    check = script(
        here / "check",
        'echo "$ORT_DISABLE_TELEMETRY" >> checks; grep -q big_out "$1" && exit 1; exit 0',
    )
    cli(
        "reduce", "m.onnx", "-o", "small.onnx", "--check", f"./{Path(check).name}", "{model}"
    ).ended(0)
    assert {*(here / "checks").read_text().split()} == {"1"}
