"""What a report says of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from bisect_trt.report import environment


@pytest.mark.parametrize(
    "version",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\nGCC version: 12.2\n",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (dvs)  Tue Nov  4\n",
        "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  540.4.0  Release Build\n",
    ],
)
def test_the_driver_and_its_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    for number in range(2):
        (tmp_path / "gpus" / str(number)).mkdir(parents=True)
        (tmp_path / "gpus" / str(number) / "information").write_text(f"Model: \t NVIDIA H{number}00\nIRQ: 0\n")
    (tmp_path / "version").write_text(version)
    monkeypatch.setattr(environment, "_DRIVER", tmp_path)
    seen = environment.environment()
    assert seen["GPU"] == "NVIDIA H000, NVIDIA H100"
    assert seen["NVIDIA driver"] in ("535.183.01", "580.159.04", "540.4.0")
    assert seen["NVIDIA driver"] in version


def test_without_a_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_DRIVER", tmp_path)
    assert {"GPU", "NVIDIA driver"}.isdisjoint(environment.environment())
