"""The process in a place that runs models: it answers one message after the other.

What it is asked to do comes as plain values and files by the hash of their content; what a target's own modules (its
``sent``) make of that goes back. They are sent too, and define ``make(settings)``, which gives an object with

- ``facts``: plain values that the driver wants to know, ``lowers_by`` among them,
- ``load(path, feed, hints, unfused)``: a :class:`~bisect_trt.targets.base.Session`, or ``None`` if it cannot be unfused,
- ``build(path, to, feed, hints)`` and ``describe_engine()``, where it makes engines,
- ``trace(path, feed, hints)``, where it has one,
- ``gpu_memory()``: bytes in use.

``hints`` is what the target's own side at the driver has found in the model, because there is no ONNX here.
"""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
import traceback
from typing import Any, Callable, Mapping, Tuple

from bisect_trt.errors import BisectError, UsageError
from bisect_trt.probing.places.sent import wire
from bisect_trt.probing.places.sent.facts import facts, forget_peak, status_bytes

MOST_RUNTIMES = 16
_LOG_MOST = 1 << 20
_OUTPUT_MOST = 32 << 20
"""What is kept of either end of a command's output."""
Reply = Tuple[Mapping[str, Any], Any]
"""A header, and what follows it in pieces."""


class Server:
    """Answers messages; runtimes stay loaded between them, and so does the last model."""

    def __init__(self, folder: str, own: str) -> None:
        """Nothing is loaded yet.

        Args:
            folder: Where files lie by their hash, for all workers of one driver.
            own: A folder that nobody else uses.
        """
        self._files = pathlib.Path(folder) / "files"
        self._own = pathlib.Path(own)
        self._runtimes: dict[str, Any] = {}
        self._session: Any = None
        self._models = 0
        self._model: pathlib.Path | None = None
        self._answers: dict[str, Callable[[dict[str, Any], bytearray], Reply]] = {
            "facts": self._facts,
            "lacks": self._lacks,
            "put": self._put,
            "modules": self._modules,
            "make": self._make,
            "load": self._load,
            "run": self._run,
            "time": self._time,
            "layers": self._layers,
            "build": self._build,
            "describe": self._describe,
            "trace": self._trace,
            "command": self._command,
            "back": self._sent_back,
        }

    def answer(self, header: dict[str, Any], payload: bytearray) -> Reply:
        """Do what is asked; whatever goes wrong is an answer too."""
        try:
            known, pieces = self._answers[header["ask"]](header, payload)
        except Exception as error:
            known, pieces = failure(error), ()
        return {**known, "memory": self._memory()}, pieces

    def _memory(self) -> dict[str, int]:
        gpu = 0
        for runtime in self._runtimes.values():
            gpu = max(gpu, runtime.gpu_memory())
        return {"host": status_bytes("VmRSS:"), "peak": status_bytes("VmHWM:"), "gpu": gpu}

    def _facts(self, header: dict[str, Any], _: bytearray) -> Reply:
        return {"facts": facts(header["packages"])}, ()

    def _lacks(self, header: dict[str, Any], _: bytearray) -> Reply:
        return {"lacks": [name for name in header["hashes"] if not (self._files / name).exists()]}, ()

    def _put(self, header: dict[str, Any], payload: bytearray) -> Reply:
        """Take a file in, or a part of it."""
        self._files.mkdir(parents=True, exist_ok=True)
        part = self._own / "{}.part".format(header["hash"])
        with part.open("r+b" if header["offset"] else "wb") as file:
            file.seek(header["offset"])
            file.write(payload)
        if header["last"]:
            os.replace(str(part), str(self._files / header["hash"]))
        return {}, ()

    def _modules(self, header: dict[str, Any], _: bytearray) -> Reply:
        finder = next(each for each in sys.meta_path if hasattr(each, "add_modules"))
        finder.add_modules(header["sources"])
        return {}, ()

    def _make(self, header: dict[str, Any], _: bytearray) -> Reply:
        importlib.import_module("numpy")  # of all that may be missing, what every worker needs
        runtime = self._runtime(header)
        return {"facts": dict(runtime.facts)}, ()

    def _runtime(self, header: dict[str, Any]) -> Any:
        key = json.dumps([header["module"], header["settings"]], sort_keys=True)
        if key not in self._runtimes:
            if len(self._runtimes) >= MOST_RUNTIMES:
                self._session = None
                self._runtimes.clear()
            module = importlib.import_module(header["module"])
            self._runtimes[key] = module.make(self._with_files(header["settings"]))
        return self._runtimes[key]

    def _with_files(self, value: Any) -> Any:
        """Settings with the paths that files have here."""
        if isinstance(value, dict):
            if "file_back" in value:
                return str(self._own / f"back-{value['file_back']}")
            if "sent_file" in value:
                return str(
                    self._place(self._own / "settings" / value["sent_file"][:16], value["name"], [value["sent_file"]])
                )
            return {name: self._with_files(each) for name, each in value.items()}
        return [self._with_files(each) for each in value] if isinstance(value, list) else value

    def _place(
        self, folder: pathlib.Path, name: str, pieces: list[Any], inline: Any = b"", own: bool = False
    ) -> pathlib.Path:
        """A file of pieces: hashes of files that are here, or numbers of bytes of ``inline``; ``own`` may be written to."""
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if len(pieces) == 1 and isinstance(pieces[0], str):
            if own:
                shutil.copyfile(str(self._files / pieces[0]), str(path))
            elif not path.exists():
                try:
                    os.link(str(self._files / pieces[0]), str(path))
                except OSError:
                    shutil.copyfile(str(self._files / pieces[0]), str(path))
            return path
        at, view = 0, memoryview(inline)
        with path.open("wb") as file:
            for piece in pieces:
                if isinstance(piece, str):
                    with (self._files / piece).open("rb") as source:
                        shutil.copyfileobj(source, file, 1 << 20)
                else:
                    file.write(view[at : at + piece])
                    at += piece
        return path

    def _written(self, header: dict[str, Any], payload: bytearray) -> pathlib.Path:
        """The model of a message as a file, what lies beside it too; the last one goes."""
        self._session = None
        if self._model is not None:
            shutil.rmtree(str(self._model.parent), ignore_errors=True)
        self._models += 1
        folder = self._own / f"model-{self._models}"
        size = header["inline"]
        self._model = self._place(folder, "model.onnx", header["model"], memoryview(payload)[:size])
        for name, pieces in header["beside"].items():
            self._place(folder, name, pieces)
        return self._model

    def _fed(self, header: dict[str, Any], payload: bytearray) -> dict[str, Any]:
        return wire.unpack(header["arrays"], payload[header.get("arrays_from", 0) :])

    def _load(self, header: dict[str, Any], payload: bytearray) -> Reply:
        runtime = self._runtime(header)
        path = self._written(header, payload)
        session = runtime.load(path, self._fed(header, payload), header["hints"], header["unfused"])
        if session is None:
            return {"unsupported": True}, ()
        self._session = session
        inputs = [[info.name, info.dtype.name, info.shape] for info in session.inputs]
        return {"inputs": inputs, "skipped": dict(session.skipped)}, ()

    def _run(self, header: dict[str, Any], payload: bytearray) -> Reply:
        entries, pieces = wire.pack(self._session.run(self._fed(header, payload)))
        return {"arrays": entries, "skipped": dict(self._session.skipped)}, pieces

    def _time(self, header: dict[str, Any], payload: bytearray) -> Reply:
        feed = self._fed(header, payload)
        for _ in range(header["warm_up"]):
            self._session.run(feed)
        seconds = []
        for _ in range(header["runs"]):
            began = time.perf_counter()
            self._session.run(feed)
            seconds.append(time.perf_counter() - began)
        return {"seconds": seconds}, ()

    def _layers(self, header: dict[str, Any], _: bytearray) -> Reply:  # noqa: ARG002 - as of all of them
        return {"layers": self._session.layers()}, ()

    def _build(self, header: dict[str, Any], payload: bytearray) -> Reply:
        runtime = self._runtime(header)
        path = self._written(header, payload)
        made = self._own / "engine"
        runtime.build(path, made, self._fed(header, payload), header["hints"])
        content = made.read_bytes()
        made.unlink()
        return {}, (content,)

    def _sent_back(self, header: dict[str, Any], _: bytearray) -> Reply:
        """A file that the target has written."""
        path = self._own / "back-{}".format(header["name"])
        return {}, (path.read_bytes() if path.exists() else b"",)

    def _trace(self, header: dict[str, Any], payload: bytearray) -> Reply:
        runtime = self._runtime(header)
        path = self._written(header, payload)
        trace = getattr(runtime, "trace", None)
        return {"trace": {} if trace is None else trace(path, self._fed(header, payload), header["hints"])}, ()

    def _command(self, header: dict[str, Any], _: bytearray) -> Reply:
        """Run a command; its output is what follows the answer, of very much the beginning and the end."""
        folder = self._own / "command"
        shutil.rmtree(str(folder), ignore_errors=True)
        folder.mkdir()
        for name, digest in header["files"].items():
            self._place(folder, name, [digest], own=True)

        def known(word: str) -> str:
            return word.replace(header["folder"], str(folder)).replace(header["python"], sys.executable)

        environment = {**os.environ, **{name: known(value) for name, value in header["environment"].items()}}
        # So that "python" is the place's, as in an environment that is active.
        environment["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), environment.get("PATH", os.defpath)])
        output = self._own / "command.log"
        with output.open("wb") as log:
            try:
                done = subprocess.Popen(
                    [known(word) for word in header["argv"]],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    cwd=str(folder) if header["cwd"] is None else header["cwd"],
                )
            except OSError as error:
                raise UsageError(
                    "'{}' cannot be run there: {}".format(known(header["argv"][0]), error.strerror or error)
                ) from error
            code = done.wait()
        size = output.stat().st_size
        left_out = max(size - 2 * _OUTPUT_MOST, 0)
        with output.open("rb") as text:
            content = text.read(_OUTPUT_MOST if left_out else size)
            if left_out:
                text.seek(-_OUTPUT_MOST, os.SEEK_END)
                content += f"\n[{left_out} bytes of output left out here]\n".encode() + text.read()
        return {"code": code, "left_out": left_out}, (content,)

    def _describe(self, header: dict[str, Any], _: bytearray) -> Reply:
        return {"engine": self._runtime(header).describe_engine()}, ()


def failure(error: Exception) -> dict[str, Any]:
    """An error as a header; the driver raises it again."""
    from bisect_trt.targets.messages import BuildError, RuntimeFailure

    if isinstance(error, RuntimeFailure):
        kind = "build" if isinstance(error, BuildError) else "run"
        return {"error": kind, "message": error.message, "signature": error.masked, "poisoned": error.poisoned}
    if isinstance(error, UsageError):
        return {"error": "usage", "message": str(error)}
    if isinstance(error, BisectError):
        return {"error": "unavailable", "message": str(error)}
    if isinstance(error, MemoryError):
        return {"error": "memory", "message": "out of memory"}
    if isinstance(error, ImportError) and error.name == "numpy":
        return {
            "error": "unavailable",
            "message": f"{sys.executable} has no NumPy, which a worker needs beside the runtime's own package; install it there",
        }
    traceback.print_exc()
    return {"error": "other", "name": type(error).__name__, "message": f"{type(error).__name__}: {error}"}


def serve(source: int, sink: int, folder: str, own: str, log: str) -> None:
    """Answer till the pipe is closed; what is printed meanwhile goes back with each answer.

    Raises:
        Closed: It is.
    """
    server = Server(folder, own)
    while True:
        header, payload = wire.receive(lambda size: wire.read_exactly(source, size))
        forget_peak()
        known, pieces = server.answer(header, payload)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        wire.send(
            lambda content: wire.write_all(sink, content),
            {**known, "log": printed(log), "number": header["number"]},
            pieces,
        )


def printed(log: str) -> str:
    """What has been printed since this was last asked; of very much, the end."""
    size = os.path.getsize(log)
    if not size:
        return ""
    with open(log, "rb") as file:
        file.seek(max(size - _LOG_MOST, 0))
        text = file.read().decode(errors="replace")
    os.truncate(log, 0)
    return text
