"""Turn an answer into files that show it again."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx
from onnx.external_data_helper import load_external_data_for_model

from bisect_trt.commands.arbitration import Fault
from bisect_trt.commands.preflight import lowers_by
from bisect_trt.commands.session import Session
from bisect_trt.commands.settings import CheckSettings
from bisect_trt.commands.subject import Subject
from bisect_trt.commands.trials import carry, ruled_out, try_commands
from bisect_trt.errors import UsageError
from bisect_trt.onnxlib.cleanup import anonymise, strip
from bisect_trt.onnxlib.external_data import has_external_data
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import first_output
from bisect_trt.onnxlib.save import save_model
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.journal import Record
from bisect_trt.report.reproducer import DATA_SET, FILES, MODEL, SCRIPT, Cause, Reproducer, Since, pack
from bisect_trt.search.oracle import Minimum, Verdict
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.worker.protocol import Failed

NEUTRAL = "reproducer"
"""What the folder in an archive is called, before what fails; alone where nothing of the model is named."""


def check_folder(folder: Path, archive: Path | None = None, *, overwrite: bool) -> None:
    """Make sure that a reproducer can be left there, without leaving anything yet: there may be nothing to reproduce.

    Raises:
        UsageError: It exists and is not empty, or is a file, or lies where no folder can be made; or its archive exists; or a
            link lies in it, through which something else would be written over.
    """
    if archive is not None and archive.exists() and not overwrite:
        raise UsageError(f"{archive} exists; name another folder with --output, or write over it with --overwrite.")
    if folder.is_file():
        raise UsageError(f"{folder} is a file; name a folder with --output.")
    if folder.is_dir() and any(folder.iterdir()) and not overwrite:
        raise UsageError(f"{folder} exists; name another folder with --output, or write over it with --overwrite.")
    inside = [
        path for place in (folder, folder / DATA_SET, folder / FILES) if place.is_dir() for path in place.iterdir()
    ]
    for link in (path for path in (*inside, *([] if archive is None else [archive])) if path.is_symlink()):
        raise UsageError(
            f"{link} is a link, and what it leads to would be written over; remove it, or name another folder."
        )
    ground = next(path for path in folder.absolute().parents if path.exists())
    if not ground.is_dir() or not os.access(ground, os.W_OK):
        raise UsageError(f"{folder} cannot be made: {ground} is no folder of yours; name another with --output.")


def make_folder(folder: Path) -> None:
    """Make the reproducer's folder.

    Raises:
        UsageError: It cannot be made any more.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder} cannot be made: {error.strerror}; name another folder with --output.") from error


@dataclass(frozen=True)
class Answer:
    """What a search ended with, about to be delivered.

    Attributes:
        candidate: The minimal failing candidate.
        minimum: Whether that was proven.
        sentence: It in words.
        found: How it was found, in words.
        blamed: Its nodes by their numbers, the guilty first.
        fault: Whose fault it is, where that was asked.
    """

    candidate: Candidate
    minimum: Minimum
    sentence: str
    found: str
    blamed: Sequence[int] = ()
    fault: Fault | None = None

    def places(self, network: Network) -> list[int]:
        """Where its nodes stand in its graph, the guilty first."""
        places = {first_output(node): place for place, node in enumerate(self.candidate.proto.graph.node)}
        names = (first_output(network.nodes[index]) for index in self.blamed)
        return [places[name] for name in names if name in places]


@dataclass(frozen=True)
class Left:
    """What was left.

    Attributes:
        minimum: The answer; unproven if the final probe disagreed.
        reproducer: What is in the folder.
        folder: Where it is.
        files: The files that were written.
        anonymous: Whether nothing in it has the model's names.
        steady: Whether what was written did not pass when it was probed once more.
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
    investigation: Session, check: CheckSettings, answer: Answer, folder: Path, *, anonymous: bool = False
) -> Left:
    """Write the folder, read its model back, probe that once more.

    Nothing of the original leaves but the nodes of the answer with their names and weights; if ``anonymous``, not even
    those, as long as it still fails then.

    Returns:
        What was left, to be finished once nothing more is probed.

    Raises:
        UsageError: The folder cannot be written.
    """
    assert check.target is not None
    subject = investigation.subject
    make_folder(folder)
    candidate = in_folder(answer.candidate)
    disguised = _disguise(investigation, candidate, check.target, folder) if anonymous else None
    candidate, record = disguised or _read_back(investigation, candidate, folder)
    outcome = investigation.outcome(record)
    keep = candidate.keep or check.target.keep
    target = investigation.held(replace(check.target, keep=keep, held=candidate.held or check.target.held))
    ran = subject.models.lowered(folder / MODEL, target)
    by_cast = (target.fp16 or target.bf16) and lowers_by(subject, target) == "cast"
    carried, files = carry(target, folder / FILES)
    reproducer = Reproducer(
        candidate.proto,
        None if isinstance(ran, Failed) else ran,
        by_cast and not isinstance(ran, Failed) and ran is not None,
        subject.values(candidate, candidate.inputs),
        subject.values(candidate, candidate.outputs),
        outcome.comparisons,
        _sentence(candidate.proto) if disguised else answer.sentence,
        carried,
        answer.found,
        outcome.signature,
        None if outcome.comparisons else without_paths(record.reason, subject),
        check.timeout,
        check.tolerance.method.validate,
        files,
        tuple(without_paths(each, subject) for each in ruled_out(investigation, check, candidate, target)),
        blamed=answer.places(subject.network),
        fault=None if answer.fault is None else without_paths(answer.fault.sentence, subject),
        is_bug=answer.fault is None or answer.fault.is_bug,
        places=[seen.table() for seen in subject.seen.values()],
        written={} if disguised else where_written(subject.network, answer.blamed),
    )
    written, minimum = reproducer.write(folder), answer.minimum
    trials = try_commands(investigation, reproducer, folder, outcome.seconds)
    if record.verdict is not Verdict.FAIL:
        minimum = investigation.disagreed(minimum, record)
    elif trials[SCRIPT].shows is False:
        minimum = replace(minimum, proven=False, why=f"the final re-check disagreed: {trials[SCRIPT].why}")
    steady = record.verdict is not Verdict.PASS
    return Left(minimum, replace(reproducer, trials=trials), folder, written, anonymous, steady)


def where_written(network: Network, nodes: Sequence[int]) -> dict[str, str]:
    """The modules that nodes come from, in words, by the first thing that each makes; of files no more than the name."""
    said = {first_output(network.nodes[index]): network.written(index, short=True) for index in nodes}
    return {name: words for name, words in said.items() if words is not None}


def in_folder(candidate: Candidate) -> Candidate:
    """An answer as it lies in the folder."""
    return replace(candidate, made=strip(candidate.proto), title="the reproducer, read back")


def _read_back(investigation: Session, candidate: Candidate, folder: Path) -> tuple[Candidate, Record]:
    """Write a model into the folder, and probe what lies there then."""
    workspace = investigation.subject.workspace
    save_model(candidate.proto, workspace.weights.folder_of(candidate.proto), folder / MODEL)
    proto = onnx.load(str(folder / MODEL), load_external_data=False)
    workspace.take_in(proto, folder)
    candidate = replace(candidate, made=proto)
    return candidate, investigation.prober.probe(candidate, again=True)


def _disguise(
    investigation: Session, candidate: Candidate, target: TargetSettings, folder: Path
) -> tuple[Candidate, Record] | None:
    """The candidate with other names and weights, in the folder; ``None`` if it does not fail so."""
    subject, proto = investigation.subject, onnx.ModelProto()
    proto.CopyFrom(candidate.proto)
    if has_external_data(proto):
        load_external_data_for_model(proto, str(subject.workspace.weights.folder_of(proto)))
    anonymous = anonymise(proto)
    if anonymous.kept:
        investigation.console.warn(f"not anonymised: {len(anonymous.kept)} weights are of types that are not replaced")
        return None
    names = anonymous.names
    fed = anonymous.rename(subject.values(candidate, candidate.inputs))
    said = subject.models.run("anonymous", anonymous.proto, fed)
    made = {} if isinstance(said, Failed) else said
    keep = candidate.keep or target.keep
    disguised = replace(
        candidate,
        made=anonymous.proto,
        inputs=tuple(names[name] for name in candidate.inputs),
        outputs=tuple(names[name] for name in candidate.outputs),
        title="the reproducer, anonymised",
        values={**fed, **made},
        keep=tuple(names[name] for name in keep if name in names) if keep else candidate.keep,
    )
    if made:
        disguised, record = _read_back(investigation, disguised, folder)
        if record.verdict is Verdict.FAIL:
            return disguised, record
    investigation.console.answer(
        "Not anonymised: with other weights it does not fail. The names and weights are the model's."
    )
    return None


def _sentence(proto: onnx.ModelProto) -> str:
    """The answer in a sentence that names nodes as the model does by now."""
    nodes = [f"{node.op_type} '{node.name}'" for node in proto.graph.node]
    return f"{nodes[0]} fails alone" if len(nodes) == 1 else f"{len(nodes)} nodes fail together"


def without_paths(text: str, subject: Subject) -> str:
    """A runtime's message without the folders of this machine, nor the name of the model's file."""
    folder = re.escape(str(subject.workspace.folder))
    absolute = re.escape(str(subject.workspace.folder.absolute()))
    text = re.sub(rf"(?:{absolute}|{folder})[^\s'\":,;]*", MODEL, text)
    return text.replace(str(subject.settings.path.absolute()), MODEL).replace(str(subject.settings.path), MODEL)
