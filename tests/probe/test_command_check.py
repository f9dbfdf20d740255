"""The user's command: its words, its placeholders, and what is made of how it ends."""

from __future__ import annotations

import re
import shlex
from itertools import product
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import examples

from bisect_trt.errors import UsageError
from bisect_trt.probe.outcome import Ending
from bisect_trt.probe.user_checks import CommandCheck
from bisect_trt.probe.workspace import CandidateFiles
from bisect_trt.search.oracle import Verdict

IN_FOLDER = settings(
    max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
NAMES = ("model", "inputs", "golden", "dir")
PRINTABLE = st.text(st.characters(codec="utf-8", exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)


@pytest.fixture
def files(tmp_path: Path) -> CandidateFiles:
    folder = tmp_path / "a candidate's folder"
    folder.mkdir()
    return CandidateFiles(folder, folder / "m.onnx", folder / "i.npz", folder / "g.npz", folder / "output.log")


@given(st.lists(PRINTABLE, max_size=4))
def test_one_quoted_string_or_words(words: list[str]) -> None:
    line = ["sh", *words]
    assert CommandCheck.parse([shlex.join(line)]) == tuple(line)
    if words:
        assert CommandCheck.parse(line) == tuple(line)


@pytest.mark.parametrize("words", [[""], ["  "], ["'open"], ["no-such-program-anywhere"], ["/"], ["no-such", "x"]])
def test_what_cannot_be_a_command(words: list[str]) -> None:
    with pytest.raises(UsageError, match="--check"):
        CommandCheck.parse(words)


@given(st.lists(st.one_of(PRINTABLE, st.sampled_from([f"{{{name}}}" for name in NAMES])), max_size=6))
@IN_FOLDER
def test_placeholders_are_replaced_and_nothing_else(files: CandidateFiles, parts: list[str]) -> None:
    paths = dict(zip(NAMES, (files.model, files.inputs, files.golden, files.folder), strict=True))
    word = "".join(parts)
    expected = word
    for name in NAMES:  # no path holds a placeholder, so one after the other is as good as all at once
        expected = expected.replace(f"{{{name}}}", str(paths[name]))
    check = CommandCheck(("sh", word))
    assert check.command_line(files) == ["sh", expected]
    assert check.names_placeholder == (expected != word)


def test_environment(files: CandidateFiles) -> None:
    assert files.environment() == {
        "BISECT_TRT_MODEL": str(files.model),
        "BISECT_TRT_INPUTS": str(files.inputs),
        "BISECT_TRT_GOLDEN": str(files.golden),
        "BISECT_TRT_DIR": str(files.folder),
    }


def expected_verdict(code: int, boom: bool, fail: tuple[int, ...], ignore: tuple[int, ...], regex: bool) -> Verdict:
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
def test_every_combination(files: CandidateFiles, fail: tuple[int, ...], ignore: tuple[int, ...], regex: bool) -> None:
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
    [("kill -SEGV $$", "signal SIGSEGV"), ("kill -ABRT $$", "signal SIGABRT"), ("exec sleep 60", "time-out")],
)
def test_broken_counts_as_the_original_does(files: CandidateFiles, body: str, signature: str) -> None:
    for fail_codes in ((), (1,), (137, 139)):  # the codes that a shell would make of the signals are no signals
        timeout = (
            0.3 if signature == "time-out" else None
        )  # what has to do something first gets all the time that it takes
        outcome = CommandCheck(("sh", "-c", f"ulimit -c 0; {body}"), fail_codes, timeout=timeout).run(files)
        assert (outcome.ending, outcome.signature) == (Ending.BROKEN, signature)
        for original in ("signal SIGSEGV", "signal SIGABRT", "time-out", "exit 1"):
            wanted = Verdict.FAIL if original == signature else Verdict.UNRESOLVED
            assert outcome.judge(original) is wanted


def test_output_that_is_no_text_can_be_searched(files: CandidateFiles) -> None:
    argv = ("sh", "-c", "printf '\\377\\376boom\\0'; exit 1")
    assert CommandCheck(argv, fail_regexes=(re.compile("boom"),)).run(files).judge(None) is Verdict.FAIL


def test_a_program_that_has_gone(files: CandidateFiles) -> None:
    with pytest.raises(UsageError, match="gone-since"):
        CommandCheck(("/gone-since",)).run(files)
