"""``doctor``: versions and devices of this machine or of places, and the parts that targets lack."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from bisect_trt.errors import (
    BisectError,
    PlaceError,
    UnavailableError,
)
from bisect_trt.options.shared import Places
from bisect_trt.plugins import FAILED, conflicting_builds
from bisect_trt.report.result import Result, environment
from bisect_trt.session.places import open_places
from bisect_trt.targets.base import TargetSettings, find, names
from bisect_trt.targets.messages import TINY_MODEL
from bisect_trt.targets.options import selectable
from bisect_trt.tensors.files import save_npz
from bisect_trt.worker.deadline import Deadline
from bisect_trt.worker.guard import scratch
from bisect_trt.worker.place import Place
from bisect_trt.worker.pool import WorkerPool
from bisect_trt.worker.protocol import About, BuildEngine, Failed, Look, Request

if TYPE_CHECKING:
    from bisect_trt.session.call import Call


TIMEOUT_SECONDS = 120.0
"""TensorRT alone takes 10 s to start; a driver may hang."""


def run(call: Call) -> Result:
    """Print versions and devices of this machine or of some places, and what each target lacks."""
    places = open_places(call[Places], call.console, Deadline())
    console = call.console
    result = call.result
    packages = tuple(
        dict.fromkeys(
            [*(package.name for plugin in selectable() for package in plugin.packages), "numpy"]
        )
    )
    machines = []
    # Each request has a process of its own, so that the crash of a library is reported.
    with (
        scratch() as folder,
        WorkerPool(Path(folder), fresh_process=True, places=places) as workers,
    ):
        for place in dict.fromkeys(places) or (None,):
            rows = environment()
            entry = dict[str, object]()
            if place is not None:
                reply = workers.ask(Look(TargetSettings(), packages, start=False), place=place)
                if isinstance(reply, Failed):
                    raise PlaceError(f"{place.said} cannot be used: {reply.message}.")
                entry = {**reply.to_json(), "said": reply.describe()}
                rows = {**reply.table(), "place": place.said}
                rows |= {"host": reply.found["host"], "interpreter": reply.found["executable"]}
            examined = examine(workers, Path(folder), place)
            targets = {name: target.missing for name, target in examined.items()}
            machines.append({**entry, "targets": targets})
            rows |= {name: target.describe() for name, target in examined.items()}
            if providers := examined.get("--onnxrt", Examined()).facts.get("available"):
                rows["providers of ONNX Runtime"] = ", ".join(providers)
            for name, value in rows.items():
                console.answer(f"{name}: {value}")
    for problem in (*FAILED, conflicting_builds()):
        if problem is not None and problem not in targets.values():
            console.warn(problem)
    if places:
        result.places = machines
    else:
        result.environment = environment()
        result.targets = targets
    return result.end()


class Examined(Struct, frozen=True):
    """A target that was started here or in a place.

    Attributes:
        missing: Why it cannot be used; ``None`` if it can.
        facts: Facts of its runtime, if it has started.
    """

    missing: str | None = None
    facts: Mapping[str, Any] = {}

    def describe(self) -> str:
        """Return whether it can be used."""
        return "yes" if self.missing is None else f"no: {self.missing}"


def examine(workers: WorkerPool, folder: Path, place: Place | None) -> dict[str, Examined]:
    """Start each target here or in a place; returns what was seen, by its option.

    Args:
        workers: The processes that start targets.
        folder: A folder for the files of the request.
        place: The place; ``None`` for here.
    """
    model = folder / "tiny.onnx"
    inputs = folder / "tiny.npz"
    model.write_bytes(TINY_MODEL)
    save_npz(inputs, {"x": np.ones(1, np.float32)})
    examined: dict[str, Examined] = {}
    requests: dict[str, Request[object]] = {}
    for name in names():
        try:
            plugin = find(name)
            settings = TargetSettings(name)
        except UnavailableError as error:
            examined[f"--{name}"] = Examined(str(error))
            continue
        if plugin.selectable and (place is None or (plugin.sent and not plugin.stays)):
            requests[f"--{name}"] = About(settings)
        if name == "onnxrt":
            # A provider is known to be there only once it has loaded a model.
            requests["--onnxrt --providers cuda"] = BuildEngine(
                settings.with_own(providers=("cuda",)), model, inputs
            )

    def ask(request: Request[object], log: Path) -> Examined:
        try:
            reply = workers.ask(request, TIMEOUT_SECONDS, place=place, log=log)
        except BisectError as error:
            return Examined(str(error))
        if not isinstance(reply, Failed):
            return Examined(facts=reply if isinstance(reply, dict) else {})
        lines = (
            log.read_text(errors="replace").strip().splitlines()
            # A crash has no message; the last line of its output is the nearest to one.
            if reply.kind == "crash" and log.exists()
            else ()
        )
        ending = f", after: {lines[-1]}" if lines else ""
        return Examined(f"{reply.message}{ending}")

    logs = [folder / f"target-{number}.log" for number in range(len(requests))]
    with ThreadPoolExecutor(len(requests)) as threads:
        return examined | dict(
            zip(requests, threads.map(ask, requests.values(), logs), strict=True)
        )
