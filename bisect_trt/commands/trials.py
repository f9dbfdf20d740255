"""What a reproducer says is tried before it is said: its script, the commands of other tools, and the target set otherwise."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

from bisect_trt.commands.session import Session
from bisect_trt.commands.settings import CheckSettings
from bisect_trt.errors import BisectError, UsageError
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.models import Models
from bisect_trt.probe.prober import passes_needed
from bisect_trt.report.reproducer import FILES, SCRIPT, Command, Reproducer, Trial
from bisect_trt.targets.messages import mask_message
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.worker.process import Cancel, ProcessEnd, gate, run_to_end
from bisect_trt.worker.protocol import PLACE_FOLDER, PLACE_PYTHON, Compare, Execute, Failed, Sample

_GRACE_SECONDS = 120.0
"""What a fresh process may take beside ten times what a worker took: TensorRT takes ten seconds to start."""
_MOST_RUNS = 20
"""Of a script whose failure comes only sometimes."""
_NO_PACKAGE = "cannot tell: No module named "
"""What the script says where the target's package is not to be had."""
_NOT_TRIED = "not tried, for it is not installed here"


def carry(target: TargetSettings, folder: Path) -> tuple[TargetSettings, list[str]]:
    """Copy the files that a target reads.

    Returns:
        The target that reads the copies, by their path in the reproducer's folder; and those paths.

    Raises:
        UsageError: They cannot be copied.
    """
    carried: list[str] = []

    def copy(path: str) -> str:
        name = f"{len(carried) + 1}-{Path(path).name}"
        try:
            folder.mkdir(exist_ok=True)
            shutil.copyfile(path, folder / name)
        except OSError as error:
            raise UsageError(f"{path} cannot be copied to {folder}: {error.strerror or error}; make room.") from error
        carried.append(f"{FILES}/{name}")
        return carried[-1]

    changes: dict[str, object] = {}
    for setting, value in target.target.changed(target):
        if setting in target.target.files:
            changes[setting] = tuple(map(copy, value)) if isinstance(value, tuple) else copy(value)
    return target.with_own(**changes) if changes else target, carried


def try_commands(investigation: Session, reproducer: Reproducer, folder: Path, seconds: float) -> dict[str, Trial]:
    """Run the script as its reader will, and the commands of other tools.

    Returns:
        What came of each, by tool; of the script under its own name.
    """
    limit = 10 * seconds + _GRACE_SECONDS
    scratch = investigation.subject.workspace.scratch
    flakiness = investigation.prober.runner.flakiness
    run = _runner(investigation, folder, reproducer, scratch("trial.log"), limit)
    cancel = Cancel()
    commands = [c for c in reproducer.commands() if isinstance(c, Command)]
    # Each starts the target anew, which may take ten seconds, so they run beside each other.
    with closing(cancel), ThreadPoolExecutor(len(commands) + 1) as beside:
        try:
            tried = {
                command.tool: beside.submit(
                    _try_tool, command, reproducer, folder, scratch(f"trial-{number}.log"), limit, cancel
                )
                for number, command in enumerate(commands, 1)
            }
            trials = {SCRIPT: _try_script(folder, scratch("trial.log"), run, min(flakiness.passes_needed, _MOST_RUNS))}
            trials |= {tool: trial.result() for tool, trial in tried.items()}
        finally:
            cancel.set()
    for tool, trial in trials.items():
        said = "shows the failure" if trial.shows else trial.why or "does not show it"
        investigation.console.note(f"{tool}, run as it stands in the reproducer: {said}")
    if not trials[SCRIPT].shows:
        investigation.console.say(f"  {trials[SCRIPT].why}")
    return trials


def _runner(
    investigation: Session, folder: Path, reproducer: Reproducer, log: Path, limit: float
) -> Callable[[], ProcessEnd]:
    """Runs ``reproduce.py``, where the target runs."""
    places, models = investigation.subject.where.places, investigation.subject.models
    if not places:
        command = [sys.executable, str(folder / SCRIPT)]

        def run_here() -> ProcessEnd:
            with gate.turn():
                return run_to_end(command, log=log, environment={}, timeout=limit)

        return run_here
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    request = Execute(reproducer.target, (PLACE_PYTHON, f"{PLACE_FOLDER}/{SCRIPT}"), files)

    def run() -> ProcessEnd:
        began = time.monotonic()
        log.write_bytes(b"")
        reply = models.ask(request, limit, place=places[0], log=log)
        seconds = time.monotonic() - began
        if isinstance(reply, Failed):
            return ProcessEnd(-signal.SIGKILL, reply.kind == "time-out", False, seconds)
        return ProcessEnd(reply.code, False, False, seconds)

    return run


def _try_script(folder: Path, log: Path, run: Callable[[], ProcessEnd], times: int) -> Trial:
    """As ``python reproduce.py``; a failure that comes only sometimes is waited for."""
    why = ""
    for _ in range(times):
        end = run()
        if end.code == 1 and not end.timed_out:
            return Trial(True)
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        how = end.describe() if end.timed_out or end.code < 0 else f"status {end.code}"
        # Where it lies here is nobody's business.
        last = lines[-1].replace(f"{folder.absolute()}/", "") if lines else ""
        if end.code == 2 and last.startswith(_NO_PACKAGE):  # the target's worker finds its package elsewhere
            return Trial(None, f"not tried here ({last.removeprefix('cannot tell: ').rstrip('.')})")
        why = f"{SCRIPT} ends with {how}{f': {last}' if last else ''}"
    return Trial(False, why)


def find_tool(name: str) -> str | None:
    """The path of a program: on PATH, else beside this interpreter."""
    beside = Path(sys.executable).with_name(name)
    return shutil.which(name) or (str(beside) if beside.exists() else None)


def _try_tool(command: Command, case: Reproducer, folder: Path, log: Path, limit: float, cancel: Cancel) -> Trial:
    program = find_tool(command.tool)
    if program is None:
        return Trial(None, _NOT_TRIED)
    words = [program, *command.words[1:]]
    try:
        with gate.turn(cancel):
            end = run_to_end(words, log=log, environment={}, timeout=limit, cancel=cancel, cwd=folder)
    except OSError as error:
        return Trial(None, f"not tried, for it does not start here ({error.strerror})")
    return _read(command.tool, case, end, log.read_text(encoding="utf-8", errors="replace"))


def _read(tool: str, case: Reproducer, end: ProcessEnd, text: str) -> Trial:
    """What a tool's run says."""
    if end.timed_out:
        return Trial(None, "run here, it does not end")
    if case.refusal is not None and end.code != 0:
        said = _masked(case.refusal.rpartition(": ")[2])
        return Trial(True) if said and said in _masked(text) else Trial(None, "run here, it fails in words of its own")
    if case.refusal is not None or (tool == "polygraphy" and end.code == 0):
        return Trial(False)
    if tool == "polygraphy":
        shows = end.code == 1 and "FAILED" in text
        return Trial(True) if shows else Trial(None, f"run here, it breaks for another reason (status {end.code})")
    ran = "run here, it ends well" if end.code == 0 else f"run here, it breaks for another reason (status {end.code})"
    return Trial(None, f"{ran}; compare what it prints with the values below" if end.code == 0 else ran)


def _masked(text: str) -> str:
    return " ".join(mask_message(text).split())


def ruled_out(
    investigation: Session, check: CheckSettings, candidate: Candidate, target: TargetSettings
) -> Sequence[str]:
    """Run the minimal model on the target set otherwise, each in a sentence with what came of it."""
    subject, said = (
        investigation.subject,
        ["The reference (ONNX Runtime on the CPU, optimisations off) runs the model."],
    )
    most = passes_needed(investigation.prober)
    model = subject.models.write("ruled-out", candidate.proto)
    inputs = subject.models.feed("ruled-out.in", subject.values(candidate, candidate.inputs))
    golden = subject.models.feed("ruled-out.golden", subject.values(candidate, candidate.outputs))
    for words, other in target.target.alternatives(target):
        request = Compare(other, model, (Sample(inputs, golden),), check.tolerance)
        with suppress(BisectError):  # it cannot be set so here
            said.append(f"{words} {_seen_so(subject.models, request, check.timeout, most)}.")
    return said


def _seen_so(models: Models, request: Compare, timeout: float | None, most: int) -> str:
    """What comes of so many runs, the end of a sentence; the first that fails is the last."""
    for number in range(1, most + 1):
        reply = models.ask(request, timeout)
        once = "" if number == 1 else f", in run {number} of it"
        if isinstance(reply, Failed):
            return f"it fails too{once}, but in another way: {reply.message}"
        if not all(comparison.passed for comparison in reply.comparisons):
            return f"it fails too{once}"
    return f"it passes ({most} of {most} runs)" if most > 1 else "it passes (1 run)"
