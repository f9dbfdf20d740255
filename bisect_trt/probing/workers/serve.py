"""The worker process: runs models, one request at a time, so that a crash is never the driver's end.

Requests and replies are lines of JSON on two pipes of their own; stdout and stderr are left to the runtimes.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from pathlib import Path
from statistics import median
from typing import Any

import onnx

from bisect_trt.errors import BisectError
from bisect_trt.targets.base import Runtime, Session, make_runtime
from bisect_trt.targets.messages import BuildError, RunError, names_of
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.compare import compare_all
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.tensors.npz import NpzFile, load_npz, save_npz
from bisect_trt.tensors.saved import Selected
from bisect_trt.tensors.store import ActivationStore, StoreWriter
from bisect_trt.tensors.tolerance import ToleranceOptions

Request = dict[str, Any]
_MOST_RUNTIMES = 16
TIMED_RUNS = 20
"""How often a model runs for the median of its latency."""
_STATM = Path("/proc/self/statm")


class Worker:
    """Serves requests; runtimes stay loaded between them."""

    def __init__(self) -> None:
        self._runtimes: dict[TargetSettings, Runtime] = {}

    def serve(self, request: Request) -> dict[str, Any]:
        """Answer one request; whatever goes wrong is an answer too."""
        try:
            os.chdir(request.get("cwd", "."))
            _print_to(Path(request["log"]))
            serve = {
                "about": self._about,
                "build": self._build,
                "collect": self._collect,
                "compare": self._compare,
                "describe": self._describe,
                "lower": self._lower,
            }
            return serve[request["op"]](request)
        except (BuildError, RunError) as error:
            kind = "build" if isinstance(error, BuildError) else "run"
            reply = {"error": kind, "message": error.message, "signature": f"{kind}: {error.sign(_names(request))}"}
            return {**reply, "poisoned": error.poisoned}
        except BisectError as error:
            return {"error": "user", "message": str(error), "status": int(error.status)}
        except MemoryError:
            return {"error": "run", "message": "out of memory", "signature": "run: out of memory"}
        except Exception as error:
            traceback.print_exc()
            name = type(error).__name__
            return {"error": "run", "message": f"{name}: {error}", "signature": f"run: {name}"}

    def _runtime(self, settings: TargetSettings) -> Runtime:
        if settings not in self._runtimes:
            if len(self._runtimes) >= _MOST_RUNTIMES:  # a search for precision has another for each candidate
                self._runtimes.clear()
            self._runtimes[settings] = make_runtime(settings)
        return self._runtimes[settings]

    def memory(self) -> dict[str, int]:
        """Bytes that this process holds, and bytes of its GPU that are in use."""
        pages = int(_STATM.read_text().split()[1]) if _STATM.exists() else 0
        return {
            "host": pages * resource.getpagesize(),
            "gpu": max((runtime.gpu_memory() for runtime in self._runtimes.values()), default=0),
        }

    def _load(self, request: Request) -> Session:
        """Prepare a model for the inputs of a request."""
        feed = _feed(request, request["inputs"], request.get("golden"))
        return self._runtime(TargetSettings.from_json(request["target"])).load(Path(request["model"]), feed)

    def _load_unfused(self, request: Request) -> Session | None:
        runtime = self._runtime(TargetSettings.from_json(request["target"]))
        return runtime.load_unfused(Path(request["model"]), load_npz(Path(request["inputs"])))

    def _collect(self, request: Request) -> dict[str, Any]:
        """Run a model and keep every output: in a store, or in an ``.npz`` file."""
        outputs = _run(self._load(request), request, request["inputs"])
        target = Path(request["to"])
        if target.suffix == ".npz":
            save_npz(target, outputs)
            return {"ok": True}
        with StoreWriter(target, append=bool(request.get("append"))) as writer:
            for name, value in outputs.items():
                writer.add(name, value)
        return {"ok": True}

    def _about(self, request: Request) -> dict[str, Any]:
        """Whether the target is there at all, and how it is lowered."""
        return {"lowers_by": self._runtime(TargetSettings.from_json(request["target"])).lowers_by}

    def _build(self, request: Request) -> dict[str, Any]:
        """Write a model's engine."""
        runtime = self._runtime(TargetSettings.from_json(request["target"]))
        runtime.build(Path(request["model"]), Path(request["to"]), load_npz(Path(request["inputs"])))
        return {"ok": True}

    def _describe(self, request: Request) -> dict[str, Any]:
        """What the target's prebuilt engine is made of."""
        return {"engine": self._runtime(TargetSettings.from_json(request["target"])).describe_engine()}

    def _lower(self, request: Request) -> dict[str, Any]:
        """Write the form of a model that the target really runs, if that is another."""
        model = self._runtime(TargetSettings.from_json(request["target"])).lowered(Path(request["model"]))
        if model is not None:
            Path(request["to"]).write_bytes(model.SerializeToString())
        return {"lowered": model is not None}

    def _compare(self, request: Request) -> dict[str, Any]:
        """Run a model and compare each of its outputs that the reference has a value of.

        With ``more`` input samples, on one after the other: until one does not match, or on ``every`` one. With
        ``unfused``, not its outputs alone but all that the target does not fuse away, if it can show that.
        """
        session = self._load_unfused(request) if request.get("unfused") else self._load(request)
        if session is None:
            return {"unsupported": True}
        comparisons: list[TensorComparison] = []
        samples = [(request["inputs"], request["golden"]), *request.get("more", ())]
        for number, (inputs, golden) in enumerate(samples, 1):
            seen = _compare_sample(session, request, inputs, Path(golden), number)
            comparisons += [each.of_sample(number) for each in seen] if len(samples) > 1 else seen
            if not request.get("every") and not all(each.passed for each in seen):
                break
        latency = _median_ms(session, request["inputs"], request.get("warm_up", 1)) if request.get("timed") else None
        plain = [each.to_json() for each in comparisons]
        layers = session.layers() if request.get("layers") else []
        return {"comparisons": plain, "skipped": dict(session.skipped), "layers": layers, "latency_ms": latency}


def _names(request: Request) -> list[str]:
    """The names in the model of a request; none where it cannot be read."""
    try:
        return list(names_of(onnx.load(request["model"], load_external_data=False).graph))
    except Exception:  # that it cannot be read is what the failure is about, then
        return []


def _feed(request: Request, inputs: str, golden: str | None) -> dict[str, Any]:
    """The values of a file; and activations of the reference, by the inputs that are ``fed`` them, left on disk till used."""
    feed: dict[str, Any] = load_npz(Path(inputs))
    if request.get("fed") and golden is not None:
        reference = ActivationStore.open(Path(golden))
        feed |= {name: reference.get(tensor) for name, tensor in request["fed"].items()}
    return feed


def _run(session: Session, request: Request, inputs: str, golden: str | None = None) -> dict[str, Any]:
    """Run a model on the values of a file, which may hold more than it takes, and of a store where one is named."""
    feed = _feed(request, inputs, golden)
    if request.get("feeds"):
        store = ActivationStore.open(Path(request["feeds"]))
        feed |= {info.name: store.get(info.name) for info in session.inputs if info.name in store}
    names = {info.name for info in session.inputs}
    return dict(session.run({name: value for name, value in feed.items() if name in names}))


def _median_ms(session: Session, inputs: str, warm_up: int) -> float:
    """Milliseconds that one run takes after some to warm up, with inputs copied to the target and outputs back."""
    names = {info.name for info in session.inputs}
    feed = {name: value for name, value in load_npz(Path(inputs)).items() if name in names}
    for _ in range(warm_up):
        session.run(feed)
    seconds = []
    for _ in range(TIMED_RUNS):
        began = time.perf_counter()
        session.run(feed)
        seconds.append(time.perf_counter() - began)
    return 1000 * median(seconds)


def _compare_sample(
    session: Session, request: Request, inputs: str, golden: Path, number: int
) -> list[TensorComparison]:
    outputs = _run(session, request, inputs, str(golden))
    if "keep" in request:
        with StoreWriter(Path(request["feeds_next"]), append=bool(request.get("feeds"))) as writer:
            for name in request["keep"]:
                writer.add(name, outputs[name])
    if request.get("save_outputs"):
        save_npz(Path(request["save_outputs"][number - 1]), outputs)
    reference = ActivationStore.open(golden) if golden.is_dir() else NpzFile(golden)
    wanted = request.get("names") or outputs
    if request.get("unfused"):
        wanted = [name for name in wanted if name in outputs]
    known = Selected(reference, [name for name in wanted if name in reference and name not in session.skipped])
    options = ToleranceOptions.from_json(request["tolerance"])
    fail_fast, details = bool(request.get("fail_fast")), bool(request.get("details"))
    return compare_all(known, outputs, options, fail_fast=fail_fast, details=details)


def _print_to(log: Path) -> None:
    """Send what this process and its runtimes print to a file."""
    with log.open("ab") as file:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(file.fileno(), stream.fileno())


def main() -> None:
    """Serve requests from the pipe named on the command line until it closes; ``warm`` after it imports ONNX Runtime."""
    requests, replies = int(sys.argv[1]), int(sys.argv[2])
    # Ctrl-C goes to the driver, which decides what becomes of its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if "warm" in sys.argv[3:]:
        # What is wrong with it is said by the request that needs it.
        with contextlib.suppress(Exception):
            importlib.import_module("bisect_trt.targets.onnxrt.runtime")
    worker = Worker()
    with os.fdopen(requests, "r", encoding="utf-8") as lines, os.fdopen(replies, "w", encoding="utf-8") as out:
        for line in lines:
            reply = worker.serve(json.loads(line))
            out.write(json.dumps({**reply, "memory": worker.memory()}) + "\n")
            out.flush()


if __name__ == "__main__":
    main()
