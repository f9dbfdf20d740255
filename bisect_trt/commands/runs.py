"""The folder of a run: its binding to options, model and files; and ``log``, ``report`` and ``resume``, which read it."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import onnx

from bisect_trt import __version__
from bisect_trt.errors import OutputFileError, RunFolderError, RunStateError, UnknownNameError
from bisect_trt.onnxlib.load import external_files
from bisect_trt.onnxlib.save import check_output
from bisect_trt.options.commands import LogOptions, Report, Resume
from bisect_trt.probe.ledger import JOURNAL, read_probes
from bisect_trt.probe.workspace import KEY_LENGTH, RUNS_FOLDER, sha256_of
from bisect_trt.report.console import Console
from bisect_trt.report.result import REPORT_FILE, RESULT_FILE, Result, read_result
from bisect_trt.report.text import Json
from bisect_trt.tensors.comparison import strict_json
from bisect_trt.tensors.files import open_inside, read_inside, replacing

if TYPE_CHECKING:
    from bisect_trt.commands.call import Call

RUN_FILE = "run.json"
"""The binding, in a run's folder."""
_MOST_BYTES = 16 << 20
"""Bytes of a file of a run that are read or shown; its folder may be a stranger's."""


@dataclass(frozen=True)
class Binding:
    """A command line, its working directory, and the content of the files that it names.

    Attributes:
        argv: The words after the program's name; of a Python call the command and its keywords.
        files: SHA-256 of each file, by its path as given.
        version: The version of bisect-trt, because another version may search in another order.
    """

    argv: tuple[str, ...]
    cwd: str
    files: dict[str, str]
    python: bool = False
    version: str = __version__

    @classmethod
    def of(
        cls,
        argv: Sequence[str],
        model: Path,
        files: Iterable[Path],
        weights: Path | None,
        *,
        python: bool,
    ) -> Binding:
        """Return the binding to a command line, a model with its weights, and other files that exist."""
        digests = {str(path): sha256_of(path) for path in (model, *files) if path.is_file()}
        return cls(
            tuple(argv),
            str(Path.cwd()),
            {**digests, **_weights(model, weights or model.parent)},
            python,
        )

    def write(self, folder: Path) -> None:
        """Write the binding into a run's folder.

        Raises:
            UsageError: It cannot be written.
        """
        with replacing(folder / RUN_FILE) as file:
            file.write(json.dumps(vars(self), indent=1).encode())

    @classmethod
    def read(cls, folder: Path) -> Binding:
        """Read the binding of a run's folder.

        Raises:
            UnavailableError: The folder is not the folder of a run.
        """
        try:
            plain = strict_json(read_inside(folder, RUN_FILE, _MOST_BYTES))
            return msgspec.convert({each.name: plain[each.name] for each in fields(cls)}, cls)
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            RecursionError,
            msgspec.ValidationError,
        ) as error:
            raise RunFolderError(
                f"{folder} is not the folder of a bisect-trt run ({RUN_FILE} is missing or damaged); "
                "runs are under .bisect-trt in the directory where they were started."
            ) from error

    def check(self, now: Binding, folder: Path) -> None:
        """Check that nothing has changed since.

        Raises:
            UsageError: Something has changed; the message names it.
        """
        changed = [
            f"the content of {name}"
            for name, digest in self.files.items()
            if now.files.get(name) != digest
        ]
        changed += [
            f"the file {name}, which is new" for name in now.files if name not in self.files
        ]
        if self.argv != now.argv:
            changed.append("the options")
        if self.version != now.version:
            changed.append(f"the version of bisect-trt ({self.version}, now {now.version})")
        if changed:
            raise RunStateError(
                f"{folder} cannot be resumed, because its verdicts are out of date: {', '.join(changed)} changed; start a new "
                "run."
            )


def bind_function(function: Callable[..., object]) -> dict[str, str]:
    """Return a function's qualified name with the SHA-256 of its source, or of its byte code if it has no source.

    Functions that it calls and values of its closure are not included.
    """
    bound = ""
    if isinstance(function, functools.partial):
        bound = f"{function.args}{sorted(function.keywords.items())}"
        function = function.func
    code = function if hasattr(function, "__qualname__") else type(function)
    try:
        source = inspect.getsource(code)
    except (OSError, TypeError):
        source = repr(getattr(getattr(code, "__code__", None), "co_code", b""))
    digest = hashlib.sha256(f"{source}{bound}".encode()).hexdigest()
    return {"the check": f"{code.__module__}.{code.__qualname__} {digest}"}


def _weights(model: Path, folder: Path) -> dict[str, str]:
    """Return size and modification time of a model's files of weights, which may be too large to hash."""
    try:
        locations = external_files(onnx.load(str(model), load_external_data=False))
    except Exception:  # the error is reported when the model is read
        return {}
    paths = [path for location in locations if (path := folder / location).is_file()]
    return {str(path): f"{path.stat().st_size} bytes, {path.stat().st_mtime_ns}" for path in paths}


def newest_run(file: str = RUN_FILE) -> Path:
    """Return the folder of the newest run in the working directory, and print it.

    Raises:
        UnavailableError: There is no run.
    """
    folders = [path.parent for path in Path(RUNS_FOLDER).glob(f"*/{file}")]
    if not folders:
        raise RunFolderError(f"there is no run under {RUNS_FOLDER} here; name the folder of a run.")
    newest = max(folders, key=lambda folder: ((folder / file).stat().st_mtime_ns, folder.name))
    Console().answer(f"the newest run: {newest}")
    return newest


def log(call: Call) -> Result:
    """Show every probe of a run with its reason, or one in full."""
    own = call[LogOptions]
    show = call.console.answer
    folder = own.run
    number = own.number
    if folder is not None and number is None and str(folder).isdecimal() and not folder.exists():
        folder, number = None, int(str(folder))
    folder = newest_run() if folder is None else folder
    binding = Binding.read(folder)
    _, verdicts, unfinished = read_probes(folder / JOURNAL)
    if number is not None and number not in verdicts:
        raise UnknownNameError(f"{folder} has no probe {number}; it has {len(verdicts)}.")
    if number is not None:
        _show_probe(folder, verdicts[number], show)
        return call.result
    command, *words = binding.argv or ("",)
    show(
        f"bisect_trt.{command}({', '.join(words)})"
        if binding.python
        else f"bisect-trt {shlex.join(binding.argv)}"
    )
    show(f"in {binding.cwd}, version {binding.version}")
    for _, entry in sorted(verdicts.items()):
        show(
            f"{entry['number']:>4} {entry['verdict']:10} {entry['seconds']:7.2f} s  {entry['title']}: {entry['reason']}"
        )
    for entry in unfinished.values():
        show(f"   - unfinished             {entry['title']}: was running when the run ended")
    return call.result


def _show_probe(run: Path, entry: Json, show: Callable[[str], None]) -> None:
    """Print one probe: its candidate, the command that runs it again, its output."""
    folder = run / "candidates" / str(entry["key"])[:KEY_LENGTH]
    inside = folder / "model.onnx"
    model = (
        inside if inside.exists() else folder.with_suffix(".onnx")
    )  # with a shared file of weights
    show(f"probe {entry['number']}: {entry['verdict']}, {entry['reason']}")
    show(f"candidate: {model} ({entry['title']})")
    show(f"inputs: {folder / 'inputs.npz'}")
    show(f"golden: {folder / 'golden.npz'}")
    show(f"took: {entry['seconds']} s in {entry['runs']} run(s)")
    place = folder.relative_to(run)
    with suppress(FileNotFoundError):
        by_hand = read_inside(run, place / "command.txt", _MOST_BYTES)
        show(f"again by hand: {by_hand.decode(errors='surrogateescape').strip()}")
    with suppress(FileNotFoundError), open_inside(run, place / "output.log", 1 << 40) as file:
        show("output:")
        for line in file.read(_MOST_BYTES).decode(errors="replace").rstrip().splitlines():
            show(line.expandtabs())


def report(call: Call) -> Result:
    """Write the report.html of a run again, from its result.json alone."""
    own = call[Report]
    source = newest_run(RESULT_FILE) if own.run is None else own.run
    result = read_result(source)
    path = own.output or (source if source.is_dir() else source.parent) / REPORT_FILE
    if own.output is None and path.is_symlink():  # the folder may be a stranger's
        raise OutputFileError(
            f"{path} is a symbolic link, and its target would be overwritten; name a file with -o."
        )
    check_output(path, overwrite=True)
    from bisect_trt.report.page import write_report  # noqa: PLC0415 - every command imports this module, and few Jinja2

    write_report(result, path)
    call.console.answer(str(path))
    return call.result


def resume(call: Call) -> Result:
    """Change to the directory of an interrupted run; the call gets its command line as ``words`` and its ``folder``."""
    folder = call[Resume].run or newest_run()
    binding = Binding.read(folder)
    if binding.python:
        raise RunFolderError(
            f"{folder} was started from Python; to resume it, call the same function with run='{folder}'."
        )
    call.folder = folder.absolute()
    try:
        os.chdir(binding.cwd)
    except (OSError, ValueError) as error:
        raise RunFolderError(
            f"the run was started in {binding.cwd}, which does not exist: {getattr(error, 'strerror', error)}."
        ) from error
    call.words = binding.argv
    return call.result
