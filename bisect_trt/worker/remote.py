"""A target's runner module in a place, as used by the worker of the place.

What needs ONNX is done on this side: a model is lowered before it is sent, and the hints of its target go with it. Values come
back, and are compared here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache, partialmethod
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

from bisect_trt.errors import ConflictError
from bisect_trt.onnxlib.load import external_files
from bisect_trt.probe.workspace import sha256_of
from bisect_trt.targets.base import Arrays
from bisect_trt.targets.messages import BuildError
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.info import TensorInfo, dtype_from_name
from bisect_trt.tensors.npz import replacing
from bisect_trt.worker.channel import Message
from bisect_trt.worker.connection import Connection
from bisect_trt.worker.host import pack, unpack


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
            raise ConflictError(f"{target.title} cannot run in a place: it has no runner module; drop --on.")
        self._connection = connection
        self._back: dict[str, Path] = {}
        self._known = {"module": target.sent[-1], "settings": self._sent_settings(settings)}
        self.facts: Mapping[str, Any] = connection.call("make", self._known)[0]["facts"]

    def _sent_settings(self, settings: TargetSettings) -> dict[str, Any]:
        """The settings, with the hash of each file in place of its path."""
        target, values = settings.target, settings.target.plain(settings)
        files: dict[str, bytes | Path] = {}

        def sent(value: Any) -> Any:  # noqa: ANN401 - plain values
            if isinstance(value, list | tuple):
                return [sent(each) for each in value]
            if isinstance(value, str) and Path(value).is_file():
                digest = file_hash(Path(value))
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

    def gpu_memory(self) -> int:
        """Bytes of GPU memory in use there after the last call."""
        return self._connection.memory.get("gpu", 0)

    def load(self, path: Path, feed: Mapping[str, NDArray[Any]], hints: Mapping[str, Any]) -> RemoteModel:
        """Load a model there.

        Raises:
            BuildError: The runtime refuses the model.
        """
        loaded, content = self._call("load", path, feed, hints, back=list(self._back))
        for name, size in loaded["back"].items():
            with replacing(self._back[name]) as file:
                file.write(content[:size])
            del content[:size]
        return RemoteModel(self._connection, loaded)

    def trace(
        self, path: Path, feed: Mapping[str, NDArray[Any]], hints: Mapping[str, Any], what: str = "trace"
    ) -> dict[str, Any]:
        """Return its changes to a model before running it, or its profile."""
        traced: dict[str, Any] = self._call("trace", path, feed, hints, what=what)[0]["trace"]
        return traced

    profile = partialmethod(trace, what="profile")

    def _call(
        self, method: str, path: Path, feed: Mapping[str, NDArray[Any]], hints: Mapping[str, Any], **more: object
    ) -> Message:
        """Call a method about a model, which goes over with its weights and what it is fed."""
        content = hints.get("content") or path.read_bytes()
        files: dict[str, bytes | Path] = {(model := hashlib.sha256(content).hexdigest()): content}
        beside = {}
        if "weights" in hints:
            for location in external_files(onnx.load_from_string(content)):
                beside[location] = file_hash(Path(hints["weights"], location))
                files[beside[location]] = Path(hints["weights"], location)
        self._connection.has(files)
        plain = {name: value for name, value in hints.items() if name not in ("content", "weights")}
        arguments = {**self._known, "model": model, "beside": beside, "hints": plain, **more}
        return self._connection.call(method, arguments, [pack(feed)] if feed else ())


class RemoteModel:
    """A model that is loaded in a place; a :class:`~bisect_trt.targets.base.RuntimeSession`."""

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
        header, content = self._connection.call("run", {"timed": 0}, [pack(inputs)])
        self.skipped.update(header["skipped"])
        return unpack(content)

    def times(self, inputs: Mapping[str, NDArray[Any]], runs: int) -> list[float]:
        """Seconds of each of several runs there; transfers do not count."""
        header, _ = self._connection.call("run", {"timed": runs}, [pack(inputs)])
        return list(header["seconds"])


@cache
def _hash(path: Path, *seen: int) -> str:  # noqa: ARG001 - when it was seen
    return sha256_of(path)


def file_hash(path: Path) -> str:
    """SHA-256 of a file; it is read again only after it was written to.

    Raises:
        BuildError: It cannot be read.
    """
    try:
        seen = path.stat()
        return _hash(path, seen.st_ino, seen.st_size, seen.st_ctime_ns)
    except OSError as error:
        raise BuildError(f"{path} cannot be read: {error.strerror}") from error
