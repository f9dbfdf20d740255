"""Large graphs, with five required nodes, and large weights: time, memory and disk.

    python -m benchmarks graphs weights      # as two of all benchmarks
    python -m benchmarks.large FOLDER [--layers 20] [--sparse] [--fp32]

The first is ``bisect_trt.reduce`` on generated networks, one worker, with a check that looks for
five names in the bytes of the file: CPU time of the driver alone, so that a loaded machine measures
the same. The second writes a decoder of fp16 weights in several files (405 MB a layer) into FOLDER
and runs commands on it: wall and CPU time, peak resident memory of all processes together (weights
that are mapped count), and what each leaves on the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.decoders import write_decoder
from benchmarks.figures import Figure
from benchmarks.memory import resident

SIZES = (5_000, 20_000, 50_000, 200_000)
CULPRITS = 5
_GROWTH = 1.3
"""How much more a megabyte of candidate may take in the largest network than in the smallest of
20,000 nodes and more."""
_MOST_S = 1200.0
_ANSWERS = ("still fails", "nodes still fail", "ismatch", "MISMATCH", "fails alone")


def figures() -> Iterator[Figure]:
    """Its own time and memory on generated networks of up to 200,000 nodes, five of them required."""
    first: float | None = None
    for size in SIZES:
        seen = measure_graph(size)
        what = f"{size:,} nodes, {seen['file'] / 1e6:.1f} MB"
        yield Figure(
            f"{what}: CPU time in all, s", seen["cpu"], note=f"{seen['checks']:.0f} checks"
        )
        yield Figure(f"{what}: between checks, median, s", seen["median"])
        per_mb = seen["per_mb"] * 1000
        aim = None if first is None else first * _GROWTH
        yield Figure(f"{what}: a MB of candidate, ms", per_mb, aim=aim)
        if size >= 20_000 and first is None:
            first = per_mb
        graph = seen["parsed"] / 1e6
        mapped = seen["mapped"] / 1e6
        peak = (seen["peak"] - seen["base"]) / 1e6
        note = f"{peak / graph:.1f} times the parsed model ({graph:.0f} MB); {mapped:.0f} MB are pages of files, mostly code"
        yield Figure(
            f"{what}: peak memory less that of an idle one, MB", peak, aim=3 * graph, note=note
        )


_MACHINE_GB = 24.0
_ROOM_GB = 25.0
"""What 8 GB of weights, the copy of them for a check command, and some more take."""
_MINUTES = ("layerwise", "run", "precision", "reduce", "diagnose")
"""Commands that run models of this size, which takes up to an hour."""


def weights() -> Iterator[Figure]:
    """Peak memory and disk of commands on a decoder with 30 GB of weights that are holes, and on one of 8 GB."""
    yield from _watched(73, "30 GB", sparse=True)
    room = shutil.disk_usage(tempfile.gettempdir()).free / 1e9 >= _ROOM_GB
    if room:
        yield from _watched(20, "8 GB", sparse=False)
    for what in commands(Path("decoder.onnx"), 20):
        if what in _MINUTES or not room:
            note = f"`python -m benchmarks.large FOLDER`, with {_ROOM_GB:.0f} GB of disk free; kept in docs/benchmarks.md"
            yield Figure(f"{what}, 8 GB: peak memory, GB", None, aim=_MACHINE_GB, note=note)


def _watched(layers: int, size: str, *, sparse: bool) -> Iterator[Figure]:
    """The commands that run no such model, on a decoder of so many layers."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        model = write_decoder(folder, layers, sparse=sparse)
        for what, words in commands(model, layers).items():
            if what in _MINUTES:
                continue
            seen = watch(folder, *words)
            note = f"{seen.cpu:.0f} s of CPU; {seen.said}"
            yield Figure(
                f"{what}, {size}: peak memory, GB", seen.peak / 1e9, aim=_MACHINE_GB, note=note
            )
            yield Figure(f"{what}, {size}: left on the disk, GB", seen.left / 1e9)


def measure_graph(nodes: int) -> dict[str, float]:
    """One reduction, in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        command = [sys.executable, "-m", "benchmarks.large", folder, "--graph", str(nodes)]
        root = Path(__file__).parents[1]
        done = subprocess.run(
            command, cwd=root, stdout=subprocess.PIPE, check=True, text=True, timeout=_MOST_S
        )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def reduce_graph(folder: Path, nodes: int) -> dict[str, float]:
    """The same, in this process, which has to be fresh."""
    # By another process: memory that this one had used before would not show in what it takes.
    subprocess.run([sys.executable, "-c", _WRITE, str(folder), str(nodes)], check=True)
    (model,) = folder.glob("*.onnx")
    names = [
        name.removesuffix("_out").encode() for name in (folder / "required").read_text().split()
    ]
    wanted = [
        b"\x1a" + bytes([len(name)]) + name for name in names
    ]  # onnx.proto: field 3 of a node
    import bisect_trt  # noqa: PLC0415 - what the benchmark itself imports is no part of it

    base = _resident("VmRSS")
    unmapped = _resident("RssFile")
    mapped: list[int] = []
    parsed = _parsed(model)
    gaps: list[tuple[int, float]] = []
    last: list[float] = []

    def check(path: str) -> bool:
        now = time.process_time()
        content = Path(path).read_bytes()
        gaps.extend((len(content), now - before) for before in last)
        fails = all(name in content for name in wanted)
        mapped.append(_resident("RssFile"))
        last[:] = [time.process_time()]
        return fails

    os.chdir(folder)
    began = time.process_time()
    result = bisect_trt.reduce(
        str(model), check, output=folder / "reduced.onnx", workers=1, shrink=False
    )
    cpu = time.process_time() - began
    assert (result.status, len(result.culprits)) == ("found", CULPRITS)
    large = [(size, seconds) for size, seconds in gaps[1:] if size > model.stat().st_size / 4]
    return {
        "file": model.stat().st_size,
        "parsed": parsed,
        "cpu": cpu,
        "checks": len(gaps) + 1,
        "median": statistics.median(seconds for _, seconds in gaps),
        "per_mb": statistics.median(seconds / size * 1e6 for size, seconds in large),
        "base": base,
        "mapped": max(mapped) - unmapped,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
    }


_WRITE = f"""
import pathlib, sys
from benchmarks.cases import choose, write_generated
folder = pathlib.Path(sys.argv[1])
case = choose(write_generated(folder, int(sys.argv[2])), {CULPRITS}, 0)
(folder / "required").write_text(" ".join(case.required))
"""


def _parsed(model: Path) -> float:
    """Bytes that the parsed model takes, measured in another process."""
    script = (
        "import onnx,os,sys\n"
        "page=os.sysconf('SC_PAGE_SIZE')\n"
        "read=lambda: int(open('/proc/self/statm').read().split()[1])*page\n"
        "before=read(); model=onnx.load(sys.argv[1]); print(read()-before)"
    )
    return float(
        subprocess.run(
            [sys.executable, "-c", script, str(model)], check=True, stdout=subprocess.PIPE
        ).stdout
    )


def _resident(kind: str) -> int:
    """Bytes of memory of this process: all of them (``VmRSS``), or those that are pages of files (``RssFile``)."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields[kind].split()[0]) << 10


@dataclass(frozen=True)
class Seen:
    """What one command took.

    Attributes:
        wall: Seconds on the clock.
        cpu: Seconds of CPU, all processes.
        peak: Bytes of resident memory at most, all processes together.
        left: Bytes that the run's folder takes on the disk.
        said: The line of its output that says the answer.
    """

    wall: float
    cpu: float
    peak: int
    left: int
    said: str


def watch(folder: Path, *words: str) -> Seen:
    """Run a command of bisect-trt in a folder, whose runs are taken away afterwards."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    peak = 0
    command = [sys.executable, "-m", "bisect_trt", *words]
    with (folder / "said.txt").open("w+") as said:
        with subprocess.Popen(
            command, cwd=folder, stdout=said, stderr=subprocess.STDOUT
        ) as process:
            while process.poll() is None:
                peak = max(peak, resident(process.pid))
                time.sleep(0.2)
        said.seek(0)
        lines = [line.strip() for line in said if line.strip() and not line.startswith("Report")]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    runs = folder / ".bisect-trt"
    left = sum(path.stat().st_blocks * 512 for path in runs.rglob("*") if path.is_file())
    shutil.rmtree(runs, ignore_errors=True)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    answer = next((line for line in lines if any(word in line for word in _ANSWERS)), lines[-1])
    return Seen(time.monotonic() - began, cpu, peak, left, answer[:80])


def commands(model: Path, layers: int) -> dict[str, list[str]]:
    """What is run on a decoder, by what it is called in the table."""
    fails = f"grep -q l{layers - 2}.gate {{model}} && exit 1; exit 0"
    target = ["--onnxrt", "--fp16"]
    output = ["--overwrite", "-o"]
    layer = ["--inputs", f"l{layers - 2}.out", "--outputs", f"l{layers - 1}.out"]
    return {
        "inspect": ["inspect", "model", str(model)],
        "extract a layer": ["extract", str(model), *layer, *output, "layer.onnx"],
        "reduce, a check command": [
            "reduce",
            str(model),
            *output,
            "reduced.onnx",
            "--check",
            "sh",
            "-c",
            fails,
        ],
        "layerwise": ["layerwise", str(model), *target],
        "run": ["run", str(model), *target],
        "precision": ["precision", str(model), *target, *output, "mixed.onnx"],
        "reduce": ["reduce", str(model), *target, *output, "reduced.onnx"],
        "diagnose": ["diagnose", str(model), *target, *output, "reproducer"],
    }


def main() -> None:
    """Print a row for each command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "folder", type=Path, help="Where the model and the runs go; takes two times its size."
    )
    parser.add_argument(
        "--layers", type=int, default=20, help="405 MB each (default: 20, which is 8.4 GB)"
    )
    parser.add_argument(
        "--sparse",
        action="store_true",
        help="all weights are holes: no room, and no commands but with a check",
    )
    parser.add_argument(
        "--fp32",
        action="store_true",
        help="weights of fp32, twice as many bytes; of fp16, `precision` refuses the model",
    )
    parser.add_argument(
        "--only",
        nargs="*",
        default=[],
        metavar="NAME",
        help="some of the commands, as the table calls them",
    )
    parser.add_argument("--graph", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    folder = given.folder.resolve()
    if given.graph is not None:
        print(json.dumps(reduce_graph(folder, given.graph)))
        return
    model = write_decoder(folder, given.layers, sparse=given.sparse, wide=given.fp32)
    print(
        "| command | wall, s | CPU, s | peak memory, GB | left on disk, GB | it says |\n"
        + "| --- " * 6
        + "|"
    )
    for name, words in commands(model, given.layers).items():
        if (given.sparse and "--onnxrt" in words) or (given.only and name not in given.only):
            continue
        seen = watch(folder, *words)
        numbers = (
            f"{seen.wall:.0f} | {seen.cpu:.0f} | {seen.peak / 1e9:.1f} | {seen.left / 1e9:.2f}"
        )
        print(f"| {name} | {numbers} | {seen.said} |", flush=True)


if __name__ == "__main__":
    main()
