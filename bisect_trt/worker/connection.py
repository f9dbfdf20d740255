"""The connection to a place, as its worker uses it: starts the program there, calls it, and runs models by it.

One class serves every kind of place: an interpreter of this machine, ssh, a container, and the
relay to an actor of a Ray cluster. Files go over once, by the SHA-256 of their content. What needs
ONNX is done on this side: a model is lowered before it is sent, and the hints of its target go with
it. Values come back, and are compared here.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import os
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from functools import cache, partialmethod
from pathlib import Path
from typing import IO, Any

import onnx

from bisect_trt.aliases import Fields, Plain, Sizes
from bisect_trt.errors import ConflictError, PlaceError, UnavailableError, kind_of
from bisect_trt.onnxlib.load import external_files
from bisect_trt.targets.base import TargetSettings, find, names
from bisect_trt.targets.messages import BuildError, RunError
from bisect_trt.tensors.files import Arrays, Values, replacing, sha256_of
from bisect_trt.tensors.info import TensorInfo, dtype_from_name
from bisect_trt.tensors.kernel import readable
from bisect_trt.worker.channel import (
    LAST,
    RESUME,
    Buffer,
    Closed,
    ConnectionLost,
    ProcessDied,
    receive,
    send,
    write_all,
)
from bisect_trt.worker.host import pack, unpack
from bisect_trt.worker.place import FIRST_LINE, GREETING, OLDEST, Place

START_SECONDS = 120.0
"""Seconds that a command may take to start an interpreter."""
_TIDY_SECONDS = 2.0
"""Seconds that the other end may take to remove its files after its input was closed."""
_LAST_WORDS_SECONDS = 5.0
_LINES = 3
_FILE_PART = 8 << 20
_MODULES = (
    "bisect_trt.aliases",
    "bisect_trt.errors",
    "bisect_trt.tensors.info",
    "bisect_trt.tensors.kernel",
    "bisect_trt.tensors.files",
    "bisect_trt.targets.messages",
    "bisect_trt.worker.channel",
    "bisect_trt.worker.host",
)
"""The modules of the program, without the modules of targets."""
_SECOND = """
import os, sys, tempfile
if sys.path and sys.path[0] in ("", os.getcwd()): del sys.path[0]
own, left = tempfile.mkdtemp(prefix="bisect-trt-worker-"), {size}
path = os.path.join(own, "worker.pyz")
with open(path, "wb") as file:
    while left:
        piece = f.read(left)
        if not piece: os._exit(0)
        left -= file.write(piece)
sys.path.insert(0, path)
for name in [name for name in sys.modules if name.partition(".")[0] == "bisect_trt"]: del sys.modules[name]
from bisect_trt.worker.host import main
main(own)
"""
"""Runs after ``place.FIRST_LINE``: writes the zip file into a folder of its own and starts the
program in it."""


@cache
def application() -> bytes:
    """The program with the runner modules of all targets that have one, as a zip file."""
    modules = dict.fromkeys(_MODULES)
    for name in names():
        # A plug-in of another package may not load.
        with contextlib.suppress(UnavailableError):
            modules |= dict.fromkeys(() if (target := find(name)).stays else target.sent)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        packages: set[Path] = set()
        for name in modules:
            spec = importlib.util.find_spec(name)
            assert spec is not None, f"{name} is sent to places, and does not exist"
            assert spec.origin is not None, f"{name} is sent to places, and has no source"
            path = Path(*name.split(".")).with_suffix(".py")
            archive.writestr(path.as_posix(), Path(spec.origin).read_text(encoding="utf-8"))
            packages |= set(path.parents[:-1])
        # An empty file: the package's own would import what is not sent.
        for package in sorted(packages):
            archive.writestr(f"{package.as_posix()}/__init__.py", "")
    return buffer.getvalue()


class Connection:
    """Calls the program in a place.

    Attributes:
        memory: Bytes that the process there holds; see ``host.held``.
        printed: What was printed there since this was last reset.
    """

    def __init__(self, place: Place) -> None:
        """The place is started by the first call."""
        self.place = place
        self.printed = ""
        self._in = -1
        self._out = -1
        self.memory: Mapping[str, int] = dict.fromkeys(("host", "peak", "gpu"), 0)
        self._files: set[str] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._kept = contextlib.ExitStack()
        self._errors: IO[bytes]

    def call(
        self, method: str, arguments: Plain | None = None, payload: Sequence[Buffer] = ()
    ) -> Fields:
        """Call a method of ``host.Host``; returns its reply, with the ``payload``.

        Raises:
            ConnectionLost: The place does not answer; the next call starts it again.
            ProcessDied: The process that runs models there has ended; the next call starts another.
            UnavailableError: The place cannot be started, or its Python is too old.
            BuildError: The runtime refuses the model.
            RunError: It fails to run it, or anything else went wrong there.
            UsageError: It has no such option.
            MemoryError: There is not enough memory.
        """
        try:
            if self._process is None:
                self._start()
            send(self._in, {"call": method, **(arguments or {})}, payload)
            header, content = self._receive()
            died: int | None = header.get("died")
            if died is not None and died not in LAST:
                # Nobody knows how much of this call was read before the process died.
                write_all(self._in, RESUME)
                if "died" in self._receive()[0]:
                    raise Closed("the process that runs models crashes when it starts")
        except Closed as error:
            raise self._lost(str(error)) from error
        self.memory = header.get("memory", self.memory)
        if died is not None:
            if died in LAST:
                self.close()
            raise ProcessDied(died)
        if "error" in header:
            _raise_error(**header["error"])
        return {**header, "payload": content}

    def _receive(self) -> tuple[Fields, bytearray]:
        header, content = receive(self._out)
        self.printed += header["printed"]
        return header, content

    def has(self, files: Mapping[str, bytes | Path]) -> None:
        """Send files that the other end lacks: their content, or its path, by SHA-256."""
        for digest in files.keys() - self._files:
            content = files[digest]
            size = len(content) if isinstance(content, bytes) else content.stat().st_size
            with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as file:
                # An empty file is one empty part.
                for offset in range(0, max(size, 1), _FILE_PART):
                    last = offset + _FILE_PART >= size
                    self.call(
                        "put",
                        {"hash": digest, "offset": offset, "last": last},
                        [file.read(_FILE_PART)],
                    )
            self._files.add(digest)

    def close(self) -> None:
        """End the command; the other end ends when its input is closed."""
        process = self._process
        self._process = None
        # The place that is started next has none of them.
        self._files.clear()
        self._kept.close()
        if process is not None:
            try:
                process.wait(_TIDY_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self) -> None:
        place = self.place
        program = application()
        self._errors = self._kept.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - until the process ends
        (read, self._in), (self._out, write) = os.pipe(), os.pipe()
        for fd in (self._in, self._out):
            self._kept.callback(os.close, fd)
        try:
            # A session of its own: it outlives a worker that is killed for long enough to end what
            # it has started.
            self._process = subprocess.Popen(
                place.argv, stdin=read, stdout=write, stderr=self._errors, start_new_session=True
            )
        except OSError as error:
            self.close()
            raise PlaceError(
                f"the place {place.said} cannot be started: {place.argv[0]}: {error.strerror}."
            ) from error
        finally:
            # The other end's: while it is open here, the end of the process is not seen.
            os.close(read)
            os.close(write)
        if place.typed:
            # The reason is at the end of its output.
            with contextlib.suppress(Closed):
                write_all(self._in, FIRST_LINE.encode() + b"\n")
        version = self._first_words()
        if version < OLDEST:
            self.close()
            raise PlaceError(
                f"the place {place.said} has Python {'.'.join(map(str, version))}, and a worker needs "
                f"{'.'.join(map(str, OLDEST))} or later; name another interpreter."
            )
        second = _SECOND.format(size=len(program))
        write_all(self._in, f"{second!r}\n".encode() + program)

    def _first_words(self) -> Sizes:
        """The version of the interpreter; what a host prints before it is skipped."""
        output = b""
        deadline = time.monotonic() + START_SECONDS
        while True:
            if not readable([self._out], deadline - time.monotonic()):
                raise Closed(
                    f"no Python has begun after {START_SECONDS:.0f} s; the command has to end in an interpreter that reads "
                    "its standard input, as in: python3 -"
                )
            # One byte and no more: the next bytes are a message.
            byte = os.read(self._out, 1)
            if not byte:
                raise Closed("it ended before a Python began")
            output += byte
            if byte == b"\n" and GREETING in output:
                return tuple(int(word) for word in output.rpartition(GREETING)[2].split(b"."))

    def _lost(self, reason: str) -> ConnectionLost:
        """Why there is no answer, with the last lines of what the other end wrote to stderr."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            # The last words arrive with the end of the process.
            self._process.wait(_LAST_WORDS_SECONDS)
        self._errors.seek(0)
        lines = [
            line.strip()
            for line in self._errors.read()[-4096:].decode(errors="replace").splitlines()
        ]
        self.close()
        last = " / ".join([line for line in lines if line and not line.startswith(">>>")][-_LINES:])
        return ConnectionLost(
            f"the place {self.place.said} is lost: {reason}"
            + (f" (it says: {last})" if last else "")
        )


def _raise_error(types: Sequence[str], message: str, signature: str | None, poisoned: bool) -> None:
    """Raise an error of the other end again; see ``host.failure``."""
    for failure in (BuildError, RunError):
        if failure.__name__ in types:
            raise failure(message, signature=signature, poisoned=poisoned)
    kind = MemoryError if MemoryError.__name__ in types else kind_of(types)
    if kind is not None:
        raise kind(message)
    raise RunError(f"{types[0]}: {message}", signature=types[0])


class RemoteRunner:
    """A target's runner module in a place; see :mod:`bisect_trt.targets.runtime`."""

    def __init__(self, settings: TargetSettings, connection: Connection) -> None:
        """Set it up there.

        Raises:
            ConnectionLost: The place does not answer.
            UnavailableError: The target is not there.
            UsageError: It has no such option, or cannot be sent.
        """
        target = settings.target
        if not target.sent:
            raise ConflictError(
                f"{target.title} cannot run in a place: it has no runner module; drop --on."
            )
        self._connection = connection
        self._back: dict[str, Path] = {}
        self._known = {"module": target.sent[-1], "settings": self._sent_settings(settings)}
        self.facts: Plain = connection.call("make", self._known)["facts"]

    def _sent_settings(self, settings: TargetSettings) -> Fields:
        """The settings, with the hash of each file in place of its path."""
        target, values = settings.target, settings.target.plain(settings)
        files: dict[str, bytes | Path] = {}

        def sent(value: Any) -> Any:  # noqa: ANN401 - plain values
            if isinstance(value, list | tuple):
                return [sent(item) for item in value]
            if isinstance(value, str) and Path(value).is_file():
                digest = file_hash(Path(value))
                # The hash is the name there, so a file that two settings name is sent once.
                files[digest] = Path(value)
                return {"sent_file": digest, "name": Path(value).name}
            return value

        for name in target.files:
            values[name] = sent(values[name])
        for name in target.sent_back:
            if values[name] is not None:
                self._back[name], values[name] = Path(values[name]), {"file_back": name}
        self._connection.has(files)
        return values

    def load(self, path: Path, feed: Values, hints: Plain) -> RemoteModel:
        """Load a model there.

        Args:
            path: The file of the model here; it is sent.
            feed: The arrays of its inputs by name.
            hints: The settings of the runtime, as plain values.

        Raises:
            BuildError: The runtime refuses the model.
        """
        loaded = self._call("load", path, feed, hints, back=list(self._back))
        content = loaded["payload"]
        for name, size in loaded["back"].items():
            with replacing(self._back[name]) as file:
                file.write(content[:size])
            del content[:size]
        return RemoteModel(self._connection, loaded)

    def trace(self, path: Path, feed: Values, hints: Plain, what: str = "trace") -> Fields:
        """Return its changes to a model before running it, or its profile."""
        traced: Fields = self._call("trace", path, feed, hints, what=what)["trace"]
        return traced

    profile = partialmethod(trace, what="profile")
    fusions = partialmethod(trace, what="fusions")
    placement = partialmethod(trace, what="placement")

    def _call(self, method: str, path: Path, feed: Values, hints: Plain, **more: object) -> Fields:
        """Call a method about a model, which goes over with its weights and what it is fed."""
        content = hints.get("content") or path.read_bytes()
        files: dict[str, bytes | Path] = {(model := hashlib.sha256(content).hexdigest()): content}
        weights = {}
        if "weights" in hints:
            # The other machine has no path to the weights, so they are sent by their hash.
            for location in external_files(onnx.load_from_string(content)):
                weights[location] = file_hash(Path(hints["weights"], location))
                files[weights[location]] = Path(hints["weights"], location)
        self._connection.has(files)
        plain = {name: value for name, value in hints.items() if name not in ("content", "weights")}
        arguments = {**self._known, "model": model, "beside": weights, "hints": plain, **more}
        return self._connection.call(method, arguments, [pack(feed)] if feed else ())


class RemoteModel:
    """A model that is loaded in a place; a :class:`~bisect_trt.targets.base.RuntimeSession`."""

    def __init__(self, connection: Connection, loaded: Plain) -> None:
        self._connection = connection
        self.inputs = [
            TensorInfo(name, dtype_from_name(kind), None if shape is None else tuple(shape))
            for name, kind, shape in loaded["inputs"]
        ]
        self.skipped: dict[str, str] = dict(loaded["skipped"])

    def layers(self) -> list[Fields]:
        """The layers of the engine there."""
        layers: list[Fields] = self._connection.call("layers")["layers"]
        return layers

    def run(self, inputs: Values) -> Arrays:
        """All its outputs that are tensors, by name.

        Raises:
            RunError: It fails.
        """
        reply = self._connection.call("run", {"timed": 0}, [pack(inputs)])
        self.skipped.update(reply["skipped"])
        return unpack(reply["payload"])

    def times(self, inputs: Values, runs: int) -> list[float]:
        """Seconds of each of several runs there; transfers do not count."""
        return list(self._connection.call("run", {"timed": runs}, [pack(inputs)])["seconds"])


@cache
def _hash(path: Path, *seen: int) -> str:  # noqa: ARG001 - when it was seen
    return sha256_of(path)


def file_hash(path: Path) -> str:
    """SHA-256 of a file; it is read again only after it was written to.

    Raises:
        BuildError: It cannot be read.
    """
    try:
        state = path.stat()
        return _hash(path, state.st_ino, state.st_size, state.st_ctime_ns)
    except OSError as error:
        raise BuildError(f"{path} cannot be read: {error.strerror}") from error
