"""A runtime that is in a place, as the worker here sees it.

What needs ONNX is done here: a model is lowered before it goes, and what a target wants to know of its graph goes with it.
Values come back, and are compared here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import onnx
from numpy.typing import NDArray

from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.graph.externals import external_files
from bisect_trt.probing.places.bundle import sources
from bisect_trt.probing.places.connection import Answered, Connection
from bisect_trt.probing.places.pieces import cut_pieces
from bisect_trt.probing.places.sent import wire
from bisect_trt.probing.protocol import PLACE_FOLDER, PLACE_PYTHON, Execute, Executed
from bisect_trt.probing.workspace import sha256_of
from bisect_trt.targets.base import Arrays, Lowering
from bisect_trt.targets.messages import BuildError, RunError
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.info import TensorInfo, dtype_from_name


class PlaceError(Exception):
    """Something in the place fails in a way that no runtime does.

    Attributes:
        name: The exception's type there.
    """

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class PlaceRuntime:
    """A target in a place; a :class:`~bisect_trt.targets.base.Runtime`.

    Attributes:
        facts: What the target says of itself there.
    """

    def __init__(self, settings: TargetSettings, connection: Connection) -> None:
        """Set it up there.

        Raises:
            PlaceLost: The place does not answer.
            UnavailableError: The target is not there.
            UsageError: It has no such option, or cannot be sent.
        """
        self._settings = settings
        self._target = settings.target
        self._connection = connection
        if not self._target.sent:
            raise UsageError(
                f"{self._target.title} cannot be run in a place: it says of no module that it can be sent; drop --on."
            )
        self._back: dict[str, str | None] = {}
        self._known = {"module": self._target.sent[-1], "settings": self._sent_settings()}
        self._make()

    def _make(self) -> None:
        self._ask("modules", {"sources": sources(self._target.sent)})
        self.facts: Mapping[str, Any] = self._ask("make", self._known).header["facts"]

    def _sent_settings(self) -> dict[str, Any]:
        """The settings with the content of files in the place of their paths."""
        plain = self._settings.to_json()
        own = self._settings.of(self._target.own)
        values = {name: getattr(own, name) for name in own.__dataclass_fields__}
        files: dict[str, Path] = {}

        def sent(value: Any) -> Any:  # noqa: ANN401 - plain values
            if isinstance(value, (list, tuple)):
                return [sent(each) for each in value]
            if isinstance(value, str) and Path(value).is_file():
                digest = file_hash(Path(value))
                files[digest] = Path(value)
                return {"sent_file": digest, "name": Path(value).name}
            return value

        for name in (*self._target.files, *self._target.sent_files):
            values[name] = sent(values[name])
        for name in self._target.sent_back:
            self._back[name] = values[name]
            values[name] = None if values[name] is None else {"file_back": name}
        self._connection.has(files)
        del plain["own"]
        return {**plain, **values}

    def _ask(self, what: str, header: Mapping[str, Any], payload: list[Any] | None = None) -> Answered:
        return checked(self._connection.ask(what, header, payload or []))

    @property
    def lowers_by(self) -> Lowering:
        """As it is there."""
        by: Lowering = self.facts["lowers_by"]
        return by

    def lowered(self, model: Path) -> onnx.ModelProto | None:
        """The form of a model that it really runs; ``None`` if that is the model itself."""
        return self._target.lower(self._settings, model, self.facts)

    def gpu_memory(self) -> int:
        """Bytes in use there, when the place last spoke."""
        return self._connection.memory.get("gpu", 0)

    def load(self, model: Path, feed: Mapping[str, NDArray[Any]] | None = None) -> PlaceSession:
        """Prepare a model there.

        Raises:
            BuildError: It refuses the model.
        """
        answered = self._load(model, feed, unfused=False)
        return PlaceSession(self._connection, answered)

    def load_unfused(self, model: Path, feed: Mapping[str, NDArray[Any]] | None = None) -> PlaceSession | None:
        """The same, but what it gives back are all tensors that it does not fuse away; ``None`` if it cannot."""
        answered = self._load(model, feed, unfused=True)
        return None if answered.header.get("unsupported") else PlaceSession(self._connection, answered)

    def _load(self, model: Path, feed: Mapping[str, NDArray[Any]] | None, *, unfused: bool) -> Answered:
        header, payload = self._written(model, feed)
        answered = self._ask("load", {**header, "unfused": unfused}, payload)
        for name, path in self._back.items():
            if path is not None:
                _write(Path(path), self._ask("back", {"name": name}).payload)
        return answered

    def trace(self, model: Path, feed: Mapping[str, NDArray[Any]] | None = None) -> dict[str, Any]:
        """What it does to a model there on the way to running it; see :class:`~bisect_trt.targets.base.Runtime`."""
        header, payload = self._written(model, feed)
        traced: dict[str, Any] = self._ask("trace", header, payload).header["trace"]
        return traced

    def build(self, model: Path, target: Path, feed: Mapping[str, NDArray[Any]] | None = None) -> None:
        """Write what the runtime there makes of a model to a file here.

        Raises:
            BuildError: It refuses the model.
            UsageError: The file cannot be written.
        """
        header, payload = self._written(model, feed)
        _write(target, self._ask("build", header, payload).payload)

    def describe_engine(self) -> dict[str, Any]:
        """What the prebuilt engine is made of that it was set up with."""
        engine: dict[str, Any] = self._ask("describe", self._known).header["engine"]
        return engine

    def _written(self, path: Path, feed: Mapping[str, NDArray[Any]] | None) -> tuple[dict[str, Any], list[Any]]:
        """A model on its way, as the place runs it, with what it is fed; its weights go over once."""
        lowered = self.lowered(path)
        try:
            content = path.read_bytes() if lowered is None else lowered.SerializeToString()
            proto = lowered or onnx.load_from_string(content)
        except Exception as error:  # each of ONNX's formats raises its own, and protobuf for what is too large
            raise BuildError(f"{path} cannot be read as an ONNX model: {error}") from error
        pieces: list[Any] = []
        inline: list[Any] = []
        files: dict[str, Any] = {}
        for start, end, shared in cut_pieces(content):
            piece = memoryview(content)[start:end]
            if shared:
                digest = hashlib.sha256(piece).hexdigest()
                files[digest] = piece
                pieces.append(digest)
            else:
                inline.append(piece)
                pieces.append(end - start)
        beside: dict[str, list[str]] = {}
        for location in external_files(proto):
            weights = path.absolute().parent / location
            digest = file_hash(weights)
            files[digest] = weights
            beside[location] = [digest]
        self._connection.has(files)
        inlined = sum(map(len, inline))
        entries, values = wire.pack(feed or {})
        hints = self._target.hints(self._settings, proto, self.facts)
        header = {**self._known, "model": pieces, "inline": inlined, "beside": beside, "hints": hints}
        return {**header, "arrays": entries, "arrays_from": inlined}, [*inline, *values]


def _write(path: Path, content: bytearray) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}; name another file.") from error


class PlaceSession:
    """A model that is loaded in a place; a :class:`~bisect_trt.targets.base.Session`.

    Attributes:
        inputs: What it has to be fed.
        skipped: Outputs that it does not hand out, with the reason.
    """

    def __init__(self, connection: Connection, loaded: Answered) -> None:
        self._connection = connection
        self.inputs = [
            TensorInfo(name, dtype_from_name(kind), None if shape is None else tuple(shape))
            for name, kind, shape in loaded.header["inputs"]
        ]
        self.skipped: dict[str, str] = dict(loaded.header["skipped"])

    def layers(self) -> list[dict[str, Any]]:
        """What the model has become there."""
        layers: list[dict[str, Any]] = checked(self._connection.ask("layers")).header["layers"]
        return layers

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """All its outputs that are tensors, by name.

        Raises:
            RunError: It fails.
        """
        entries, pieces = wire.pack(inputs)
        answered = checked(self._connection.ask("run", {"arrays": entries}, pieces))
        self.skipped.update(answered.header["skipped"])
        return wire.unpack(answered.header["arrays"], answered.payload)

    def median_ms(self, inputs: Mapping[str, NDArray[Any]], warm_up: int, runs: int) -> float:
        """Milliseconds that one run takes there, the median of several; the way there and back does not count."""
        entries, pieces = wire.pack(inputs)
        asked = {"arrays": entries, "warm_up": warm_up, "runs": runs}
        seconds: list[float] = checked(self._connection.ask("time", asked, pieces)).header["seconds"]
        return 1000 * median(seconds)


def execute(connection: Connection, request: Execute) -> Executed:
    """Run a command there.

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
    answered = checked(connection.ask("command", known))
    connection.printed += answered.payload.decode(errors="replace")
    return Executed(answered.header["code"], answered.header["left_out"])


def checked(answered: Answered) -> Answered:
    """An answer, if it is none of an error.

    Raises:
        BuildError: The runtime refuses the model.
        RunError: It fails to run it.
        UsageError: It has no such option.
        UnavailableError: It is not there.
        MemoryError: There is not enough.
        PlaceError: Anything else.
    """
    kind, message = answered.header.get("error"), answered.header.get("message", "")
    if kind in ("build", "run"):
        failed = BuildError if kind == "build" else RunError
        raise failed(message, signature=answered.header["signature"], poisoned=answered.header["poisoned"])
    if kind == "usage":
        raise UsageError(message)
    if kind == "unavailable":
        raise UnavailableError(message)
    if kind == "memory":
        raise MemoryError
    if kind is not None:
        raise PlaceError(answered.header["name"], message)
    return answered


_hashes: dict[tuple[Path, int, int, int], str] = {}


def file_hash(path: Path) -> str:
    """SHA-256 of a file; weights are read once, unless they have been written to.

    Raises:
        BuildError: It is not there.
    """
    try:
        seen = path.stat()
        key = (path, seen.st_ino, seen.st_size, seen.st_ctime_ns)
        if key not in _hashes:
            _hashes[key] = sha256_of(path)
        return _hashes[key]
    except OSError as error:
        raise BuildError(f"{path} cannot be read: {error.strerror}") from error
