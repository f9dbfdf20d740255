"""Fixtures that several rooms' tests share."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from light import LIGHT, Light, tag_light
from support import LEVELS, Ran, json_file

from bisect_trt.cli.app import perform
from bisect_trt.cli.parser import parse
from bisect_trt.errors import BisectError
from bisect_trt.targets.messages import NO_TELEMETRY
from bisect_trt.targets.trt.process import tensorrt
from bisect_trt.worker import worker
from bisect_trt.worker.worker import keep_spare

# A shell that starts the tests in the background has them ignore Ctrl-C, and so would the commands
# under test.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests and fixtures load runtimes in this process too; `tests/probe/test_lookups.py` takes these
# variables away.
os.environ.update(NO_TELEMETRY)
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # as `load_package` does

# No host is looked up: `diagnose` asks an index for the newest release. Those of `wheels.Index` are
# folders. `make truth` installs real releases.
os.environ.setdefault("UV_OFFLINE", "1")

# Hundreds of commands are started, each of which would compile all that it imports where bytecode
# is not to be kept.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A worker is kept from test to test, but for what it was started among: of that pytest's own
# variable is no part.
worker.surroundings = lambda: {
    name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"
}

# How long an example takes, to draw too, says nothing on a machine that does other things. The same
# examples each time: whoever changes nothing sees no test fail. `make test-slow` makes more of
# them, and `make fuzz` looks for others, which Hypothesis does of itself only where no CI runs it.
settings.register_profile(
    "random",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
    derandomize=False,
)
settings.register_profile(
    "default",
    settings.get_profile("random"),
    print_blob=False,
    derandomize=True,
    database=None,
    max_examples=15,
)
settings.register_profile("deep", settings.get_profile("default"), max_examples=100)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

CommandLine = Callable[..., Ran]
GPU_TESTS = os.path.join(Path(__file__).parent, "gpu", "")  # noqa: PTH118 - of thousands of tests


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects what needs a GPU where there is none; the header says why."""
    mine = [item for item in items if str(item.path).startswith(GPU_TESTS)]
    for item in mine:
        item.add_marker(pytest.mark.gpu)
    if mine and missing_gpu() is not None:
        items[:] = [item for item in items if not str(item.path).startswith(GPU_TESTS)]
        config.hook.pytest_deselected(items=mine)


def pytest_collection_finish() -> None:
    """The collector of garbage runs less often; frozen objects would hide from Hypothesis who holds its generators."""
    gc.collect()
    gc.set_threshold(20_000, 20, 20)


def pytest_report_header() -> str | None:
    """Why the tests of the GPU do not run."""
    why = missing_gpu()
    return None if why is None else f"tests/gpu is left out: {why}"


def missing_gpu() -> str | None:
    """Why there is no TensorRT here, if there is none."""
    try:
        tensorrt()
    except BisectError as error:
        return str(error)
    return None


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, made the working directory."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def cli(
    here: Path,  # noqa: ARG001 - where it works
    capfd: pytest.CaptureFixture[str],
) -> CommandLine:
    """The command line, run in this process (a new one takes half a second) in an empty folder.

    It keeps two workers for the next, as the Python API keeps one: starting one takes another half
    second.
    """
    keep_spare(2)

    def read(words: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
        name, values = parse(words)
        if not LEVELS.intersection(words) and "verbose" in values:
            values = {**values, "verbose": 1}  # prints every step, probe and reason
        return name, values

    def run(*argv: str | Path) -> Ran:
        words = tuple(map(str, argv))
        capfd.readouterr()
        with pytest.raises(SystemExit) as ending:
            perform(*read(words), words)
        out, err = capfd.readouterr()
        assert isinstance(ending.value.code, int)
        return Ran(ending.value.code, out, err, json_file(words))

    return run


@pytest.fixture(scope="session", params=LIGHT)
def light(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Light:
    """Each of the real architectures that the onnx wheel ships."""
    return tag_light(request.param, tmp_path_factory.mktemp("light"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)], check=False
    ).returncode:
        pytest.skip("only root may mount a small disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
