"""The program that runs in a place: another interpreter, a container, another host.

It is part of the zip application.

It runs models by the runner modules of targets (see :mod:`bisect_trt.targets.runtime`) in a child
process, so that a crash is an answer. Models and other files come by the SHA-256 of their content,
each once.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import platform
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from bisect_trt.aliases import Fields, Plain
from bisect_trt.errors import BisectError, PlaceError
from bisect_trt.targets.messages import RuntimeFailure
from bisect_trt.tensors.kernel import end_with_parent, forget_peak, status_bytes
from bisect_trt.worker.channel import LAST, Closed, discard, receive, send

_MOST_RUNTIMES = 16
_OUTPUT_MOST = 32 << 20
"""Most bytes of the output of a call that are sent back."""
_LOOK_SECONDS = 0.1
_PROCESS = "process-"
"""Start of the name of the folder of a process that runs models."""
Call = dict[str, Any]
Reply = dict[str, Any]
"""The headers of messages. A call has its ``payload``, and a reply if there is any."""


def main(own: str) -> NoReturn:
    """Answer a driver at the other end of stdin and stdout until one side is gone; then remove the folder of this process.

    This process watches another, which runs models and talks with the driver. When that crashes,
    this process reports how, and starts another for the next call. When the driver is gone, it ends
    everything that was started here.
    """
    # The pipes move away from 0 and 1: whatever a runtime prints must not get into a message.
    source = os.dup(0)
    sink = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(0))
    log = Path(own, "output.log")
    child = 0
    crashed = True
    resumes = False
    log.touch()
    try:
        while crashed:
            child = os.fork()
            if child == 0:
                _run_models(source, sink, Path(own), log, resumes=resumes)
            _watch(child, source, sink)
            code = _end(child)
            child = 0
            crashed = code not in LAST
            for folder in Path(own).glob(f"{_PROCESS}*"):
                shutil.rmtree(folder, ignore_errors=True)
            send(sink, {"died": code, "printed": printed(log)})
            resumes = True
    except (Closed, SystemExit):
        pass
    finally:
        with contextlib.suppress(BaseException):
            if child:
                _end(child)
            shutil.rmtree(own, ignore_errors=True)
        os._exit(0)


def _watch(child: int, source: int, sink: int) -> None:
    """Wait until the process that runs models has ended.

    Raises:
        Closed: The driver is gone.
    """
    driver = select.poll()
    # Only its end is waited for: data on the pipe is for the process that runs models.
    driver.register(source, getattr(select, "POLLRDHUP", 0))
    driver.register(sink, 0)
    # WNOWAIT leaves the number of the process taken, so that its group can be killed safely.
    while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if driver.poll(1000 * _LOOK_SECONDS):
            raise Closed("the driver is gone")


def _end(child: int) -> int:
    """Kill a process with its group; its exit status, or minus the signal's number."""
    # Right after the fork it has no group of its own.
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(OSError):
            kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def printed(log: Path) -> str:
    """The output since the last message; of very much the end."""
    with log.open("rb") as file:
        file.seek(max(log.stat().st_size - _OUTPUT_MOST, 0))
        text = file.read()
    os.truncate(log, 0)
    return text.decode(errors="replace")


def _run_models(source: int, sink: int, folder: Path, log: Path, *, resumes: bool) -> NoReturn:
    """Be the process that runs models, until the pipe is closed; ``resumes`` after a crash of another."""
    status = 1
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        end_with_parent()
        output = os.open(log, os.O_WRONLY | os.O_APPEND)
        for fd in (1, 2):
            os.dup2(output, fd)
        host = Host(folder)
        os.chdir(host.folder)
        if resumes:
            # The process that crashed may have left a part of a message in the pipe.
            discard(source)
            send(sink, {"printed": ""})
        while True:
            header, payload = receive(source)
            reply = host.answer({**header, "payload": payload})
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            payload = reply.pop("payload", b"")
            send(sink, {**reply, "printed": printed(log)}, [payload])
    except Closed:
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


class Host:
    """Answers calls, one method each; runtimes and the last model stay loaded between them.

    Attributes:
        folder: Holds what this process writes: a process that starts after a crash must read
            nothing of the one that crashed.
    """

    def __init__(self, folder: Path) -> None:
        """``folder`` is the folder of the worker; the files that were sent, by their hashes, outlive this process there."""
        self._files = folder / "files"
        self.folder = Path(tempfile.mkdtemp(prefix=_PROCESS, dir=folder))
        self._runtimes: Fields = {}
        self._session: Any = None
        self._models = 0

    def answer(self, call: Call) -> Reply:
        """The reply to a call; an error is a reply too."""
        try:
            forget_peak()
            reply = getattr(self, call["call"])(call)
        except Exception as error:
            reply = {"error": failure(error)}
        return {**reply, "memory": held(self._runtimes.values())}

    def facts(self, call: Call) -> Reply:
        """Facts of the machine; see :func:`facts`."""
        return {"facts": facts(call["packages"])}

    def put(self, call: Call) -> Reply:
        """Receive a file, or a part."""
        part = self._file(f"{call['hash']}.part")
        part.parent.mkdir(exist_ok=True)
        with part.open("ab" if call["offset"] else "wb") as file:
            file.write(call["payload"])
        if call["last"]:
            # Only a complete file gets the name, because a call may end in the middle of one.
            part.rename(self._file(call["hash"]))
        return {}

    def make(self, call: Call) -> Reply:
        """Set a runtime up, and return its facts."""
        try:
            importlib.import_module("numpy")
        except ImportError as error:
            need = "which a worker needs beside the runtime's own package; install it there"
            raise PlaceError(f"{sys.executable} has no NumPy, {need}") from error
        return {"facts": dict(getattr(self._runtime(call), "facts", {}))}

    def load(self, call: Call) -> Reply:
        """Load a model; the payload has the files that the runtime has written."""
        runtime = self._runtime(call)
        path = self._written(call)
        feed = unpack(call["payload"])
        self._session = runtime.load(path, feed, call["hints"])
        written = {
            name: self._back(name).read_bytes()
            for name in call["back"]
            if self._back(name).exists()
        }
        sizes = {name: len(content) for name, content in written.items()}
        inputs = [[name, value.dtype.name, value.shape] for name, value in feed.items()]
        if hasattr(self._session, "inputs"):
            inputs = [[info.name, info.dtype.name, info.shape] for info in self._session.inputs]
        reply = {"back": sizes, "inputs": inputs, "skipped": skipped(self._session)}
        return {**reply, "payload": b"".join(written.values())}

    def run(self, call: Call) -> Reply:
        """Run the model; timed, as often as the call says."""
        feed = unpack(call["payload"])
        seconds = run_times(self._session, feed, call["timed"])
        outputs = b"" if seconds else pack(self._session.run(feed))
        return {"seconds": seconds, "skipped": skipped(self._session), "payload": outputs}

    def layers(self, _: Call) -> Reply:
        """The layers of the engine."""
        return {"layers": getattr(self._session, "layers", list)()}

    def trace(self, call: Call) -> Reply:
        """Return what the runtime reports of a model."""
        runtime = self._runtime(call)
        path = self._written(call)
        trace = getattr(runtime, call["what"], None)
        return {
            "trace": {} if trace is None else trace(path, unpack(call["payload"]), call["hints"])
        }

    def _file(self, digest: str) -> Path:
        return self._files / digest

    def _back(self, name: str) -> Path:
        return self.folder / f"back-{name}"

    def _runtime(self, call: Call) -> Any:  # noqa: ANN401 - of a runner module
        key = json.dumps([call["module"], call["settings"]], sort_keys=True)
        if key not in self._runtimes:
            if len(self._runtimes) >= _MOST_RUNTIMES:
                # A place holds one model, and its runtime goes with the others.
                self._session = None
                self._runtimes.clear()
            self._runtimes[key] = importlib.import_module(call["module"]).make(
                self._settings(call["settings"])
            )
        return self._runtimes[key]

    def _settings(self, value: Any) -> Any:  # noqa: ANN401 - plain values
        """Settings with the paths that their files have here."""
        if isinstance(value, dict) and "file_back" in value:
            return str(self._back(value["file_back"]))
        if isinstance(value, dict) and "sent_file" in value:
            return str(
                self._link(
                    value["sent_file"],
                    self.folder / "settings" / value["sent_file"][:16] / value["name"],
                )
            )
        if isinstance(value, dict):
            return {name: self._settings(item) for name, item in value.items()}
        return [self._settings(item) for item in value] if isinstance(value, list) else value

    def _link(self, digest: str, path: Path) -> Path:
        """A file that is here already under a name of its own; it is not to be written to."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            try:
                os.link(self._file(digest), path)
            except OSError:
                shutil.copyfile(self._file(digest), path)
        return path

    def _written(self, call: Call) -> Path:
        """The model of a call as a file, with its weights beside it; the one before is removed."""
        self._session = None
        shutil.rmtree(self.folder / f"model-{self._models}", ignore_errors=True)
        self._models += 1
        folder = self.folder / f"model-{self._models}"
        for name, digest in call["beside"].items():
            self._link(digest, folder / name)
        return self._link(call["model"], folder / "model.onnx")


def held(runtimes: Iterable[Any]) -> dict[str, int]:
    """Bytes that this process holds (``host``) and has held (``peak``), and that all hold on the GPU of one of its runtimes."""
    gpu = max(
        (runtime.gpu_memory() for runtime in runtimes if hasattr(runtime, "gpu_memory")), default=0
    )
    return {"host": status_bytes("VmRSS:"), "peak": status_bytes("VmHWM:"), "gpu": gpu}


def fed_to(session: Any, feed: Plain) -> Plain:  # noqa: ANN401 - of a runner module
    """Return the values that a loaded model takes of some, in types of its own width; all where it has no ``inputs``."""
    from bisect_trt.tensors.info import rounded  # noqa: PLC0415 - no program of a place feeds so

    if not hasattr(session, "inputs"):
        return feed
    # A cache may be fp16 in one of two models, or at one of its ends.
    return {
        info.name: rounded(feed[info.name], info.dtype)
        for info in session.inputs
        if info.name in feed
    }


def skipped(session: Any) -> dict[str, str]:  # noqa: ANN401 - as above
    """Return the outputs that a loaded model does not hand out, with the reason of each."""
    return dict(getattr(session, "skipped", {}))


def run_times(session: Any, feed: Plain, runs: int) -> list[float]:  # noqa: ANN401 - of a runner module
    """Seconds of each of several runs of a loaded model."""
    seconds = []
    for _ in range(runs):
        began = time.perf_counter()
        session.run(feed)
        seconds.append(getattr(session, "ran_s", time.perf_counter() - began))
    return seconds


def pack(arrays: Plain) -> bytes:
    """Arrays of numbers, bools or ``ml_dtypes`` types as the bytes of an ``.npz`` file."""
    from bisect_trt.tensors.files import write_npz  # noqa: PLC0415 - a reply reports an error of NumPy here

    buffer = io.BytesIO()
    write_npz(buffer, arrays)
    return buffer.getvalue()


def unpack(content: bytes | bytearray) -> Fields:
    """The arrays that :func:`pack` wrote; none for no bytes.

    Raises:
        UnavailableError: A type needs ``ml_dtypes``, which is not installed here.
    """
    from bisect_trt.tensors.files import read_npz  # noqa: PLC0415 - as above

    return read_npz(io.BytesIO(content)) if content else {}


def failure(error: Exception) -> Reply:
    """An error as plain values, from which ``connection`` raises it again."""
    types = [kind.__name__ for kind in type(error).__mro__]
    if not isinstance(error, BisectError | MemoryError | RuntimeFailure):
        traceback.print_exc()
    return {
        "types": types,
        "message": getattr(error, "message", str(error)),
        "signature": getattr(error, "masked", None),
        "poisoned": getattr(error, "poisoned", False),
    }


def facts(packages: list[str]) -> Fields:
    """Versions, processor and GPUs of this machine; what is not known is left out."""
    machine: Fields = {
        "host": platform.node(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "Python": platform.python_version(),
        "executable": sys.executable,
        "CPU": processor(),
        "cores": os.cpu_count() or 1,
        "GPU": gpus(),
        "packages": {name: version for name in packages if (version := installed(name))},
    }
    return {name: value for name, value in machine.items() if value or name == "packages"}


def installed(package: str) -> str:
    """The version of a package; empty where it is not installed."""
    from importlib import metadata  # noqa: PLC0415 - a worker starts without

    try:
        return str(metadata.version(package))
    except Exception:
        # The package is not there, or has no metadata.
        return ""


def processor() -> str:
    """The processor's model."""
    with contextlib.suppress(OSError):
        facts = Path("/proc/cpuinfo").read_text(errors="replace")
        if name := re.search(r"^model name\s*:(.*)", facts, re.MULTILINE):
            return name[1].strip()
    return platform.processor() or platform.machine()


def gpus() -> list[dict[str, str]]:
    """Name and driver of each GPU that this process may use, as nvidia-smi reports them."""
    query = ["--query-gpu=index,name,driver_version", "--format=csv,noheader"]
    try:
        output = subprocess.check_output(
            ["nvidia-smi", *query], timeout=30, stderr=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return []
    # nvidia-smi lists all GPUs, whatever CUDA may use.
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    rows = [
        [word.strip() for word in line.split(",")]
        for line in output.decode(errors="replace").splitlines()
    ]
    selected = [
        row for row in rows if len(row) == 3 and (visible is None or row[0] in visible.split(","))
    ]
    return [{"name": name, "driver": driver} for _, name, driver in selected]
