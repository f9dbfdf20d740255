"""Oracles of the user: a command, a Python function, or answers at a prompt."""

from __future__ import annotations

import difflib
import inspect
import os
import re
import shlex
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from bisect_trt.errors import BisectError, UsageError
from bisect_trt.onnxlib.external_data import external_files
from bisect_trt.probe.models import ask
from bisect_trt.probe.outcome import CANCELLED, LOST, OVER_MEMORY, Ending, Outcome, of_samples
from bisect_trt.probe.workspace import FIXED_PATH, POLYGRAPHYS_PATH, CandidateFiles
from bisect_trt.search.oracle import Verdict
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.kernel_memory import oom_kills
from bisect_trt.tensors.npz import load_npz
from bisect_trt.worker.place import Place
from bisect_trt.worker.pool import WorkerPool
from bisect_trt.worker.process import MOST_LOST, Cancel, ProcessEnd, gate, run_to_end
from bisect_trt.worker.protocol import PLACE_FOLDER, PLACE_PYTHON, Execute, Failed

_TAIL_LINES = 5
_TAIL_BYTES = 4096
_SHELL_KILLED = (128 + signal.SIGKILL, 128 + signal.SIGTERM)
SKIP_CODE = 125
"""The exit status for "cannot be judged", as for ``git bisect run``."""
_PLACES = ("model", "inputs", "golden", "dir", "engine", "python", "shapes")
_PLACEHOLDER = re.compile(rf"\{{({'|'.join(_PLACES)})\}}")
_BRACED = re.compile(r"(?<!\$)\{([A-Za-z]+)\}")
"""A name in braces, but not a shell's ``${name}``."""
PYTHON = "{python}"
"""Stands for the interpreter that a candidate is probed with: that of its environment, else this one."""
_ALIKE = 0.75
"""How much a name is like a placeholder's that is a misspelling of it, as ``difflib`` measures; ``{other}`` is not."""


@dataclass(frozen=True)
class CommandCheck:
    """A command, and how to read how it ends (docs/checks.md).

    Attributes:
        argv: The command, with placeholders.
        fail_codes: Only these exit statuses are the failure.
        ignore_fail_codes: These exit statuses are a pass.
        fail_regexes: Only output that one of these matches is the failure.
        timeout: Seconds a candidate may take.
        memory_limit: Bytes that a candidate's check and all that it starts may hold.
        workers: In whose places it runs, if not here.
    """

    argv: tuple[str, ...]
    fail_codes: tuple[int, ...] = ()
    ignore_fail_codes: tuple[int, ...] = ()
    fail_regexes: tuple[re.Pattern[str], ...] = ()
    timeout: float | None = None
    memory_limit: int | None = None
    workers: WorkerPool | None = None

    @classmethod
    def parse(cls, words: Sequence[str], *, away: bool = False) -> tuple[str, ...]:
        """The command from the words after ``--check``: the command itself, or one quoted string.

        Args:
            words: The words.
            away: Whether it runs elsewhere, where other programs are.

        Raises:
            UsageError: It is empty, its quotes do not match, the program does not exist, or a placeholder is misspelt.
        """
        try:
            argv = shlex.split(words[0]) if len(words) == 1 else list(words)
        except ValueError as error:
            raise UsageError(f"--check {words[0]}: {error}; mend the quotes.") from error
        if not argv:
            raise UsageError("--check needs a command after it.")
        if argv[0] != PYTHON and not away and shutil.which(argv[0]) is None:
            raise UsageError(
                f"--check: there is no program '{argv[0]}' (or it is not executable); give its path or mend PATH."
            )
        _check_spelling(argv)
        return tuple(argv)

    @property
    def names_placeholder(self) -> bool:
        """Whether the command says where the candidate goes; if not, it reads a fixed path."""
        return any(_PLACEHOLDER.search(word.replace(PYTHON, "")) for word in self.argv)

    @property
    def parallel(self) -> bool:
        """Whether several may run at a time."""
        return self.names_placeholder

    def command_line(self, files: CandidateFiles) -> list[str]:
        """The command for one candidate."""
        paths = {"python": sys.executable, **files.placeholders()}
        return [_PLACEHOLDER.sub(lambda match: paths.get(match[1], match[0]), word) for word in self.argv]

    def run(self, files: CandidateFiles, cancel: Cancel | None = None) -> Outcome:
        """Run it on a candidate, with one input sample after the other until it fails.

        Raises:
            UsageError: The program has gone.
        """
        return of_samples((each.sample, self._run_sample(each, cancel)) for each in files.samples())

    def _run_sample(self, files: CandidateFiles, cancel: Cancel | None) -> Outcome:
        if self.workers is not None:
            return self._run_there(self.workers, files, cancel)
        argv = self.command_line(files)
        copy = "" if files.kept is None else f"{shlex.join(['cp', str(files.kept.absolute()), str(files.model)])} && "
        (files.folder / "command.txt").write_text(f"{copy}{shlex.join(argv)}\n", "utf-8", "surrogateescape")
        for number in range(MOST_LOST):
            if number or (files.sample or 1) > 1:
                files.renew()
            end, doubtful = self._end(argv, files, cancel)
            if not doubtful:
                break
        return self._read(end, files.log)

    def _run_there(self, workers: WorkerPool, files: CandidateFiles, cancel: Cancel | None) -> Outcome:
        """Run it on one sample in a place."""
        (files.folder / "command.txt").write_text(
            f"{shlex.join(self.command_line(files))}\n", "utf-8", "surrogateescape"
        )
        files.renew()
        end, lost, place = run_in_place(workers, self.argv, _PLACEHOLDER, files, self.timeout, cancel)
        outcome = Outcome(Ending.SKIPPED, LOST, lost, end.seconds) if lost is not None else self._read(end, files.log)
        return replace(outcome, place=place)

    def _end(self, argv: Sequence[str], files: CandidateFiles, cancel: Cancel | None) -> tuple[ProcessEnd, bool]:
        """How the command ends, and whether somebody else may have ended it, or something that it had started.

        That is known only if it ends so again. A shell says of a command that a signal has killed that its exit status is
        128 and the signal's number.
        """
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
                raise UsageError(f"--check: '{self.argv[0]}' cannot be run: {error.strerror}.") from error
        gate.saw_children()
        if end.timed_out or end.cancelled or end.over_memory:
            return end, False
        wanted = end.code in (*self.fail_codes, *self.ignore_fail_codes)
        return end, end.from_outside or (
            not wanted and (end.code in _SHELL_KILLED or (end.code != 0 and oom_kills() > kills))
        )

    def _read(self, end: ProcessEnd, log: Path) -> Outcome:  # noqa: PLR0911 - one return a row of the table
        """The table of the check command's contract, its first row that applies."""
        seconds = end.seconds
        ours = end.timed_out or end.over_memory
        if end.cancelled:
            return Outcome(Ending.SKIPPED, CANCELLED, "its answer was not needed any more", seconds)
        if end.code in self.ignore_fail_codes and not ours:
            return Outcome(Ending.PASSED, "pass", f"exit status {end.code}, which --ignore-fail-code lists", seconds)
        if end.code == SKIP_CODE and SKIP_CODE not in self.fail_codes and not ours:
            return Outcome(Ending.SKIPPED, "skip", f"exit status {SKIP_CODE}: cannot be judged", seconds)
        if end.timed_out:
            return Outcome(Ending.BROKEN, "time-out", f"no answer after {self.timeout:g} s", seconds, _tail(log))
        if end.over_memory:
            return Outcome(Ending.BROKEN, OVER_MEMORY, "it took more memory than --memory-limit", seconds, _tail(log))
        if end.signal_name:
            return Outcome(
                Ending.BROKEN, f"signal {end.signal_name}", f"killed by {end.signal_name}", seconds, _tail(log)
            )
        if self.fail_codes or self.fail_regexes:
            return self._read_conditions(end, log)
        if end.code == 0:
            return Outcome(Ending.PASSED, "pass", "exit status 0", seconds)
        # A broken check ends like this too, and only what it printed tells.
        return Outcome(Ending.FAILED, f"exit {end.code}", f"exit status {end.code}", seconds, _tail(log))

    def _read_conditions(self, end: ProcessEnd, log: Path) -> Outcome:
        met: list[str] = []
        text = _text(log) if self.fail_regexes else ""
        matched = next((pattern for pattern in self.fail_regexes if pattern.search(text)), None)
        if matched is not None:
            met.append(f"output matches '{matched.pattern}'")
        if end.code in self.fail_codes:
            met.append(f"exit status {end.code}")
        lost = end.left_out or (self.fail_regexes and not log.exists())
        if self.fail_regexes and matched is None and lost and (not self.fail_codes or end.code in self.fail_codes):
            what = f"the {end.left_out} bytes of output that are not kept" if end.left_out else "the log, which is gone"
            reason = f"--fail-regex may match in {what}"
            return Outcome(Ending.OTHER, "too much output", reason, end.seconds, _tail(log))
        if len(met) == bool(self.fail_codes) + bool(self.fail_regexes):
            return Outcome(Ending.FAILED, ", ".join(met), ", ".join(met), end.seconds)
        if end.code == 0:
            return Outcome(Ending.PASSED, "pass", "exit status 0, and not the failure asked for", end.seconds)
        reason = f"exit status {end.code}, but not the failure asked for"
        return Outcome(Ending.OTHER, f"exit {end.code}", reason, end.seconds, _tail(log))


def _check_spelling(argv: Sequence[str]) -> None:
    """Refuse what is nearly a placeholder; a word with blanks in it is a program of its own, where braces are syntax."""
    for word in argv:
        for name in () if any(map(str.isspace, word)) else _BRACED.findall(word):
            meant = difflib.get_close_matches(name.lower(), _PLACES, n=1, cutoff=_ALIKE)
            if meant and name not in _PLACES:
                known = ", ".join(f"{{{place}}}" for place in _PLACES)
                raise UsageError(
                    f"--check: '{{{name}}}' is no placeholder; did you mean {{{meant[0]}}}? The placeholders are {known}."
                )


def _text(log: Path, last: int | None = None) -> str:
    """What is in a log, or its last bytes; nothing if the check has taken it away."""
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


_MODEL, _ENGINE = "model.onnx", "model.engine"


def run_in_place(
    workers: WorkerPool,
    words: Sequence[str],
    placeholder: re.Pattern[str],
    files: CandidateFiles,
    timeout: float | None,
    cancel: Cancel | None,
) -> tuple[ProcessEnd, str | None, str | None]:
    """Run a check command on a candidate in one of the places.

    On this machine it runs in the user's own working directory. Elsewhere it runs in the candidate's folder, and files here
    that its words name go along.

    Args:
        workers: With places.
        words: The command, with placeholders.
        placeholder: What a placeholder is; its first group is the name.
        files: The candidate.
        timeout: Seconds that it may take.
        cancel: Ends it when set.

    Returns:
        How it ended; why that says nothing of the candidate, if so; and the place.

    Raises:
        UsageError: The program is not there.
    """
    local = all(place.local for place in workers.places)
    sent, known = _of_candidate(files)
    argv = [placeholder.sub(lambda match: known.get(match[1], match[0]), word) for word in words]
    if not local:
        argv = [_sent(word, place, sent) for place, word in enumerate(argv)]
    environment = {f"BISECT_TRT_{name.upper()}": path for name, path in known.items() if name != "python"}
    if files.sample is not None:
        environment["BISECT_TRT_SAMPLE"] = str(files.sample)
    request = Execute(TargetSettings(), tuple(argv), sent, environment, Path.cwd() if local else None)
    places: list[Place] = []
    files.log.write_bytes(b"")
    began = time.monotonic()
    reply = ask(workers, request, timeout, cancel, log=files.log, told=places.append)
    seconds, where = time.monotonic() - began, places[-1].said if places else None
    if isinstance(reply, Failed):
        ended = ProcessEnd(
            -signal.SIGKILL,
            reply.kind == "time-out",
            reply.kind == "cancelled",
            seconds,
            over_memory=reply.kind == "memory",
        )
        return ended, reply.message if reply.kind in ("lost", "crash") else None, where
    return ProcessEnd(reply.code, False, False, seconds, left_out=reply.left_out), None, where


def _of_candidate(files: CandidateFiles) -> tuple[dict[str, Path], dict[str, str]]:
    """The files of a candidate by their names there, and what stands for placeholders."""
    sent = {_MODEL: files.model, "inputs.npz": files.inputs, "golden.npz": files.golden}
    if files.kept is not None:
        sent[FIXED_PATH.name] = sent[POLYGRAPHYS_PATH.name] = files.model
    if files.engine is not None:
        sent[_ENGINE] = files.engine
    for location in external_files(onnx.load(str(files.model), load_external_data=False)):
        sent[location] = files.model.absolute().parent / location
    names = {"model": _MODEL, "inputs": "inputs.npz", "golden": "golden.npz"}
    known = {name: f"{PLACE_FOLDER}/{file}" for name, file in names.items()}
    known |= {"dir": PLACE_FOLDER, "python": PLACE_PYTHON, "shapes": files.placeholders()["shapes"]}
    if files.engine is not None:
        known["engine"] = f"{PLACE_FOLDER}/{_ENGINE}"
    return sent, known


def _sent(word: str, place: int, sent: dict[str, Path]) -> str:
    """A word of the command, as the path that the file has there which it names here; a program alone is the place's own."""
    if (place == 0 and "/" not in word) or not os.path.isfile(word):  # noqa: PTH113 - a word may be longer than any name
        return word
    name = f"check/{place}-{Path(word).name}" if place == 0 else f"check/{Path(word).name}"
    sent[name] = Path(word).absolute()
    return f"{PLACE_FOLDER}/{name}"


_OUTCOMES = {
    Verdict.FAIL: (Ending.FAILED, "bad", "the check says that it fails"),
    Verdict.PASS: (Ending.PASSED, "pass", "the check says that it passes"),
    Verdict.UNRESOLVED: (Ending.SKIPPED, "skip", "the check cannot judge it"),
}
_TAIL_LINES = 5


@dataclass(frozen=True)
class FunctionCheck:
    """Calls a function with each candidate, in this process, one at a time.

    Attributes:
        function: Takes the path of the candidate, and ``inputs`` and ``golden``, dicts of arrays by tensor name, if it has
            parameters of these names. It returns ``True`` or ``Verdict.FAIL`` for "it fails", ``False``, ``None`` or
            ``Verdict.PASS`` for "it does not"; an ``AssertionError`` is a failure too, any other exception says nothing.
    """

    function: Callable[..., object]
    parallel: bool = False

    def run(self, files: CandidateFiles, cancel: Cancel | None = None) -> Outcome:  # noqa: ARG002 - it cannot be ended
        """Call it with one input sample after the other, until one fails.

        Raises:
            UsageError: It returns something else.
        """
        return of_samples((each.sample, self._call(each)) for each in files.samples())

    def _call(self, files: CandidateFiles) -> Outcome:
        began = time.monotonic()
        takes = _parameters(self.function)
        paths = {"inputs": files.inputs, "golden": files.golden}
        values = {name: load_npz(path) for name, path in paths.items() if name in takes}
        (files.folder / "command.txt").write_text(
            f"{_name(self.function)}({str(files.model)!r})\n", "utf-8", "surrogateescape"
        )
        try:
            said = self.function(files.model, **values)
        except BisectError:
            raise
        except AssertionError as error:
            signature, reason = "AssertionError", f"AssertionError: {_first_line(error)}".rstrip(": ")
            return Outcome(Ending.FAILED, signature, reason, time.monotonic() - began)
        except Exception as error:
            tail = "\n".join(traceback.format_exc().rstrip().splitlines()[-_TAIL_LINES:])
            kind = type(error).__name__
            reason = f"the check raised {kind}: {_first_line(error)}".rstrip(": ")
            return Outcome(Ending.OTHER, f"raised {kind}", reason, time.monotonic() - began, tail)
        ending, signature, reason = _OUTCOMES[self._verdict(said)]
        return Outcome(ending, signature, reason, time.monotonic() - began)

    def _verdict(self, said: Any) -> Verdict:  # noqa: ANN401 - whatever the function returns
        if isinstance(said, Verdict):
            return said
        if said is None or isinstance(said, bool | np.bool_):
            return Verdict.FAIL if said else Verdict.PASS
        raise UsageError(
            f"the check {_name(self.function)} returns a {type(said).__name__}; return True if the model fails, "
            "False if not, or a bisect_trt.Verdict."
        )


def _parameters(function: Callable[..., object]) -> Collection[str]:
    try:
        return inspect.signature(function).parameters
    except ValueError:  # a builtin need not say
        return ()


def _name(function: Callable[..., object]) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


class Undo(Exception):  # noqa: N818 - a request, not an error
    """The user takes the last answer back."""


ANSWERS = ("good", "bad", "skip", "undo", "quit")


@dataclass(frozen=True)
class PromptCheck:
    """Asks at the terminal: good, bad, skip, undo or quit; first letters do."""

    parallel: bool = False

    def run(self, files: CandidateFiles, cancel: Cancel | None = None) -> Outcome:  # noqa: ARG002 - nothing to cancel
        """Ask until the answer is one of the five.

        Raises:
            Undo: The user takes the last answer back.
            KeyboardInterrupt: The user quits, or closes the input.
        """
        began = time.monotonic()
        if files.more:
            print(_samples(files))
        while True:
            try:
                answer = input(f"Is {files.model} good or bad? [{'/'.join(ANSWERS)}] ").strip().lower()
            except EOFError:
                raise KeyboardInterrupt from None
            seconds = time.monotonic() - began
            if answer in ("good", "g"):
                return Outcome(Ending.PASSED, "good", "you said good", seconds)
            if answer in ("bad", "b"):
                return Outcome(Ending.FAILED, "bad", "you said bad", seconds)
            if answer in ("skip", "s"):
                return Outcome(Ending.SKIPPED, "skip", "you said skip", seconds)
            if answer in ("undo", "u"):
                raise Undo
            if answer in ("quit", "q"):
                raise KeyboardInterrupt
            print(f"'{answer}' is none of {', '.join(ANSWERS)} (or their first letters).")


def _samples(files: CandidateFiles) -> str:
    """Which input samples one answer is about, and how to look at each."""
    fed = [each.inputs for each in files.samples()]
    made = [each.golden for each in files.samples()]
    return (
        f"Its {len(fed)} input samples are {_first_to_last(fed)} in {files.folder}, and what should come out of each "
        f"{_first_to_last(made)}. It is bad if it is bad on any of them.\n"
        f"To look at one: bisect-trt inspect data {shlex.quote(str(fed[1]))} --show values"
    )


def _first_to_last(paths: Sequence[Path]) -> str:
    names = [path.name for path in paths]
    return " and ".join(names) if len(names) == 2 else f"{names[0]}, {names[1]} to {names[-1]}"
