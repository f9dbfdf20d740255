"""A check command that is given engines. What builds them is a stand-in, because the real one needs a GPU (tests/gpu)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import script

from bisect_trt.probing.command import CommandCheck
from bisect_trt.probing.engine import FIXED_ENGINE, EngineCheck
from bisect_trt.probing.outcome import Ending
from bisect_trt.probing.process import ProcessEnd
from bisect_trt.probing.worker import WorkerDied, WorkerPool
from bisect_trt.probing.workspace import CandidateFiles
from bisect_trt.runtimes.settings import TargetSettings

TARGET = TargetSettings(runtime="trt", fp16=True)


class Builder(WorkerPool):
    """Writes what it was asked to keep where an engine would go, or answers as it was told."""

    def __init__(self, folder: Path, answer: dict[str, Any] | Exception | None = None) -> None:
        super().__init__(folder)
        self.answer = answer

    def ask(self, request: dict[str, Any], timeout: float | None = None, cancel: object = None) -> dict[str, Any]:
        del timeout, cancel
        assert request["op"] == "build"
        if isinstance(self.answer, Exception):
            raise self.answer
        Path(request["to"]).write_text(" ".join(request["target"]["keep"]))
        return self.answer or {"ok": True}


@pytest.fixture
def files(here: Path) -> CandidateFiles:
    folder = here / "candidate"
    folder.mkdir()
    made = CandidateFiles(folder, folder / "m.onnx", folder / "i.npz", folder / "g.npz", folder / "output.log")
    return replace(made, keep=("a", "b"))


def check(files: CandidateFiles, *words: str, answer: dict[str, Any] | Exception | None = None) -> EngineCheck:
    return EngineCheck(Builder(files.folder, answer), TARGET, CommandCheck(words))


@pytest.mark.parametrize(("wanted", "ending"), [("a b", Ending.FAILED), ("b", Ending.PASSED)])
def test_the_command_gets_the_engine_of_what_is_kept(files: CandidateFiles, wanted: str, ending: Ending) -> None:
    body = f'test "$1" = "$BISECT_TRT_ENGINE" && test "$(cat "$1")" != "{wanted}"'
    found = check(files, script(files.folder / "check", body), "{engine}").run(files)
    assert found.ending is ending
    assert not (files.folder / "model.engine").exists(), "an engine of each candidate would fill the disk"


def test_without_a_placeholder_it_lies_at_a_fixed_path(files: CandidateFiles) -> None:
    looks = check(files, script(files.folder / "check", f'test "$(cat {FIXED_ENGINE})" = "a b"'))
    assert not looks.parallel
    assert looks.run(files).ending is Ending.PASSED


def test_an_engine_that_cannot_be_built_says_nothing_of_the_check(files: CandidateFiles) -> None:
    refused = {"error": "build", "message": "no kernel for it", "signature": "build: no kernel"}
    found = check(files, "false", answer=refused).run(files)
    assert found.ending is Ending.BROKEN
    assert "no kernel for it" in found.reason
    crashed = check(files, "false", answer=WorkerDied(ProcessEnd(-11, False, False, 1.0))).run(files)
    assert crashed.ending is Ending.BROKEN
    assert "SIGSEGV" in crashed.reason
