"""The result of a run, as ``--json`` writes it, and the environment that it came from."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path

import msgspec
from msgspec import UNSET

from bisect_trt.errors import BisectError, ExitStatus, InternalError, RunFolderError, exit_status
from bisect_trt.report.draft import Draft
from bisect_trt.report.parts import ErrorInfo, ReportParts, Sought, Status
from bisect_trt.report.text import SCHEMA, Entry, Json
from bisect_trt.tensors.comparison import strict_json, to_plain
from bisect_trt.tensors.files import read_inside, replacing
from bisect_trt.version import __version__
from bisect_trt.worker.host import facts

RESULT_FILE = "result.json"
REPORT_FILE = "report.html"
"""Files in the folder of each run."""
_MOST_BYTES = 1 << 30
"""Bytes of a result that are read."""
_PACKAGES = (
    "onnxruntime-gpu",
    "onnxruntime",
    "onnx",
    "numpy",
    "tensorrt",
    "tensorrt-rtx-cu12-libs",
    "openvino",
    "torch",
    "torch-tensorrt",
)
_CUDNN_PACKAGES = ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12")
_CUDA_PACKAGES = ("nvidia-cuda-runtime-cu13", "nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime")


class Result(Draft):
    """The result of a command: a draft while it runs, and what a file of ``--json`` says; its fields are stable (docs/json.md).

    :func:`~bisect_trt.report.answers.answer_of` makes the answer of one command from it.
    """

    report: Sought[ReportParts] = UNSET

    def end(self, status: Status = "found", why: str | None = None) -> Result:
        """Record how the command ended: an answer is proven unless there is a reason ``why`` not; return the result."""
        self.status = status
        self.why = why
        unproven = status == "inconclusive" or (status == "found" and why is not None)
        self.minimality = "unproven" if unproven else "1-minimal"
        return self

    def wrote(self, **files: Path) -> Result:
        """Record the files that were written, by their names in ``artifacts``; return the result as found."""
        self.artifacts |= {name: str(path) for name, path in files.items()}
        return self.end()

    def suggest(self, command: str) -> None:
        """Add a command to run next, the best first."""
        self.next = [*(self.next or ()), command]

    @property
    def page(self) -> ReportParts:
        """The parts of the report, to read."""
        return self.report or ReportParts()

    def reported(self) -> ReportParts:
        """Return the parts of the report, to add to."""
        self.report = self.page
        return self.report

    def take(self, part: Result) -> None:
        """Take over the fields that a part of the work has filled, and its files."""
        for name in _SOUGHT:
            value = getattr(part, name)
            if value is not UNSET:
                setattr(self, name, value)
        self.artifacts |= {name: file for name, file in part.artifacts.items() if file is not None}

    def end_early(self, ending: BaseException) -> ExitStatus:
        """Record the exception that ended the command early; return the exit status."""
        if isinstance(ending, KeyboardInterrupt):
            self.status = "interrupted"
            self.why = "stopped by the user"
            return ExitStatus.INTERRUPTED
        error = (
            ending
            if isinstance(ending, BisectError)
            else InternalError(f"{type(ending).__name__}: {ending}")
        )
        ends: dict[ExitStatus, Status] = {
            ExitStatus.NOT_REPRODUCED: "not_reproduced",
            ExitStatus.UNPROVEN: "inconclusive",
        }
        self.status = ends.get(error.status, "error") if error is ending else "error"
        self.why = str(error)
        self.error = ErrorInfo(**error.describe())
        return error.status

    def to_json(self) -> Entry:
        """Plain values, schema first."""
        plain: Entry = to_plain(self)
        extra = plain.pop("other")
        return {"schema": SCHEMA, **plain, **extra}

    def content(self) -> bytes:
        """Return the JSON."""
        return json.dumps(self.to_json(), indent=1, allow_nan=False).encode() + b"\n"

    def write(self, path: Path, content: bytes | None = None) -> bytes:
        """Write the result as JSON; ``content`` is the return value of an earlier call, if nothing changed since.

        Returns:
            The JSON.

        Raises:
            UsageError: The file cannot be written.
        """
        content = content or self.content()
        with replacing(path) as file:
            file.write(content)
        return content

    @property
    def exit_status(self) -> ExitStatus:
        """The exit status of the process."""
        return exit_status(self.status, self.minimality)


_SOUGHT = [each.name for each in msgspec.structs.fields(Result) if each.default is UNSET]


def result_of(plain: Json) -> Result:
    """Return a result from plain values, as ``--json`` writes them.

    Raises:
        msgspec.ValidationError: A field is missing or has another type.
    """
    fields = {
        name: value for name, value in plain.items() if value is not None and name != "schema"
    }
    extra = {name: fields.pop(name) for name in fields.keys() - {*Result.__struct_encode_fields__}}
    # not strict: numbers that JSON lacks are text
    return msgspec.convert({**fields, "other": extra}, Result, strict=False)


def read_result(path: Path) -> Result:
    """Return a result that :meth:`Result.write` wrote, from its file or the folder of a run.

    Raises:
        UnavailableError: It does not exist, is not a result, or has another schema.
    """
    file = path / RESULT_FILE if path.is_dir() else path
    try:
        if path.is_dir():
            # A run folder may come from someone else: no links out of it, and no endless files.
            plain = strict_json(read_inside(path, RESULT_FILE, _MOST_BYTES))
        else:
            with path.open("rb") as stream:
                plain = strict_json(stream.read(_MOST_BYTES))
    except OSError as error:
        raise RunFolderError(
            f"{file} cannot be read: {error.strerror}; give the folder of a run under .bisect-trt, or a file of --json."
        ) from error
    except (ValueError, RecursionError) as error:
        raise RunFolderError(
            f"{file} is damaged or not a result of bisect-trt ({error}); run the command again."
        ) from error
    if not isinstance(plain, dict) or "schema" not in plain:
        raise RunFolderError(
            f"{file} is not a result of bisect-trt; give the folder of a run, or a file of --json."
        )
    if plain["schema"] != SCHEMA:
        raise RunFolderError(
            f"{file} has schema {plain['schema']}, and this version of bisect-trt reads {SCHEMA}; "
            "use the version that wrote it."
        )
    try:
        return result_of(plain)
    except msgspec.ValidationError as error:
        raise RunFolderError(f"{file} is damaged ({error}); run the command again.") from error


_ENDINGS = ("error", "interrupted", "inconclusive")
"""Statuses without an answer, the least informative first."""


def says_less(status: str, folder: Path) -> bool:
    """Return whether a result with this status says less than the result that is in a run's folder already."""
    try:
        earlier = read_result(folder).status
    except RunFolderError:
        return False
    return status in _ENDINGS and earlier not in _ENDINGS[: _ENDINGS.index(status) + 1]


@functools.cache
def environment() -> dict[str, str]:
    """Return versions, processor and GPUs of this machine by name, for a bug report; unknown ones are omitted."""
    machine = facts([*_PACKAGES, *_CUDA_PACKAGES, *_CUDNN_PACKAGES])
    packages = machine.get("packages", {})
    gpus = machine.get("GPU", ())
    entries = {
        "bisect-trt": __version__,
        **{name: packages.get(name, "") for name in _PACKAGES},
        "Python": machine["Python"],
        "platform": machine["platform"],
        "CUDA runtime": next((packages[name] for name in _CUDA_PACKAGES if name in packages), ""),
        "cuDNN": next((packages[name] for name in _CUDNN_PACKAGES if name in packages), ""),
        "CPU": f"{machine['CPU']}, {machine['cores']} cores",
        "GPU": ", ".join(gpu["name"] for gpu in gpus),
        "NVIDIA driver": next((gpu["driver"] for gpu in gpus), ""),
        "__LUNOWUD": os.environ.get("__LUNOWUD", ""),
    }
    return {name: value for name, value in entries.items() if value}
