"""All GPUs of one host through a Ray cluster: the answers are those of one worker."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import CommandLine
from support import overflowing_products, read_json

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed (bisect-trt[ray])"
)
TRT = ("--trt", "--fp16", "--hold-precision")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a cluster of this host and its GPUs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("ray") / "log"
    command = [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        "--head",
        "--block",
        f"--port={port}",
    ]
    with log.open("wb") as stream:
        more = ["--include-dashboard=false", "--disable-usage-stats"]
        started = subprocess.Popen(
            [*command, *more], stdout=stream, stderr=stream, start_new_session=True
        )
    address = f"127.0.0.1:{port}"
    look = [sys.executable, "-m", "bisect_trt.worker.place", address, "GPU"]
    for _ in range(30):
        if subprocess.run(look, capture_output=True, check=False).returncode == 0:
            break
    else:
        pytest.fail(log.read_text())
    yield address
    started.terminate()
    started.wait()


def test_one_worker_and_all_gpus_agree(cli: CommandLine, here: Path, cluster: str) -> None:
    model = overflowing_products(here / "model.onnx")
    words = ("reduce", model, *TRT, "-o", "out.onnx", "--overwrite", "--json", "r.json")
    answers = []
    for more in ((), ("--on", f"ray={cluster}")):
        result = cli(*words, *more).ended(0).result
        answers.append((result["culprits"], result["minimality"]))
    assert answers[0] == answers[1]


def test_each_worker_has_a_gpu_of_its_own(cli: CommandLine, here: Path, cluster: str) -> None:
    model = overflowing_products(here / "model.onnx")
    ran = cli("layerwise", model, *TRT, "--isolate", "--on", f"ray={cluster}", "--json", "r.json")
    assert ran.status in (0, 1), ran.out + ran.err
    assert read_json(Path("r.json"))["places"]
    assert not list(Path(tempfile.gettempdir()).glob(f"bisect-trt-{os.getuid()}-*"))
