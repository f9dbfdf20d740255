"""``reproduce.py`` is run before it is delivered; the files that its target reads lie beside it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from conftest import CommandLine
from support import overflowing, script

from bisect_trt.commands.reproducer import carry
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.targets.trt.settings import TrtSettings


def test_files_that_a_target_reads_are_carried(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.so").write_text(folder)
    (tmp_path / "timings").write_text("t")
    libraries = tuple(str(tmp_path / folder / "a.so") for folder in ("one", "two"))
    target = TargetSettings("trt").with_own(
        plugins=libraries, load_timing_cache=str(tmp_path / "timings"), strongly_typed=True
    )
    carried, files = carry(target, tmp_path / "files")
    own = carried.of(TrtSettings)
    assert [*own.plugins, own.load_timing_cache] == files
    assert [(tmp_path / name).read_text() for name in files] == ["one", "two", "t"]
    assert own.strongly_typed


def test_a_script_that_does_not_show_the_failure_proves_nothing(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its interpreter finds another NumPy: it is not the one of the workers."""
    shadow = Path("shadow")
    shadow.mkdir()
    python = shadow / "python"
    script(python, f'case "$1" in *reproduce.py) echo other; exit 0;; *) exec {sys.executable} "$@";; esac')
    monkeypatch.setattr(sys, "executable", str(python.absolute()))
    ran = cli("diagnose", overflowing(Path("model.onnx")), "--onnxrt", "--fp16", "-o", "out")
    assert ran.status == 3
    assert "reproduce.py ends with status 0: other" in ran.out
    assert "Run here, it does not show the failure" in Path("out/ISSUE.md").read_text()
