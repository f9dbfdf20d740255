"""A target of another package: installed, it works in every command without a line of bisect-trt changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support import Ran, read_json

PACKAGE = Path(__file__).parents[2] / "examples" / "custom_target"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pip has put the package; on Python's path it is as if it were installed."""
    source, site = tmp_path_factory.mktemp("source") / "package", tmp_path_factory.mktemp("site")
    shutil.copytree(PACKAGE, source)  # setuptools builds in the folder itself
    options = [
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--disable-pip-version-check",
        "-q",
        "--target",
        str(site),
    ]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(source)], check=True, capture_output=True)
    return site


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder with a model that only a right Relu computes right."""
    rng = np.random.default_rng(0)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 8]) for name in ("x", "y")]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="project"),
        helper.make_node("Neg", ["h"], ["n"], name="turn"),
        helper.make_node("Relu", ["n"], ["r"], name="clip"),
        helper.make_node("Add", ["r", "x"], ["y"], name="skip"),
    ]
    weight = numpy_helper.from_array(rng.standard_normal((8, 8)).astype(np.float32), "w")
    model = helper.make_model(
        helper.make_graph(nodes, "g", ends[:1], ends[1:], [weight]),
        opset_imports=[helper.make_opsetid("", 13)],
        ir_version=8,
    )
    onnx.save(model, str(tmp_path / "model.onnx"))
    return tmp_path


def run(work: Path, site: Path, *argv: str) -> Ran:
    done = subprocess.run(
        [sys.executable, *argv],
        cwd=work,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(site)},
    )
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    return Ran(done.returncode, done.stdout, done.stderr)


def bisect_trt(work: Path, site: Path, *argv: str) -> Ran:
    return run(work, site, "-m", "bisect_trt", *argv)


def test_diagnose_its_report_and_its_reproducer(work: Path, installed: Path) -> None:
    ran = bisect_trt(work, installed, "diagnose", "model.onnx", "--numpy", "--json", "r.json", "--report", "r.html")
    assert ran.status == 0, ran.out + ran.err
    result = read_json(work / "r.json")
    assert [culprit["name"] for culprit in result["culprits"]] == ["clip"]
    assert "NumPy (leak 0.01)" in (work / "r.html").read_text()
    folder = work / "model-reproducer"
    issue = (folder / "ISSUE.md").read_text()
    assert issue.startswith("# NumPy: wrong values from Relu\n")
    assert "bisect-trt-numpy-target" in issue
    again = run(work, installed, str(folder / "reproduce.py"))
    assert (again.status, "MISMATCH r" in again.out) == (1, True)


def test_its_options_are_settings(work: Path, installed: Path) -> None:
    mended = bisect_trt(work, installed, "run", "model.onnx", "--numpy", "--leak", "0")
    assert mended.status == 0, mended.out + mended.err
    assert bisect_trt(work, installed, "run", "model.onnx", "--numpy").status == 1
    folder = "out"
    ran = bisect_trt(work, installed, "diagnose", "model.onnx", "--numpy", "--leak", "0.5", "-o", folder)
    assert ran.status == 0, ran.out + ran.err
    assert "'leak': 0.5" in (work / folder / "reproduce.py").read_text()
    wrong = bisect_trt(work, installed, "run", "model.onnx", "--onnxrt", "--leak", "0.5")
    assert "--leak is an option of NumPy, and the target is ONNX Runtime; use --numpy." in wrong.error
    two = bisect_trt(work, installed, "run", "model.onnx", "--trt", "--numpy")
    assert "--trt and --numpy are two targets; name one." in two.error


def test_reduce_and_layerwise(work: Path, installed: Path) -> None:
    ran = bisect_trt(work, installed, "reduce", "model.onnx", "--numpy", "-o", "reduced.onnx")
    assert ran.status == 0, ran.out + ran.err
    assert [node.op_type for node in onnx.load(str(work / "reduced.onnx")).graph.node] == ["Relu"]
    ran = bisect_trt(work, installed, "layerwise", "model.onnx", "--numpy", "--json", "r.json")
    assert read_json(work / "r.json")["first_mismatch"]["tensor"] == "r"


def test_doctor_and_python(work: Path, installed: Path) -> None:
    assert "--numpy: yes\n" in bisect_trt(work, installed, "doctor").out
    code = "import bisect_trt; print(bisect_trt.compare('model.onnx', target='numpy', leak=0).status)"
    assert run(work, installed, "-c", code).out == "found\n"
    code = "import bisect_trt; bisect_trt.compare('model.onnx', target='nobody')"
    broken = subprocess.run([sys.executable, "-c", code], cwd=work, capture_output=True, text=True, check=False)
    assert "Error: there is no target 'nobody'" in broken.stderr


def test_a_target_that_does_not_load_is_named_and_stops_nothing(work: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    info = site / "broken-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[bisect_trt.targets]\nbroken = nobody.here:Target\n")
    said = bisect_trt(work, site, "doctor").out
    assert "--broken: no: 'broken' cannot be used: nobody.here:Target fails to load: ModuleNotFoundError" in said
    assert bisect_trt(work, site, "run", "model.onnx", "--onnxrt").status == 0
