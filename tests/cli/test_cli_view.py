"""``view``: the page of a run that has ended, and of one that was killed."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

from conftest import CommandLine
from support import TARGET, chain, has, node_tag, overflowing, script


def test_a_run_that_has_ended(cli: CommandLine) -> None:
    cli("reduce", overflowing(Path("model.onnx")), "-o", "small.onnx", *TARGET).ended(0)
    done = cli("view", "--no-browser").ended(0)
    text = Path(done.out.splitlines()[-1]).read_text()
    assert "fails alone (1-minimal)" in text
    assert 'href="report.html"' in text


def test_a_run_that_was_killed_shows_the_best_so_far(tmp_path: Path) -> None:
    chain(tmp_path / "long.onnx", 40)
    hangs = "echo >> asked; test $(wc -l < asked) -le 4 || sleep 1000"
    slow = script(tmp_path / "check.sh", f"{hangs}; if {has(node_tag(7))}; then exit 1; fi")
    command = [sys.executable, "-m", "bisect_trt"]
    with subprocess.Popen(
        [*command, "reduce", "long.onnx", "-o", "o.onnx", "--workers", "1", "-v", "--check", slow, "{model}"],
        cwd=tmp_path, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            assert any(re.match(r"  probe 4 ", line) for line in process.stdout)
        finally:
            process.kill()
    with subprocess.Popen([*command, "view", "--no-browser"], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as view:
        assert view.stdout is not None
        try:
            page = next(line.strip() for line in view.stdout if line.strip().endswith(".html"))
            view.send_signal(signal.SIGINT)
            assert view.wait(120) == 0
        finally:
            view.kill()
    text = Path(page).read_text()
    assert re.search(r"<h1>reduce: (\d+) of 40 nodes still fail</h1>", text) is not None
    assert re.findall(r'<td class="number">(\d)</td><td><b class="fail">', text)[-1] == "1"  # probes, newest first
