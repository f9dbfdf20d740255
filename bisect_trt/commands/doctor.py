"""``doctor``: the versions and devices of this machine or of places, and what each target lacks."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bisect_trt.commands.binding import open_places
from bisect_trt.commands.call import Call
from bisect_trt.errors import BisectError, PlaceError, UnavailableError
from bisect_trt.options.shared import Places
from bisect_trt.plugins import FAILED, conflicting_builds
from bisect_trt.report.console import Console
from bisect_trt.report.result import Result, environment
from bisect_trt.targets import find, names
from bisect_trt.targets.options import selectable
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.worker.guard import scratch
from bisect_trt.worker.place import Place
from bisect_trt.worker.pool import WorkerPool
from bisect_trt.worker.process import module_command, run_to_end
from bisect_trt.worker.protocol import About, Failed, Look

TIMEOUT_SECONDS = 120.0
"""TensorRT alone takes 10 s to start; a driver may hang."""


def run(call: Call) -> Result:
    """Print versions and devices of this machine or of some places, and what each target lacks."""
    places, console, result = open_places(call[Places], call.console), call.console, call.result
    for problem in filter(None, (*FAILED, conflicting_builds())):
        console.warn(problem)
    with scratch() as name:
        folder = Path(name)
        if places:
            return look_there(folder, places, console, result)
        wanted = [name for name in names() if _is_shown(name)]
        with ThreadPoolExecutor(len(wanted)) as threads:
            looks = dict(zip(wanted, threads.map(lambda name: examine(name, folder), wanted), strict=True))
    machine = environment()
    for found, _ in looks.values():
        machine |= found
    targets = {f"--{name}": missing for name, (_, missing) in looks.items()}
    result.extra |= {"environment": machine, "targets": targets}
    _print(console, machine, targets)
    return result.end()


def look_there(folder: Path, places: Sequence[Place], console: Console, result: Result) -> Result:
    """Print the versions of places and the targets that run there; the output of ``doctor --on``.

    Args:
        folder: The folder for the log of the workers.
        places: The places.
        console: Prints them.
        result: Gets ``places``: each with its description, and ``targets``: why a target cannot run there, or ``None``.

    Raises:
        UnavailableError: A place does not exist.
    """
    names = [package.name for plugin in selectable() for package in plugin.packages]
    packages, found = (*dict.fromkeys([*names, "numpy"]),), []
    with WorkerPool(folder, places=places) as workers:
        for place in dict.fromkeys(places):
            reply = workers.ask(Look(TargetSettings(), packages, start=False), place=place)
            if isinstance(reply, Failed):
                raise PlaceError(f"{place.said} cannot be used: {reply.message}.")
            sent = [plugin.name for plugin in selectable() if plugin.sent and not plugin.stays]
            targets = {f"--{name}": _missing(workers, name, place) for name in sent}
            found.append({**reply.to_json(), "said": reply.describe(), "targets": targets})
            machine = f"{reply.found['host']}; interpreter: {reply.found['executable']}"
            _print(console, {**reply.table(), "place": place.said, "host": machine}, targets)
    result.extra["places"] = found
    return result.end()


def _print(console: Console, rows: Mapping[str, str], targets: Mapping[str, str | None]) -> None:
    for name, value in rows.items():
        console.answer(f"{name}: {value}")
    for target, missing in targets.items():
        console.answer(f"{target}: {'yes' if missing is None else f'no: {missing}'}")


def _missing(workers: WorkerPool, target: str, place: Place) -> str | None:
    """Return why a target cannot be used in a place; ``None`` if it can."""
    try:
        reply = workers.ask(About(TargetSettings(target)), place=place)
    except BisectError as error:
        return str(error)
    return reply.message if isinstance(reply, Failed) else None


def _is_shown(name: str) -> bool:
    try:
        return find(name).selectable
    except UnavailableError:  # its row shows why
        return True


def examine(name: str, folder: Path) -> tuple[dict[str, str], str | None]:
    """Examine a target in its own process; return the rows by name, and why the rest is missing."""
    log, file = (folder / f"{name}.{suffix}" for suffix in ("log", "json"))
    command = module_command("bisect_trt.commands.doctor", name, str(file))
    end = run_to_end(command, log=log, environment={}, timeout=TIMEOUT_SECONDS)
    try:
        found, missing = json.loads(file.read_text())
    except (OSError, ValueError):
        lines = log.read_text(errors="replace").strip().splitlines()
        return {}, f"{end.describe()} when it was loaded{f', after: {lines[-1]}' if lines else ''}."
    return found, missing


def look_inside() -> None:
    """Write the rows that a target finds on this machine, and why others are missing, to ``FILE``; argv is ``TARGET FILE``.

    It runs in a process of its own, so that the crash of a library is reported.
    """
    found: dict[str, str] = {}
    missing = None
    name, file = sys.argv[1:]
    try:
        found.update(find(name).look(TargetSettings(name)))  # rows before an error are kept
    except UnavailableError as error:
        missing = str(error)
    except Exception as error:
        missing = f"{type(error).__name__}: {error}."
    Path(file).write_text(json.dumps([found, missing]))
    os._exit(0)  # some libraries crash at exit


if __name__ == "__main__":
    look_inside()
