"""The program that runs in a place: another interpreter, a container, another host. It is part of the zip application.

Two processes run there. The first passes messages on to the second, which runs models by the runner modules of targets (see
:mod:`bisect_trt.targets.runtime`). When the second crashes, the first replies how, and starts another for the next message.
When the driver is gone, it ends everything. Models and other files come by the SHA-256 of their content, each once.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import io
import json
import os
import platform
import select
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from bisect_trt.errors import BisectError, CheckCommandError, PlaceError
from bisect_trt.targets.messages import RuntimeFailure
from bisect_trt.tensors.kernel import (
    adopt_orphans,
    children,
    end_with_parent,
    forget_peak,
    free_bytes,
    holds_more,
    status_bytes,
    total_bytes,
)
from bisect_trt.worker.channel import Closed, receive, send

_MOST_RUNTIMES = 16
_OUTPUT_MOST = 32 << 20
"""What is kept of either end of the output of a call."""
_LOOK_SECONDS = 0.1
Reply = tuple[dict[str, Any], bytes]
"""A header and a payload."""


def main(own: str, memory_limit: int | None) -> NoReturn:
    """Answer a driver at the other end of stdin and stdout until one side is gone.

    Args:
        own: A folder of this process; it is removed in the end.
        memory_limit: Bytes that the process that runs models may hold.
    """
    source, sink = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(0))
    adopt_orphans()
    watched = Watched(Path(own), source, sink, memory_limit)
    try:
        while True:
            answered, content = watched.ask(*receive(source))
            send(sink, answered, [content])
    except (Closed, SystemExit):
        pass
    finally:
        with contextlib.suppress(BaseException):
            watched.end()
            shutil.rmtree(own, ignore_errors=True)
        os._exit(0)


class Watched:
    """The process that runs models, as the first process sees it."""

    def __init__(self, own: Path, source: int, sink: int, memory_limit: int | None) -> None:
        """It is started by the first message; ``source`` and ``sink`` are the pipes of the driver."""
        self._own = own
        self._log = own / "output.log"
        self._log.touch()
        self._source, self._sink = source, sink
        self._memory_limit = memory_limit
        self._child = self._to = self._from = -1

    def ask(self, header: Mapping[str, Any], payload: bytearray) -> Reply:
        """Pass a message on; the reply has what was printed meanwhile, or ``died`` if the process has ended.

        Raises:
            Closed: The driver is gone.
        """
        if self._child < 0:
            self._start()
        over_memory = gone = False
        content: bytes | bytearray = b""
        try:
            send(self._to, header, [payload])
            while not (ready := select.select([self._from, self._source], [], [], _LOOK_SECONDS)[0]):
                if self._memory_limit is not None and holds_more(self._child, self._memory_limit):
                    over_memory = True
                    self._kill()
                if self._has_ended():  # a process that it has started may hold the pipe open
                    raise Closed
            gone = self._from not in ready  # a driver sends nothing before it has the reply
            known, content = ({}, b"") if gone else receive(self._from)
        except Closed:
            known = {"died": {"code": self.end(), "over_memory": over_memory}}
        if gone:
            raise Closed("the driver is gone")
        return {**known, **self._printed()}, bytes(content)

    def _start(self) -> None:
        requests, self._to = os.pipe()
        self._from, replies = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            for fd in (self._to, self._from, self._source, self._sink):
                os.close(fd)
            _run_models(requests, replies, self._own, self._log)
        os.close(requests)
        os.close(replies)

    def _has_ended(self) -> bool:
        return os.waitid(os.P_PID, self._child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _kill(self) -> None:
        for kill in (os.killpg, os.kill):  # right after the fork it has no group of its own
            with contextlib.suppress(OSError):
                kill(self._child, signal.SIGKILL)

    def end(self) -> int:
        """Kill the process with all that it has started; its exit status, or minus the signal's number."""
        if self._child < 0:
            return 0
        self._kill()  # one that is ending has its exit status already
        code = os.waitstatus_to_exitcode(os.waitpid(self._child, 0)[1])
        while strays := children():  # of those that have left its group this process is the parent now (Linux)
            for pid in strays:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
        os.close(self._to)
        os.close(self._from)
        self._child = -1
        return code

    def _printed(self) -> dict[str, Any]:
        """The output since the last message, of very much the beginning and the end, and how many bytes are left out."""
        size = self._log.stat().st_size
        left_out = max(size - 2 * _OUTPUT_MOST, 0)
        with self._log.open("rb") as file:
            text = file.read(_OUTPUT_MOST if left_out else size)
            if left_out:
                file.seek(-_OUTPUT_MOST, os.SEEK_END)
                text += f"\n[{left_out} bytes of output left out here]\n".encode() + file.read()
        os.truncate(self._log, 0)
        return {"printed": text.decode(errors="replace"), "left_out": left_out}


def _run_models(source: int, sink: int, own: Path, log: Path) -> NoReturn:
    """Be the process that runs models, until the pipe is closed."""
    status = 1
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        end_with_parent()
        output = os.open(log, os.O_WRONLY | os.O_APPEND)
        for fd in (1, 2):
            os.dup2(output, fd)
        os.chdir(own)
        host = Host(own)
        while True:
            known, content = host.answer(*receive(source))
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            send(sink, known, [content])
    except Closed:
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


class Host:
    """Answers calls, one method each; runtimes and the last model stay loaded between them."""

    def __init__(self, own: Path) -> None:
        """``own`` is a folder that no other process uses."""
        self._own = own
        self._runtimes: dict[str, Any] = {}
        self._session: Any = None
        self._models = 0

    def answer(self, call: dict[str, Any], payload: bytearray) -> Reply:
        """The reply to a call; an error is a reply too."""
        content = b""
        try:
            forget_peak()
            known, content = getattr(self, call["call"])(call, payload)
        except Exception as error:
            known = {"error": failure(error)}
        gpu = max((runtime.gpu_memory() for runtime in self._runtimes.values()), default=0)
        memory = {"host": status_bytes("VmRSS:"), "peak": status_bytes("VmHWM:"), "gpu": gpu}
        return {**known, "memory": memory}, content

    def facts(self, call: dict[str, Any], _: bytearray) -> Reply:
        """Facts of the machine; see :func:`facts`."""
        return {"facts": facts(call["packages"])}, b""

    def put(self, call: dict[str, Any], payload: bytearray) -> Reply:
        """Take a file, or a part of it."""
        part = self._file(f"{call['hash']}.part")
        part.parent.mkdir(exist_ok=True)
        with part.open("ab" if call["offset"] else "wb") as file:
            file.write(payload)
        if call["last"]:
            part.rename(self._file(call["hash"]))
        return {}, b""

    def make(self, call: dict[str, Any], _: bytearray) -> Reply:
        """Set a runtime up, and return its facts."""
        try:
            importlib.import_module("numpy")
        except ImportError as error:
            need = "which a worker needs beside the runtime's own package; install it there"
            raise PlaceError(f"{sys.executable} has no NumPy, {need}") from error
        return {"facts": dict(self._runtime(call).facts)}, b""

    def load(self, call: dict[str, Any], payload: bytearray) -> Reply:
        """Load a model; the payload has the files that the runtime has written."""
        runtime, path = self._runtime(call), self._written(call)
        self._session = runtime.load(path, unpack(payload), call["hints"], call["unfused"])
        paths = {name: path for name in call["back"] if (path := self._back(name)).exists()}
        written = {name: path.read_bytes() for name, path in paths.items()}
        sizes = {name: len(content) for name, content in written.items()}
        known: dict[str, Any] = {"unsupported": self._session is None, "back": sizes}
        if self._session is not None:
            known["inputs"] = [[info.name, info.dtype.name, info.shape] for info in self._session.inputs]
            known["skipped"] = dict(self._session.skipped)
        return known, b"".join(written.values())

    def run(self, call: dict[str, Any], payload: bytearray) -> Reply:
        """Run the model; timed, as often as the call says."""
        feed, seconds = unpack(payload), []
        for _ in range(call["warm_up"]):
            self._session.run(feed)
        for _ in range(call["timed"]):
            began = time.perf_counter()
            self._session.run(feed)
            seconds.append(time.perf_counter() - began)
        made = b"" if seconds else pack(self._session.run(feed))
        return {"seconds": seconds, "skipped": dict(self._session.skipped)}, made

    def layers(self, _: dict[str, Any], __: bytearray) -> Reply:
        """The layers of the engine."""
        return {"layers": self._session.layers()}, b""

    def build(self, call: dict[str, Any], payload: bytearray) -> Reply:
        """Build a model; the payload is the engine."""
        runtime, path, made = self._runtime(call), self._written(call), self._own / "engine"
        runtime.build(path, made, unpack(payload), call["hints"])
        content = made.read_bytes()
        made.unlink()
        return {}, content

    def describe(self, call: dict[str, Any], _: bytearray) -> Reply:
        """The contents of the prebuilt engine."""
        return {"engine": self._runtime(call).describe_engine()}, b""

    def trace(self, call: dict[str, Any], payload: bytearray) -> Reply:
        """What the runtime does to a model while loading it."""
        runtime, path = self._runtime(call), self._written(call)
        trace = getattr(runtime, "trace", None)
        return {"trace": {} if trace is None else trace(path, unpack(payload), call["hints"])}, b""

    def command(self, call: dict[str, Any], _: bytearray) -> Reply:
        """Run a command; its output is printed."""
        folder = self._own / "command"
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
        argv = [known(word) for word in call["argv"]]
        try:
            code = subprocess.call(argv, stdin=subprocess.DEVNULL, env=environment, cwd=call["cwd"] or folder)
        except OSError as error:
            raise CheckCommandError(f"'{argv[0]}' cannot be run there: {error.strerror or error}") from error
        return {"code": code}, b""

    def _file(self, digest: str) -> Path:
        return self._own / "files" / digest

    def _back(self, name: str) -> Path:
        return self._own / f"back-{name}"

    def _runtime(self, call: dict[str, Any]) -> Any:  # noqa: ANN401 - of a runner module
        key = json.dumps([call["module"], call["settings"]], sort_keys=True)
        if key not in self._runtimes:
            if len(self._runtimes) >= _MOST_RUNTIMES:
                self._session = None
                self._runtimes.clear()
            self._runtimes[key] = importlib.import_module(call["module"]).make(self._settings(call["settings"]))
        return self._runtimes[key]

    def _settings(self, value: Any) -> Any:  # noqa: ANN401 - plain values
        """Settings with the paths that their files have here."""
        if isinstance(value, dict) and "file_back" in value:
            return str(self._back(value["file_back"]))
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
        shutil.rmtree(self._own / f"model-{self._models}", ignore_errors=True)
        self._models += 1
        folder = self._own / f"model-{self._models}"
        for name, digest in call["beside"].items():
            self._link(digest, folder / name)
        return self._link(call["model"], folder / "model.onnx")


def pack(arrays: Mapping[str, Any]) -> bytes:
    """Arrays of numbers, bools, ``ml_dtypes`` types or strings as the bytes of an ``.npz`` file."""
    from bisect_trt.tensors.npz import write_npz  # noqa: PLC0415 - a reply reports an error of NumPy here

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
    """An error as plain values, from which ``connection`` raises it again."""
    types = [each.__name__ for each in type(error).__mro__]
    if not isinstance(error, BisectError | MemoryError | RuntimeFailure):
        traceback.print_exc()
    return {
        "types": types,
        "message": getattr(error, "message", str(error)),
        "signature": getattr(error, "masked", None),
        "poisoned": getattr(error, "poisoned", False),
    }


def facts(packages: list[str]) -> dict[str, Any]:
    """Versions, processor, GPUs and memory of this machine; what is not known is left out."""
    found: dict[str, Any] = {
        "host": platform.node(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "Python": platform.python_version(),
        "executable": sys.executable,
        "CPU": processor(),
        "cores": os.cpu_count() or 1,
        "GPU": gpus(),
        "memory": total_bytes(),
        "free_memory": free_bytes(),
        "packages": {name: version for name in packages if (version := installed(name))},
    }
    return {name: value for name, value in found.items() if value or name == "packages"}


def installed(package: str) -> str:
    """The version of a package; empty where it is not installed."""
    try:
        return str(importlib.metadata.version(package))
    except Exception:  # not there, or without metadata
        return ""


def processor() -> str:
    """The processor's model."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def gpus() -> list[dict[str, Any]]:
    """Name, driver, and memory in bytes of each GPU that this process may use, as nvidia-smi reports them."""
    query = ["--query-gpu=index,name,driver_version,memory.total,memory.free", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.check_output(["nvidia-smi", *query], timeout=30, stderr=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return []
    visible, found = os.environ.get("CUDA_VISIBLE_DEVICES"), []
    for line in said.decode(errors="replace").splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) == 5 and (visible is None or words[0] in visible.split(",")):
            sizes = [int(word) << 20 if word.isdigit() else 0 for word in words[3:]]
            found.append({"name": words[1], "driver": words[2], "memory": sizes[0], "free_memory": sizes[1]})
    return found
