"""The worker process: runs models, one request at a time, so that a crash is never the driver's end.

Requests and replies are lines of JSON on two pipes of their own; stdout and stderr are left to the runtimes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from bisect_trt.errors import BisectError
from bisect_trt.runtimes.base import BuildError, RunError, Runtime, make_runtime
from bisect_trt.runtimes.settings import TargetSettings
from bisect_trt.tensors.compare import compare_all
from bisect_trt.tensors.npz import load_npz, save_npz
from bisect_trt.tensors.store import ActivationStore, StoreWriter
from bisect_trt.tensors.tolerance import ToleranceOptions

Request = dict[str, Any]


class Worker:
    """Serves requests; runtimes stay loaded between them."""

    def __init__(self) -> None:
        self._runtimes: dict[TargetSettings, Runtime] = {}

    def serve(self, request: Request) -> dict[str, Any]:
        """Answer one request; whatever goes wrong is an answer too."""
        try:
            _print_to(Path(request["log"]))
            return {"collect": self._collect, "compare": self._compare}[request["op"]](request)
        except (BuildError, RunError) as error:
            kind = "build" if isinstance(error, BuildError) else "run"
            return {"error": kind, "message": error.message, "signature": f"{kind}: {error.signature}"}
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
            self._runtimes[settings] = make_runtime(settings)
        return self._runtimes[settings]

    def _run(self, request: Request) -> dict[str, Any]:
        session = self._runtime(TargetSettings.from_json(request["target"])).load(Path(request["model"]))
        names = {info.name for info in session.inputs}
        inputs = {name: value for name, value in load_npz(Path(request["inputs"])).items() if name in names}
        return dict(session.run(inputs))

    def _collect(self, request: Request) -> dict[str, Any]:
        """Run a model and keep every output: in a store, or in an ``.npz`` file."""
        outputs = self._run(request)
        target = Path(request["to"])
        if target.suffix == ".npz":
            save_npz(target, outputs)
            return {"ok": True}
        with StoreWriter(target) as writer:
            for name, value in outputs.items():
                writer.add(name, value)
        return {"ok": True}

    def _compare(self, request: Request) -> dict[str, Any]:
        """Run a model and compare each of its outputs that the reference has a value of."""
        outputs = self._run(request)
        if request.get("save_outputs"):
            save_npz(Path(request["save_outputs"]), outputs)
        golden = Path(request["golden"])
        reference = ActivationStore.open(golden) if golden.is_dir() else load_npz(golden)
        known = {name: reference[name] for name in request.get("names") or outputs if name in reference}
        options = ToleranceOptions.from_json(request["tolerance"])
        comparisons = compare_all(known, outputs, options, fail_fast=bool(request.get("fail_fast")))
        return {"comparisons": [comparison.to_json() for comparison in comparisons]}


def _print_to(log: Path) -> None:
    """Send what this process and its runtimes print to a file."""
    with log.open("ab") as file:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(file.fileno(), stream.fileno())


def main() -> None:
    """Serve requests from the pipe named on the command line until it closes."""
    requests, replies = int(sys.argv[1]), int(sys.argv[2])
    # Ctrl-C goes to the driver, which decides what becomes of its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker = Worker()
    with os.fdopen(requests, "r", encoding="utf-8") as lines, os.fdopen(replies, "w", encoding="utf-8") as out:
        for line in lines:
            out.write(json.dumps(worker.serve(json.loads(line))) + "\n")
            out.flush()


if __name__ == "__main__":
    main()
