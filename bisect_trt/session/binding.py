"""The binding of a run to its options, model and files, in its folder."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec
import onnx

from bisect_trt.errors import RunFolderError, RunStateError
from bisect_trt.onnxlib.load import external_files
from bisect_trt.probe.workspace import RUNS_FOLDER
from bisect_trt.report.console import Console
from bisect_trt.tensors.comparison import strict_json
from bisect_trt.tensors.files import read_inside, replacing, sha256_of
from bisect_trt.version import __version__

RUN_FILE = "run.json"
"""The binding, in a run's folder."""
MOST_BYTES = 16 << 20
"""Bytes of a file of a run that are read or shown; its folder may be a stranger's."""


class Binding(msgspec.Struct, frozen=True):
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
        """Return the binding to a command line, a model with its weights, and other files that exist.

        Args:
            argv: The command line.
            model: The file of the model.
            files: Files that are hashed; those that do not exist are left out.
            weights: The folder of external weights; they are compared by size and time.
            python: Whether a Python function was called.
        """
        digests = {str(path): sha256_of(path) for path in (model, *files) if path.is_file()}
        # Files of weights are too large to hash.
        for path in filter(Path.is_file, weight_files(model, weights)):
            digests[str(path)] = f"{path.stat().st_size} bytes, {path.stat().st_mtime_ns}"
        return cls(tuple(argv), str(Path.cwd()), digests, python)

    def write(self, folder: Path) -> None:
        """Write the binding into a run's folder.

        Raises:
            UsageError: It cannot be written.
        """
        with replacing(folder / RUN_FILE) as file:
            file.write(json.dumps(msgspec.to_builtins(self), indent=1).encode())

    @classmethod
    def read(cls, folder: Path) -> Binding:
        """Read the binding of a run's folder.

        Raises:
            UnavailableError: The folder is not the folder of a run.
        """
        try:
            plain = strict_json(read_inside(folder, RUN_FILE, MOST_BYTES))
            return msgspec.convert(plain, cls)
        except (OSError, ValueError, RecursionError, msgspec.ValidationError) as error:
            raise RunFolderError(
                f"{folder} is not the folder of a bisect-trt run ({RUN_FILE} is missing or damaged); "
                "runs are under .bisect-trt in the directory where they were started."
            ) from error

    def check(self, current: Binding, folder: Path) -> None:
        """Check that nothing has changed since.

        Raises:
            UsageError: Something has changed; the message names it.
        """
        changed = [
            f"the content of {name}"
            for name, digest in self.files.items()
            if current.files.get(name) != digest
        ]
        changed += [
            f"the file {name}, which is new" for name in current.files if name not in self.files
        ]
        if self.argv != current.argv:
            changed.append("the options")
        if self.version != current.version:
            changed.append(f"the version of bisect-trt ({self.version}, now {current.version})")
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


def weight_files(model: Path, folder: Path | None) -> list[Path]:
    """Return the files of a model's weights, by default beside it; none if it is no model."""
    try:
        locations = external_files(onnx.load(str(model), load_external_data=False))
    except Exception:
        # The error is reported when the model is read.
        return []
    return [(folder or model.parent) / location for location in locations]


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
