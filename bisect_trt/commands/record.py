"""How a run ends, and what it leaves: ``result.json`` and the report that is made of it."""

from __future__ import annotations

import shlex
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from io import IOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bisect_trt.commands.region import region
from bisect_trt.commands.session import Session
from bisect_trt.errors import BisectError, ExitStatus, ModelFileError, ResourceError
from bisect_trt.probe.ledger import Record
from bisect_trt.report.charts import error_curve
from bisect_trt.report.console import Console
from bisect_trt.report.result import REPORT_FILE, RESULT_FILE, Result, environment
from bisect_trt.targets.settings import TargetSettings

if TYPE_CHECKING:
    from bisect_trt.commands.call import Call

MOST_PROBES = 2000
"""The first and the last probes of a longer search are in the report."""
_REASON_LENGTH = 400
_FILES = {
    "model.onnx": "the smallest model that still fails",
    "mixed.onnx": "the model in mixed precision: it passes",
    "patched.onnx": "the whole model, changed so that it passes",
    "model_fp16.onnx": "the same, lowered to fp16: what the target really ran",
    "model_bf16.onnx": "the same, lowered to bf16: what the target really ran",
    "inputs.npz": "what it is fed inside the network, by tensor name",
    "golden.npz": "what the reference makes of it, by tensor name",
    "reproduce.py": "runs it and prints the mismatch; needs nothing of bisect-trt",
    "README.md": "what fails, what was seen, versions",
    "ISSUE.md": "the text of a bug report",
    "archive": "the reproducer's folder, packed",
    "reduced": "the smallest model that still fails",
    "min_good": "the largest model next to it that passes",
    "inputs": "values of its inputs, by tensor name",
    "golden": "what the reference makes of it, by tensor name",
    "extracted": "the piece that was cut out",
    "mixed": "the model in mixed precision",
    "patched": "the whole model, changed so that it passes",
}
"""What a file is for, by its name in a reproducer's folder or its key among the artifacts."""


def attempt(call: Call, work: Callable[[], object]) -> tuple[ExitStatus, BaseException | None]:
    """Do the work of a call; its result says how that ended.

    Returns:
        The exit status, and what ended it before it had an answer.
    """
    result, began = call.result, time.monotonic()
    try:
        with system_errors(call):
            work()
    except BaseException as ending:
        return result.end_early(ending), ending
    finally:
        result.wall_s = round(time.monotonic() - began, 3)
    return result.exit_status, None


@contextmanager
def system_errors(call: Call | None = None) -> Iterator[None]:
    """Raise errors of the operating system as sentences.

    Raises:
        ResourceError: A file cannot be used, or there is not enough memory.
        ModelFileError: A model is nested too deeply.
    """
    try:
        yield
    except OSError as error:
        raise ResourceError(
            f"{_file_of(error, call)} cannot be used: {error.strerror or error}; check its path, permissions and disk."
        ) from error
    except MemoryError as error:
        raise ResourceError("not enough memory; free some, or feed less at a time (--input-shapes).") from error
    except RecursionError as error:
        raise ModelFileError("the model is nested too deeply; export it in a simpler form.") from error


def _file_of(error: OSError, call: Call | None) -> str:
    """The file that an error is about; writing to a full disk, and closing, do not say which it was."""
    if error.filename:
        return str(error.filename)
    found = "a file" if call is None or call.folder is None else f"a file of the run {call.folder}"
    for frame, _ in traceback.walk_tb(error.__traceback__):  # the innermost last
        for value in frame.f_locals.values():
            name = getattr(value, "name", None) if isinstance(value, IOBase) else None
            found = name if isinstance(name, str) else found
    return found


@contextmanager
def recorded(examination: Session, target: TargetSettings | None = None) -> Iterator[None]:
    """Put what is known into the result when the work ends, however it ends.

    Args:
        examination: What the work is about, and fills in.
        target: The runtime under suspicion.
    """
    subject, result, console = examination.subject, examination.result, examination.console
    prober = examination.probing
    subject.record(result, prober)
    try:
        yield
    finally:
        subject.record(result, prober)
        try:
            known = result.extra.get("report", {})
            result.extra["report"] = {
                **known,
                "target": target.describe() if target is not None else None,
                "graph": region(subject, result),
                "curve": error_curve(result.extra["tensors"]) if result.extra.get("tensors") else None,
                "probes": _probes(prober.ledger.records, console)
                if prober is not None
                else list(known.get("probes", ())),
            }
        except Exception as error:  # no reason to lose the answer
            console.warn(f"the report has no graph ({type(error).__name__}: {error}); please report that.")


def _probes(records: list[Record], console: Console) -> list[dict[str, Any]]:
    """The probes for the report, with the step that each was made for."""
    half = MOST_PROBES // 2
    chosen = records if len(records) <= MOST_PROBES else [*records[:half], *records[-half:]]
    return [
        {
            "number": record.number,
            "verdict": record.verdict.value,
            "title": record.title,
            "reason": record.reason[:_REASON_LENGTH],
            "signature": record.signature,
            "tail": record.tail,
            "units": record.size,
            "seconds": record.seconds,
            "own_seconds": record.own_seconds,
            **({} if record.place is None else {"place": record.place}),
            "runs": record.runs,
            "step": console.transcript.why(record.number),
        }
        for record in chosen
    ]


def leave_record(
    result: Result, folder: Path | None, argv: tuple[str, ...], console: Console, report: Path | None
) -> bytes | None:
    """Write ``result.json`` and ``report.html`` into a run's folder; what cannot be written is warned of.

    Args:
        result: Complete; gets what it lacks for the report.
        folder: The run's; ``None`` if it did not come to have one.
        argv: What was typed, without the program's name; empty if it was called from Python.
        console: Who was told of the run.
        report: Where else the report goes, if it was asked for.

    Returns:
        The result as it stands in ``result.json``, if it does and nothing of it has changed since.
    """
    from bisect_trt.report.page import write_report  # noqa: PLC0415 - Jinja2 is not needed before the first probe

    places = [place for place in (folder and folder / REPORT_FILE, report) if place is not None]
    if not places:
        return None
    result.artifacts["report"] = str(places[-1])
    known = result.extra.setdefault("report", {})
    known |= {
        "created": datetime.now().astimezone().isoformat(timespec="seconds"),
        "story": console.transcript.to_json(),
        "files": _files(result),
        "commands": _commands(result, folder, argv),
        "environment": {
            **{f"on {seen['place']}": seen["said"] for seen in result.extra.get("places", ())},
            **environment(),
            "working directory": str(Path.cwd()),
        },
    }
    try:
        content = None if folder is None else result.write(folder / RESULT_FILE)
        for place in places:
            write_report(result.to_json(), place)
    except BisectError as error:
        result.artifacts["report"] = None
        console.warn(f"no report: {error}")
        return None
    return content


def _commands(result: Result, folder: Path | None, argv: tuple[str, ...]) -> list[dict[str, str]]:
    commands = [("Run it again", ["bisect-trt", *argv])] if argv else []
    if result.artifacts.get("reproducer"):
        script = Path(str(result.artifacts["reproducer"])) / "reproduce.py"
        commands.insert(0, ("See the failure, without bisect-trt", ["python", str(script)]))
    if argv and result.status in ("interrupted", "inconclusive", "error") and result.probes["run"]:
        commands.append(("Go on where it stopped", ["bisect-trt", "resume", str(folder)]))
    if argv and result.probes["run"]:
        commands.append(("List the probes; add a number for one in full", ["bisect-trt", "log", str(folder)]))
    if folder is not None:
        commands.append(("Make this page again", ["bisect-trt", "report", str(folder)]))
    return [{"what": what, "command": shlex.join(words)} for what, words in commands]


def _files(result: Result) -> list[dict[str, Any]]:
    """The files that were left for the user, and folders in the reproducer's, with their sizes in bytes."""
    left: dict[Path, str] = {}
    for key, value in result.artifacts.items():
        if value is None or key in ("run", "report"):
            continue
        path = Path(value)
        if path.is_dir():
            left |= {entry: _FILES.get(entry.name, "") for entry in sorted(path.iterdir())}
        elif path.is_file():
            left.setdefault(path, _FILES.get(key, ""))
    return [{"path": str(path), "bytes": _size(path), "what": what} for path, what in left.items()]


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file())
