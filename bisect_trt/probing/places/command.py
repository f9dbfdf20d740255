"""A check command that runs in a place: the candidate's files lie there, under the names that the command is told."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import onnx

from bisect_trt.graph.externals import external_files
from bisect_trt.probing.models import ask
from bisect_trt.probing.places.place import Place
from bisect_trt.probing.protocol import PLACE_FOLDER, PLACE_PYTHON, Execute, Failed
from bisect_trt.probing.workers.pool import WorkerPool
from bisect_trt.probing.workers.process import Cancel, ProcessEnd
from bisect_trt.probing.workspace import FIXED_PATH, POLYGRAPHYS_PATH, CandidateFiles
from bisect_trt.targets.settings import TargetSettings

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
