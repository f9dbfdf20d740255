"""A target of another package: installed, it works in every command without a line of bisect-trt changed."""

from __future__ import annotations

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import installed
import numpy as np
import pytest
from building import save_text
from support import Ran, read_json


def python(here: Path, *argv: str, others: tuple[Path, ...] = ()) -> Ran:
    """Run Python where the target is installed, or other packages are."""
    return installed.python(here, *argv, paths=others or [installed.site("custom_target")])


def bisect_trt(here: Path, *argv: str, others: tuple[Path, ...] = ()) -> Ran:
    return python(here, "-m", "bisect_trt", *argv, others=others)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder with a model that only a right Relu computes right."""
    weight = np.random.default_rng(0).standard_normal((8, 8))
    body = "h = MatMul(x, w) n = Neg(h) clip = Relu(n) y = Add(clip, x)"
    save_text(tmp_path / "model.onnx", "(float[4, 8] x) => (float[4, 8] y)", body, {"w": weight})
    return tmp_path


@pytest.mark.slow
def test_diagnose_its_report_and_its_reproducer(work: Path) -> None:
    words = ["--numpy", "--leak", "0.5", "--json", "r.json", "--report", "r.html"]
    bisect_trt(work, "diagnose", "model.onnx", *words).ended(0)
    result = read_json(work / "r.json")
    assert [culprit["name"] for culprit in result["culprits"]] == ["clip"]
    assert result["first_mismatch"]["tensor"] == "clip"
    assert "NumPy (leak 0.5)" in (work / "r.html").read_text()
    folder = work / "model-reproducer"
    issue = (folder / "ISSUE.md").read_text()
    assert issue.startswith("# NumPy: wrong values from Relu\n")
    assert "onnx and numpy" in (folder / "README.md").read_text() + issue
    assert "'leak': 0.5" in (folder / "reproduce.py").read_text()
    again = python(work, str(folder / "reproduce.py"), others=(work,))
    assert (again.status, "MISMATCH clip" in again.out) == (1, True)


def test_it_runs_in_places_and_beside_other_plug_ins(work: Path) -> None:
    sites = tuple(map(installed.site, ("custom_target", "custom_command", "custom_oracle")))
    words = ["--numpy", "--on", f"python={sys.executable}", "--max-latency", "0"]
    found = bisect_trt(work, "prefix", "model.onnx", *words, "--json", "r.json", others=sites)
    # No model takes no time, so each prefix fails, and nothing proves it.
    assert found.ended(3).result["culprits"][0]["name"] == "h"
    assert "Nodes    MatMul 'h' fails alone" in found.out


@pytest.mark.slow
def test_a_runner_that_runs_here_alone(work: Path, tmp_path: Path) -> None:
    here = tmp_path / "here"
    shutil.copytree(installed.site("custom_target"), here)
    code = here / "numpy_target.py"
    maker = "def make_runner(self, settings: TargetSettings) -> object:\n"
    maker += "        return __import__('numpy_runner').make(self.plain(settings))\n"
    code.write_text(code.read_text().replace('sent = ("numpy_runner",)', maker))
    bisect_trt(work, "diagnose", "model.onnx", "--numpy", others=(here,)).ended(0)
    folder = work / "model-reproducer"
    assert "bisect-trt and onnx" in (folder / "README.md").read_text()
    assert python(work, str(folder / "reproduce.py"), others=(here,)).status == 1
    place = ["--on", f"python={sys.executable}"]
    refused = bisect_trt(work, "run", "model.onnx", "--numpy", *place, others=(here,))
    assert "error[" in refused.err, refused.err


def test_its_options_are_settings(work: Path) -> None:
    bisect_trt(work, "run", "model.onnx", "--numpy", "--leak", "0").ended(0)
    bisect_trt(work, "run", "model.onnx", "--numpy").ended(1)
    bisect_trt(work, "run", "model.onnx", "--onnxrt", "--leak", "0.5").refused(
        "BT1003", "--leak", "--numpy"
    )
    bisect_trt(work, "run", "model.onnx", "--trt", "--numpy").refused("BT1003", "--trt", "--numpy")


def test_doctor_and_python(work: Path) -> None:
    assert "--numpy: yes\n" in bisect_trt(work, "doctor").out
    call = "bisect_trt.compare('model.onnx', target='numpy', leak=0).status"
    assert python(work, "-c", f"import bisect_trt; print({call})").out == "found\n"


@pytest.mark.skipif(find_spec("fsspec") is None, reason="fsspec is not installed")
def test_corrected_code_is_asked_again(work: Path, tmp_path: Path) -> None:
    """Verdicts of a target's old code say nothing about its new one, in a cache or in a run that goes on."""
    own = tmp_path / "own"
    shutil.copytree(installed.site("custom_target"), own)
    words = ["reduce", "model.onnx", "--numpy", "-o", "small.onnx", "--cache", "cache"]
    bisect_trt(work, *words, others=(own,)).ended(0)
    code = own / "numpy_target.py"
    code.write_text(code.read_text() + "# corrected\n")
    again = bisect_trt(work, *words, "--overwrite", others=(own,)).ended(0)
    assert "from the cache" not in again.out
    assert "from the cache" in bisect_trt(work, *words, "--overwrite", others=(own,)).ended(0).out


def test_a_target_that_does_not_load_is_named_and_stops_nothing(work: Path, tmp_path: Path) -> None:
    info = tmp_path / "site" / "broken-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    entries = "broken = nobody.here:Target\nboth = with_command:Target\n"
    (info / "entry_points.txt").write_text(f"[bisect_trt.targets]\n{entries}")
    (info.parent / "with_command.py").write_text("from bisect_trt.targets.options import Target\n")
    ran = bisect_trt(work, "doctor", others=(info.parent,))
    assert "nobody.here:Target fails to load" in ran.out
    assert "so these need a module of their own" in ran.err
    bisect_trt(work, "run", "model.onnx", "--onnxrt", others=(info.parent,)).ended(0)
