"""The result of a run, as ``--json`` writes it, and the environment that it came from."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from pathlib import Path

import msgspec
from msgspec import UNSET

from bisect_trt.errors import BisectError, ExitStatus, InternalError, RunFolderError, exit_status
from bisect_trt.report.draft import Draft
from bisect_trt.report.parts import ErrorInfo, ReportParts, Sought, Status
from bisect_trt.report.text import SCHEMA, Entry, Json, clean, named
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


_SEARCHES = frozenset({"diagnose", "reduce", "cause", "workaround", "layerwise", "releases"})
"""Commands with the status ``found`` where the target is wrong."""


def cases_of(result: Result) -> list[tuple[str, str, str]]:
    """Return the name, the verdict and the message of each test case of a result.

    Each output that ``run`` compared is a test case; any other command is one.

    Returns:
        The verdict is ``pass``, ``failure`` (the target is wrong) or ``error`` (the command did not
        end with an answer).
    """
    command = result.command
    status = result.status
    reason = result.why or ""
    if status in ("error", "interrupted", "inconclusive"):
        return [(command, "error", reason or f"the command ended with status '{status}'")]
    comparisons = result.comparisons or ()
    if (
        command == "run"
        and comparisons
        and (status == "found") == all(comparison.passed for comparison in comparisons)
    ):
        names = [
            comparison.name
            if comparison.sample is None
            else f"{comparison.name} (sample {comparison.sample})"
            for comparison in comparisons
        ]
        return [
            (name, "pass", "") if comparison.passed else (name, "failure", comparison.describe())
            for name, comparison in zip(names, comparisons, strict=True)
        ]
    if (status == "found") != (command in _SEARCHES):
        return [(command, "pass", "")]
    nodes = ", ".join(map(named, result.culprits))
    return [(command, "failure", nodes or reason or "the target differs from the reference")]


def write_junit(result: Result, path: Path) -> None:
    """Write the test cases of a result as JUnit XML, as Jenkins, GitLab and GitHub read it (github.com/testmoapp/junitxml).

    Raises:
        UsageError: The file cannot be written.
    """
    from bisect_trt.report import page  # noqa: PLC0415 - it takes results

    junit = page.environment().get_template("junit.xml")
    with replacing(path) as file:
        cases = [tuple(map(clean, case)) for case in cases_of(result)]
        file.write(junit.render(result=result, cases=cases).encode() + b"\n")


_LARGEST_ERROR = 1e9
"""In place of infinite errors, which JSON has no numbers for."""
_RIGHT = "#b7e1cd"
_WRONG = "#f4b6b0"


def write_node_data(result: Result, path: Path) -> None:
    """Write the result as node data of Model Explorer (github.com/google-ai-edge/model-explorer), by the names of nodes.

    The data are the errors of the compared tensors, in tolerances, or else what the answer says of
    its nodes.

    Raises:
        UsageError: The file cannot be written.
    """
    from bisect_trt.onnxlib.load import load_model  # noqa: PLC0415 - as above

    names: dict[str, str] = {}
    # The model may be what is wrong.
    with contextlib.suppress(BisectError):
        nodes = load_model(Path(result.model.path or ""), structure=True).graph.node
        names = {output: node.name for node in nodes for output in node.output}
    errors: dict[str, float] = {}
    for tensor in result.tensors or result.comparisons or ():
        # min() returns its first argument where the other one is NaN.
        ratio = min(_LARGEST_ERROR, tensor.tolerance_ratio)
        name = names.get(tensor.name) or tensor.name
        errors[name] = max(ratio, errors.get(name, 0.0))
    words = (("fp32", result.keep_fp32 or ()), ("answer", result.culprits))
    marks = {
        node.name: {"value": word, "bgColor": _WRONG} for word, nodes in words for node in nodes
    }
    thresholds = [{"value": 1, "bgColor": _RIGHT}, {"value": _LARGEST_ERROR, "bgColor": _WRONG}]
    data = {
        "name": "error, in tolerances" if errors else "bisect-trt",
        "results": {name: {"value": error} for name, error in errors.items()} or marks,
        "thresholds": thresholds if errors else [],
    }
    with replacing(path) as file:
        file.write(json.dumps(data, indent=2).encode())
