"""Without TensorRT, a GPU, a driver or a library: a sentence and status 4, before anything is searched.

The real TensorRT 8.6.0 (``make test-lowest`` installs it) shows two of these on a machine without a GPU: it does not load,
for want of CUDA's libraries, and with stand-ins for those it loads and cannot make its builder.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
from support import Ran, bisect_trt, overflowing
from trt_api import OLD
from trt_standin import StandIn, make_module, make_tensorrt, trt_target

from bisect_trt.errors import UnavailableError
from bisect_trt.targets.messages import RunError
from bisect_trt.targets.trt import api
from bisect_trt.targets.trt.build import TensorRtRuntime
from bisect_trt.targets.trt.cuda import Cuda

COMMANDS = [
    ["run"],
    ["layerwise"],
    ["reduce", "-o", "out.onnx"],
    ["diagnose", "-o", "out"],
    ["precision", "-o", "out.onnx"],
]
LIBRARIES = ("libcublas.so.12", "libcublasLt.so.12", "libcudnn.so.8")
"""What TensorRT 8.6's plugin library is linked against, and its core does not call."""

on_each_command = pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
without_tensorrt = pytest.mark.skipif(
    importlib.util.find_spec("tensorrt") is not None, reason="TensorRT is installed here"
)


def installed() -> str:
    try:
        return metadata.version("tensorrt")
    except metadata.PackageNotFoundError:
        return ""


with_8_6 = pytest.mark.skipif(
    installed() != "8.6.0", reason="TensorRT 8.6.0 is not installed here (make test-lowest does)"
)


def loads() -> str:
    """Why TensorRT does not load in a process of its own; empty if it does."""
    done = subprocess.run([sys.executable, "-c", "import tensorrt"], capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Ran]:
    """A command on a model that a reference run would take seconds for, if it got to that."""
    model = overflowing(tmp_path / "model.onnx", 1, 1)

    def run(command: str, *words: str) -> Ran:
        return bisect_trt(command, model, *words, "--trt", "--fp16", cwd=tmp_path)

    return run


def candidates(folder: Path) -> list[Path]:
    """What a run has written of candidates; empty if nothing was probed."""
    return list(folder.glob(".bisect-trt/*/candidates/*"))


@without_tensorrt
@on_each_command
def test_no_tensorrt(run: Callable[..., Ran], tmp_path: Path, command: list[str]) -> None:
    done = run(*command)
    assert done.status == 4
    assert done.error == (
        f"error: TensorRT is not installed for {sys.executable}; install it there (pip install tensorrt), or on a Jetson use "
        "a Python that sees the system's packages."
    )
    assert candidates(tmp_path) == []


@with_8_6
@on_each_command
def test_a_library_is_missing(run: Callable[..., Ran], tmp_path: Path, command: list[str]) -> None:
    if "cannot open shared object file" not in loads():
        pytest.skip("TensorRT loads here: nothing is missing")
    done = run(*command)
    assert done.status == 4
    assert re.fullmatch(
        r"error: TensorRT is installed and cannot be loaded: lib\S+: cannot open shared object file: .*\. Install that "
        r"library \(pip install tensorrt brings its own\), or add its folder to LD_LIBRARY_PATH\.",
        done.error,
    )
    assert candidates(tmp_path) == []


@pytest.fixture(scope="session")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Libraries with every function that TensorRT 8.6 wants of CUDA's, each of which says that it cannot."""
    for program in ("gcc", "nm"):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program}, which makes stand-ins for CUDA's libraries")
    folder = tmp_path_factory.mktemp("stubs")
    package = metadata.distribution("tensorrt").locate_file("tensorrt")
    listed = subprocess.run(
        ["nm", "-D", "--undefined-only", f"{package}/libnvinfer_plugin.so.8"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for library in LIBRARIES:
        functions = re.findall(rf" U (\w+)@{re.escape(library)}\b", listed)
        assert functions, library
        source = folder / f"{library}.c"
        source.write_text("".join(f"int {function}(void) {{ return 1; }}\n" for function in functions))
        (folder / f"{library}.map").write_text(f"{library} {{ global: *; }};\n")
        named = [f"-Wl,-soname,{library}", f"-Wl,--version-script={folder / library}.map"]
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(folder / library), *named, str(source)], check=True)
    return folder


def has_gpu() -> bool:
    return any(Path("/dev").glob("nvidia[0-9]*"))


@pytest.fixture
def loadable(stubs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorRT 8.6.0 loads in processes that are started from now on."""
    if has_gpu():
        pytest.skip("there is a GPU")
    monkeypatch.setenv("LD_LIBRARY_PATH", os.pathsep.join([str(stubs), os.environ.get("LD_LIBRARY_PATH", "")]))
    assert loads() == ""


NO_GPU = (
    r"error: (there is no NVIDIA GPU here that CUDA may use .*|the NVIDIA driver is missing, or older than this CUDA needs "
    r".*|the CUDA runtime \(libcudart\.so\) is not found; install it .*)"
)
"""Which of them depends on what else this machine has of CUDA."""


@with_8_6
@pytest.mark.usefixtures("loadable")
@on_each_command
def test_no_gpu(run: Callable[..., Ran], tmp_path: Path, command: list[str]) -> None:
    done = run(*command)
    assert done.status == 4
    assert re.fullmatch(NO_GPU, done.error)
    assert candidates(tmp_path) == []


@with_8_6
@pytest.mark.usefixtures("loadable")
def test_the_real_builder_cannot_be_made_without_a_driver() -> None:
    """CUDA is made to say that there is a GPU, so that TensorRT is asked."""
    program = (
        "from types import SimpleNamespace\n"
        "from bisect_trt.errors import UnavailableError\n"
        "from bisect_trt.targets.trt import api\n"
        "api.load_cuda = lambda: SimpleNamespace(device_count=lambda: 1)\n"
        "try:\n    api.tensorrt()\nexcept UnavailableError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert re.fullmatch(
        r"TensorRT 8\.6\.0 cannot use this GPU: CUDA initialization failure with error: 35\b.*; update the driver, or install "
        r"the TensorRT that was made for it\.",
        done.stdout.splitlines()[-1],
    )


class Calls:
    """A CUDA runtime of which each call gives the same status, as a library is that has no GPU behind it."""

    def __init__(self, status: int, gives: int = 0) -> None:
        self.status, self.gives = status, gives

    def call(self, name: str, *values: int) -> tuple[int, tuple[int, ...]]:  # noqa: ARG002 - the protocol's
        return self.status, (self.gives, self.gives)

    def text(self, status: int) -> str:
        return {35: "CUDA driver version is insufficient", 100: "no CUDA-capable device"}.get(status, "something else")


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (0, "there is no NVIDIA GPU here that CUDA may use (nvidia-smi lists them; CUDA_VISIBLE_DEVICES hides them)."),
        (
            100,
            "there is no NVIDIA GPU here that CUDA may use (nvidia-smi lists them; CUDA_VISIBLE_DEVICES hides them).",
        ),
        (
            35,
            (
                "the NVIDIA driver is missing, or older than this CUDA needs (CUDA error 35 in cudaGetDeviceCount: CUDA driver "
                "version is insufficient); update the driver, or install the TensorRT that was made for an older CUDA."
            ),
        ),
        (
            803,
            (
                "the NVIDIA driver is missing, or older than this CUDA needs (CUDA error 803 in cudaGetDeviceCount: something "
                "else); update the driver, or install the TensorRT that was made for an older CUDA."
            ),
        ),
        (
            999,
            ("CUDA cannot use the GPU: CUDA error 999 in cudaGetDeviceCount: something else; `nvidia-smi` says more."),
        ),
    ],
)
def test_what_cuda_says(monkeypatch: pytest.MonkeyPatch, status: int, says: str) -> None:
    monkeypatch.setattr(api, "load_tensorrt", lambda: make_module(OLD))
    monkeypatch.setattr(api, "load_cuda", lambda: Cuda(Calls(status), "here"))
    with pytest.raises(UnavailableError) as error:
        api.tensorrt.__wrapped__()
    assert str(error.value) == says


def test_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    module = make_module(OLD)
    module.__version__ = "8.5.3.1"
    monkeypatch.setattr(api, "load_tensorrt", lambda: module)
    with pytest.raises(UnavailableError, match=r"^TensorRT 8\.5\.3\.1 is too old; install 8\.6 or later\.$"):
        api.tensorrt.__wrapped__()


def test_an_engine_of_another_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tensorrt = make_tensorrt(OLD)

    def refuse(plan: bytes) -> None:
        assert plan == b"plan"
        tensorrt.log.errors.append(
            "6: The engine plan file is not compatible with this version of TensorRT, expecting library version 8.6.0.12 got "
            "8.5.2.2, please rebuild."
        )

    assert isinstance(tensorrt.runtime, StandIn)
    tensorrt.runtime.values["deserialize_cuda_engine"] = refuse
    monkeypatch.setattr("bisect_trt.targets.trt.build.tensorrt", lambda: tensorrt)
    engine = tmp_path / "e.plan"
    engine.write_bytes(b"plan")
    runtime = TensorRtRuntime(trt_target(load_engine=str(engine)))
    with pytest.raises(UnavailableError) as error:
        runtime.load(overflowing(tmp_path / "m.onnx"))
    assert str(error.value) == (
        f"TensorRT 8.6.0 cannot load the engine {engine}: The engine plan file is not compatible with this version of "
        "TensorRT, expecting library version 8.6.0.12 got 8.5.2.2, please rebuild; an engine runs on the version and the kind "
        "of GPU that it was built for, so build it again here."
    )


def test_no_memory_for_an_engine_is_no_matter_of_versions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tensorrt = make_tensorrt(OLD)

    def refuse(_: bytes) -> None:
        tensorrt.log.errors.append(
            "2: [virtualMemoryBuffer.cpp::resizePhysical::127] Error Code 2: OutOfMemory (12 bytes)"
        )

    assert isinstance(tensorrt.runtime, StandIn)
    tensorrt.runtime.values["deserialize_cuda_engine"] = refuse
    monkeypatch.setattr("bisect_trt.targets.trt.build.tensorrt", lambda: tensorrt)
    engine = tmp_path / "e.plan"
    engine.write_bytes(b"plan")
    with pytest.raises(RunError) as error:
        TensorRtRuntime(trt_target(load_engine=str(engine))).load(overflowing(tmp_path / "m.onnx"))
    assert error.value.signature == "out of memory"
    assert not error.value.poisoned
