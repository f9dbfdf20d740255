"""Checks of the user: a command, a Python function, or answers at a prompt."""

from __future__ import annotations

import inspect
import re
import shlex
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bisect_trt.aliases import Names, Sizes
from bisect_trt.errors import BisectError, CheckCommandError, MissingOptionError, ScriptError
from bisect_trt.probe.check import Check
from bisect_trt.probe.outcome import Ending, Outcome, Reason
from bisect_trt.probe.workspace import CandidateFiles
from bisect_trt.search.oracle import Verdict
from bisect_trt.targets.base import too_new
from bisect_trt.tensors.files import load_npz
from bisect_trt.tensors.kernel import oom_kills
from bisect_trt.worker.process import MOST_LOST, Cancel, ProcessEnd, gate, run_to_end
from bisect_trt.worker.protocol import CANCELLED, LOST, OVER_MEMORY

_TAIL_LINES = 5
_TAIL_BYTES = 4096
_SHELL_KILLED = (128 + signal.SIGKILL, 128 + signal.SIGTERM)
"""A shell reports a command that a signal killed by the exit status 128 and the signal's number."""
SKIP_CODE = 125
"""The exit status for "cannot be judged", as for ``git bisect run``."""
_CANNOT_RUN = {126: "cannot be executed", 127: "is not there"}
"""Exit statuses of a shell for a program that it cannot run, which end a search as they end
``git bisect run``."""
_PLACEHOLDER = re.compile(r"\{(model|inputs|golden|dir|engine|python|shapes)\}")
_EXCEPTION = re.compile(r"^(?:(?:\w+\.){2,}\w+|\w+(?:Error|Exception))(?=: |$)")
"""The class at the beginning of the last line of a Python traceback."""
PYTHON = "{python}"
"""Placeholder of the interpreter of a candidate: its environment's interpreter, else this one."""


def _of_samples(files: CandidateFiles, check: Callable[[CandidateFiles], Outcome]) -> Outcome:
    """Check a candidate on one input sample after the other until it fails on one.

    Returns:
        The first failure; else the first that neither failed nor passed; else the last pass.
    """
    seconds = 0.0
    result = None
    for sample_files in files.each_sample():
        outcome = check(sample_files)
        # A single sample needs no name.
        if sample_files.sample is None:
            return outcome
        seconds += outcome.seconds
        failed = outcome.ending in (Ending.FAILED, Ending.MISMATCHED)
        if result is None or result.ending is Ending.PASSED or failed:
            result = replace(outcome, sample=sample_files.sample)
            if outcome.ending is not Ending.PASSED:
                result = result.seeing(Reason.SAMPLE, sample_files.sample)
        if outcome.cancelled or failed:
            break
    assert result is not None, "there is always a sample"
    return replace(result, seconds=seconds)


def note_command(files: CandidateFiles, line: str) -> None:
    """Write the command that repeats a probe by hand."""
    (files.folder / "command.txt").write_text(f"{line}\n", "utf-8", "surrogateescape")


@dataclass(frozen=True)
class CommandCheck(Check):
    """A command, and the conditions on how it ends (docs/checks.md).

    Attributes:
        argv: The command, with placeholders.
        fail_codes: Only these exit statuses are the failure.
        ignore_fail_codes: These exit statuses are a pass.
        fail_regexes: Only output that one of these matches is the failure.
        timeout: Seconds a candidate may take.
        memory_limit: Bytes that a candidate's check and all that it starts may hold.
    """

    argv: Names
    fail_codes: Sizes = ()
    ignore_fail_codes: Sizes = ()
    fail_regexes: tuple[re.Pattern[str], ...] = ()
    timeout: float | None = None
    memory_limit: int | None = None

    @classmethod
    def parse(cls, words: Sequence[str]) -> Names:
        """The command from the words after ``--check``: the command itself, or one quoted string.

        Raises:
            UsageError: It is empty, its quotes do not match, or the program does not exist.
        """
        try:
            argv = shlex.split(words[0]) if len(words) == 1 else list(words)
        except ValueError as error:
            raise CheckCommandError(f"--check {words[0]}: {error}; correct the quotes.") from error
        if not argv:
            raise CheckCommandError("--check needs a command after it.")
        if argv[0] != PYTHON and shutil.which(argv[0]) is None:
            raise CheckCommandError(
                f"--check: there is no program '{argv[0]}' (or it is not executable); give its path or correct PATH."
            )
        return tuple(argv)

    @property
    def names_placeholder(self) -> bool:
        """Whether the command says where the candidate goes; if not, it reads a fixed path."""
        return any(_PLACEHOLDER.search(word.replace(PYTHON, "")) for word in self.argv)

    @property
    def parallel(self) -> bool:
        """Whether several may run at a time."""
        return self.names_placeholder

    def require_portable(self) -> None:
        """Check that the command is given the interpreter of a release.

        Raises:
            MissingOptionError: It is not.
        """
        if not any(PYTHON in word for word in self.argv):
            raise MissingOptionError(
                "the --check command does not contain {python}, so it would run the same for each release; use {python} for the "
                "interpreter of the release: --check {python} check.py {model}"
            )

    def command_line(self, files: CandidateFiles) -> list[str]:
        """The command for one candidate."""
        values = {"python": sys.executable, **files.placeholders()}
        return [
            _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), word)
            for word in self.argv
        ]

    def run(self, files: CandidateFiles, cancel: Cancel | None = None) -> Outcome:
        """Run it on a candidate, with one input sample after the other until it fails."""
        return _of_samples(files, lambda sample_files: self._run_sample(sample_files, cancel))

    def _run_sample(self, files: CandidateFiles, cancel: Cancel | None) -> Outcome:
        argv = self.command_line(files)
        copy = (
            ""
            if files.kept is None
            else f"{shlex.join(['cp', str(files.kept.absolute()), str(files.model)])} && "
        )
        note_command(files, f"{copy}{shlex.join(argv)}")
        for number in range(MOST_LOST):
            # The command may have changed or removed what it was given.
            if number or (files.sample or 1) > 1:
                files.renew()
            end, doubtful = self._end(argv, files, cancel)
            if not doubtful:
                return self._read(end, files.log)
        ending = end.signal_name or f"exit status {end.code}"
        outcome = Outcome(Ending.SKIPPED, LOST, seconds=end.seconds, tail=_tail(files.log))
        return outcome.seeing(Reason.KILLED_OFTEN, MOST_LOST, ending)

    def _end(
        self, argv: Sequence[str], files: CandidateFiles, cancel: Cancel | None
    ) -> tuple[ProcessEnd, bool]:
        """Return the end of the command, and whether another process may have ended it or one of its children."""
        kills = oom_kills()
        with gate.turn(cancel):
            try:
                end = run_to_end(
                    argv,
                    log=files.log,
                    environment=files.environment(),
                    timeout=self.timeout,
                    cancel=cancel,
                    memory_limit=self.memory_limit,
                )
            except OSError as error:
                raise CheckCommandError(
                    f"--check: '{self.argv[0]}' cannot be run: {error.strerror}."
                ) from error
        gate.saw_children()
        if end.limit is not None:
            return end, False
        # 137 is also what a check may return on purpose.
        wanted = end.code in (*self.fail_codes, *self.ignore_fail_codes)
        killed = end.code in _SHELL_KILLED or (end.code != 0 and oom_kills() > kills)
        return end, end.from_outside or (killed and not wanted)

    def _read(self, end: ProcessEnd, log: Path) -> Outcome:  # noqa: PLR0911 - one return a row of the table
        """The table of the check command's contract, its first row that applies."""
        seconds = end.seconds
        if end.limit == "cancelled":
            cancelled = Outcome(Ending.SKIPPED, CANCELLED, seconds=seconds)
            return cancelled.seeing(Reason.NOT_NEEDED)
        passed = Outcome(Ending.PASSED, "pass", seconds=seconds)
        if end.code in self.ignore_fail_codes and end.limit is None:
            return passed.seeing(Reason.IGNORED_EXIT, end.code)
        if end.code == SKIP_CODE and SKIP_CODE not in self.fail_codes and end.limit is None:
            skipped = Outcome(Ending.SKIPPED, "skip", seconds=seconds)
            return skipped.seeing(Reason.SKIP_EXIT, SKIP_CODE)
        if end.limit == "memory":
            return Outcome(Ending.BROKEN, OVER_MEMORY, end.describe(), seconds, _tail(log))
        if end.limit == "time" and self.timeout is not None:
            broken = Outcome(Ending.BROKEN, "time-out", seconds=seconds, tail=_tail(log))
            return broken.seeing(Reason.TIME_OUT, self.timeout)
        if end.signal_name:
            signature = f"signal {end.signal_name}"
            broken = Outcome(Ending.BROKEN, signature, seconds=seconds, tail=_tail(log))
            return broken.seeing(Reason.KILLED, end.signal_name)
        if self.fail_codes or self.fail_regexes:
            return self._read_conditions(end, log)
        if end.code == 0:
            return passed.seeing(Reason.EXIT, 0)
        self._refuse_broken(end, log)
        # A broken check ends like this too, and only what it printed tells.
        tail = _tail(log)
        last = tail.rpartition("\n")[2]
        kinds = [f"exit {end.code}", *_EXCEPTION.findall(last), *too_new(last)]
        failed = Outcome(Ending.FAILED, ": ".join(kinds), seconds=seconds, tail=tail)
        return failed.seeing(Reason.EXIT, end.code)

    def _refuse_broken(self, end: ProcessEnd, log: Path) -> None:
        """End the search where a program of the check cannot be run, which says nothing of any model.

        Raises:
            CheckCommandError: The exit status says so.
        """
        if end.code in _CANNOT_RUN:
            printed = _tail(log).rpartition("\n")[2] or "it printed nothing"
            raise CheckCommandError(
                f"--check ended with status {end.code}: a program that it needs {_CANNOT_RUN[end.code]} ({printed}); correct "
                f"the command, or give --fail-code {end.code} if this is the failure."
            )

    def _read_conditions(self, end: ProcessEnd, log: Path) -> Outcome:
        conditions: list[str] = []
        text = _text(log) if self.fail_regexes else ""
        matched = next((pattern for pattern in self.fail_regexes if pattern.search(text)), None)
        if matched is not None:
            conditions.append(f"output matches '{matched.pattern}'")
        if end.code in self.fail_codes:
            conditions.append(f"exit status {end.code}")
        # A pattern that is not in the part of the output that was kept may be in the rest.
        lost = end.left_out or (self.fail_regexes and not log.exists())
        if (
            self.fail_regexes
            and matched is None
            and lost
            and (not self.fail_codes or end.code in self.fail_codes)
        ):
            unknown = Outcome(Ending.OTHER, "too much output", seconds=end.seconds, tail=_tail(log))
            return unknown.seeing(
                Reason.OUTPUT_LEFT_OUT if end.left_out else Reason.LOG_GONE, end.left_out
            )
        if len(conditions) == bool(self.fail_codes) + bool(self.fail_regexes):
            return Outcome(Ending.FAILED, ", ".join(conditions), ", ".join(conditions), end.seconds)
        if end.code == 0:
            passed = Outcome(Ending.PASSED, "pass", seconds=end.seconds)
            return passed.seeing(Reason.OTHER_PASS, end.code)
        self._refuse_broken(end, log)
        outcome = Outcome(Ending.OTHER, f"exit {end.code}", seconds=end.seconds, tail=_tail(log))
        return outcome.seeing(Reason.OTHER_EXIT, end.code)


def _text(log: Path, last: int | None = None) -> str:
    """The text of a log, or its last bytes; nothing if the check has removed it."""
    try:
        with log.open("rb") as file:
            if last is not None:
                file.seek(max(log.stat().st_size - last, 0))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _tail(log: Path) -> str:
    """The last lines of a log."""
    lines = _text(log, _TAIL_BYTES).rstrip().splitlines()
    return "\n".join(lines[-_TAIL_LINES:])


_OUTCOMES = {
    Verdict.FAIL: Outcome(Ending.FAILED, "bad").seeing(Reason.CHECK_FAILS),
    Verdict.PASS: Outcome(Ending.PASSED, "pass").seeing(Reason.CHECK_PASSES),
    Verdict.UNRESOLVED: Outcome(Ending.SKIPPED, "skip").seeing(Reason.CHECK_SKIPS),
}


@dataclass(frozen=True)
class FunctionCheck(Check):
    """Calls a function with each candidate, in this process, one at a time.

    Attributes:
        function: Takes the path of the candidate, and ``inputs`` and ``golden``, dicts of arrays by
            tensor name, if it has parameters of these names. It returns ``True`` or
            ``Verdict.FAIL`` for "it fails", ``False``, ``None`` or ``Verdict.PASS`` for "it does
            not"; an ``AssertionError`` is a failure too, any other exception says nothing.
    """

    function: Callable[..., object]

    def run(self, files: CandidateFiles, cancel: Cancel | None = None) -> Outcome:  # noqa: ARG002 - it cannot be ended
        """Call it with one input sample after the other, until one fails."""
        return _of_samples(files, self._call)

    def _call(self, files: CandidateFiles) -> Outcome:
        # A builtin need not say.
        takes: Collection[str] = ()
        with suppress(ValueError):
            takes = inspect.signature(self.function).parameters
        paths = {"inputs": files.inputs, "golden": files.golden}
        values = {name: load_npz(path) for name, path in paths.items() if name in takes}
        note_command(files, f"{_name(self.function)}({str(files.model)!r})")
        try:
            answer = self.function(files.model, **values)
        except BisectError:
            raise
        # An assertion is the check's way to say bad; other exceptions are faults of the check.
        except AssertionError as error:
            signature = "AssertionError"
            reason = f"AssertionError: {_first_line(error)}".rstrip(": ")
            return Outcome(Ending.FAILED, signature, reason)
        except Exception as error:
            tail = "\n".join(traceback.format_exc().rstrip().splitlines()[-_TAIL_LINES:])
            kind = type(error).__name__
            line = f"{kind}: {_first_line(error)}".rstrip(": ")
            return Outcome(Ending.OTHER, f"raised {kind}", tail=tail).seeing(Reason.RAISED, line)
        return _OUTCOMES[self._verdict(answer)]

    def _verdict(self, answer: Any) -> Verdict:  # noqa: ANN401 - whatever the function returns
        if isinstance(answer, Verdict):
            return answer
        if answer is None or isinstance(answer, bool | np.bool_):
            return Verdict.FAIL if answer else Verdict.PASS
        raise ScriptError(
            f"the check {_name(self.function)} returns a {type(answer).__name__}; return True if the model fails, "
            "False if not, or a bisect_trt.Verdict."
        )


def _name(function: Callable[..., object]) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


class Undo(Exception):  # noqa: N818 - a request, not an error
    """The user takes the last answer back."""


_ANSWERS: dict[str, Outcome | type[BaseException]] = {
    "good": Outcome(Ending.PASSED, "good").seeing(Reason.PROMPT_GOOD),
    "bad": Outcome(Ending.FAILED, "bad").seeing(Reason.PROMPT_BAD),
    "skip": Outcome(Ending.SKIPPED, "skip").seeing(Reason.PROMPT_SKIPS),
    "undo": Undo,
    "quit": KeyboardInterrupt,
}


@dataclass(frozen=True)
class PromptCheck(Check):
    """Asks at the terminal: good, bad, skip, undo or quit; first letters do."""

    asks_user = True
    """A person decides."""
    runs_user_code = False
    """No code decides."""

    def run(self, files: CandidateFiles, cancel: Cancel | None = None) -> Outcome:  # noqa: ARG002 - nothing to cancel
        """Ask until the answer is one of the five.

        Raises:
            Undo: The user takes the last answer back.
            KeyboardInterrupt: The user quits, or closes the input.
        """
        if (number := len(files.samples)) > 1:
            print(f"It is bad if it is bad on any of the {number} input samples in {files.folder}.")
            second = shlex.quote(str(files.samples[1].inputs))
            print(f"To look at one: bisect-trt inspect data {second} --show values")
        print(f"Its inputs and reference outputs are in {files.inputs.absolute().parent}.")
        while True:
            try:
                answer = (
                    input(f"Is {files.model.absolute()} good or bad? [{'/'.join(_ANSWERS)}] ")
                    .strip()
                    .lower()
                )
            # The user has left the terminal, as with Ctrl-C.
            except EOFError:
                raise KeyboardInterrupt from None
            meant = next((end for name, end in _ANSWERS.items() if answer in (name, name[0])), None)
            if isinstance(meant, Outcome):
                return meant
            if meant is not None:
                raise meant
            print(f"'{answer}' is none of {', '.join(_ANSWERS)} (or their first letters).")
