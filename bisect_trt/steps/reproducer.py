"""Writes an answer as files that show the failure again, and runs ``reproduce.py`` before it is delivered."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from msgspec import Struct, structs

from bisect_trt.errors import OutputFileError
from bisect_trt.onnxlib.cleanup import anonymise, strip
from bisect_trt.onnxlib.load import load_all_inside
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import clone, first_output
from bisect_trt.options.searches import Diagnose
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.ledger import Record
from bisect_trt.report.parts import CauseDetail, Inside, Minimality, Proof
from bisect_trt.report.reproducer import (
    FILES,
    FOUND,
    FROM_STEP,
    MINIMAL,
    MODEL,
    NOT_ANONYMISED,
    NOT_RUN_HERE,
    NOT_STARTED,
    SCRIPT,
    Reproducer,
    Since,
    Trial,
    pack,
    writing,
)
from bisect_trt.report.summary import describe_inside, failing
from bisect_trt.search.oracle import Minimum, Note
from bisect_trt.session.checks import CheckSettings
from bisect_trt.session.session import Session
from bisect_trt.session.subject import Subject
from bisect_trt.steps.minimal_case import JudgedCase
from bisect_trt.steps.placement import place_nodes
from bisect_trt.targets.base import TargetSettings
from bisect_trt.worker.place import rerun_command
from bisect_trt.worker.process import gate, run_to_end
from bisect_trt.worker.protocol import Failed

_GRACE_SECONDS = 120.0
_LEAST_SECONDS = 10.0
"""The time that the script gets where --max-time has none left."""
"""Added to ten times the time of a probe: a fresh process with TensorRT takes ten seconds to
start."""
_MOST_RUNS = 20
"""Runs of a script if the failure is flaky."""
_NO_PACKAGE = "inconclusive: No module named "
"""The script's message where the target's package is missing."""


def check_folder(folder: Path, archive: Path | None, *, overwrite: bool) -> None:
    """Check that a reproducer can be written to a folder, without writing anything: there may be nothing to reproduce.

    Raises:
        UsageError: The folder exists and is not empty, or it is a file, or it cannot be created; or
            its archive exists; or it holds a symbolic link with a target that would be overwritten.
    """
    full = folder if folder.is_file() or (folder.is_dir() and any(folder.iterdir())) else None
    existing = archive if archive is not None and archive.exists() else full
    if existing is not None and (folder.is_file() or not overwrite):
        raise OutputFileError(
            f"{existing} exists; name another folder with --output, or overwrite it with --overwrite."
        )
    paths = [*folder.glob("*"), *folder.glob(f"{FILES}/*"), *filter(None, [archive])]
    for link in filter(Path.is_symlink, paths):
        raise OutputFileError(
            f"{link} is a symbolic link, and its target would be overwritten; remove it, or name another folder."
        )
    # The nearest folder that exists decides whether the missing ones can be made.
    ground = next(path for path in folder.absolute().parents if path.exists())
    if not ground.is_dir() or not os.access(ground, os.W_OK):
        raise OutputFileError(
            f"{folder} cannot be created: {ground} is not a writable folder; name another with --output."
        )


def make_folder(folder: Path) -> None:
    """Create the reproducer's folder.

    Raises:
        UsageError: It cannot be created any more.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)


class Left(Struct, frozen=True):
    """A folder that was written.

    Attributes:
        proof: The command that shows the failure again.
        steady: Whether the model that was written did not pass when it was probed once more.
        disguised: Whether the model has other names than the user's.
    """

    minimum: Minimum
    reproducer: Reproducer
    folder: Path
    files: Sequence[Path]
    proof: Proof
    steady: bool
    disguised: bool = False

    def finish(
        self,
        session: Session,
        minimality: Minimality,
        archive: Path | None = None,
        cause: CauseDetail | None = None,
        since: Since | None = None,
        inside: Sequence[Inside] = (),
    ) -> None:
        """Write the texts again, once nothing more is probed, and pack the folder.

        Args:
            session: The session.
            minimality: What the answer says of the nodes.
            archive: The ``.zip`` to write, if any.
            cause: The switches that fix it, or why none is known.
            since: The release in which it appeared.
            inside: What fails inside the node of the answer, an entry for each body.

        Raises:
            UsageError: A file cannot be written.
        """
        if cause is not None and (places := len(session.place_words)):
            # A place is a path or a host of this machine, which a bug report must not have.
            portable = (
                structs.replace(entry, options=entry.options[:-places])
                for entry in cause.alternatives
            )
            cause = structs.replace(cause, alternatives=tuple(portable))
        search = _describe_search(session, minimality)
        texts = structs.replace(self.reproducer, found=search, cause=cause, since=since)
        if not self.disguised:
            # The names are not the model's.
            texts = structs.replace(texts, inside=list(map(describe_inside, inside)))
        texts.write_texts(self.folder)
        if archive is not None:
            pack(self.folder, [*self.files, self.folder / texts.issue], archive)


def _describe_search(session: Session, minimality: Minimality) -> str:
    """Describe the search."""
    subject = session.subject
    proof = f"{minimality}{MINIMAL if minimality == '1-minimal' else ''}"
    loop = session.result.steps
    step = FROM_STEP.format(loop.step, loop.steps) if loop else ""
    probes = len(session.prober.ledger.records)
    return FOUND.format(len(subject.network.nodes), probes, proof) + step


def leave_reproducer(
    session: Session, check: CheckSettings, answer: JudgedCase, folder: Path, own: Diagnose
) -> Left:
    """Write the folder, read its model back, probe that once more, and run the script.

    The folder has only the nodes of the answer with their names and weights; with ``--anonymise``,
    with other names and weights, as long as it still fails then.

    Raises:
        UsageError: The folder cannot be written.
    """
    subject = session.subject
    make_folder(folder)
    candidate = replace(
        answer.candidate, made=strip(answer.candidate.proto), title="the reproducer, read back"
    )
    # Other weights may not fail; then the folder has the model's own, which is said.
    disguised = _disguise(session, candidate, check.runtime, folder) if own.anonymise else None
    candidate, record = disguised or _read_back(session, candidate, folder)
    outcome = session.outcome(record)
    network = Network(candidate.proto) if disguised else subject.network
    blamed = network.order if disguised else answer.blamed
    target = candidate.settings(check.runtime)
    lowered = subject.models.lowered(folder / MODEL, target)
    ran = None if isinstance(lowered, Failed) else lowered
    carried, files = carry(target, folder / FILES)
    inputs = subject.values(candidate, candidate.inputs)
    reproducer = Reproducer(
        candidate.proto,
        ran,
        (target.fp16 or target.bf16) and ran is not None and subject.about(target) == "cast",
        inputs,
        subject.values(candidate, candidate.outputs),
        outcome.comparisons,
        failing(list(map(network.plain, blamed))),
        carried,
        _describe_search(session, "unproven"),
        outcome.signature,
        None if outcome.comparisons else without_paths(record.reason, subject),
        check.timeout,
        check.tolerance.validate,
        files,
        blamed=_places_of(subject, answer),
        fault=without_paths(answer.fault.sentence, subject),
        is_bug=answer.fault.is_bug,
        places=[seen.table() for seen in subject.seen.values()],
        layers=place_nodes(subject, target, candidate.proto, inputs),
    )
    written = reproducer.write(folder)
    minimum = answer.case.minimum
    # The script runs as the reader of the report will run it, in a process without the tool's
    # state.
    trial = _try_script(session, folder, outcome.seconds)
    earlier = subject.earlier(candidate) if trial.shows is False else []
    if earlier:
        # The target may keep something of the runs before.
        reproducer = structs.replace(reproducer, earlier=earlier)
        written = reproducer.write(folder)
        trial = _try_script(session, folder, outcome.seconds)
    command = rerun_command(folder / SCRIPT, subject.workers.places)
    reason = None if trial.shows else trial.why
    if not record.fails:
        minimum = session.disagreed(minimum, record)
    elif trial.shows is False:
        minimum = minimum.unproven(Note.READ_BACK, trial.why)
    steady = not record.passes
    return Left(
        minimum,
        structs.replace(reproducer, trial=trial),
        folder,
        written,
        Proof(command=command, why=reason),
        steady,
        disguised is not None,
    )


def _places_of(subject: Subject, answer: JudgedCase) -> list[int]:
    """Return the places of the blamed nodes in the graph of the answer."""
    places = {
        first_output(node): place for place, node in enumerate(answer.candidate.proto.graph.node)
    }
    names = (first_output(subject.network.nodes[index]) for index in answer.blamed)
    return [places[name] for name in names if name in places]


def _read_back(session: Session, candidate: Candidate, folder: Path) -> tuple[Candidate, Record]:
    """Write a model to the folder, read it back, and probe that."""
    workspace = session.subject.workspace
    workspace.save(candidate.proto, folder / MODEL)
    candidate = replace(candidate, made=workspace.read_back(folder / MODEL))
    return candidate, session.prober.probe(candidate, again=True)


def _disguise(
    session: Session, candidate: Candidate, target: TargetSettings, folder: Path
) -> tuple[Candidate, Record] | None:
    """Write the candidate with other names and weights; returns ``None`` if it does not fail then."""
    subject = session.subject
    proto = clone(candidate.proto)
    load_all_inside(proto, subject.workspace.weights.folder_of(proto))
    anonymous = anonymise(proto)
    if anonymous.kept:
        session.console.warn(
            f"not anonymised: {len(anonymous.kept)} weights have types that cannot be replaced"
        )
        return None
    names = anonymous.names
    keep = candidate.settings(target).keep
    fed = anonymous.rename(subject.values(candidate, candidate.inputs))
    outputs = subject.models.run("anonymous", anonymous.proto, fed)
    if not isinstance(outputs, Failed):
        disguised = replace(
            candidate,
            made=anonymous.proto,
            inputs=tuple(names[name] for name in candidate.inputs),
            outputs=tuple(names[name] for name in candidate.outputs),
            title="the reproducer, anonymised",
            values={**fed, **outputs},
            keep=tuple(names[name] for name in keep if name in names) if keep else candidate.keep,
        )
        disguised, record = _read_back(session, disguised, folder)
        if record.fails:
            return disguised, record
    session.console.answer(NOT_ANONYMISED)
    return None


def without_paths(text: str, subject: Subject) -> str:
    """Return a runtime's message without paths of this machine and without the name of the model's file."""
    folder = re.escape(str(subject.workspace.folder))
    absolute = re.escape(str(subject.workspace.folder.absolute()))
    text = re.sub(rf"(?:{absolute}|{folder})[^\s'\":,;]*", MODEL, text)
    return text.replace(str(subject.settings.path.absolute()), MODEL).replace(
        str(subject.settings.path), MODEL
    )


def carry(target: TargetSettings, folder: Path) -> tuple[TargetSettings, list[str]]:
    """Copy the files that a target reads.

    Returns:
        The target that reads the copies, by their paths in the reproducer's folder; and those
        paths.

    Raises:
        UsageError: They cannot be copied.
    """
    carried: list[str] = []

    def copy(path: str) -> str:
        # Two files may have one name.
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


def _try_script(session: Session, folder: Path, seconds: float) -> Trial:
    """Run the script where the target runs, as often as a flaky failure needs."""
    # A fresh process starts the runtime anew, which may take longer than the probe.
    limit = 10 * seconds + _GRACE_SECONDS
    trial = Trial()
    remaining = session.subject.workers.deadline.seconds_left()
    if remaining is not None:
        limit = min(limit, max(remaining, _LEAST_SECONDS))
    for _ in range(min(session.prober.flakiness.passes_needed, _MOST_RUNS)):
        trial = _run_script(session.subject, folder, limit)
        if trial.shows is not False:
            break
    session.console.note(f"{SCRIPT}: {'shows the failure' if trial.shows else trial.why}")
    if not trial.shows:
        session.console.say(f"  {trial.why}")
    return trial


def _run_script(subject: Subject, folder: Path, limit: float) -> Trial:
    log = subject.workspace.scratch(f"{SCRIPT}.log")
    place = next(iter(subject.workers.places), None)
    if place is not None and not place.local:
        return Trial(None, NOT_RUN_HERE)
    python = sys.executable if place is None else place.argv[0]
    try:
        with gate.turn():
            end = run_to_end([python, SCRIPT], log=log, environment={}, timeout=limit, cwd=folder)
    except OSError as error:
        return Trial(None, f"{NOT_STARTED} ({error.strerror})")
    if end.code == 1 and end.limit is None:
        return Trial(True)
    text = log.read_text(encoding="utf-8", errors="replace")
    ending = end.describe() if end.limit or end.code < 0 else f"status {end.code}"
    # The sentence must hold no path of this machine.
    last = (text.strip().splitlines() or [""])[-1].replace(f"{folder.absolute()}/", "")
    if end.code == 2 and last.startswith(_NO_PACKAGE):
        # The target's worker finds its package elsewhere.
        return Trial(None, f"not run here ({last.removeprefix('inconclusive: ').rstrip('.')})")
    return Trial(False, f"{SCRIPT} ends with {ending}{f': {last}' if last else ''}")
