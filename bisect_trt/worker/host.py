"""The process that runs models for a worker elsewhere: answers calls by the runner modules of targets.

Models and other files come by the SHA-256 of their content, each once for all workers of one driver on this host. For the
interface of the runner modules see :mod:`bisect_trt.targets.runtime`; values are arrays in ``.npz`` format.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bisect_trt.errors import BisectError, UsageError
from bisect_trt.worker.channel import receive, send
from bisect_trt.worker.facts import facts, forget_peak, status_bytes

MOST_RUNTIMES = 16
_LOG_MOST = 1 << 20
_OUTPUT_MOST = 32 << 20
"""What is kept of either end of a command's output."""
Reply = tuple[Mapping[str, Any], Sequence[Any]]
"""A header and the pieces of the payload."""


class Host:
    """Answers calls; runtimes and the last model stay loaded between them."""

    def __init__(self, shared: str, own: str) -> None:
        """Nothing is loaded yet.

        Args:
            shared: A folder for files by their hash, used by all workers of one driver.
            own: A folder that no other process uses.
        """
        self._files = Path(shared, "files")
        self._own = Path(own)
        self._runtimes: dict[str, Any] = {}
        self._session: Any = None
        self._models = 0
        self._model: Path | None = None
        self._calls: dict[str, Callable[[dict[str, Any], bytearray], Reply]] = {
            "facts": lambda call, _: ({"facts": facts(call["packages"])}, ()),
            "lacks": lambda call, _: (
                {"lacks": [each for each in call["hashes"] if not self._file(each).exists()]},
                (),
            ),
            "put": self._put,
            "make": self._make,
            "load": self._load,
            "run": self._run,
            "time": self._time,
            "layers": lambda *_: ({"layers": self._session.layers()}, ()),
            "build": self._build,
            "describe": lambda call, _: ({"engine": self._runtime(call).describe_engine()}, ()),
            "trace": self._trace,
            "command": self._command,
            "back": self._back,
        }

    def answer(self, call: dict[str, Any], payload: bytearray) -> Reply:
        """The reply to a call; an error is a reply too."""
        pieces: Sequence[Any] = ()
        try:
            forget_peak()
            known, pieces = self._calls[call["call"]](call, payload)
        except Exception as error:
            known = failure(error)
        gpu = max((runtime.gpu_memory() for runtime in self._runtimes.values()), default=0)
        memory = {"host": status_bytes("VmRSS:"), "peak": status_bytes("VmHWM:"), "gpu": gpu}
        return {**known, "memory": memory}, pieces

    def _file(self, digest: str) -> Path:
        return self._files / digest

    def _put(self, call: dict[str, Any], payload: bytearray) -> Reply:
        """Take a file, or a part of it."""
        self._files.mkdir(parents=True, exist_ok=True)
        part = self._own / f"{call['hash']}.part"
        with part.open("ab" if call["offset"] else "wb") as file:
            file.write(payload)
        if call["last"]:
            shutil.move(part, self._file(call["hash"]))
        return {}, ()

    def _make(self, call: dict[str, Any], _: bytearray) -> Reply:
        importlib.import_module("numpy")  # the package that every runner needs beside its runtime
        return {"facts": dict(self._runtime(call).facts)}, ()

    def _runtime(self, call: dict[str, Any]) -> Any:  # noqa: ANN401 - a TargetRunner, of another module
        key = json.dumps([call["module"], call["settings"]], sort_keys=True)
        if key not in self._runtimes:
            if len(self._runtimes) >= MOST_RUNTIMES:
                self._session = None
                self._runtimes.clear()
            self._runtimes[key] = importlib.import_module(call["module"]).make(self._settings(call["settings"]))
        return self._runtimes[key]

    def _settings(self, value: Any) -> Any:  # noqa: ANN401 - plain values
        """Settings with the paths that their files have here."""
        if isinstance(value, dict) and "file_back" in value:
            return str(self._own / f"back-{value['file_back']}")
        if isinstance(value, dict) and "sent_file" in value:
            return str(self._link(value["sent_file"], self._own / "settings" / value["sent_file"][:16] / value["name"]))
        if isinstance(value, dict):
            return {name: self._settings(each) for name, each in value.items()}
        return [self._settings(each) for each in value] if isinstance(value, list) else value

    def _link(self, digest: str, path: Path) -> Path:
        """A file that is here already under a name of its own; it is not to be written to."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            try:
                os.link(self._file(digest), path)
            except OSError:
                shutil.copyfile(self._file(digest), path)
        return path

    def _written(self, call: dict[str, Any]) -> Path:
        """The model of a call as a file, with its weights beside it; the one before is removed."""
        self._session = None
        if self._model is not None:
            shutil.rmtree(self._model.parent, ignore_errors=True)
        self._models += 1
        folder = self._own / f"model-{self._models}"
        self._model = self._link(call["model"], folder / "model.onnx")
        for name, digest in call["beside"].items():
            self._link(digest, folder / name)
        return self._model

    def _load(self, call: dict[str, Any], payload: bytearray) -> Reply:
        runtime, path = self._runtime(call), self._written(call)
        session = runtime.load(path, unpack(payload), call["hints"], call["unfused"])
        if session is None:
            return {"unsupported": True}, ()
        self._session = session
        inputs = [[info.name, info.dtype.name, info.shape] for info in session.inputs]
        return {"inputs": inputs, "skipped": dict(session.skipped)}, ()

    def _run(self, _: dict[str, Any], payload: bytearray) -> Reply:
        made = pack(self._session.run(unpack(payload)))
        return {"skipped": dict(self._session.skipped)}, [made]

    def _time(self, call: dict[str, Any], payload: bytearray) -> Reply:
        feed, seconds = unpack(payload), []
        for _ in range(call["warm_up"]):
            self._session.run(feed)
        for _ in range(call["runs"]):
            began = time.perf_counter()
            self._session.run(feed)
            seconds.append(time.perf_counter() - began)
        return {"seconds": seconds}, ()

    def _build(self, call: dict[str, Any], payload: bytearray) -> Reply:
        runtime, path, made = self._runtime(call), self._written(call), self._own / "engine"
        runtime.build(path, made, unpack(payload), call["hints"])
        content = made.read_bytes()
        made.unlink()
        return {}, [content]

    def _back(self, call: dict[str, Any], _: bytearray) -> Reply:
        """A file that the target has written."""
        path = self._own / f"back-{call['name']}"
        return {}, [path.read_bytes() if path.exists() else b""]

    def _trace(self, call: dict[str, Any], payload: bytearray) -> Reply:
        runtime, path = self._runtime(call), self._written(call)
        trace = getattr(runtime, "trace", None)
        return {"trace": {} if trace is None else trace(path, unpack(payload), call["hints"])}, ()

    def _command(self, call: dict[str, Any], _: bytearray) -> Reply:
        """Run a command; the payload is its output, of very much the beginning and the end."""
        folder, output = self._own / "command", self._own / "command.log"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name, digest in call["files"].items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self._file(digest), folder / name)

        def known(word: str) -> str:
            return word.replace(call["folder"], str(folder)).replace(call["python"], sys.executable)

        environment = {**os.environ, **{name: known(value) for name, value in call["environment"].items()}}
        # So that "python" is this interpreter, as in an activated environment.
        environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", os.defpath)])
        argv, cwd = [known(word) for word in call["argv"]], call["cwd"] or folder
        with output.open("wb") as log:
            try:
                code = subprocess.call(
                    argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=cwd
                )
            except OSError as error:
                raise UsageError(f"'{argv[0]}' cannot be run there: {error.strerror or error}") from error
        size = output.stat().st_size
        left_out = max(size - 2 * _OUTPUT_MOST, 0)
        with output.open("rb") as text:
            content = text.read(_OUTPUT_MOST if left_out else size)
            if left_out:
                text.seek(-_OUTPUT_MOST, os.SEEK_END)
                content += f"\n[{left_out} bytes of output left out here]\n".encode() + text.read()
        return {"code": code, "left_out": left_out}, [content]


def pack(arrays: Mapping[str, Any]) -> bytes:
    """Arrays of numbers, bools, ``ml_dtypes`` types or strings as the bytes of an ``.npz`` file."""
    from bisect_trt.tensors.npz import write_npz  # noqa: PLC0415 - a reply says what is wrong with NumPy here

    buffer = io.BytesIO()
    write_npz(buffer, arrays)
    return buffer.getvalue()


def unpack(content: bytes | bytearray) -> dict[str, Any]:
    """The arrays that :func:`pack` wrote; none for no bytes.

    Raises:
        UnavailableError: A type needs ``ml_dtypes``, which is not installed here.
    """
    from bisect_trt.tensors.npz import read_npz  # noqa: PLC0415 - as above

    return read_npz(io.BytesIO(content)) if content else {}


def failure(error: Exception) -> dict[str, Any]:
    """An error as a header, from which ``remote.checked`` raises it again."""
    from bisect_trt.targets.messages import BuildError, RuntimeFailure  # noqa: PLC0415 - only after a failure

    if isinstance(error, RuntimeFailure):
        kind = "build" if isinstance(error, BuildError) else "run"
        return {"error": kind, "message": error.message, "signature": error.masked, "poisoned": error.poisoned}
    if isinstance(error, BisectError):
        return {"error": "usage" if isinstance(error, UsageError) else "unavailable", "message": str(error)}
    if isinstance(error, MemoryError):
        return {"error": "memory", "message": "out of memory"}
    if isinstance(error, ImportError) and error.name == "numpy":
        need = "which a worker needs beside the runtime's own package; install it there"
        return {"error": "unavailable", "message": f"{sys.executable} has no NumPy, {need}"}
    traceback.print_exc()
    return {"error": "other", "name": type(error).__name__, "message": f"{type(error).__name__}: {error}"}


def serve(source: int, sink: int, shared: str, own: str, log: Path) -> None:
    """Answer until the pipe is closed; each answer carries what was printed meanwhile.

    Raises:
        Closed: The pipe is closed.
    """
    host = Host(shared, own)
    while True:
        known, pieces = host.answer(*receive(source))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        send(sink, {**known, "printed": _printed(log)}, pieces)


def _printed(log: Path) -> str:
    """The output since the last call, of very much the end."""
    size = log.stat().st_size
    if not size:
        return ""
    with log.open("rb") as file:
        file.seek(max(size - _LOG_MOST, 0))
        text = file.read().decode(errors="replace")
    os.truncate(log, 0)
    return text
