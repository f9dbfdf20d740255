"""Runs a reduction with either tool, and measures it the same way.

Everything is measured from outside: the wall time of the tool's command, and the checks by what
``check_nodes.py`` writes of itself. Neither tool's own figures are believed.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.cases import Case, computing_nodes, nodes_left

CHECK = Path(__file__).with_name("check_nodes.py")
LIMIT_S = 3600.0


@dataclass(frozen=True)
class Tool:
    """A tool as set up for a benchmark.

    Attributes:
        label: Its name in the tables.
        kind: ``polygraphy`` or ``bisect-trt``.
        workers: How many probes may run at once; ``None`` leaves it to the tool. Polygraphy knows
            only 1.
        extra: More options for ``bisect-trt reduce``.
    """

    label: str
    kind: str
    workers: int | None = 1
    extra: tuple[str, ...] = ()

    def command(self, model: Path) -> list[str]:
        """What to run for one model, up to the check command."""
        program = shutil.which(self.kind, path=str(Path(sys.executable).parent))
        if program is None:
            sys.exit(
                f"{self.kind} is not installed beside {sys.executable}: install the dependency group 'bench'."
            )
        if self.kind == "polygraphy":
            # Its defaults, which are also what its help recommends for a model of static shapes;
            # bisect is one.
            return [
                program,
                "debug",
                "reduce",
                str(model),
                "-o",
                "reduced.onnx",
                "--mode",
                "bisect",
                "--check",
            ]
        workers = [] if self.workers is None else ["--workers", str(self.workers)]
        output = ["-o", "reduced.onnx", "--overwrite", "--json", "result.json"]
        return [program, "reduce", str(model), *output, *workers, *self.extra, "--check"]

    @property
    def candidate(self) -> str:
        """How the check command names the candidate's model."""
        return "polygraphy_debug.onnx" if self.kind == "polygraphy" else "{model}"


POLYGRAPHY = Tool("Polygraphy", "polygraphy")


@dataclass
class Outcome:
    """One reduction, measured.

    Attributes:
        tool: Label of the tool.
        case: Name of the case.
        status: Exit status of the tool.
        checks: How many checks ran to their end.
        checks_s: The checks' own time, summed.
        wall_s: The tool's time from start to exit.
        own_cpu_s: The CPU time of all processes but the checks, in seconds: what hardly depends on
            a busy machine.
        gaps_s: For each two checks in a row, the time from the end of one to the start of the next.
            Where checks run one at a time this is what the tool itself takes for a probe.
        left: Computing nodes in the reduced model; all of the original's where none was written.
        exact: Whether those are the required ones and no more.
        reduced_sha256: Of the reduced model's file.
        result: What ``--json`` wrote, for ``bisect-trt``.
        log: The end of the tool's output, kept where it failed.
    """

    tool: str
    case: str
    status: int
    checks: int
    checks_s: float
    wall_s: float
    own_cpu_s: float
    gaps_s: list[float]
    left: tuple[str, ...]
    exact: bool
    reduced_sha256: str | None = None
    result: dict[str, Any] = field(default_factory=dict)
    log: str = ""

    @property
    def own_s(self) -> float:
        """The tool's time that no check accounts for, in seconds; means something for one worker only."""
        return self.wall_s - self.checks_s

    @property
    def own_per_check_s(self) -> float:
        """The above for each check: loading the model, starting up and writing the result shared out."""
        return self.own_s / max(1, self.checks)

    @property
    def gap_s(self) -> float:
        """Median time between two checks, in seconds; NaN with fewer than two."""
        return statistics.median(self.gaps_s) if self.gaps_s else float("nan")


def run(tool: Tool, case: Case, check_seconds: float = 0.0) -> Outcome:
    """Runs one reduction in an empty folder of its own.

    Args:
        tool: What to run.
        case: What to run it on.
        check_seconds: Shortest time a check takes, in seconds.

    Returns:
        What was measured. A tool that fails is an outcome too, with its status and the end of its
        output.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        count = folder / "count.txt"
        environment = {**os.environ, "BENCH_COUNT": str(count), "BENCH_SECONDS": str(check_seconds)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # as pip installs it
        command = [
            *tool.command(case.model),
            sys.executable,
            str(CHECK),
            tool.candidate,
            *case.required,
        ]
        start = time.perf_counter()
        before = _cpu_of_children()
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
        wall = time.perf_counter() - start
        return _measure(tool, case, folder, done, wall, _cpu_of_children() - before)


def _cpu_of_children() -> float:
    """CPU seconds of all processes that were started here and have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _measure(
    tool: Tool,
    case: Case,
    folder: Path,
    done: subprocess.CompletedProcess[str],
    wall_s: float,
    cpu_s: float,
) -> Outcome:
    count = folder / "count.txt"
    reduced = folder / "reduced.onnx"
    result = folder / "result.json"
    lines = [line.split() for line in count.read_text().splitlines()] if count.exists() else []
    if any(status == "2" for status, *_ in lines):
        sys.exit(
            f"{tool.label}, {case.name}: the check could not read its model. Output:\n{done.stdout[-2000:]}"
        )
    spans = sorted((float(start), float(end)) for _, start, end, _ in lines)
    left = nodes_left(case.model, reduced) if reduced.exists() else computing_nodes(case.model)
    return Outcome(
        tool=tool.label,
        case=case.name,
        status=done.returncode,
        checks=len(spans),
        checks_s=sum(end - start for start, end in spans),
        wall_s=wall_s,
        own_cpu_s=cpu_s - sum(float(cpu) for *_, cpu in lines),
        gaps_s=[later[0] - earlier[1] for earlier, later in itertools.pairwise(spans)],
        left=left,
        exact=sorted(left) == sorted(case.required),
        reduced_sha256=hashlib.sha256(reduced.read_bytes()).hexdigest()
        if reduced.exists()
        else None,
        result=json.loads(result.read_text()) if result.exists() else {},
        log="" if done.returncode == 0 else done.stdout[-2000:],
    )
