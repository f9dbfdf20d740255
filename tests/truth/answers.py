"""The corpus of truth, run by ``make truth``: every answer is the exact one.

Not collected by `make test`: it installs some twenty releases of runtimes and takes many minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from bisect_trt.worker.environments import Environment
from truth.cases import Case, healthy_cases, onnxruntime_cases, openvino_cases
from truth.releases import TOOL, interpreter, onnxruntime

Record = Callable[[str, object], None]
pytestmark = pytest.mark.timeout(1800)


def bisect_trt(python: Path, folder: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """Run the command of an environment in a folder; its exit status and result."""
    command = [str(python), "-m", "bisect_trt", *words]
    told = {**os.environ, **TOOL}
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env=told
    )
    result = folder / "result.json"
    assert result.exists(), done.stdout + done.stderr
    return done.returncode, json.loads(result.read_text(encoding="utf-8"))


def judge(
    case: Case,
    status: int,
    result: dict[str, Any],
    truth: tuple[frozenset[str], ...],
    record: Record,
) -> None:
    """Put the answer into the table, and hold it against the truth: every place, and no more."""
    found = [
        frozenset(culprit["name"] for culprit in failure["culprits"])
        for failure in result["failures"]
    ]
    said = "; ".join(", ".join(sorted(names)) for names in found) or result["status"]
    exact = sorted(map(sorted, found)) == sorted(map(sorted, truth))
    record("bug", case.pattern.name)
    record("shown by", case.pattern.shown)
    record("in", case.where)
    record("release", case.release)
    record("exact", "yes" if exact else f"no: {said}")
    record("minimal", result["minimality"])
    record("probes", result["probes"]["run"])
    assert status == 0, result["why"]
    assert exact, said
    assert result["more_failures"] is False
    assert result["minimality"].startswith("1-minimal")


def script_status(script: Path, python: Path) -> int:
    """The exit status of a reproducer's script."""
    done = subprocess.run([python, script], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.returncode


@pytest.mark.parametrize("case", [*onnxruntime_cases()], ids=str)
def test_a_planted_bug_is_named_exactly(
    case: Case, tmp_path: Path, record_property: Record
) -> None:
    network = case.make()
    onnx.save(network.model, str(tmp_path / "model.onnx"))
    python = interpreter(onnxruntime(case.release), tool=True)
    words = (
        "diagnose",
        "model.onnx",
        "--onnxrt",
        "--all",
        "-o",
        "reproducer",
        "--json",
        "result.json",
    )
    status, result = bisect_trt(python, tmp_path, *words)
    judge(case, status, result, network.guilty, record_property)
    script = tmp_path / "reproducer" / "reproduce.py"
    failing = script_status(script, python)
    record_property("script, failing", failing)
    mended = None
    if case.pattern.mended is not None:
        mended = script_status(script, interpreter(onnxruntime(case.pattern.mended)))
        record_property("script, fixed", f"{mended} ({case.pattern.mended})")
    assert failing == 1
    assert mended in (0, None)


@pytest.mark.parametrize("case", [*openvino_cases()], ids=str)
def test_a_bug_of_openvino_is_named_exactly(
    case: Case, tmp_path: Path, record_property: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its kernels for AMX do not have the bug, and those without VNNI saturate.
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_VNNI")
    network = case.make()
    onnx.save(network.model, str(tmp_path / "model.onnx"))
    release = f"openvino=={case.release}"
    python = interpreter(Environment((release, *onnxruntime("1.31.1").requirements)), tool=True)
    words = (
        "diagnose",
        "model.onnx",
        "--openvino",
        "--all",
        "-o",
        "reproducer",
        "--json",
        "result.json",
    )
    status, result = bisect_trt(python, tmp_path, *words)
    judge(case, status, result, network.guilty, record_property)
    failing = script_status(
        tmp_path / "reproducer" / "reproduce.py", interpreter(Environment.parse(release))
    )
    record_property("script, failing", failing)
    assert failing == 1


@pytest.mark.parametrize("case", [*healthy_cases()], ids=str)
def test_look_alikes_are_no_failure(case: Case, tmp_path: Path) -> None:
    onnx.save(case.make().model, str(tmp_path / "model.onnx"))
    python = interpreter(onnxruntime(case.release), tool=True)
    status, result = bisect_trt(
        python, tmp_path, "diagnose", "model.onnx", "--onnxrt", "--json", "result.json"
    )
    assert (status, result["status"]) == (1, "not_reproduced")
