"""``view`` from the outside: what it serves while a run runs and after, and to whom."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import CommandLine
from support import TARGET, chain, has, node_tag, overflowing, script

HOSTILE = "<img src=x onerror=alert(1)>"


def get(address: str, **headers: str) -> tuple[int, dict[str, str], str]:
    """Status, headers and text of an address; header names with underscores for dashes."""
    request = urllib.request.Request(
        address, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, dict(answer.headers), answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read().decode()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A search that has ended, and one that was killed in mid-search."""
    folder = tmp_path_factory.mktemp("runs")
    overflowing(folder / "model.onnx")
    command = [sys.executable, "-m", "bisect_trt"]
    ended = [*command, "reduce", "model.onnx", "-o", "small.onnx", *TARGET]
    assert subprocess.run(ended, cwd=folder, check=False, capture_output=True).returncode == 0
    chain(folder / "long.onnx", 40)
    hangs = "echo >> asked; test $(wc -l < asked) -le 4 || sleep 1000"
    slow = script(folder / "check.sh", f"{hangs}; if {has(node_tag(7))}; then exit 1; fi")
    with subprocess.Popen(
        [*command, "reduce", "long.onnx", "-o", "o.onnx", "--workers", "1", "--check", slow, "{model}"],
        cwd=folder, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        next(line for line in process.stdout if re.match(r"  probe 4 ", line))
        process.kill()
    return folder / ".bisect-trt"


@pytest.fixture(scope="module")
def address(runs: Path) -> Iterator[str]:
    """Where the runs are served."""
    command = [sys.executable, "-m", "bisect_trt", "view", str(runs), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.match(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
        assert found is not None
        yield found[0]
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0  # Ctrl-C is how one ends it


def named(runs: Path, model: str) -> str:
    (run,) = runs.glob(f"*-reduce-{model}")
    return run.name


def test_the_list_names_every_run_with_its_answer(runs: Path, address: str) -> None:
    status, headers, text = get(address)
    assert status == 200
    assert all(run.name in text for run in runs.iterdir())
    assert "1 node still fails (1-minimal)" in text
    assert "running" in text or "at work" in text
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]


def test_a_run_that_has_ended(runs: Path, address: str) -> None:
    status, _, text = get(f"{address}/run/{named(runs, 'model')}")
    assert status == 200
    assert "1 node still fails (1-minimal)" in text
    assert text.count('class="culprit"') == 1  # a cell of the map
    status, _, report = get(f"{address}/run/{named(runs, 'model')}/report")
    assert status == 200
    assert "1 node still fails" in report


def test_a_run_that_is_not_at_its_end_shows_the_best_so_far(runs: Path, address: str) -> None:
    _, _, text = get(f"{address}/run/{named(runs, 'long')}")
    best = re.search(r"<h1>reduce: (\d+) of 40 units still fail</h1>", text)
    assert best is not None
    assert text.count('class="best"') == int(best[1])  # cells of the map
    assert text.count('class="out"') == 40 - int(best[1])
    status, _, text = get(f"{address}/run/{named(runs, 'long')}/report")
    assert status == 404
    assert "has not ended" in text


def test_a_page_asks_for_what_changed_alone(runs: Path, address: str) -> None:
    page = f"{address}/run/{named(runs, 'model')}"
    status, headers, text = get(page, X_Sections="1")
    assert status == 200
    assert text.startswith('<section id="run"')
    assert get(page, X_Sections="1", If_None_Match=headers["ETag"])[0] == 304


def test_runs_beside_each_other(runs: Path, address: str) -> None:
    names = "&".join(f"run={run.name}" for run in runs.iterdir())
    status, _, text = get(f"{address}/compare?{names}")
    assert status == 200
    assert "2 runs compared" in text
    assert "Needed to fail" in text


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1:1", "0.0.0.0"])
def test_only_this_machine_by_its_own_name_is_answered(address: str, host: str) -> None:
    assert get(address, Host=host)[0] == 403


@pytest.mark.parametrize(
    "path", ["/run/..", "/run/%2e%2e%2f%2e%2e", "/etc/passwd", f"/run/{HOSTILE.replace(' ', '%20')}"]
)
def test_nothing_else_is_served_and_what_was_asked_for_is_escaped(address: str, path: str) -> None:
    status, _, text = get(address + path)
    assert status == 404
    assert HOSTILE not in text


def test_what_is_not_there(cli: CommandLine, address: str) -> None:
    done = cli("view", "gone")
    assert done.status == 4
    assert "gone is no folder" in done.err
    Path("empty").mkdir()
    done = cli("view", "empty")
    assert done.status == 4
    assert "no run lies in empty" in done.err
    done = cli("view", "--port", address.rpartition(":")[2], str(Path.cwd()))
    assert done.status == 4  # no run there either, which is found first
