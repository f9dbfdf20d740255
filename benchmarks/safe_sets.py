"""Do the fixes of ``bisect-trt precision`` hold? Measures minimal and safe sets on models with planted outliers.

    python -m benchmarks.safe_sets [others | KIND...] [--seeds N] [--samples N] [--autocast PYTHON]
    [--converter PYTHON]

Each tool gets one sample on which fp16 fails, and what it writes is run on 200 others of the same
law, which neither it nor ``bisect-trt`` has seen. Everything is judged in the same way, as in
``benchmarks.precision``. PYTHON is an interpreter with ``nvidia-modelopt[onnx]`` or
``onnxconverter-common``; without it that tool is left out. Prints a markdown table and writes every
measurement to ``benchmarks/out/safe_sets.json``.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import onnxruntime
import psutil  # type: ignore[import-untyped]
from onnx import ModelProto, TensorProto

from benchmarks.figures import machine
from benchmarks.outliers import KINDS, Arrays, Planted
from benchmarks.pictures import PICTURES
from benchmarks.precision import float_nodes
from benchmarks.reduce import OUT, markdown
from benchmarks.sequences import SEQUENCES
from bisect_trt.onnxlib.lower import lower_fp16
from bisect_trt.onnxlib.roundings import emulate
from bisect_trt.tensors.files import save_npz
from bisect_trt.tensors.tolerance import Precision, automatic_tolerance

SEVERE = 10.0
OTHERS = SEQUENCES | PICTURES


@dataclass(frozen=True)
class Measured:
    """The result of a tool on a model.

    Attributes:
        model: The name of the model.
        tool: The name of the tool.
        nodes: Nodes that compute in floats.
        kept: How many of them are in fp32.
        probes: How many candidates were run in all.
        failed: How many of the fresh samples fail.
        severe: How many of them by NaN, Inf or more than ten times the tolerance.
        samples: How many fresh samples.
        worst: The largest error over its tolerance.
        wall_s: Seconds of the whole command.
        cpu_s: CPU seconds of the tool's command.
        first_s: CPU seconds until its first file was on the disk.
        sentence: The tool's own summary.
    """

    model: str
    tool: str
    nodes: int
    kept: int
    probes: int
    failed: int
    severe: int
    samples: int
    worst: float
    wall_s: float
    cpu_s: float = 0.0
    first_s: float = 0.0
    sentence: str = ""


class Session:
    """A model on ONNX Runtime's CPU provider, optimisations off."""

    def __init__(self, model: ModelProto) -> None:
        """Load it."""
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        self._session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, ["CPUExecutionProvider"]
        )

    def run(self, feeds: Arrays) -> Arrays:
        """Its outputs."""
        names = [output.name for output in self._session.get_outputs()]
        return dict(zip(names, self._session.run(names, feeds), strict=True))


def error(made: Arrays, golden: Arrays) -> float:
    """The largest error over its tolerance; infinite for NaN and Inf."""
    worst = 0.0
    for name, wanted in golden.items():
        tolerance = automatic_tolerance(wanted, Precision.FP16)
        allowed = np.maximum(tolerance.atol, tolerance.rtol * np.abs(wanted))
        share = float(np.max(np.abs(made[name] - wanted) / allowed))
        worst = max(worst, share if np.isfinite(share) else np.inf)
    return worst


def errors(model: ModelProto, samples: list[Arrays], golden: list[Arrays]) -> list[float]:
    """Return the error of each sample."""
    session = Session(emulate(onnx.shape_inference.infer_shapes(model)))
    return [
        error(session.run(sample), wanted) for sample, wanted in zip(samples, golden, strict=True)
    ]


def failing_sample(planted: Planted) -> Arrays | None:
    """The first sample on which the model fails in fp16."""
    lowered = emulate(onnx.shape_inference.infer_shapes(lower_fp16(planted.model)))
    low = Session(lowered)
    full = Session(planted.model)
    for number in range(20):
        sample = planted.draw(np.random.default_rng([5, number]))
        if error(low.run(sample), full.run(sample)) > SEVERE:
            return sample
    return None


@dataclass(frozen=True)
class Ran:
    """A command that ended, with its time."""

    status: int
    output: str
    wall_s: float
    cpu_s: float
    first_s: float


def timed(command: list[str], folder: Path, file: str) -> Ran:
    """Run a command; ``first_s`` is the CPU time of it and its workers when ``file`` exists."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    first = 0.0
    with (folder / "output.txt").open("w+") as log:
        with subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT) as run:
            while run.poll() is None:
                if not first and (folder / file).exists():
                    with suppress(psutil.Error):
                        process = psutil.Process(run.pid)
                        times = [
                            each.cpu_times()
                            for each in (process, *process.children(recursive=True))
                        ]
                        first = sum(each.user + each.system for each in times)
                time.sleep(0.05)
        log.seek(0)
        output = log.read()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Ran(run.returncode, output, time.perf_counter() - began, cpu, first or cpu)


def fresh(planted: Planted, count: int) -> tuple[list[Arrays], list[Arrays]]:
    """Samples that no tool has seen, with the outputs of the model in fp32; those with NaN or Inf there are left out."""
    samples = [planted.draw(np.random.default_rng([9, number])) for number in range(count)]
    full = Session(planted.model)
    pairs = [(sample, full.run(sample)) for sample in samples]
    pairs = [pair for pair in pairs if all(np.isfinite(value).all() for value in pair[1].values())]
    return [sample for sample, _ in pairs], [golden for _, golden in pairs]


def measure(
    planted: Planted,
    folder: Path,
    count: int,
    others: dict[str, str],
    elsewhere: Mapping[str, Planted] = MappingProxyType({}),
) -> list[Measured]:
    """All tools on one model; what they write also runs on samples of ``elsewhere``.

    Where the model is longer there, its nodes of the same names stay in fp32.
    """
    given = failing_sample(planted)
    if given is None:
        return []
    onnx.save(planted.model, str(folder / "model.onnx"))
    save_npz(folder / "inputs.npz", given)
    moved = {"": planted, **elsewhere}
    draws = {name: fresh(each, count) for name, each in moved.items()}
    computing = float_nodes(planted.model)
    command = [
        sys.executable,
        "-m",
        "bisect_trt",
        "precision",
        "model.onnx",
        "-o",
        "safe.onnx",
        "--onnxrt",
        "--fp16",
    ]
    command += ["--load-inputs", "inputs.npz", "--json", "result.json"]
    runs = {"safe": timed(command, folder, "safe.onnx")}
    if runs["safe"].status not in (0, 3):
        raise RuntimeError(runs["safe"].output)
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    minimal = lower_fp16(planted.model, {node["outputs"][0] for node in result["minimal"]})
    onnx.save(minimal, str(folder / "minimal.onnx"))
    said = str((result["validation"] or {}).get("sentence") or result["not_validated"])
    search = result["probes_minimal"]
    files = {"minimal": "minimal.onnx", "safe": "safe.onnx"}
    for tool, python in others.items():
        script = str(Path(__file__).with_name(f"{tool}.py"))
        file = f"{tool}.onnx"
        runs[tool] = timed([python, script, "model.onnx", "inputs.npz", file], folder, file)
        if runs[tool].status == 0:
            files[tool] = file
        else:
            print(f"{planted.name}: {tool}: {runs[tool].output[-300:]}", file=sys.stderr)
    rows = []
    for tool, file in files.items():
        mixed = onnx.load(str(folder / file))
        typed = float_nodes(onnx.shape_inference.infer_shapes(mixed))
        kept = {
            node for node in computing if TensorProto.FLOAT in typed.get(node, {TensorProto.FLOAT})
        }
        probes = {"minimal": search, "safe": result["probes"]["run"]}.get(tool, 0)
        run = runs.get(tool, runs["safe"])
        for name, (samples, golden) in draws.items():
            model = moved[name].model
            if model is planted.model:
                model = mixed
            else:
                model = lower_fp16(
                    model, {node.output[0] for node in model.graph.node if node.name in kept}
                )
            seen = errors(model, samples, golden)
            failed, severe = (sum(each > limit for each in seen) for limit in (1, SEVERE))
            rows.append(
                Measured(planted.name, tool + name, len(computing), len(kept), probes, failed, severe, len(seen), max(seen),
                         run.wall_s, run.cpu_s, run.first_s, said if tool == "safe" else "")
            )  # fmt: skip
    return rows


def table(rows: list[Measured]) -> str:
    """By kind and tool, summed up over the seeds."""
    sums: dict[tuple[str, str], list[Measured]] = {}
    for row in rows:
        sums.setdefault((row.model.partition("-")[0], row.tool), []).append(row)
        sums.setdefault(("all", row.tool), []).append(row)
    order = sorted(sums, key=lambda key: (key[0] == "all", key[0]))
    return markdown(
        [
            {
                "models": f"{len(found)} x {kind}" if kind != "all" else f"all {len(found)}",
                "kept in fp32": tool,
                "nodes kept": f"{sum(row.kept for row in found)} of {sum(row.nodes for row in found)}",
                "fail": f"{sum(row.failed for row in found)} of {sum(row.samples for row in found)}",
                "severely": str(sum(row.severe for row in found)),
                "worst model": str(max(row.failed for row in found)),
                "probes": str(sum(row.probes for row in found) or ""),
            }
            for kind, tool in order
            for found in [sums[kind, tool]]
        ]
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.safe_sets", description=__doc__)
    known = f"any of: {', '.join(KINDS)} (default: all of these); {', '.join(OTHERS)} (others: all of these)"
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=known)
    parser.add_argument("--seeds", type=int, default=4, help="models of each kind (default: 4)")
    parser.add_argument(
        "--samples", type=int, default=200, help="fresh samples for each model (default: 200)"
    )
    parser.add_argument(
        "--autocast", metavar="PYTHON", help="interpreter that has nvidia-modelopt[onnx]"
    )
    parser.add_argument(
        "--converter", metavar="PYTHON", help="interpreter that has onnxconverter-common"
    )
    options = parser.parse_args()
    others = {
        tool: getattr(options, tool) for tool in ("autocast", "converter") if getattr(options, tool)
    }
    before = machine()
    rows: list[Measured] = []
    kinds = [*OTHERS] if options.kinds == ["others"] else options.kinds or [*KINDS]
    for kind in kinds:
        for seed in range(options.seeds):
            with tempfile.TemporaryDirectory(prefix="bench-") as folder:
                found = measure((KINDS | OTHERS)[kind](seed), Path(folder), options.samples, others)
            rows += found
            for row in found:
                print(row, file=sys.stderr)
    OUT.mkdir(exist_ok=True)
    (OUT / "safe_sets.json").write_text(
        json.dumps({"machine": before, "rows": [asdict(r) for r in rows]}, indent=1) + "\n"
    )
    print(table(rows))


if __name__ == "__main__":
    main()
