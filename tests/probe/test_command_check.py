"""The user's command: its words, its placeholders, and what is made of how it ends."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import candidate_files, examples, script

from bisect_trt.errors import UsageError
from bisect_trt.probe.engine_cache import EngineCache
from bisect_trt.probe.oracles import FIXED_ENGINE, BuiltinCheck, EngineCheck
from bisect_trt.probe.outcome import Ending
from bisect_trt.probe.user_checks import CommandCheck
from bisect_trt.probe.workspace import CandidateFiles
from bisect_trt.report.outcomes import describe_outcome
from bisect_trt.search.oracle import Verdict
from bisect_trt.targets.base import TargetSettings
from bisect_trt.targets.trt.settings import TrtSettings
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.worker.pool import WorkerPool
from bisect_trt.worker.protocol import BuildEngine, Compare, Compared, Failed

IN_FOLDER = settings(
    max_examples=examples(30),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
NAMES = ("model", "inputs", "golden", "dir")
PRINTABLE = st.text(
    st.characters(codec="utf-8", exclude_characters="\0", exclude_categories=["Cs"]), max_size=8
)


@pytest.fixture
def files(tmp_path: Path) -> CandidateFiles:
    folder = tmp_path / "a candidate's folder"
    folder.mkdir()
    return candidate_files(folder)


@given(st.lists(PRINTABLE, max_size=4))
def test_one_quoted_string_or_words(words: list[str]) -> None:
    line = ["sh", *words]
    assert CommandCheck.parse([shlex.join(line)]) == tuple(line)
    if words:
        assert CommandCheck.parse(line) == tuple(line)


@pytest.mark.parametrize(
    "words", [[""], ["  "], ["'open"], ["no-such-program-anywhere"], ["/"], ["no-such", "x"]]
)
def test_what_cannot_be_a_command(words: list[str]) -> None:
    with pytest.raises(UsageError, match="--check"):
        CommandCheck.parse(words)


@given(
    st.lists(st.one_of(PRINTABLE, st.sampled_from([f"{{{name}}}" for name in NAMES])), max_size=6)
)
@IN_FOLDER
def test_placeholders_are_replaced_and_nothing_else(
    files: CandidateFiles, parts: list[str]
) -> None:
    paths = dict(zip(NAMES, (files.model, files.inputs, files.golden, files.folder), strict=True))
    word = "".join(parts)
    expected = word
    for (
        name
    ) in NAMES:  # no path holds a placeholder, so one after the other is as good as all at once
        expected = expected.replace(f"{{{name}}}", str(paths[name]))
    check = CommandCheck(("sh", word))
    assert check.command_line(files) == ["sh", expected]
    assert check.names_placeholder == (expected != word)


def expected_verdict(
    code: int, boom: bool, fail: tuple[int, ...], ignore: tuple[int, ...], regex: bool
) -> Verdict:
    """The contract's table, row by row, for a check that ends by itself."""
    if code in ignore:
        return Verdict.PASS
    if code == 125 and code not in fail:
        return Verdict.UNRESOLVED
    if fail or regex:
        if (not fail or code in fail) and (not regex or boom):
            return Verdict.FAIL
        return Verdict.PASS if code == 0 else Verdict.UNRESOLVED
    return Verdict.PASS if code == 0 else Verdict.FAIL


CODES = (0, 1, 3, 125)


@pytest.mark.parametrize("fail", [(), (3,), (1, 125), (0,)])
@pytest.mark.parametrize("ignore", [(), (3,), (0, 125)])
@pytest.mark.parametrize("regex", [False, True])
def test_every_combination(
    files: CandidateFiles, fail: tuple[int, ...], ignore: tuple[int, ...], regex: bool
) -> None:
    patterns = (re.compile("bang"), re.compile("bo+m")) if regex else ()
    for code, boom in product(CODES, (False, True)):
        argv = ("sh", "-c", f"{'echo boooom >&2' if boom else 'echo quiet'}; exit {code}")
        outcome = CommandCheck(argv, fail, ignore, patterns).run(files)
        wanted = expected_verdict(code, boom, fail, ignore, regex)
        # However the original failed, even by a signal: only a signal or a time-out asks for that.
        for original in (None, "exit 1", "signal SIGSEGV", "time-out"):
            assert outcome.judge(original) is wanted, (code, boom, original)


@pytest.mark.parametrize(
    ("body", "signature"),
    [
        ("kill -SEGV $$", "signal SIGSEGV"),
        ("kill -ABRT $$", "signal SIGABRT"),
        ("exec sleep 60", "time-out"),
    ],
)
def test_broken_counts_as_the_original_does(
    files: CandidateFiles, body: str, signature: str
) -> None:
    for fail_codes in (
        (),
        (1,),
        (137, 139),
    ):  # the codes that a shell would make of the signals are no signals
        timeout = (
            0.3 if signature == "time-out" else None
        )  # what has to do something first gets all the time that it takes
        outcome = CommandCheck(
            ("sh", "-c", f"ulimit -c 0; {body}"), fail_codes, timeout=timeout
        ).run(files)
        assert (outcome.ending, outcome.signature) == (Ending.BROKEN, signature)
        for original in ("signal SIGSEGV", "signal SIGABRT", "time-out", "exit 1"):
            wanted = Verdict.FAIL if original == signature else Verdict.UNRESOLVED
            assert outcome.judge(original) is wanted


def test_output_that_is_no_text_can_be_searched(files: CandidateFiles) -> None:
    argv = ("sh", "-c", "printf '\\377\\376boom\\0'; exit 1")
    assert (
        CommandCheck(argv, fail_regexes=(re.compile("boom"),)).run(files).judge(None)
        is Verdict.FAIL
    )


def test_a_program_that_has_gone(files: CandidateFiles) -> None:
    with pytest.raises(UsageError, match="gone-since"):
        CommandCheck(("/gone-since",)).run(files)


# A check command that is given engines. What builds them is a stand-in, because the real one needs
# a GPU (tests/gpu).


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
        to = request.target.of(TrtSettings).save_engine
        if to is not None:
            Path(to).write_text(" ".join(request.target.keep))
        return self.answer or (None if isinstance(request, BuildEngine) else Compared())


@pytest.fixture
def engine_files(here: Path) -> CandidateFiles:
    folder = here / "candidate"
    folder.mkdir()
    return replace(candidate_files(folder), keep=("a", "b"))


def check(
    engine_files: CandidateFiles, *words: str, answer: Failed | Exception | None = None
) -> EngineCheck:
    return EngineCheck(Builder(engine_files.folder, answer), TARGET, CommandCheck(words))


@pytest.mark.parametrize(("wanted", "ending"), [("a b", Ending.FAILED), ("b", Ending.PASSED)])
def test_the_command_gets_the_engine_of_what_is_kept(
    engine_files: CandidateFiles, wanted: str, ending: Ending
) -> None:
    body = f'test "$1" = "$BISECT_TRT_ENGINE" && test "$(cat "$1")" != "{wanted}"'
    found = check(engine_files, script(engine_files.folder / "check", body), "{engine}").run(
        engine_files
    )
    assert found.ending is ending
    assert (engine_files.folder / "model.engine").exists() is (ending is Ending.PASSED)


def test_the_engine_with_the_fewest_nodes_in_fp32_that_passed_stays(
    engine_files: CandidateFiles,
) -> None:
    """The one of each candidate would fill the disk, and building the best again may give another one."""
    looks = check(
        engine_files, script(engine_files.folder / "check", 'test "$(cat "$1")" != "x"'), "{engine}"
    )
    kept = []
    for number, keep in enumerate(
        [("a", "b", "c"), ("a", "b"), ("x",), ("c", "d"), ("b",), ("a", "b")]
    ):
        folder = engine_files.folder / str(number)
        folder.mkdir()
        looks.run(replace(engine_files, folder=folder, keep=keep))
        kept.append([path.read_text() for path in engine_files.folder.glob("*/model.engine")])
    assert kept == [["a b c"], ["a b"], ["a b"], ["a b"], ["b"], ["b"]]


def test_an_engine_that_was_built_before_is_not_built_again(engine_files: CandidateFiles) -> None:
    made = engine_files.folder / "mixed.engine"
    made.write_text("made")
    body = f'test "$1" = "{made.absolute()}" && test "$(cat "$1")" = made'
    words = (script(engine_files.folder / "check", body), "{engine}")
    never = Failed("crash", "it crashed (SIGSEGV)", "signal SIGSEGV")
    assert (
        check(engine_files, *words, answer=never).run(replace(engine_files, engine=made)).ending
        is Ending.PASSED
    )
    assert made.exists()


def test_the_built_in_check_leaves_the_best_engine_too_and_runs_one_that_is_there(
    engine_files: CandidateFiles,
) -> None:
    trt = TrtSettings(tactic_sources=("cublas",), plugins=("plugin.so",))
    pool = Builder(engine_files.folder)
    looks = BuiltinCheck(
        pool, replace(TARGET, own=trt), ToleranceOptions(), engine_cache=EngineCache()
    )
    assert looks.run(engine_files).ending is Ending.PASSED
    engine = engine_files.folder / "model.engine"
    assert engine.read_text() == "a b"
    assert looks.run(replace(engine_files, engine=engine)).ending is Ending.PASSED
    assert engine.read_text() == "a b"
    built, loaded = (request.target for request in pool.requests)
    assert built == replace(
        TARGET, keep=("a", "b"), own=replace(trt, save_engine=str(engine.absolute()))
    )
    assert loaded == replace(
        TARGET, own=TrtSettings(load_engine=str(engine.absolute()), plugins=("plugin.so",))
    )
    by_hand = (engine_files.folder / "command.txt").read_text()
    assert f"--load-engine {engine.absolute()}" in by_hand
    assert "--tactic-sources" not in by_hand


def test_without_a_placeholder_it_lies_at_a_fixed_path(engine_files: CandidateFiles) -> None:
    looks = check(
        engine_files, script(engine_files.folder / "check", f'test "$(cat {FIXED_ENGINE})" = "a b"')
    )
    assert not looks.parallel
    assert looks.run(engine_files).ending is Ending.PASSED


@pytest.mark.parametrize(
    "failed",
    [
        Failed("build", "no kernel for it", "build: no kernel"),
        Failed("crash", "crashed (SIGSEGV)", "signal SIGSEGV"),
    ],
)
def test_an_engine_that_cannot_be_built_says_nothing_of_the_check(
    engine_files: CandidateFiles, failed: Failed
) -> None:
    found = check(engine_files, "false", answer=failed).run(engine_files)
    assert found.ending is Ending.BROKEN
    assert failed.message in describe_outcome(found)
