"""What is on this machine, and what is missing for which target."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bisect_trt.commands.call import Call
from bisect_trt.commands.places import look_there, open_places
from bisect_trt.errors import UnavailableError
from bisect_trt.options.shared import Places
from bisect_trt.plugins import FAILED, conflicting_builds
from bisect_trt.report.result import Result, environment
from bisect_trt.targets import find, names
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.worker.guard import scratch
from bisect_trt.worker.process import module_command, run_to_end

TIMEOUT_SECONDS = 120.0
"""TensorRT alone takes 10 s to start; a driver that hangs takes for ever."""
_CUDA = ("trt", "cuda")
_QUERY = ("--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")


def rows() -> dict[str, list[tuple[str, str]]]:
    """What is said of targets, as options ask for it: the looks that each needs, with their target."""
    found: dict[str, list[tuple[str, str]]] = {}
    for name in names():
        try:
            plugin = find(name)
        except UnavailableError:
            found[f"--{name}"] = [(name, "")]  # looking at it says why
            continue
        if plugin.selectable:
            found |= {
                f"--{name} {words}".strip(): [(name, look) for look in needed] for words, needed in plugin.rows.items()
            }
    return found


def run(call: Call) -> Result:
    """Print versions and devices of this machine or of some places, and what is missing for which target.

    Raises:
        UnavailableError: A place cannot be used.
    """
    places, console, result = open_places(call[Places], call.console), call.console, call.result
    for problem in (*FAILED, conflicting_builds()):
        if problem is not None:
            console.warn(problem)
    with scratch() as name:
        folder = Path(name)
        if places:
            return look_there(folder, places, console, result)
        wanted = list(dict.fromkeys([*(look for needed in rows().values() for look in needed), _CUDA]))
        with ThreadPoolExecutor(len(wanted)) as threads:
            looks = dict(zip(wanted, threads.map(lambda look: examine(look[0], look[1], folder), wanted), strict=True))
    machine = environment()
    for found, _ in looks.values():
        machine |= found
    if gpus := ask_nvidia_smi():
        machine["GPU"] = "; ".join(gpus)
    targets = {
        target: next((why for look in needed if (why := looks[look][1])), None) for target, needed in rows().items()
    }
    result.extra |= {"environment": machine, "targets": targets, "cuda": looks[_CUDA][1]}
    for name, value in machine.items():
        console.answer(f"{name}: {value}")
    for target, missing in targets.items():
        console.answer(f"{target}: {'yes' if missing is None else f'no: {missing}'}")
    result.status, result.minimality = "found", "1-minimal"
    return result


def examine(target: str, look: str, folder: Path) -> tuple[dict[str, str], str | None]:
    """Return what a process of its own finds of a target, by name, and why the rest is missing."""
    log, file = (folder / f"{target}-{look}.{suffix}" for suffix in ("log", "json"))
    command = module_command("bisect_trt.commands.doctor", target, look, str(file))
    end = run_to_end(command, log=log, environment={}, timeout=TIMEOUT_SECONDS)
    try:
        found, missing = json.loads(file.read_text())
    except (OSError, ValueError):
        lines = log.read_text(errors="replace").strip().splitlines()
        return {}, f"{end.describe()} when it was loaded{f', after: {lines[-1]}' if lines else ''}."
    return found, missing


def look_inside() -> None:
    """Write what a target finds on this machine, and why the rest does not exist: ``TARGET LOOK FILE``.

    It runs in a process of its own, so that a library that crashes is a finding.
    """
    found: dict[str, str] = {}
    missing = None
    target, look, file = sys.argv[1:]
    try:
        found.update(find(target).look(look, TargetSettings(target)))  # what comes before an error stays
    except UnavailableError as error:
        missing = str(error)
    except Exception as error:
        missing = f"{type(error).__name__}: {error}."
    Path(file).write_text(json.dumps([found, missing]))
    os._exit(0)  # some libraries crash when they are taken down


def ask_nvidia_smi() -> Sequence[str]:
    """Name, driver and memory of each GPU as the driver's own tool gives them; nothing without it."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    try:
        done = subprocess.run([program, *_QUERY], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


if __name__ == "__main__":
    look_inside()
