"""What the tool takes itself, a check taking next to nothing."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.cases import light_model
from benchmarks.figures import Figure

_RUNS = 5


def figures() -> Iterator[Figure]:
    """`--help`, and a whole reduction of SqueezeNet with a check that takes no time; the median of five runs."""
    program = [str(Path(sys.executable).with_name("bisect-trt"))]
    model = str(light_model("squeezenet"))
    reduction = [*program, "reduce", model, "-o", "reduced.onnx", "--overwrite", "--no-shrink", "--check", "false"]
    for what, command, aim in (("--help", [*program, "--help"], 0.2), ("reduce SqueezeNet, 105 nodes", reduction, 1.2)):
        wall, cpu = _time(command)
        load = f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
        yield Figure(f"{what}, s", wall, aim, note=load)
        yield Figure(f"{what}, s of CPU", cpu)


def _time(command: Sequence[str]) -> tuple[float, float]:
    """Median wall and CPU seconds of a command and all its processes, with bytecode, as pip installs it."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    walls, cpus = [], []
    for run in range(_RUNS + 1):
        with tempfile.TemporaryDirectory() as folder:
            before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False, timeout=600)
            wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.decode()[-500:]}")
        if run:  # the first compiles
            walls.append(wall)
            cpus.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(walls), statistics.median(cpus)
