"""The guilty pass of each bug, among the dozens that touch a network: exactly that, in at most twelve probes.

Run by ``make truth``: each is asked in the release that has it, in an environment of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from truth.busy import busy
from truth.patterns import PADDED_POOL, PLANTED, TRANSPOSED_GEMM, UNSIGNED, Pattern
from truth.releases import onnxruntime

CAST, IDENTITY, DROPOUT = PLANTED[3:]
Alternatives = tuple[str, ...]
CASES: tuple[tuple[Pattern, str, Alternatives], ...] = (
    (TRANSPOSED_GEMM, "1.18.1", ("GemmTransposeFusion",)),
    (TRANSPOSED_GEMM, "1.29.0", ("GemmTransposeFusion",)),
    (PADDED_POOL, "1.19.2", ("Pad_Fusion",)),
    (PADDED_POOL, "1.20.1", ("Pad_Fusion",)),
    (UNSIGNED, "1.19.2", ("QDQPropagationTransformer",)),
    (UNSIGNED, "1.26.0", ("QDQPropagationTransformer",)),
    (CAST, "1.26.0", ("CastElimination", "DivMulFusion")),
    (CAST, "1.31.1", ("CastElimination", "DivMulFusion")),
    (IDENTITY, "1.18.1", ("DivMulFusion", "EliminateIdentity")),
    (DROPOUT, "1.31.1", ("DivMulFusion", "EliminateDropout")),
)

pytestmark = pytest.mark.timeout(1800)


@pytest.mark.parametrize(
    ("pattern", "release", "guilty"), CASES, ids=lambda value: str(getattr(value, "name", value))
)
def test_the_guilty_pass_is_named_exactly(
    pattern: Pattern,
    release: str,
    guilty: Alternatives,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    onnx.save(busy(pattern).model, str(tmp_path / "model.onnx"))
    words = [
        "cause",
        "model.onnx",
        "--onnxrt",
        "--on",
        f"env={onnxruntime(release)}",
        "--json",
        "result.json",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "bisect_trt", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    record_property("probes", result["probes"]["run"])
    assert sorted(result["cause"]) == [[f"optimizer:{name}"] for name in guilty]
    assert result["probes"]["run"] <= 12
