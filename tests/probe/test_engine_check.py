"""A check command that is given engines. What builds them is a stand-in, because the real one needs a GPU (tests/gpu)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import script

from bisect_trt.probe.oracles import FIXED_ENGINE, BuiltinCheck, EngineCache, EngineCheck
from bisect_trt.probe.outcome import Ending
from bisect_trt.probe.user_checks import CommandCheck
from bisect_trt.probe.workspace import CandidateFiles
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.targets.trt.settings import TrtSettings
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.worker.pool import WorkerPool
from bisect_trt.worker.protocol import BuildEngine, Compare, Compared, Failed

TARGET = TargetSettings(runtime="trt", fp16=True)


class Builder(WorkerPool):
    """Writes what it was asked to keep where an engine would go, or answers as it was told."""

    def __init__(self, folder: Path, answer: Failed | Exception | None = None) -> None:
        super().__init__(folder)
        self.answer = answer
        self.requests: list[BuildEngine | Compare] = []

    def ask(self, request: Any, *_: object, **__: object) -> Any:
        self.requests.append(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        to = request.to if isinstance(request, BuildEngine) else request.target.of(TrtSettings).save_engine
        if to is not None:
            Path(to).write_text(" ".join(request.target.keep))
        return self.answer or (None if isinstance(request, BuildEngine) else Compared())


@pytest.fixture
def files(here: Path) -> CandidateFiles:
    folder = here / "candidate"
    folder.mkdir()
    made = CandidateFiles(folder, folder / "m.onnx", folder / "i.npz", folder / "g.npz", folder / "output.log")
    return replace(made, keep=("a", "b"))


def check(files: CandidateFiles, *words: str, answer: Failed | Exception | None = None) -> EngineCheck:
    return EngineCheck(Builder(files.folder, answer), TARGET, CommandCheck(words))


@pytest.mark.parametrize(("wanted", "ending"), [("a b", Ending.FAILED), ("b", Ending.PASSED)])
def test_the_command_gets_the_engine_of_what_is_kept(files: CandidateFiles, wanted: str, ending: Ending) -> None:
    body = f'test "$1" = "$BISECT_TRT_ENGINE" && test "$(cat "$1")" != "{wanted}"'
    found = check(files, script(files.folder / "check", body), "{engine}").run(files)
    assert found.ending is ending
    assert (files.folder / "model.engine").exists() is (ending is Ending.PASSED)


def test_the_engine_with_the_fewest_nodes_in_fp32_that_passed_stays(files: CandidateFiles) -> None:
    """The one of each candidate would fill the disk, and building the best again may give another one."""
    looks = check(files, script(files.folder / "check", 'test "$(cat "$1")" != "x"'), "{engine}")
    kept = []
    for number, keep in enumerate([("a", "b", "c"), ("a", "b"), ("x",), ("c", "d"), ("b",), ("a", "b")]):
        folder = files.folder / str(number)
        folder.mkdir()
        looks.run(replace(files, folder=folder, keep=keep))
        kept.append([path.read_text() for path in files.folder.glob("*/model.engine")])
    assert kept == [["a b c"], ["a b"], ["a b"], ["a b"], ["b"], ["b"]]


def test_an_engine_that_was_built_before_is_not_built_again(files: CandidateFiles) -> None:
    made = files.folder / "mixed.engine"
    made.write_text("made")
    body = f'test "$1" = "{made.absolute()}" && test "$(cat "$1")" = made'
    words = (script(files.folder / "check", body), "{engine}")
    never = Failed("crash", "it crashed (SIGSEGV)", "signal SIGSEGV")
    assert check(files, *words, answer=never).run(replace(files, engine=made)).ending is Ending.PASSED
    assert made.exists()


def test_the_built_in_check_leaves_the_best_engine_too_and_runs_one_that_is_there(files: CandidateFiles) -> None:
    trt = TrtSettings(tactic_sources=("cublas",), plugins=("plugin.so",))
    pool = Builder(files.folder)
    looks = BuiltinCheck(pool, replace(TARGET, own=trt), ToleranceOptions(), engine_cache=EngineCache())
    assert looks.run(files).ending is Ending.PASSED
    engine = files.folder / "model.engine"
    assert engine.read_text() == "a b"
    assert looks.run(replace(files, engine=engine)).ending is Ending.PASSED
    assert engine.read_text() == "a b"
    built, loaded = (request.target for request in pool.requests)
    assert built == replace(TARGET, keep=("a", "b"), own=replace(trt, save_engine=str(engine.absolute())))
    assert loaded == replace(TARGET, own=TrtSettings(load_engine=str(engine.absolute()), plugins=("plugin.so",)))
    by_hand = (files.folder / "command.txt").read_text()
    assert f"--load-engine {engine.absolute()}" in by_hand
    assert "--tactic-sources" not in by_hand


def test_without_a_placeholder_it_lies_at_a_fixed_path(files: CandidateFiles) -> None:
    looks = check(files, script(files.folder / "check", f'test "$(cat {FIXED_ENGINE})" = "a b"'))
    assert not looks.parallel
    assert looks.run(files).ending is Ending.PASSED


def test_an_engine_that_cannot_be_built_says_nothing_of_the_check(files: CandidateFiles) -> None:
    refused = Failed("build", "no kernel for it", "build: no kernel")
    found = check(files, "false", answer=refused).run(files)
    assert found.ending is Ending.BROKEN
    assert "no kernel for it" in found.reason
    crashed = check(files, "false", answer=Failed("crash", "it crashed (SIGSEGV)", "signal SIGSEGV")).run(files)
    assert crashed.ending is Ending.BROKEN
    assert "SIGSEGV" in crashed.reason
