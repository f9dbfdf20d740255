"""The binding of a run to its model, options, files and places; and checks that target and reference run there."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from bisect_trt import __version__
from bisect_trt.commands.subject import Subject
from bisect_trt.errors import ConflictError, ModelRefusedError, PlaceError, RunFolderError, RunStateError, quoted
from bisect_trt.onnxlib.load import external_files
from bisect_trt.onnxlib.nodes import all_nodes
from bisect_trt.options.shared import Places
from bisect_trt.probe.workspace import sha256_of
from bisect_trt.report.console import Console
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.files import replacing
from bisect_trt.worker.place import Place, make_place, parse, slots
from bisect_trt.worker.protocol import Failed, Look

RUN_FILE = "run.json"
"""The binding, in a run's folder."""
PLACES_FILE = "places.json"
"""In a run's folder: the packages and devices of its places."""


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
        cls, argv: Sequence[str], model: Path, files: Iterable[Path], weights: Path | None, *, python: bool
    ) -> Binding:
        """Return the binding to a command line, a model with its weights, and other files that exist."""
        digests = {str(path): sha256_of(path) for path in (model, *files) if path.is_file()}
        return cls(tuple(argv), str(Path.cwd()), {**digests, **_weights(model, weights or model.parent)}, python)

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
            plain: dict[str, Any] = json.loads((folder / RUN_FILE).read_bytes())
            argv, cwd, files, version = (plain[name] for name in ("argv", "cwd", "files", "version"))
            if not all(isinstance(each, str) for each in (*argv, cwd, version, *files.values())):
                raise ValueError("a value is no text")
            return cls(tuple(argv), cwd, files, bool(plain["python"]), version)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise RunFolderError(
                f"{folder} is not the folder of a bisect-trt run ({RUN_FILE} is missing or damaged); "
                "runs are under .bisect-trt in the directory where they were started."
            ) from error

    def check(self, now: Binding, folder: Path) -> None:
        """Check that nothing has changed since.

        Raises:
            UsageError: Something has changed; the message names it.
        """
        changed = [f"the content of {name}" for name, digest in self.files.items() if now.files.get(name) != digest]
        changed += [f"the file {name}, which is new" for name in now.files if name not in self.files]
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
        bound, function = f"{function.args}{sorted(function.keywords.items())}", function.func
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


def open_places(options: Places, console: Console) -> tuple[Place, ...]:
    """Return the places given by ``--on``; environments are created, which may take minutes.

    Raises:
        UnavailableError: A place does not exist, or cannot be created.
        UsageError: A word is no place.
    """
    wanted = [(word, *parse(word)) for word in options.on]
    for word, kind, parts in wanted:  # before an environment is created
        program = parts["python"] if kind == "python" else "ssh" if kind == "ssh" else None
        if program is not None and shutil.which(program) is None:
            raise PlaceError(f"--on {word}: the program '{program}' does not exist here; check its path.")

    def environment(packages: str) -> str:
        from bisect_trt.worker.environments import Environment, interpreter  # noqa: PLC0415 - of those alone

        return str(interpreter(Environment.parse(packages), console.say))

    places: list[Place] = []
    for word, kind, parts in wanted:
        if kind == "ray":
            places += slots(word, parts["address"], "CPU" if parts["resource"] == "cpus" else "GPU")
        else:
            places.append(make_place(word, environment))
    return tuple(places)


def look_around(subject: Subject, target: TargetSettings) -> None:
    """Examine all places before anything runs there, and check that their verdicts are comparable.

    Raises:
        UnavailableError: A place or the target is not available.
        UsageError: The places differ, or have changed since the run began.
    """
    plugin = target.target
    packages = tuple(dict.fromkeys([*(package.name for package in plugin.packages), "numpy"]))
    for place in dict.fromkeys(subject.workers.places):
        if place in subject.seen or plugin.stays:
            continue
        reply = subject.workers.ask(Look(target, packages), place=place)
        if isinstance(reply, Failed):
            raise PlaceError(f"{place.said} cannot be used: {reply.message}; see `bisect-trt doctor --on`.")
        subject.seen[place] = reply
        subject.console.say(f"  on {place.said}: {subject.seen[place].describe()}")
    if subject.seen:
        _require_alike(subject)


def _require_alike(subject: Subject) -> None:
    """Check that all places are alike, and as they were when the run began."""
    kinds = {seen.place.said: seen.kind for seen in subject.seen.values()}
    first, ours = next(iter(kinds.items()))
    for other, theirs in kinds.items():
        if unlike := _unlike(ours, theirs):
            raise ConflictError(
                f"the places {first} and {other} differ ({unlike}), so their verdicts are not comparable; use places that are "
                "alike."
            )
    file = subject.workspace.folder / PLACES_FILE
    if not file.exists():
        with replacing(file) as stream:
            stream.write(json.dumps(kinds, indent=1).encode())
    for place, before in json.loads(file.read_bytes()).items():
        if unlike := _unlike(before, kinds.get(place, {})):
            raise RunStateError(
                f"{subject.workspace.folder} cannot be resumed, because its verdicts are out of date: {place} has changed "
                f"({unlike}); start a new run."
            )


def _unlike(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    """Return the differences of two places in words; empty if there are none."""
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    return "; ".join(f"{name}: {one.get(name, 'none')} and {other.get(name, 'none')}" for name in names)


def require_target(subject: Subject, target: TargetSettings) -> None:
    """Check that the target is installed and has the options that are given.

    Raises:
        UnavailableError: It is not installed, or has no GPU, or crashes when it starts.
        UsageError: It has no such option, or its profile does not fit the model.
    """
    target.target.check_inputs(target, {name: value.shape for name, value in subject.samples[0].items()})
    look_around(subject, target)
    subject.about(target)


def require_fit(subject: Subject, target: TargetSettings) -> None:
    """Check that the target is installed, and that its options fit the model.

    Raises:
        UnavailableError: See :func:`require_target`.
        UsageError: As there, or the options do not fit.
    """
    require_target(subject, target)
    target.target.check_model(target, {node.op_type for node in all_nodes(subject.network.proto)})


def require_reference(subject: Subject) -> None:
    """Check that the reference runs the model.

    Raises:
        UnavailableError: ONNX Runtime cannot run a node of the model.
    """
    for index, why in subject.reference.missing.items():
        integers = [name for name, value in subject.samples[0].items() if value.dtype.kind in "iu"]
        fix = subject.renaming
        if integers and not subject.settings.data.given:
            fix = (
                f" The random values of {quoted(integers)} may be invalid: give real data (--load-inputs), or the valid range "
                "(--val-range)."
            )
        raise ModelRefusedError(
            f"ONNX Runtime cannot run {subject.network.describe(index)}: {why}.{fix} So there is nothing to compare with; "
            "`bisect-trt reduce` with your own --check command does not need the reference."
        )
