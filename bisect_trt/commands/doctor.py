"""``doctor``: versions and devices of this machine or of places, and the parts that targets lack."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bisect_trt.errors import (
    BisectError,
    PlaceError,
    UnavailableError,
)
from bisect_trt.options.shared import Places
from bisect_trt.plugins import FAILED, conflicting_builds
from bisect_trt.report.result import Result, environment
from bisect_trt.session.places import open_places
from bisect_trt.targets import find, names
from bisect_trt.targets.messages import TINY_MODEL
from bisect_trt.targets.options import selectable
from bisect_trt.targets.settings import TargetSettings
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
    for problem in (*FAILED, conflicting_builds()):
        if problem is not None:
            console.warn(problem)
    packages = tuple(
        dict.fromkeys(
            [*(each.name for plugin in selectable() for each in plugin.packages), "numpy"]
        )
    )
    found = []
    # Each request has a process of its own, so that the crash of a library is reported.
    with (
        scratch() as folder,
        WorkerPool(Path(folder), fresh_process=True, places=places) as workers,
    ):
        for place in dict.fromkeys(places) or (None,):
            rows = environment()
            known = dict[str, object]()
            if place is not None:
                seen = workers.ask(Look(TargetSettings(), packages, start=False), place=place)
                if isinstance(seen, Failed):
                    raise PlaceError(f"{place.said} cannot be used: {seen.message}.")
                known = {**seen.to_json(), "said": seen.describe()}
                rows = {**seen.table(), "place": place.said}
                rows |= {"host": seen.found["host"], "interpreter": seen.found["executable"]}
            targets = missing_parts(workers, Path(folder), place)
            found.append({**known, "targets": targets})
            rows |= {
                name: "yes" if missing is None else f"no: {missing}"
                for name, missing in targets.items()
            }
            for name, value in rows.items():
                console.answer(f"{name}: {value}")
    result.extra |= {"places": found} if places else {"environment": environment(), **found[0]}
    return result.end()


def missing_parts(workers: WorkerPool, folder: Path, place: Place | None) -> dict[str, str | None]:
    """Return why each target cannot be used here or in a place, by its option; ``None`` if it can."""
    model = folder / "tiny.onnx"
    inputs = folder / "tiny.npz"
    model.write_bytes(TINY_MODEL)
    save_npz(inputs, {"x": np.ones(1, np.float32)})
    missing: dict[str, str | None] = {}
    asked: dict[str, Request[object]] = {}
    for name in names():
        try:
            plugin = find(name)
            settings = TargetSettings(name)
        except UnavailableError as error:
            missing[f"--{name}"] = str(error)
            continue
        if plugin.selectable and (place is None or plugin.sent):
            asked[f"--{name}"] = About(settings)
        if name == "onnxrt":  # it is known to be there only once it has loaded a model
            asked["--onnxrt --providers cuda"] = BuildEngine(
                settings.with_own(providers=("cuda",)), model, inputs
            )

    def ask(request: Request[object], log: Path) -> str | None:
        try:
            reply = workers.ask(request, TIMEOUT_SECONDS, place=place, log=log)
        except BisectError as error:
            return str(error)
        if not isinstance(reply, Failed):
            return None
        lines = (
            log.read_text(errors="replace").strip().splitlines()
            if reply.kind == "crash" and log.exists()
            else ()
        )
        return f"{reply.message}, after: {lines[-1]}" if lines else reply.message

    logs = [folder / f"target-{number}.log" for number in range(len(asked))]
    with ThreadPoolExecutor(len(asked)) as threads:
        return missing | dict(zip(asked, threads.map(ask, asked.values(), logs), strict=True))
