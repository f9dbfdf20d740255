"""The files that a call reads and writes: compared by identity before anything runs, and recorded as they are written."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from bisect_trt.aliases import Plain
from bisect_trt.errors import BisectError, SameFileError
from bisect_trt.onnxlib.save import check_output, data_file
from bisect_trt.options.spec import STDOUT, Option, entries
from bisect_trt.probe.user_checks import CommandCheck
from bisect_trt.probe.workspace import FIXED_PATH, POLYGRAPHYS_PATH
from bisect_trt.report.result import RESULT_FILE
from bisect_trt.session.binding import weight_files
from bisect_trt.tensors.files import observed_writes, read_inside, sha256_of

OUTPUTS_FILE = "outputs.jsonl"
"""In a run's folder: each file that the run wrote for the user, with its SHA-256."""
_ANSWERS = {"output", "min_good"}
"""Options that name a file of the answer."""
_IN_FOLDERS = (
    "model.onnx",
    "inputs.npz",
    "golden.npz",
    "reproduce.py",
    "run.json",
    "journal.jsonl",
    RESULT_FILE,
)
"""Files that commands read in a folder that they are given: of a reproducer, or of a run."""
_OF_RESULT = {"--json", "--report", "--junit", "--model-explorer"}
_BY_CHECK = {"candidate", "artifacts"}
"""Options that name files which a check command reads or writes too, so that its words may have the
same names."""
_Identity: TypeAlias = tuple[int, int, str]


class Paths:
    """The files of one call; two that are one file are refused, whichever way they are spelled.

    Attributes:
        recorded: The SHA-256 of each file that earlier sessions of the run wrote.
    """

    def __init__(self) -> None:
        self.recorded: Mapping[str, str] = {}
        self._roles: dict[_Identity, tuple[str, bool]] = {}
        self._answers: list[_Identity] = []
        self._outputs: set[Path] = set()
        self._clashes: list[SameFileError] = []

    @classmethod
    def of(cls, groups: Iterable[type], values: Plain, inputs: object = None) -> Paths:
        """Return the files that options name, with the weights of models and the files that a check command names.

        Args:
            groups: The groups of options of a command.
            values: The values of its options by field name: words of a command line, or Python
                values.
            inputs: The inputs of a Python call, which may be a file.
        """
        paths = cls()
        named = [
            (entry, path)
            for group in groups
            for entry in entries(group)
            for path in _named(entry, values)
        ]
        paths._answers = [
            identity
            for entry, path in named
            if entry.name in _ANSWERS and (identity := _identity(path))
        ]
        for path, role, written in _roles(named, values, inputs):
            try:
                (paths.write if written else paths.read)(path, role)
            except SameFileError as error:
                paths._clashes.append(error)
        return paths

    def refuse(self, *, of_result: bool = False) -> None:
        """Refuse options that name one file in two roles.

        Args:
            of_result: Only where the result would be written over a file.

        Raises:
            SameFileError: There are such options.
        """
        for clash in self._clashes:
            if clash.of_result or not of_result:
                raise clash

    def read(self, path: Path, role: str) -> None:
        """Add a file that is read, or a folder in which files of known names are.

        Raises:
            SameFileError: It is written too.
        """
        for file in (path, *(path / name for name in _IN_FOLDERS)):
            if os.path.exists(file):  # noqa: PTH110 - Path.exists raises for a name that is too long
                self._add(file, role, written=False)

    def write(self, path: Path, role: str) -> None:
        """Add a file that is written.

        Raises:
            SameFileError: It is read too, or written in another role.
        """
        self._add(path, role, written=True)

    def _add(self, path: Path, role: str, *, written: bool) -> None:
        identity = _identity(path)
        if identity is None:
            return
        first, first_written = self._roles.setdefault(identity, (role, written))
        if (written or first_written) and first != role:
            message = (
                f"{path} is {first} and {role}, so it would be overwritten; name another file."
            )
            raise SameFileError(message, of_result=not _OF_RESULT.isdisjoint((first, role)))

    def may_write(self, paths: Iterable[Path], *, overwrite: bool) -> None:
        """Check that files of the answer can be written; those that this run wrote may exist.

        Args:
            paths: The files.
            overwrite: Whether others may exist.

        Raises:
            UsageError: One cannot be written, exists, or has another role too.
        """
        files = list(paths)
        self.add_outputs(file for path in files for file in (path, data_file(path)))
        for path in files:
            check_output(
                path, overwrite=overwrite or self.wrote([path, data_file(path)]), read_back=True
            )

    def add_outputs(self, paths: Iterable[Path]) -> None:
        """Add files of the answer, which are recorded when they are written.

        Raises:
            SameFileError: One has another role too.
        """
        answers = list(self._answers)
        for path in paths:
            identity = _identity(path)
            if identity in answers:
                answers.remove(identity)
            else:
                self.write(path, f"{path.name} of the answer")
            self._outputs.add(Path(os.path.realpath(path)))

    def wrote(self, paths: Iterable[Path]) -> bool:
        """Return whether at least one of some files exists, and each is as an earlier session of the run left it."""
        files = [path for path in map(os.path.realpath, paths) if os.path.isfile(path)]  # noqa: PTH113 - texts
        return bool(files) and all(_digest(path) == self.recorded.get(path) for path in files)

    @contextmanager
    def recording(self, folder: Path) -> Iterator[None]:
        """Record the files of the answer in a run's folder, each before it is at its path: a kill leaves no unrecorded one."""

        def observe(path: Path, written: Path) -> None:
            # The path of a write is resolved, and most files are of no answer.
            if path in self._outputs:
                self.record(folder, path, written)

        with observed_writes(observe):
            yield

    def record(self, folder: Path, path: Path, written: Path) -> None:
        """Record a file of the answer in a run's folder.

        Args:
            folder: The folder.
            path: Where the file goes.
            written: Where its content is.
        """
        path = Path(os.path.realpath(path))
        if path in self._outputs:
            with (folder / OUTPUTS_FILE).open("a", encoding="utf-8") as file:
                file.write(json.dumps({"path": str(path), "sha256": sha256_of(written)}) + "\n")


def read_outputs(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file that a run has recorded, the last one; a damaged line counts as not recorded."""
    recorded = dict[str, str]()
    with suppress(OSError):
        for line in read_inside(folder, OUTPUTS_FILE, 16 << 20).splitlines():
            with suppress(ValueError, KeyError, TypeError):
                entry = json.loads(line)
                recorded[entry["path"]] = str(entry["sha256"])
    return recorded


def _digest(path: str) -> str:
    """Return the SHA-256 of a file, empty if it cannot be read."""
    with suppress(OSError):
        return sha256_of(Path(path))
    return ""


def _identity(path: Path) -> _Identity | None:
    """Return what names of one file have in common, ``None`` for folders, devices and FIFOs, which are not replaced."""
    if path == STDOUT:
        return None
    with suppress(OSError, ValueError):
        state = path.stat()
        return (state.st_dev, state.st_ino, "") if stat.S_ISREG(state.st_mode) else None
    try:
        full = Path(os.path.realpath(path))
    except OSError:
        # The working directory is gone, which is refused where the run is opened.
        return 0, 0, str(path)
    with suppress(OSError, ValueError):
        folder = full.parent.stat()
        return folder.st_dev, folder.st_ino, full.name
    return 0, 0, str(full)


def _named(entry: Option, values: Plain) -> Iterator[Path]:
    """Yield the paths that an option names; what cannot be a path is refused where the option is read."""
    value = values.get(entry.name)
    if not entry.names_file or value is None:
        return
    for item in value if isinstance(value, list | tuple) else [value]:
        if not isinstance(item, str | os.PathLike) or "\0" in str(item):
            continue
        yield Path(item)
        # `check.py:function` names a file with a part.
        script, colon, _ = str(item).rpartition(":")
        if colon and entry.kind is str:
            yield Path(script)


def _roles(
    named: Sequence[tuple[Option, Path]], values: Plain, inputs: object
) -> Iterator[tuple[Path, str, bool]]:
    """Yield each file with its role and whether it is written; see :meth:`Paths.of`."""
    writes = [(entry, path) for entry, path in named if entry.writes]
    reads = [(entry, path) for entry, path in named if not entry.writes and entry.metavar != "DIR"]
    yield from ((path, entry.flag, True) for entry, path in writes)
    # A cache is read and written on purpose.
    updated = {(entry.updates, _identity(path)) for entry, path in writes}
    for entry, path in reads:
        if (entry.name, _identity(path)) not in updated:
            yield (
                path,
                f"the {entry.name}" if entry.positional else f"the file of {entry.flag}",
                False,
            )
    written = [path for entry, path in writes if entry.name in _BY_CHECK]
    for path in _read_by_check(values.get("check"), written):
        yield path, "a file of the check command", False
    if isinstance(inputs, str | os.PathLike):
        yield Path(inputs), "the file of the inputs", False
    if any(os.path.isfile(path) for _, path in writes):  # noqa: PTH113 - else no weights can be lost, and no model is read
        for file in _weights(reads, values.get("external_data_dir")):
            yield file, "a file of the weights", False


def _read_by_check(words: object, written: Sequence[Path]) -> Iterator[Path]:
    """Yield the files in the words of a check command but those that it, or the search, writes."""
    writes = set(map(_identity, (*written, FIXED_PATH, POLYGRAPHYS_PATH)))
    for path in check_files(words) if isinstance(words, list) else ():
        if _identity(path) not in writes:
            yield path


def _weights(reads: Sequence[tuple[Option, Path]], folder: object) -> Iterator[Path]:
    """Yield the files with the weights of the models that are read; ``folder`` has them, or each model's own."""
    home = Path(folder) if isinstance(folder, str | os.PathLike) else None
    for entry, model in reads:
        if entry.positional or entry.metavar == "MODEL":
            yield from weight_files(model, home)


def check_files(words: Sequence[str]) -> list[Path]:
    """Return the files that the words of a check command name; none if it is no command, which is refused where it is read."""
    try:
        argv = CommandCheck.parse(words) if words else ()
    except BisectError:
        return []
    return [Path(word) for word in argv if os.path.isfile(word)]  # noqa: PTH113 - Path.is_file raises for a name that is too long
