"""Where the time of TensorRT's builds goes, on a GPU: start, parsing, first and later builds, caches, builders side by side.

    python -m benchmarks.builds [MODEL.onnx] [--only start builds cache threads beside single small] [--precision fp16]

Each part prints lines of JSON. What is measured has a process of its own, because a process pays for much of it once, and a
part ends after 100 seconds. Without a model it is six convolutions that are unlike each other. ``single`` builds one Pow of
several shapes and says between which lines of the verbose log the time goes; ``small`` runs ``diagnose`` on one and prints what
each probe was spent on.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

PARTS = ("start", "builds", "cache", "threads", "beside", "single", "small")
MOST_SECONDS = 100.0


def alone(part: str, *words: str, **environment: str) -> subprocess.Popen[str]:
    """Start a part in a process of its own, which prints a line of JSON last."""
    command = [sys.executable, "-m", "benchmarks.builds", "--alone", part, *words]
    return subprocess.Popen(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str], until: float | None = None) -> dict[str, Any]:
    """What it measured; past a point of :func:`time.monotonic` it is ended."""
    try:
        text = process.communicate(timeout=None if until is None else max(until - time.monotonic(), 0.1))[0]
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {"cut_off": MOST_SECONDS}
    lines = text.strip().splitlines()
    try:
        found: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):
        return {"failed": process.returncode, "said": text[-500:]}
    return found


def _tensorrt() -> tuple[Any, float]:
    began = time.perf_counter()
    from bisect_trt.targets.trt.api import tensorrt  # noqa: PLC0415 - what is measured

    return tensorrt(), time.perf_counter() - began


def _build(path: Path, precision: str, trt: Any) -> dict[str, Any]:  # noqa: ANN401 - TensorRT's own
    """Build once: seconds by part, bytes, and what TensorRT said of its caches."""
    from bisect_trt.targets.runtime import load_proto  # noqa: PLC0415 - what is measured
    from bisect_trt.targets.settings import TargetSettings  # noqa: PLC0415 - as above
    from bisect_trt.targets.trt import builder  # noqa: PLC0415 - as above
    from bisect_trt.targets.trt.parse import name_nodes  # noqa: PLC0415 - as above

    low: dict[str, Any] = {precision: True} if precision != "fp32" else {}
    settings = TargetSettings("trt", **low)
    proto = load_proto(path)
    name_nodes(proto)
    trt.log.warnings.clear()
    began = time.perf_counter()
    watches: list[builder.Stopwatch] = []

    class Watch(builder.Stopwatch):
        def say(self) -> None:
            watches.append(self)

    plain, builder.Stopwatch = builder.Stopwatch, Watch  # type: ignore[misc]
    try:
        _, plan = builder.build_engine(proto, path, settings, None, trt)
    finally:
        builder.Stopwatch = plain  # type: ignore[misc]
    parts = {name: round(seconds, 2) for name, seconds in watches[-1].parts.items()}
    return {
        "seconds": round(time.perf_counter() - began, 2),
        **parts,
        "bytes": len(plan),
        "warned": list(trt.log.warnings),
    }


def start(model: Path, precision: str) -> Iterator[dict[str, Any]]:  # noqa: ARG001 - of others
    """TensorRT's start in a fresh process, by how CUDA loads kernels; twice each, since the first reads the disk."""
    for mode in ("LAZY", "EAGER", "LAZY", "EAGER"):
        yield {"part": "start", "loading": mode, **ended(alone("start", CUDA_MODULE_LOADING=mode))}


def _start() -> dict[str, Any]:
    began = time.perf_counter()
    import tensorrt  # noqa: PLC0415 - what is measured

    imported = time.perf_counter() - began
    trt, made = _tensorrt()
    began = time.perf_counter()
    tensorrt.Builder(trt.builder.logger)
    again = time.perf_counter() - began
    with tempfile.TemporaryDirectory() as folder:
        path = tiny(Path(folder) / "m.onnx")
        builds = [_build(path, "fp16", trt)["seconds"] for _ in range(2)]
    return {"import": round(imported, 2), "start": round(made, 2), "second_builder": round(again, 2), "tiny": builds}


def builds(model: Path, precision: str) -> Iterator[dict[str, Any]]:
    """The model three times in one process: first, again with all caches, again with none of TensorRT's timings."""
    yield {"part": "builds", **ended(alone("builds", str(model), precision))}


def _builds(model: str, precision: str) -> dict[str, Any]:
    trt, made = _tensorrt()
    found: dict[str, Any] = {"start": round(made, 2), "first": _build(Path(model), precision, trt)}
    found["again"] = _build(Path(model), precision, trt)
    trt.timing_caches.clear()
    found["without_timings"] = _build(Path(model), precision, trt)
    return found


def cache(model: Path, precision: str) -> Iterator[dict[str, Any]]:
    """A timing cache that is written out: taken in again in the same process, and in a fresh one."""
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "timings")
        yield {"part": "cache", "process": "same", **ended(alone("cache", str(model), precision, file))}
        yield {"part": "cache", "process": "fresh", **ended(alone("cached", str(model), precision, file))}


def _cache(model: str, precision: str, file: str) -> dict[str, Any]:
    trt, _ = _tensorrt()
    first = _build(Path(model), precision, trt)
    content = bytes(memoryview(trt.timing_caches[None].serialize()))
    Path(file).write_bytes(content)
    return {"bytes": len(content), "first": first, "again": _with_cache(model, precision, trt, content)}


def _cached(model: str, precision: str, file: str) -> dict[str, Any]:
    trt, _ = _tensorrt()
    return {"first": _with_cache(model, precision, trt, Path(file).read_bytes())}


def _with_cache(model: str, precision: str, trt: Any, content: bytes) -> dict[str, Any]:  # noqa: ANN401 - as above
    trt.log.warnings.clear()
    trt.log.errors.clear()
    trt.timing_caches[None] = trt.builder.create_builder_config().create_timing_cache(content)
    said = [*trt.log.warnings, *trt.log.errors]
    return {**_build(Path(model), precision, trt), "said_of_cache": said}


def threads(model: Path, precision: str) -> Iterator[dict[str, Any]]:
    """The first build in a fresh process, by how many threads the builder may use."""
    until = time.monotonic() + MOST_SECONDS
    for number in ("1", "16", "4"):
        found = ended(alone("threads", str(model), precision, number), until)
        yield {"part": "threads", "threads": int(number), **found}


def _threads(model: str, precision: str, number: str) -> dict[str, Any]:
    trt, _ = _tensorrt()
    trt.builder.max_threads = int(number)
    return {"first": _build(Path(model), precision, trt), "again": _build(Path(model), precision, trt)}


def beside(model: Path, precision: str) -> Iterator[dict[str, Any]]:
    """So many builders at a time on one GPU, each in its process: how long the first and the second build take each."""
    until = time.monotonic() + MOST_SECONDS
    for number in (1, 2, 4):
        began = time.perf_counter()
        processes = [alone("threads", str(model), precision, "1") for _ in range(number)]
        found = [ended(each, until) for each in processes]
        each = {name: [one.get(name, {}).get("seconds") for one in found] for name in ("first", "again")}
        yield {"part": "beside", "builders": number, **each, "wall": round(time.perf_counter() - began, 1)}


def single(model: Path, precision: str) -> Iterator[dict[str, Any]]:  # noqa: ARG001 - as above
    """One Pow of several shapes in one process, after a build that loads the libraries: seconds, and where they go."""
    yield {"part": "single", **ended(alone("single", precision), time.monotonic() + MOST_SECONDS)}


def _single(precision: str) -> dict[str, Any]:
    from bisect_trt.targets.trt import api  # noqa: PLC0415 - what is measured

    said: list[tuple[float, str]] = []
    # Before TensorRT starts: its logger takes what listens when it is made.
    vars(api)["listen"] = lambda line: said.append((time.perf_counter(), line))
    trt, made = _tensorrt()
    found: dict[str, Any] = {"start": round(made, 2), "shapes": []}
    with tempfile.TemporaryDirectory() as name:
        found["first"] = _build(tiny(Path(name) / "m.onnx"), precision, trt)["seconds"]
        for shape in ([1, 197, 192], [1, 197, 192], [1, 197, 1], [1, 1, 1]):
            node = helper.make_node("Pow", ["x", "two"], ["y"], "pow")
            path = _save(Path(name) / "pow.onnx", [node], shape, {"two": np.float32(2)})
            said.clear()
            seconds = _build(path, precision, trt)["seconds"]
            gaps = sorted(
                ((later - sooner, line, after) for (sooner, line), (later, after) in itertools.pairwise(said)),
                reverse=True,
            )
            runners = Counter(line.split("(")[-1].split("[")[0] for _, line in said if "Timing Runner" in line)
            found["shapes"].append(
                {
                    "shape": shape,
                    "seconds": seconds,
                    "lines": len(said),
                    "runners": dict(runners),
                    "tactics": sum(line.strip().startswith("Tactic:") for _, line in said),
                    "longest": [[round(gap, 2), line[:150], after[:150]] for gap, line, after in gaps[:6]],
                }
            )
    return found


def small(model: Path, precision: str) -> Iterator[dict[str, Any]]:  # noqa: ARG001 - as above
    """What each probe of a diagnosis of one Pow was spent on, and what TensorRT's own log says of it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pow_model(folder / "pow.onnx")
        words = ["diagnose", "pow.onnx", "--trt", f"--{precision}", "--hold-precision", "--json", "r.json"]
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "bisect_trt", *words], cwd=folder, check=False, stdout=sys.stderr)
        wall = time.perf_counter() - began
        log = [sys.executable, "-m", "bisect_trt", "log"]
        said = subprocess.run(log, cwd=folder, check=False, capture_output=True, text=True).stdout
        print(said, file=sys.stderr)
        yield {"part": "small", "wall": round(wall, 1)}
        yield {"part": "small", "log": [" ".join(line.split()) for line in said.splitlines()]}
        for file in sorted(folder.glob(".bisect-trt/*/**/*.log")):
            took = re.findall(r"TensorRT took: (.*)", file.read_text(errors="replace"))
            if took:
                yield {"part": "small", "log": str(file.relative_to(folder)), "took": took}


def tiny(path: Path) -> Path:
    """A convolution and a product: what loads most of TensorRT's libraries."""
    weights = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("MatMul", ["c", "v"], ["y"]),
    ]
    tensors = {"w": weights.random((8, 8, 3, 3), np.float32), "v": weights.random((16, 16), np.float32)}
    return _save(path, nodes, [1, 8, 16, 16], tensors)


def convolutions(path: Path) -> Path:
    """Six convolutions that are unlike each other, each with a ReLU behind it."""
    values, nodes, tensors, last = np.random.default_rng(0), [], {}, "x"
    for place, (reads, makes, kernel) in enumerate(
        zip((3, 32, 48, 64, 96, 64), (32, 48, 64, 96, 64, 3), (7, 3, 5, 1, 3, 3), strict=True)
    ):
        tensors[f"w{place}"] = values.normal(0, 0.05, (makes, reads, kernel, kernel)).astype(np.float32)
        end = "y" if place == 5 else f"r{place}"
        nodes.append(
            helper.make_node("Conv", [last, f"w{place}"], [f"c{place}"], f"conv{place}", pads=[kernel // 2] * 4)
        )
        nodes.append(helper.make_node("Relu", [f"c{place}"], [end], f"relu{place}"))
        last = end
    return _save(path, nodes, [1, 3, 64, 64], tensors)


def pow_model(path: Path) -> Path:
    """``x ** 2`` of 900, which overflows fp16."""
    nodes = [helper.make_node("Mul", ["x", "s"], ["m"]), helper.make_node("Pow", ["m", "two"], ["p"])]
    nodes.append(helper.make_node("Sqrt", ["p"], ["y"]))
    return _save(path, nodes, [2, 3], {"s": np.float32(900), "two": np.float32(2)})


def _save(path: Path, nodes: list[onnx.NodeProto], shape: list[int], tensors: dict[str, Any]) -> Path:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "y")]
    weights = [numpy_helper.from_array(np.asarray(value), name) for name, value in tensors.items()]
    graph = helper.make_graph(nodes, "small", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


ALONE: dict[str, Callable[..., dict[str, Any]]] = {
    "start": _start,
    "builds": _builds,
    "cache": _cache,
    "cached": _cached,
    "threads": _threads,
    "single": _single,
}


def main() -> None:
    """Run the parts that are asked for."""
    if sys.argv[1:2] == ["--alone"]:
        print("\n" + json.dumps(ALONE[sys.argv[2]](*sys.argv[3:])), flush=True)
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--precision", default="fp16")
    options = parser.parse_args()
    parts: dict[str, Callable[[Path, str], Iterator[dict[str, Any]]]] = {
        "start": start,
        "builds": builds,
        "cache": cache,
        "threads": threads,
        "beside": beside,
        "single": single,
        "small": small,
    }
    with tempfile.TemporaryDirectory() as folder:
        model = options.model.resolve() if options.model else convolutions(Path(folder) / "model.onnx")
        for name in options.only:
            for line in parts[name](model, options.precision):
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
