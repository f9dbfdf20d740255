"""What a run is bound to, so that it is only ever continued with the same model, check and options."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from bisect_trt import __version__
from bisect_trt.commands.subject import Subject
from bisect_trt.errors import ConflictError, PlaceError, RunFolderError, RunStateError
from bisect_trt.onnxlib.load import external_files
from bisect_trt.options.shared import Places
from bisect_trt.probe.workspace import sha256_of
from bisect_trt.report.console import Console
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.npz import replacing
from bisect_trt.worker.place import Place, Seen, make_place, parse
from bisect_trt.worker.protocol import Failed, Look

RUN_FILE = "run.json"
CALL_FILE = "call.json"
"""The same in the folder of a run that was started from Python."""
PLACES_FILE = "places.json"
"""In a run's folder: the packages and devices of its places."""


@dataclass(frozen=True)
class Binding:
    """A command line, where it was typed, and the content of the files that it names.

    Attributes:
        argv: The words after the program's name.
        cwd: The directory it was typed in.
        files: SHA-256 of each file, by its path as typed.
        version: Of bisect-trt, because another one may search in another order.
    """

    argv: tuple[str, ...]
    cwd: str
    files: dict[str, str]
    version: str = __version__

    @classmethod
    def of(cls, argv: Sequence[str], model: Path, files: Iterable[Path], weights: Path | None = None) -> Binding:
        """Bind to a command line, a model with its weights (beside it, or elsewhere) and other files that are there."""
        digests = {str(path): sha256_of(path) for path in (model, *files) if path.is_file()}
        return cls(tuple(argv), str(Path.cwd()), {**digests, **_weights(model, weights or model.parent)})

    def write(self, folder: Path, name: str = RUN_FILE) -> None:
        """Put it into a run's folder.

        Raises:
            UsageError: It cannot be written.
        """
        with replacing(folder / name) as file:
            file.write(json.dumps(vars(self), indent=1).encode())

    @classmethod
    def read(cls, folder: Path, name: str = RUN_FILE) -> Binding:
        """What a run's folder is bound to.

        Raises:
            UnavailableError: It is no run's folder.
        """
        try:
            plain: dict[str, Any] = json.loads((folder / name).read_bytes())
            argv, cwd, files, version = (plain[name] for name in ("argv", "cwd", "files", "version"))
            if not all(isinstance(each, str) for each in (*argv, cwd, version, *files.values())):
                raise ValueError("a value is no text")
            return cls(tuple(argv), cwd, files, version)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if name == RUN_FILE and (folder / CALL_FILE).exists():
                raise RunFolderError(
                    f"{folder} was started from Python; go on with it there: call the same function with run='{folder}'."
                ) from error
            raise RunFolderError(
                f"{folder} is not the folder of a bisect-trt run ({name} is missing or damaged); "
                "runs lie under .bisect-trt where they were started, and without a name the newest there is taken."
            ) from error

    def check(self, now: Binding, folder: Path) -> None:
        """Make sure that nothing has changed since.

        Raises:
            UsageError: Something has; it is named.
        """
        changed = [f"the content of {name}" for name, digest in self.files.items() if now.files.get(name) != digest]
        changed += [f"the file {name}, which is new" for name in now.files if name not in self.files]
        if self.argv != now.argv:
            changed.append("the options")
        if self.version != now.version:
            changed.append(f"the version of bisect-trt ({self.version}, now {now.version})")
        if changed:
            raise RunStateError(
                f"{folder} cannot be continued, because its verdicts were about something else: {', '.join(changed)} "
                "changed since; start a new run."
            )


def bind_function(function: Callable[..., object]) -> dict[str, str]:
    """A function's qualified name with the SHA-256 of its source, or of its byte code where there is no source.

    What it calls, and the values that it closes over, are not looked at.
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
    """Size and time of change of the files with a model's weights: they may be too large to read for this."""
    try:
        locations = external_files(onnx.load(str(model), load_external_data=False))
    except Exception:  # whoever reads the model next says what is wrong with it
        return {}
    paths = [path for location in locations if (path := folder / location).is_file()]
    return {str(path): f"{path.stat().st_size} bytes, {path.stat().st_mtime_ns}" for path in paths}


def open_places(options: Places, console: Console) -> tuple[Place, ...]:
    """The places that were named; environments are made, which may take minutes.

    Raises:
        UnavailableError: One is not there, or cannot be made.
        UsageError: A word names no place.
    """
    for word in options.on:  # before any environment is made
        kind, parts = parse(word)
        program = parts["python"] if kind == "python" else "ssh" if kind == "ssh" else None
        if program is not None and shutil.which(program) is None:
            raise PlaceError(f"--on {word}: there is no program '{program}' here; check its path.")

    def environment(packages: str) -> str:
        from bisect_trt.worker.environments import Environment, interpreter  # noqa: PLC0415 - of those alone

        return str(interpreter(Environment.parse(packages), console.say))

    places: list[Place] = []
    for word in options.on:
        kind, parts = parse(word)
        if kind == "ray":
            from bisect_trt.worker.cluster import slots  # noqa: PLC0415 - as above

            places += slots(word, parts["address"], parts["resource"])
        else:
            places.append(make_place(word, environment))
    return tuple(places)


def look_around(subject: Subject, target: TargetSettings) -> None:
    """Ask all places what there is, before anything runs there, and make sure that verdicts of one are those of another.

    Args:
        subject: What its places are goes to ``seen``.
        target: The runtime under test.

    Raises:
        UnavailableError: A place is not there, or the target is not there.
        UsageError: They are unlike, or they are not what they were when the run began.
    """
    plugin = target.target
    packages = tuple(dict.fromkeys([*(package.name for package in plugin.packages), "numpy"]))
    for place in dict.fromkeys(subject.workers.places):
        if place in subject.seen or plugin.stays:
            continue
        reply = subject.workers.ask(Look(target, packages), place=place)
        if isinstance(reply, Failed):
            raise PlaceError(f"{place.said} cannot be used: {reply.message}; `bisect-trt doctor --on` says more.")
        subject.seen[place] = reply
        subject.console.say(f"  on {place.said}: {subject.seen[place].describe()}")
    if subject.seen:
        _refuse_unlike(list(subject.seen.values()))
        _refuse_changed(subject)


def _refuse_unlike(seen: Sequence[Seen]) -> None:
    first = seen[0]
    for other in seen[1:]:
        ours, theirs = first.kind, other.kind
        unlike = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
        if unlike:
            said = "; ".join(f"{name}: {ours.get(name, 'none')} and {theirs.get(name, 'none')}" for name in unlike)
            raise ConflictError(
                f"the places {first.place.said} and {other.place.said} are unlike ({said}), and a search with verdicts of "
                "both would be about neither; name those that are alike."
            )


def _refuse_changed(subject: Subject) -> None:
    """Bind the run to what there is in its places."""
    file = subject.workspace.folder / PLACES_FILE
    now = {seen.place.said: seen.kind for seen in subject.seen.values()}
    if not file.exists():
        with replacing(file) as stream:
            stream.write(json.dumps(now, indent=1).encode())
        return
    for said, before in json.loads(file.read_bytes()).items():
        for name, value in before.items():
            if now.get(said, {}).get(name) != value:
                raise RunStateError(
                    f"{subject.workspace.folder} cannot be continued, because its verdicts were about something else: the "
                    f"{name} of {said} ({value}, now {now.get(said, {}).get(name, 'none')}) changed since; start a new run."
                )
