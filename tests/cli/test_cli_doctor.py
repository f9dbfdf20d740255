"""What ``bisect-trt doctor`` finds: what is there, and, of what crashes or hangs, that it does."""

from __future__ import annotations

import importlib.util
import platform
import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from support import Ran, bisect_trt, read_json, script

from bisect_trt import __version__
from bisect_trt.commands import doctor
from bisect_trt.commands.doctor import ask_nvidia_smi, examine
from bisect_trt.report.result import environment
from bisect_trt.targets.options import selectable


@pytest.fixture
def shadow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose modules come before all that is installed."""
    folder = tmp_path / "shadow"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


def see(folder: Path) -> Ran:
    done = bisect_trt("doctor", "--json", "found.json", cwd=folder)
    assert done.status == 0, done.err
    assert done.err == ""
    return done


def test_everything_that_is_here_is_listed(tmp_path: Path) -> None:
    done = see(tmp_path)
    result = read_json(tmp_path / "found.json")
    machine = result["environment"]
    assert (result["command"], result["status"]) == ("doctor", "found")
    assert all(machine[name] == value for name, value in environment().items() if name != "GPU")
    assert machine["bisect-trt"] == __version__
    assert machine["Python"] == platform.python_version()
    assert machine["onnx"] == onnx.__version__
    assert machine["numpy"] == np.__version__
    assert machine["ONNX Runtime"] == onnxruntime.__version__
    assert machine["execution providers"].split(", ") == onnxruntime.get_available_providers()
    for name, value in machine.items():
        assert f"{name}: {value}\n" in done.out
    assert set(result["targets"]) == {f"--{plugin.name}" for plugin in selectable()}
    usable = {"--onnxrt"} | ({"--openvino"} if importlib.util.find_spec("openvino") is not None else set())
    assert {target for target in usable if result["targets"][target] is not None} == set()
    if importlib.util.find_spec("tensorrt") is None:
        assert "pip install tensorrt" in result["targets"]["--trt"]
    for target, missing in result["targets"].items():
        assert f"{target}: {'yes' if missing is None else f'no: {missing}'}\n" in done.out
    assert not (tmp_path / ".bisect-trt").exists()


def test_two_builds_of_onnx_runtime_in_one_folder_are_a_warning(shadow: Path, tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "model.onnx")
    add_distribution(shadow, "onnxruntime_gpu")
    assert bisect_trt(*RUN, cwd=tmp_path).err == ""  # the other is in another folder
    add_distribution(shadow, "onnxruntime")
    for words in (["doctor"], RUN):
        done = bisect_trt(*words, cwd=tmp_path)
        assert (done.status, "pip uninstall -y onnxruntime onnxruntime-gpu" in done.err) == (0, True)


def test_without_onnx_runtime_it_says_which_build_to_install(shadow: Path, tmp_path: Path) -> None:
    (shadow / "onnxruntime.py").write_text("raise ModuleNotFoundError('No module named onnxruntime')")
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "model.onnx")
    done = bisect_trt(*RUN, cwd=tmp_path)
    assert (done.status, "pip install onnxruntime, or onnxruntime-gpu" in done.err) == (4, True)


def add_distribution(folder: Path, name: str) -> None:
    metadata = folder / f"{name}-{onnxruntime.__version__}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {onnxruntime.__version__}\n")


RUN = ("run", "model.onnx", "--onnxrt")
MODEL = '<ir_version: 8, opset_import: ["" : 17]> chain (float[4] x) => (float[4] y) { y = Relu(x) }'
CRASH = "import os, signal, sys\nprint('loading', flush=True)\nos.kill(os.getpid(), signal.SIGSEGV)\n"


def test_a_library_that_crashes_is_a_finding(shadow: Path, tmp_path: Path) -> None:
    (shadow / "onnxruntime.py").write_text(CRASH)
    see(tmp_path)
    assert "SIGSEGV" in read_json(tmp_path / "found.json")["targets"]["--onnxrt"]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (CRASH, ["SIGSEGV", "loading"]),
        ("raise RuntimeError('of another driver')", ["RuntimeError: of another driver"]),
        ("__version__ = '8.5.0'", ["8.5.0", "8.6"]),
        ("import sys\nsys.exit('cannot go on')", ["(1)", "cannot go on"]),
        ("import libnothing", ["'libnothing'", "pip install tensorrt", "LD_LIBRARY_PATH"]),
    ],
)
def test_a_library_that_breaks_is_a_finding(shadow: Path, tmp_path: Path, source: str, says: list[str]) -> None:
    (shadow / "tensorrt.py").write_text(source)
    _, missing = examine("trt", tmp_path)
    assert missing is not None
    assert all(word in missing for word in says), missing


def test_a_library_that_hangs_is_a_finding(shadow: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "TIMEOUT_SECONDS", 2.0)
    (shadow / "tensorrt.py").write_text("import time\ntime.sleep(1000)\n")
    _, missing = examine("trt", tmp_path)
    assert missing is not None
    waited = re.match(r"no answer after (\d+\.\d+)", missing)
    assert waited is not None
    assert 2 <= float(waited[1]) < 1000


def test_the_drivers_own_tool_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    script(tmp_path / "nvidia-smi", 'echo "NVIDIA H200, 580.1, 143771 MiB"; echo "NVIDIA H100, 580.1, 81559 MiB"')
    assert ask_nvidia_smi() == ["NVIDIA H200, 580.1, 143771 MiB", "NVIDIA H100, 580.1, 81559 MiB"]
    script(tmp_path / "nvidia-smi", "echo 'No devices were found'; exit 6")
    assert ask_nvidia_smi() == ()
