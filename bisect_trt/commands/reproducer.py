"""Turn an answer into files that show it again, and run all that they recommend before they are delivered."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from bisect_trt.commands.arbitration import Fault
from bisect_trt.commands.preflight import lowers_by
from bisect_trt.commands.session import Case, Session
from bisect_trt.commands.settings import CheckSettings
from bisect_trt.commands.subject import Subject
from bisect_trt.errors import BisectError, OutputFileError
from bisect_trt.onnxlib.cleanup import anonymise, strip
from bisect_trt.onnxlib.external_data import load_all_inside
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import first_output
from bisect_trt.onnxlib.save import save_model
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.ledger import Record
from bisect_trt.probe.prober import passes_needed
from bisect_trt.report.reproducer import (
    FILES,
    MODEL,
    SCRIPT,
    Cause,
    Recommended,
    Reproducer,
    Since,
    Trial,
    pack,
    writing,
)
from bisect_trt.search.oracle import Minimum, Verdict
from bisect_trt.targets.messages import mask_message
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.worker.process import Cancel, ProcessEnd, gate, run_to_end
from bisect_trt.worker.protocol import PLACE_FOLDER, PLACE_PYTHON, Compare, Execute, Failed, Sample

NEUTRAL = "reproducer"
"""The name of the folder in an archive, before what fails; alone where nothing of the model is named."""
_GRACE_SECONDS = 120.0
"""The time of a fresh process beside ten times that of a worker: TensorRT takes ten seconds to start."""
_MOST_RUNS = 20
"""Of a script whose failure comes only sometimes."""
_NO_PACKAGE = "cannot tell: No module named "
"""The script's message where the target's package is missing."""


def check_folder(folder: Path, archive: Path | None = None, *, overwrite: bool) -> None:
    """Make sure that a reproducer can be left there, without leaving anything yet: there may be nothing to reproduce.

    Raises:
        UsageError: It exists and is not empty, or is a file, or lies where no folder can be made; or its archive exists; or a
            link lies in it, through which something else would be written over.
    """
    if folder.is_file():
        raise OutputFileError(f"{folder} is a file; name a folder with --output.")
    full = folder if folder.is_dir() and any(folder.iterdir()) else None
    existing = archive if archive is not None and archive.exists() else full
    if existing is not None and not overwrite:
        raise OutputFileError(
            f"{existing} exists; name another folder with --output, or write over it with --overwrite."
        )
    inside = [path for each in (folder, folder / FILES) if each.is_dir() for path in each.iterdir()]
    for link in (path for path in (*inside, archive) if path is not None and path.is_symlink()):
        raise OutputFileError(
            f"{link} is a link, and its target would be written over; remove it, or name another folder."
        )
    ground = next(path for path in folder.absolute().parents if path.exists())
    if not ground.is_dir() or not os.access(ground, os.W_OK):
        raise OutputFileError(f"{folder} cannot be made: {ground} is no folder of yours; name another with --output.")


def make_folder(folder: Path) -> None:
    """Make the reproducer's folder.

    Raises:
        UsageError: It cannot be made any more.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)


@dataclass(frozen=True)
class Delivered:
    """The end of a search, about to be delivered.

    Attributes:
        case: The minimal failing units, and whether that is proven.
        whole: The same as a candidate.
        candidate: The same with its tensors shrunk, where that is wanted.
        blamed: Its nodes by their numbers, the guilty first.
        fault: Which side is wrong.
        sentence: It in words.
    """

    case: Case
    whole: Candidate
    candidate: Candidate
    blamed: Sequence[int]
    fault: Fault
    sentence: str

    def places(self, network: Network) -> list[int]:
        """Where its nodes stand in its graph, the guilty first."""
        places = {first_output(node): place for place, node in enumerate(self.candidate.proto.graph.node)}
        names = (first_output(network.nodes[index]) for index in self.blamed)
        return [places[name] for name in names if name in places]


@dataclass(frozen=True)
class Left:
    """A folder that was left.

    Attributes:
        minimum: The answer; unproven if the final probe disagreed.
        reproducer: The content of the folder.
        folder: Where it is.
        files: The files that were written.
        anonymous: Whether nothing in it has the model's names.
        steady: Whether the model that was written did not pass when it was probed once more.
    """

    minimum: Minimum
    reproducer: Reproducer
    folder: Path
    files: Sequence[Path]
    anonymous: bool
    steady: bool

    def finish(self, found: str, archive: Path | None, cause: Sequence[Cause] = (), since: Since | None = None) -> None:
        """Say in it how it was found, once nothing more is probed, and pack it.

        Args:
            found: How it was found, in words.
            archive: Where the archive goes, if one is wanted. Its folder is named after what fails, never after the
                model's file.
            cause: What of the target does it: each in a sentence, with the lines of code that turn it.
            since: Since which release it fails.

        Raises:
            UsageError: It cannot be written.
        """
        replace(self.reproducer, found=found, cause=cause, since=since).write_texts(self.folder)
        if archive is not None:
            name = re.sub(r"[^\w.-]+", "-", f"{NEUTRAL}-{self.reproducer.slug}").strip("-.")
            pack(self.folder, self.files, archive, NEUTRAL if self.anonymous else name)


def leave_reproducer(
    session: Session, check: CheckSettings, answer: Delivered, found: str, folder: Path, *, anonymous: bool = False
) -> Left:
    """Write the folder, read its model back, probe that once more, and run what the folder recommends.

    Nothing of the original leaves but the nodes of the answer with their names and weights; if ``anonymous``, not even
    those, as long as it still fails then. ``found`` says how it was found.

    Returns:
        What was left, to be finished once nothing more is probed.

    Raises:
        UsageError: The folder cannot be written.
    """
    assert check.target is not None
    subject = session.subject
    make_folder(folder)
    candidate = replace(answer.candidate, made=strip(answer.candidate.proto), title="the reproducer, read back")
    disguised = _disguise(session, candidate, check.target, folder) if anonymous else None
    candidate, record = disguised or _read_back(session, candidate, folder)
    outcome, sentence = session.outcome(record), answer.sentence
    if disguised:
        nodes = [f"{node.op_type} '{node.name}'" for node in candidate.proto.graph.node]
        sentence = f"{nodes[0]} fails alone" if len(nodes) == 1 else f"{len(nodes)} nodes fail together"
    keep = candidate.keep or check.target.keep
    target = replace(check.target, keep=keep, held=candidate.held or check.target.held)
    ran = subject.models.lowered(folder / MODEL, target)
    ran = None if isinstance(ran, Failed) else ran
    carried, files = carry(target, folder / FILES)
    reproducer = Reproducer(
        candidate.proto,
        ran,
        (target.fp16 or target.bf16) and ran is not None and lowers_by(subject, target) == "cast",
        subject.values(candidate, candidate.inputs),
        subject.values(candidate, candidate.outputs),
        outcome.comparisons,
        sentence,
        carried,
        found,
        outcome.signature,
        None if outcome.comparisons else without_paths(record.reason, subject),
        check.timeout,
        check.tolerance.validate,
        files,
        tuple(without_paths(each, subject) for each in _ruled_out(session, check, candidate, target)),
        blamed=answer.places(subject.network),
        fault=without_paths(answer.fault.sentence, subject),
        is_bug=answer.fault.is_bug,
        places=[seen.table() for seen in subject.seen.values()],
        written={} if disguised else _written(subject.network, answer.blamed),
    )
    written, minimum = reproducer.write(folder), answer.case.minimum
    trials = _try_commands(session, reproducer, folder, outcome.seconds)
    if record.verdict is not Verdict.FAIL:
        minimum = session.disagreed(minimum, record)
    elif trials[SCRIPT].shows is False:
        minimum = replace(minimum, proven=False, why=f"the final re-check disagreed: {trials[SCRIPT].why}")
    steady = record.verdict is not Verdict.PASS
    return Left(minimum, replace(reproducer, trials=trials), folder, written, anonymous, steady)


def _written(network: Network, nodes: Sequence[int]) -> dict[str, str]:
    """The modules that nodes come from, in words, by the first thing that each makes; of files no more than the name."""
    said = {first_output(network.nodes[index]): network.written(index, short=True) for index in nodes}
    return {name: words for name, words in said.items() if words is not None}


def _read_back(session: Session, candidate: Candidate, folder: Path) -> tuple[Candidate, Record]:
    """Write a model into the folder, and probe what lies there then."""
    workspace = session.subject.workspace
    save_model(candidate.proto, workspace.weights.folder_of(candidate.proto), folder / MODEL)
    proto = onnx.load(str(folder / MODEL), load_external_data=False)
    workspace.weights.take_in(proto, folder)
    candidate = replace(candidate, made=proto)
    return candidate, session.prober.probe(candidate, again=True)


def _disguise(
    session: Session, candidate: Candidate, target: TargetSettings, folder: Path
) -> tuple[Candidate, Record] | None:
    """The candidate with other names and weights, in the folder; ``None`` if it does not fail so."""
    subject, proto = session.subject, onnx.ModelProto()
    proto.CopyFrom(candidate.proto)
    load_all_inside(proto, subject.workspace.weights.folder_of(proto))
    anonymous = anonymise(proto)
    if anonymous.kept:
        session.console.warn(f"not anonymised: {len(anonymous.kept)} weights are of types that are not replaced")
        return None
    names, keep = anonymous.names, candidate.keep or target.keep
    fed = anonymous.rename(subject.values(candidate, candidate.inputs))
    made = subject.models.run("anonymous", anonymous.proto, fed)
    if not isinstance(made, Failed):
        disguised = replace(
            candidate,
            made=anonymous.proto,
            inputs=tuple(names[name] for name in candidate.inputs),
            outputs=tuple(names[name] for name in candidate.outputs),
            title="the reproducer, anonymised",
            values={**fed, **made},
            keep=tuple(names[name] for name in keep if name in names) if keep else candidate.keep,
        )
        disguised, record = _read_back(session, disguised, folder)
        if record.verdict is Verdict.FAIL:
            return disguised, record
    session.console.answer(
        "Not anonymised: with other weights it does not fail. The names and weights are the model's."
    )
    return None


def without_paths(text: str, subject: Subject) -> str:
    """A runtime's message without the folders of this machine, nor the name of the model's file."""
    folder = re.escape(str(subject.workspace.folder))
    absolute = re.escape(str(subject.workspace.folder.absolute()))
    text = re.sub(rf"(?:{absolute}|{folder})[^\s'\":,;]*", MODEL, text)
    return text.replace(str(subject.settings.path.absolute()), MODEL).replace(str(subject.settings.path), MODEL)


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
        with writing(folder):
            folder.mkdir(exist_ok=True)
            shutil.copyfile(path, folder / name)
        carried.append(f"{FILES}/{name}")
        return carried[-1]

    changes: dict[str, object] = {}
    for setting, value in target.target.changed(target):
        if setting in target.target.files and setting not in target.target.not_reproducible:
            changes[setting] = tuple(map(copy, value)) if isinstance(value, tuple) else copy(value)
    return target.with_own(**changes) if changes else target, carried


def _ruled_out(session: Session, check: CheckSettings, candidate: Candidate, target: TargetSettings) -> Sequence[str]:
    """Run the minimal model on the target set otherwise, each in a sentence with what came of it."""
    models, values = session.subject.models, session.subject.values
    said = [] if target.build_only else ["The reference (ONNX Runtime on the CPU, optimisations off) runs the model."]
    most = passes_needed(session.prober)
    inputs = models.feed("ruled-out.in", values(candidate, candidate.inputs))
    golden = models.feed("ruled-out.golden", values(candidate, candidate.outputs))
    model = models.write("ruled-out", candidate.proto)
    for words, other in target.target.alternatives(target):
        request = Compare(other, model, (Sample(inputs, golden),), check.tolerance)
        seen = f"it passes ({f'{most} of {most} runs' if most > 1 else '1 run'})"
        with suppress(BisectError):  # it cannot be set so here
            for number in range(1, most + 1):
                reply = models.workers.ask(request, check.timeout)
                if isinstance(reply, Failed) or not all(each.passed for each in reply.comparisons):
                    how = f", but in another way: {reply.message}" if isinstance(reply, Failed) else ""
                    seen = f"it fails too{f', in run {number}' if number > 1 else ''}{how}"
                    break
            said.append(f"{words} {seen}.")
    return said


def _try_commands(session: Session, case: Reproducer, folder: Path, seconds: float) -> dict[str, Trial]:
    """Run what the folder recommends as its reader will; returns what came of each command, by its tool."""
    limit, runs = 10 * seconds + _GRACE_SECONDS, min(session.prober.runner.flakiness.passes_needed, _MOST_RUNS)
    script, *others = (command for command in case.recommended() if command.words)

    def attempt(command: Recommended) -> Trial:
        """Run a command until it shows the failure, as often as a failure that comes only sometimes needs."""
        log, trial = session.subject.workspace.scratch(f"trial-{command.tool}.log"), Trial()
        for _ in range(runs):
            trial = _run(session, case, command, folder, log, limit, cancel)
            if trial.shows is not False:
                break
        return trial

    # Each starts the target anew, which may take ten seconds, so they run beside each other.
    with closing(Cancel()) as cancel, ThreadPoolExecutor(len(others) + 1) as beside:
        try:
            started = {command.tool: beside.submit(attempt, command) for command in others}
            trials = {SCRIPT: attempt(script), **{tool: each.result() for tool, each in started.items()}}
        finally:
            cancel.set()
    for tool, trial in trials.items():
        said = "shows the failure" if trial.shows else trial.why
        session.console.note(f"{tool}, run as it stands in the reproducer: {said}")
    if not trials[SCRIPT].shows:
        session.console.say(f"  {trials[SCRIPT].why}")
    return trials


def _run(
    session: Session, case: Reproducer, command: Recommended, folder: Path, log: Path, limit: float, cancel: Cancel
) -> Trial:
    """Run a command once: the script where the target runs, other tools here."""
    subject = session.subject
    if subject.workers.places and command.tool == SCRIPT:
        began, files = time.monotonic(), [path for path in folder.rglob("*") if path.is_file()]
        sent = {path.relative_to(folder).as_posix(): path for path in files}
        log.write_bytes(b"")
        request = Execute(case.target, (PLACE_PYTHON, f"{PLACE_FOLDER}/{SCRIPT}"), sent)
        reply = subject.workers.ask(request, limit, place=subject.workers.places[0], log=log)
        late, code = (reply.kind == "time-out", -signal.SIGKILL) if isinstance(reply, Failed) else (False, reply.code)
        end = ProcessEnd(code, late, False, time.monotonic() - began)
    else:
        program = sys.executable if command.tool == SCRIPT else find_tool(command.tool)
        if program is None:
            return Trial(None, "not tried, for it is not installed here")
        try:
            with gate.turn(cancel):
                words = [program, *command.words[1:]]
                end = run_to_end(words, log=log, environment={}, timeout=limit, cancel=cancel, cwd=folder)
        except OSError as error:
            return Trial(None, f"not tried, for it does not start here ({error.strerror})")
    text = log.read_text(encoding="utf-8", errors="replace")
    return _script_trial(end, text, folder) if command.tool == SCRIPT else _tool_trial(command, case, end, text)


def find_tool(name: str) -> str | None:
    """The path of a program: on PATH, else beside this interpreter."""
    beside = Path(sys.executable).with_name(name)
    return shutil.which(name) or (str(beside) if beside.exists() else None)


def _script_trial(end: ProcessEnd, text: str, folder: Path) -> Trial:
    """Whether a run of the script shows the failure."""
    if end.code == 1 and not end.timed_out:
        return Trial(True)
    how = end.describe() if end.timed_out or end.code < 0 else f"status {end.code}"
    last = (text.strip().splitlines() or [""])[-1].replace(f"{folder.absolute()}/", "")  # no path of this machine
    if end.code == 2 and last.startswith(_NO_PACKAGE):  # the target's worker finds its package elsewhere
        return Trial(None, f"not tried here ({last.removeprefix('cannot tell: ').rstrip('.')})")
    return Trial(False, f"{SCRIPT} ends with {how}{f': {last}' if last else ''}")


def _tool_trial(command: Recommended, case: Reproducer, end: ProcessEnd, text: str) -> Trial:
    """Whether another tool's run shows the failure; ``None``, with the reason, where that cannot be told."""
    if end.timed_out:
        return Trial(None, "run here, it does not end")
    if end.code == 0 and command.tool == "trtexec" and case.refusal is None:
        return Trial(None, "run here, it ends well; compare what it prints with the values below")
    if end.code == 0:
        return Trial(False, "its command passes here")
    if case.refusal is not None:
        said = _masked(case.refusal.rpartition(": ")[2])
        shown, why = bool(said) and said in _masked(text), "run here, it fails in words of its own"
    else:
        shown = command.tool == "polygraphy" and end.code == 1 and "FAILED" in text
        why = f"run here, it breaks for another reason (status {end.code})"
    return Trial(True) if shown else Trial(None, why)


def _masked(text: str) -> str:
    return " ".join(mask_message(text).split())
