"""Turn an answer into files that show it again."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from bisect_trt.errors import UsageError
from bisect_trt.graph.externals import copy_file, external_files
from bisect_trt.graph.save import save_model
from bisect_trt.probing.candidate import Candidate
from bisect_trt.probing.prober import Prober
from bisect_trt.reporting.reproducer import MODEL, Reproducer
from bisect_trt.reporting.script import TargetScript, onnxrt_script, trt_script
from bisect_trt.runtimes.settings import TargetSettings
from bisect_trt.search.oracle import Minimum
from bisect_trt.search.verdict import Verdict
from bisect_trt.workflows.settings import CheckSettings
from bisect_trt.workflows.subject import Subject


def check_folder(folder: Path, *, overwrite: bool) -> None:
    """Make sure that a reproducer can be left there, without leaving anything yet: there may be nothing to reproduce.

    Raises:
        UsageError: It exists and is not empty, or is a file, or lies where no folder can be made.
    """
    if folder.is_file():
        raise UsageError(f"{folder} is a file; name a folder with --output.")
    if folder.is_dir() and any(folder.iterdir()) and not overwrite:
        raise UsageError(f"{folder} exists; name another folder with --output, or write over it with --overwrite.")
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
    """

    candidate: Candidate
    minimum: Minimum
    sentence: str
    found: str


def leave_reproducer(
    subject: Subject, prober: Prober, check: CheckSettings, answer: Answer, folder: Path
) -> tuple[Minimum, list[Path]]:
    """Write the folder, read its model back, probe that once more.

    Returns:
        The minimum, unproven if the final probe disagreed, and the files written.

    Raises:
        UsageError: The folder cannot be written.
    """
    assert check.target is not None
    candidate = answer.candidate
    make_folder(folder)
    save_model(candidate.proto, subject.workspace.candidates, folder / MODEL)
    proto = onnx.load(str(folder / MODEL), load_external_data=False)
    copied = external_files(proto)
    if copied:  # past 1 GiB the weights lie beside the model: the probe has to find them too
        for location in copied:
            copy_file(folder / location, subject.workspace.candidates / location)
    again = replace(candidate, proto=proto, title="the reproducer, read back")
    record = prober.probe(again, again=True)
    lowered = _lowered(subject, folder / MODEL, check.target)
    files = Reproducer(
        proto,
        lowered,
        subject.values(candidate, candidate.inputs),
        subject.values(candidate, candidate.outputs),
        prober.last_outcome.comparisons,
        _script(replace(check.target, held=candidate.held), lowered=lowered is not None),
        answer.sentence,
        replace(check.target, held=candidate.held).describe(),
        answer.found,
        None if prober.last_outcome.comparisons else record.reason,
    ).write(folder)
    if record.verdict is Verdict.FAIL:
        return answer.minimum, files
    why = f"the final re-check disagreed: {record.reason}"
    return replace(answer.minimum, proven=False, why=why), files


def _lowered(subject: Subject, model: Path, target: TargetSettings) -> onnx.ModelProto | None:
    """The form of a model that the target really runs; ``None`` if that is the model itself."""
    path = subject.workspace.scratch("lowered.onnx")
    request = {"op": "lower", "model": str(model), "to": str(path), "target": target.to_json()}
    reply = subject.workers.ask(request)
    return onnx.load(str(path), load_external_data=False) if reply.get("lowered") else None


def _script(target: TargetSettings, *, lowered: bool) -> TargetScript:
    if target.runtime == "trt":
        return trt_script(target, lowered=lowered)
    # ONNX Runtime takes long to import, and this is the one place where the driver itself needs it.
    from bisect_trt.runtimes.onnxrt import provider_names  # noqa: PLC0415

    return onnxrt_script(provider_names(target.providers))
