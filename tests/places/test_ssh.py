"""A place on another host, by OpenSSH: here the loopback, with a server, keys and settings of the test's own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from building import save_text
from support import marked, read_json, wait_for

SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
pytestmark = pytest.mark.skipif(
    SSHD is None or shutil.which("ssh-keygen") is None or not Path("/proc/self/environ").exists(),
    reason="there is no sshd here (apt-get install openssh-server)",
)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment in which ``ssh board`` leads to a server on the loopback; what runs there has ``BOARD`` for its place."""
    folder = tmp_path_factory.mktemp("ssh")
    folder.chmod(0o700)
    for key in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True
        )
    shutil.copy(folder / "user.pub", folder / "authorized_keys")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "Port": port,
        "ListenAddress": "127.0.0.1",
        "HostKey": folder / "host",
        "AuthorizedKeysFile": folder / "authorized_keys",
        "PidFile": folder / "pid",
        "StrictModes": "no",
        "UsePAM": "no",
        "PermitRootLogin": "yes",
        "SetEnv": f"PLACE_HOST={(board := uuid.uuid4().hex)}",
    }
    (folder / "sshd_config").write_text(
        "".join(f"{name} {value}\n" for name, value in settings.items())
    )
    (folder / "config").write_text(
        f"Host board\n  HostName 127.0.0.1\n  Port {port}\n  IdentityFile {folder / 'user'}\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {folder / 'known'}\n  StrictHostKeyChecking accept-new\n"
    )
    # ssh finds the user's settings by the user database, and not by HOME.
    (folder / "bin").mkdir()
    (folder / "bin/ssh").write_text(
        f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder / "config"} "$@"\n'
    )
    (folder / "bin/ssh").chmod(0o755)
    Path("/run/sshd").mkdir(exist_ok=True)
    assert SSHD is not None
    server = subprocess.Popen(
        [SSHD, "-D", "-e", "-f", folder / "sshd_config"], stderr=subprocess.DEVNULL
    )
    environment = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "BOARD": board}
    for _ in range(100):
        words = ["ssh", "-o", "BatchMode=yes", "board", "true"]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            break
        time.sleep(0.1)
    else:
        server.kill()
        server.wait()
        pytest.skip(f"an sshd of one's own cannot be used here: {done.stderr.strip()}")
    yield environment
    server.terminate()
    server.wait()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Overflows in fp16; its weights go over once."""
    body = "scale = MatMul(x, w) square = Mul(scale, scale) root = Sqrt(square)"
    path = tmp_path_factory.mktemp("model") / "m.onnx"
    return save_text(
        path, "(float[2, 300] x) => (float[2, 100] root)", body, {"w": np.full((300, 100), 30.0)}
    )


def command(model: Path, *words: object) -> list[str]:
    place = f"ssh=board,python={sys.executable}"
    return [
        sys.executable,
        "-m",
        "bisect_trt",
        *map(str, words),
        str(model),
        "--onnxrt",
        "--fp16",
        "--on",
        place,
    ]


def there(host: dict[str, str]) -> list[int]:
    """The processes of places on the host, which is none that another test process has."""
    return [
        pid
        for pid, words in marked(f"PLACE_HOST={host['BOARD']}").items()
        if b"bisect-trt-worker" in words
    ]


def test_reduce_on_another_host(host: dict[str, str], model: Path, tmp_path: Path) -> None:
    words = command(model, "reduce", "-o", tmp_path / "r.onnx", "--json", tmp_path / "r.json")
    done = subprocess.run(
        words, env=host, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    result = read_json(tmp_path / "r.json")
    assert [node["name"] for node in result["culprits"]] == ["square"]
    assert result["places"][0]["place"].startswith("ssh=board")
    wait_for(lambda: not there(host))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_driver_that_is_ended_leaves_nothing_there(
    host: dict[str, str], model: Path, tmp_path: Path, number: signal.Signals
) -> None:
    words = command(model, "reduce", "-o", tmp_path / "r.onnx", "--repeat", "100000")
    process = subprocess.Popen(
        words,
        env=host,
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    wait_for(lambda: there(host))
    time.sleep(0.3)
    process.send_signal(number)
    if number == signal.SIGINT:
        time.sleep(0.5)
        process.send_signal(number)  # the second one is at once
    process.wait()
    wait_for(lambda: not there(host))


@pytest.mark.slow
def test_a_connection_that_is_lost_is_no_verdict(
    host: dict[str, str], model: Path, tmp_path: Path
) -> None:
    """Processes of the host's end are killed in mid-search; the answer is the same, and it is proven."""
    words = command(
        model, "reduce", "-o", tmp_path / "r.onnx", "--json", tmp_path / "r.json", "--repeat", "300"
    )
    process = subprocess.Popen(
        words, env=host, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    wait_for(lambda: there(host) or process.poll() is not None)
    wait_for(
        lambda: any(
            "started" in path.read_text() for path in tmp_path.glob(".bisect-trt/*/journal.jsonl")
        )
    )
    time.sleep(0.5)
    for pid in there(host):
        with contextlib.suppress(ProcessLookupError):  # of two, the one ends with the other
            os.kill(pid, signal.SIGKILL)
    _, errors = process.communicate()
    assert process.returncode in (0, 3), errors
    result = read_json(tmp_path / "r.json")
    assert [node["name"] for node in result["culprits"]] == ["square"]


def test_a_host_that_is_not_there(host: dict[str, str], model: Path, tmp_path: Path) -> None:
    words = [word.replace("ssh=board", "ssh=nobody.invalid") for word in command(model, "run")]
    done = subprocess.run(
        words, env=host, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 4
    assert "ssh=nobody.invalid" in done.stderr
    assert "nobody.invalid" in done.stderr.partition("(it says:")[2]
    assert "Traceback" not in done.stderr
