"""``view`` from the outside: what it serves while a run runs and after, and to whom."""

from __future__ import annotations

import re
import signal
import socket
import struct
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import TARGET, chain, has, node_tag, overflowing, script

HOSTILE = "<img src=x onerror=alert(1)>"


def get(address: str, token: str, path: str) -> tuple[int, dict[str, str], str]:
    """Status, headers and text of a page."""
    try:
        with urllib.request.urlopen(f"{address}/{token}{path}", timeout=120) as answer:
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


@contextmanager
def serving(run: Path) -> Iterator[tuple[str, str]]:
    """The address without a path, and the token, of a server of a run."""
    command = [sys.executable, "-m", "bisect_trt", "view", str(run), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.match(r"(http://127\.0\.0\.1:\d+)/([^/ ]+)/ ", process.stdout.readline())
        assert found is not None
        yield found[1], found[2]
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0  # Ctrl-C is how one ends it
        assert process.stderr is not None
        assert process.stderr.read() == ""


def named(runs: Path, model: str) -> Path:
    (run,) = runs.glob(f"*-reduce-{model}")
    return run


@pytest.fixture(scope="module")
def served(runs: Path) -> Iterator[tuple[str, str]]:
    with serving(named(runs, "model")) as address:
        yield address


def test_a_run_that_has_ended(served: tuple[str, str]) -> None:
    for path in ("/", "/report"):
        status, headers, text = get(*served, path)
        assert (status, "1 node still fails" in text) == (200, True)
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]


def test_a_run_that_is_not_at_its_end_shows_the_best_so_far(runs: Path) -> None:
    with serving(named(runs, "long")) as address:
        _, _, text = get(*address, "/")
        status, _, _ = get(*address, "/report")
    assert status == 404
    assert re.search(r"<h1>reduce: (\d+) of 40 units still fail</h1>", text) is not None
    assert re.findall(r'<td class="number">(\d)</td><td><b class="fail">', text)[-1] == "1"  # probes, newest first


def test_without_the_token_nothing_is_read(served: tuple[str, str]) -> None:
    for token in ("", "wrong", served[1][:-1], "%C3%A9"):
        status, _, text = get(served[0], token, "/")
        assert (status, "still fails" in text) == (403, False)


def test_a_browser_that_leaves_is_no_error(served: tuple[str, str]) -> None:
    """The fixture looks for tracebacks in the end."""
    with socket.create_connection(("127.0.0.1", int(served[0].rpartition(":")[2]))) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it is reset
        connection.send(b"GET / HTTP/1.1\r\n")
    assert get(*served, "/")[0] == 200


@pytest.mark.parametrize(
    "path", ["/run/..", "/run/%2e%2e%2f%2e%2e", "/etc/passwd", f"/run/{HOSTILE.replace(' ', '%20')}"]
)
def test_nothing_else_is_served_and_paths_are_escaped(served: tuple[str, str], path: str) -> None:
    status, _, text = get(*served, path)
    assert status == 404
    assert HOSTILE not in text
