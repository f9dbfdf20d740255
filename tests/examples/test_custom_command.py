"""A command and an oracle of other packages: installed, they are in the command line, Python and the reference."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import node_names, overflowing, read_json

ROOT = Path(__file__).parents[2]
PIP = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "-q", "--target"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pip has installed both packages."""
    site = tmp_path_factory.mktemp("site")
    for name in ("custom_command", "custom_oracle"):
        source = tmp_path_factory.mktemp("source") / name
        shutil.copytree(ROOT / "examples" / name, source)  # setuptools builds in the folder itself
        words = [sys.executable, "-m", "pip", "install", *PIP, str(site), str(source)]
        subprocess.run(words, check=True, capture_output=True)
    return site


def run(site: Path, here: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, *words], cwd=here, capture_output=True, text=True, check=False, env=environment
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_a_command_in_one_file(site: Path, tmp_path: Path) -> None:
    overflowing(tmp_path / "model.onnx")
    done = run(site, tmp_path, "-m", "bisect_trt", "prefix", "model.onnx", "--onnxrt", "--fp16", "--json", "r.json")
    assert done.returncode == 0, done.stderr
    result = read_json(tmp_path / "r.json")
    assert (result["command"], result["status"], result["minimality"]) == ("prefix", "found", "1-minimal")
    assert node_names(tmp_path / "prefix.onnx")[-1] == result["culprits"][0]["name"]
    line = (
        "import bisect_trt; r = bisect_trt.prefix('model.onnx', onnxrt=True, fp16=True); print(r.culprits[0]['name'])"
    )
    assert run(site, tmp_path, "-c", line).stdout.strip() == result["culprits"][0]["name"]
    assert "\n## prefix\n" in run(site, tmp_path, str(ROOT / "docs" / "reference.py")).stdout


def test_an_oracle_in_one_file(site: Path, tmp_path: Path) -> None:
    overflowing(tmp_path / "model.onnx")
    words = ["-m", "bisect_trt", "reduce", "model.onnx", "--onnxrt", "--workers", "1"]
    assert run(site, tmp_path, *words, "-o", "a.onnx", "--max-latency", "1e6").returncode == 1
    slow = run(site, tmp_path, *words, "-o", "slow.onnx", "--max-latency", "0")
    assert slow.returncode == 0, slow.stderr
    assert len(node_names(tmp_path / "slow.onnx")) == 1
    line = "import bisect_trt; print(bisect_trt.reduce('model.onnx', target='onnxrt', max_latency=1e6).status)"
    assert run(site, tmp_path, "-c", line).stdout.strip() == "not_reproduced"
    assert "`--max-latency MS`" in run(site, tmp_path, str(ROOT / "docs" / "reference.py")).stdout


def test_a_package_that_fails_to_load_breaks_no_command(site: Path, tmp_path: Path) -> None:
    broken = tmp_path / "site"
    shutil.copytree(site, broken)
    (broken / "latency_oracle.py").write_text("import nothing_of_this_name\n")
    assert run(broken, tmp_path, "-m", "bisect_trt", "log", "--help").returncode == 0
    assert "latency_oracle" in run(broken, tmp_path, "-m", "bisect_trt", "doctor").stderr
