"""Runs a target in a place: another interpreter, a container, another host, a Ray cluster.

What needs ONNX is done on this side: a model is lowered before it is sent, and the hints of its target go with it. Values come
back, and are compared here. Files (models, weights, engines) go over once, by the SHA-256 of their content.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import onnx
from numpy.typing import NDArray

from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.onnxlib.external_data import external_files
from bisect_trt.probe.workspace import sha256_of
from bisect_trt.targets.base import Arrays, Lowering
from bisect_trt.targets.messages import BuildError, RunError
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.info import TensorInfo, dtype_from_name
from bisect_trt.worker.channel import Buffer, ChannelLost, ProcessChannel, ProcessDied
from bisect_trt.worker.host import pack, unpack
from bisect_trt.worker.place import Place
from bisect_trt.worker.protocol import PLACE_FOLDER, PLACE_PYTHON, Execute, Executed

_FILE_PART = 8 << 20
Answered = tuple[dict[str, Any], bytearray]
"""The header and the payload of a reply."""


class RemoteError(Exception):
    """Something in the place fails in a way that no runtime does.

    Attributes:
        name: The type of the exception there.
    """

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class Channel(Protocol):
    """Exchanges messages with a place; see :class:`~bisect_trt.worker.channel.ProcessChannel`."""

    def exchange(self, header: Mapping[str, Any], payload: Sequence[Buffer] = ()) -> Answered:
        """Send a message and wait for the answer.

        Raises:
            ChannelLost: The place does not answer.
            ProcessDied: The process that runs models has ended; the next message starts another.
        """

    def close(self) -> None:
        """End what runs in the place."""


class Connection:
    """Calls the host in a place.

    Attributes:
        place: The place.
        memory: Bytes that the process there holds: ``host``, ``peak``, ``gpu``.
        printed: What was printed there since this was last reset.
    """

    def __init__(self, place: Place, options: Mapping[str, Any]) -> None:
        """The place is started by the first call; for ``options`` see ``away.main``."""
        self.place = place
        self.memory: Mapping[str, int] = {}
        self.printed = ""
        self._files: set[str] = set()
        self._channel = _channel(place, options)

    def call(self, method: str, arguments: Mapping[str, Any] | None = None, payload: Sequence[Buffer] = ()) -> Answered:
        """Call the host.

        Raises:
            ChannelLost: The place does not answer.
            ProcessDied: The process there has ended.
            UnavailableError: The place cannot be started, or its Python is too old.
            BuildError: The runtime refuses the model.
            RunError: It fails to run it.
            UsageError: It has no such option.
            MemoryError: There is not enough memory.
            RemoteError: Anything else went wrong there.
        """
        try:
            header, content = self._channel.exchange({"call": method, **(arguments or {})}, payload)
        except ChannelLost as lost:
            self._files.clear()
            if lost.refused:
                raise UnavailableError(str(lost)) from lost
            raise
        except ProcessDied as death:
            self._files.clear()
            self.printed += death.log
            raise
        self.memory = header.get("memory", self.memory)
        self.printed += header.get("printed", "")
        _raise_error(header)
        return header, content

    def has(self, files: Mapping[str, bytes | Path]) -> None:
        """Make sure that files are there: their content, or its path, by SHA-256.

        Raises:
            ChannelLost: As :meth:`call`, and the others.
        """
        wanted = [digest for digest in files if digest not in self._files]
        if not wanted:
            return
        for digest in self.call("lacks", {"hashes": wanted})[0]["lacks"]:
            content = files[digest]
            if isinstance(content, bytes):
                self.call("put", {"hash": digest, "offset": 0, "last": True}, [content])
                continue
            with content.open("rb") as file:
                size, offset = content.stat().st_size, 0
                while offset == 0 or offset < size:
                    part = file.read(_FILE_PART)
                    last = offset + len(part) >= size
                    self.call("put", {"hash": digest, "offset": offset, "last": last}, [part])
                    offset += max(len(part), 1)
        self._files.update(wanted)

    def close(self) -> None:
        """End what runs in the place."""
        self._channel.close()


def _channel(place: Place, options: Mapping[str, Any]) -> Channel:
    if place.kind == "ray":
        from bisect_trt.worker.cluster import RayChannel  # noqa: PLC0415 - Ray is an extra

        return RayChannel(place, options)
    from bisect_trt.worker.bundle import start  # noqa: PLC0415 - it asks every target for its modules

    return ProcessChannel(place.said, place.argv, start(options), typed=place.typed)


def _raise_error(header: Mapping[str, Any]) -> None:
    """Raise the error of a reply, if it is one; see ``host.failure``."""
    kind, message = header.get("error"), header.get("message", "")
    if kind is None:
        return
    if kind in ("build", "run"):
        failed = BuildError if kind == "build" else RunError
        raise failed(message, signature=header["signature"], poisoned=header["poisoned"])
    if kind == "memory":
        raise MemoryError
    if kind in ("usage", "unavailable"):
        raise UsageError(message) if kind == "usage" else UnavailableError(message)
    raise RemoteError(header["name"], message)


class RemoteRuntime:
    """A target in a place; a :class:`~bisect_trt.targets.base.Runtime`.

    Attributes:
        facts: What the target reports of itself there.
    """

    def __init__(self, settings: TargetSettings, connection: Connection) -> None:
        """Set it up there.

        Raises:
            ChannelLost: The place does not answer.
            UnavailableError: The target is not there.
            UsageError: It has no such option, or cannot be sent.
        """
        self._settings = settings
        self._target = settings.target
        self._connection = connection
        if not self._target.sent:
            raise UsageError(f"{self._target.title} cannot run in a place: it has no runner module; drop --on.")
        self._back: dict[str, str] = {}
        self._known = {"module": self._target.sent[-1], "settings": self._sent_settings()}
        self.facts: Mapping[str, Any] = connection.call("make", self._known)[0]["facts"]

    def _sent_settings(self) -> dict[str, Any]:
        """The settings, with the hash of each file in place of its path."""
        plain = self._settings.to_json()
        own = self._settings.of(self._target.own)
        values = {name: getattr(own, name) for name in own.__dataclass_fields__}
        files: dict[str, bytes | Path] = {}

        def sent(value: Any) -> Any:  # noqa: ANN401 - plain values
            if isinstance(value, list | tuple):
                return [sent(each) for each in value]
            if isinstance(value, str) and Path(value).is_file():
                digest = file_hash(Path(value))
                files[digest] = Path(value)
                return {"sent_file": digest, "name": Path(value).name}
            return value

        for name in (*self._target.files, *self._target.sent_files):
            values[name] = sent(values[name])
        for name in self._target.sent_back:
            if values[name] is not None:
                self._back[name], values[name] = values[name], {"file_back": name}
        self._connection.has(files)
        del plain["own"]
        return {**plain, **values}

    @property
    def lowers_by(self) -> Lowering:
        """As it is there."""
        by: Lowering = self.facts["lowers_by"]
        return by

    def lowered(self, model: Path) -> onnx.ModelProto | None:
        """The form of a model that it really runs; ``None`` if that is the model itself."""
        return self._target.lower(self._settings, model, self.facts)

    def gpu_memory(self) -> int:
        """Bytes in use there after the last call."""
        return self._connection.memory.get("gpu", 0)

    def load(self, model: Path, feed: Mapping[str, NDArray[Any]] | None = None) -> RemoteSession:
        """Prepare a model there.

        Raises:
            BuildError: The runtime refuses the model.
        """
        return RemoteSession(self._connection, self._load(model, feed, unfused=False))

    def load_unfused(self, model: Path, feed: Mapping[str, NDArray[Any]] | None = None) -> RemoteSession | None:
        """The same, with all tensors that are not fused away as outputs; ``None`` if that is not possible."""
        loaded = self._load(model, feed, unfused=True)
        return None if loaded.get("unsupported") else RemoteSession(self._connection, loaded)

    def _load(self, model: Path, feed: Mapping[str, NDArray[Any]] | None, *, unfused: bool) -> dict[str, Any]:
        loaded, _ = self._call("load", model, feed, unfused=unfused)
        for name, path in self._back.items():
            _write(Path(path), self._connection.call("back", {"name": name})[1])
        return loaded

    def trace(self, model: Path, feed: Mapping[str, NDArray[Any]] | None = None) -> dict[str, Any]:
        """What it does to a model on the way to running it; see :class:`~bisect_trt.targets.base.Runtime`."""
        traced: dict[str, Any] = self._call("trace", model, feed)[0]["trace"]
        return traced

    def build(self, model: Path, target: Path, feed: Mapping[str, NDArray[Any]] | None = None) -> None:
        """Write the engine of a model to a file here.

        Raises:
            BuildError: The runtime refuses the model.
            UsageError: The file cannot be written.
        """
        _write(target, self._call("build", model, feed)[1])

    def describe_engine(self) -> dict[str, Any]:
        """The contents of the prebuilt engine that the settings name."""
        engine: dict[str, Any] = self._connection.call("describe", self._known)[0]["engine"]
        return engine

    def _call(self, method: str, path: Path, feed: Mapping[str, NDArray[Any]] | None, **more: Any) -> Answered:  # noqa: ANN401
        """Call a method about a model, as the place runs it, with what it is fed."""
        lowered = self.lowered(path)
        try:
            content = path.read_bytes() if lowered is None else lowered.SerializeToString()
            proto = lowered or onnx.load_from_string(content)
        except Exception as error:  # each of ONNX's formats raises its own, and protobuf for what is too large
            raise BuildError(f"{path} cannot be read as an ONNX model: {error}") from error
        weights = {location: path.absolute().parent / location for location in external_files(proto)}
        beside = {location: file_hash(file) for location, file in weights.items()}
        model = hashlib.sha256(content).hexdigest()
        self._connection.has({model: content, **{beside[location]: file for location, file in weights.items()}})
        hints = self._target.hints(self._settings, proto, self.facts)
        arguments = {**self._known, "model": model, "beside": beside, "hints": hints, **more}
        return self._connection.call(method, arguments, [pack(feed)] if feed else ())


def _write(path: Path, content: bytearray) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}; name another file.") from error


class RemoteSession:
    """A model that is loaded in a place; a :class:`~bisect_trt.targets.base.Session`.

    Attributes:
        inputs: The inputs that it has to be fed.
        skipped: Outputs that it cannot return, with the reason.
    """

    def __init__(self, connection: Connection, loaded: Mapping[str, Any]) -> None:
        self._connection = connection
        self.inputs = [
            TensorInfo(name, dtype_from_name(kind), None if shape is None else tuple(shape))
            for name, kind, shape in loaded["inputs"]
        ]
        self.skipped: dict[str, str] = dict(loaded["skipped"])

    def layers(self) -> list[dict[str, Any]]:
        """The layers of the engine there."""
        layers: list[dict[str, Any]] = self._connection.call("layers")[0]["layers"]
        return layers

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """All its outputs that are tensors, by name.

        Raises:
            RunError: It fails.
        """
        header, content = self._connection.call("run", {}, [pack(inputs)])
        self.skipped.update(header["skipped"])
        return unpack(content)

    def median_ms(self, inputs: Mapping[str, NDArray[Any]], warm_up: int, runs: int) -> float:
        """Milliseconds of one run there, the median of several; transfers do not count."""
        asked = {"warm_up": warm_up, "runs": runs}
        seconds: list[float] = self._connection.call("time", asked, [pack(inputs)])[0]["seconds"]
        return 1000 * median(seconds)


def execute(connection: Connection, request: Execute) -> Executed:
    """Run a command in a place.

    Raises:
        UsageError: There is no such program there.
    """
    hashes = {name: file_hash(Path(path)) for name, path in request.files.items()}
    connection.has({digest: request.files[name] for name, digest in hashes.items()})
    known = {
        "argv": list(request.argv),
        "files": hashes,
        "environment": dict(request.environment),
        "cwd": None if request.cwd is None else str(request.cwd),
        "folder": PLACE_FOLDER,
        "python": PLACE_PYTHON,
    }
    header, output = connection.call("command", known)
    connection.printed += output.decode(errors="replace")
    return Executed(header["code"], header["left_out"])


_hashes: dict[tuple[Path, int, int, int], str] = {}


def file_hash(path: Path) -> str:
    """SHA-256 of a file; it is read again only after it was written to.

    Raises:
        BuildError: It cannot be read.
    """
    try:
        seen = path.stat()
        key = (path, seen.st_ino, seen.st_size, seen.st_ctime_ns)
        if key not in _hashes:
            _hashes[key] = sha256_of(path)
        return _hashes[key]
    except OSError as error:
        raise BuildError(f"{path} cannot be read: {error.strerror}") from error
