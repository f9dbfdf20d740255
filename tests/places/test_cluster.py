"""What is said where there is no Ray cluster; `make chaos` has one."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from conftest import CommandLine
from support import overflowing

WORDS = ("reduce", "model.onnx", "-o", "out.onnx", "--onnxrt", "--fp16", "--on")


def test_ray_is_an_extra(cli: CommandLine, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overflowing(here / "model.onnx")
    monkeypatch.setitem(sys.modules, "ray", None)
    cli(*WORDS, "ray=auto").refused(
        "BT2005", "--on ray=auto: Ray is not installed; run: pip install ray."
    )


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed (bisect-trt[ray])"
)
def test_no_cluster_is_said(cli: CommandLine, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overflowing(here / "model.onnx")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(here))  # where Ray looks for one of this machine
    cli(*WORDS, "ray=auto").refused(
        "BT2005", "--on ray=auto: there is no Ray cluster: ", "ray start --head"
    )
