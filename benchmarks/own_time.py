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
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cases import light_model
from benchmarks.figures import Figure

_RUNS = 5


def figures() -> Iterator[Figure]:
    """`--help`, and a whole reduction of SqueezeNet with a check that takes no time; the median of five runs."""
    ours, theirs = (
        [str(Path(sys.executable).with_name(name))] for name in ("bisect-trt", "polygraphy")
    )
    model = str(light_model("squeezenet"))
    plain = ["-o", "reduced.onnx", "--check"]
    reduction = [
        "reduce",
        model,
        "--overwrite",
        "--no-shrink",
        "--json",
        "result.json",
        *plain,
        "false",
    ]
    for what, command, other, aim in (
        ("--help", ["--help"], ["--help"], 0.2),
        (
            "reduce SqueezeNet, 105 nodes",
            reduction,
            ["debug", "reduce", model, *plain, "false"],
            1.2,
        ),
    ):
        mine = _time([*ours, *command])
        polygraphy = _time([*theirs, *other])
        load = f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
        yield Figure(f"{what}, s", mine.wall, aim, polygraphy=polygraphy.wall, note=load)
        yield Figure(f"{what}, s of CPU", mine.cpu, polygraphy=polygraphy.cpu)


@dataclass(frozen=True)
class _Time:
    """Medians: seconds on the clock and of CPU, of all processes."""

    wall: float
    cpu: float


def _time(command: Sequence[str]) -> _Time:
    """A command, with bytecode, as pip installs it."""
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    walls = []
    cpus = []
    for run in range(_RUNS + 1):
        with tempfile.TemporaryDirectory() as folder:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            start = time.perf_counter()
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, check=False, timeout=600
            )
            wall = time.perf_counter() - start
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            raise RuntimeError(
                f"{' '.join(command)} ended with {done.returncode}: {done.stderr.decode()[-500:]}"
            )
        if run:  # the first compiles
            walls.append(wall)
            cpus.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return _Time(statistics.median(walls), statistics.median(cpus))
