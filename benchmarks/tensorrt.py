"""bisect-trt beside Polygraphy on a real TensorRT: what docs/benchmarks.md says of a GPU.

    python -m benchmarks.tensorrt VIT.onnx [--only reduce precision layerwise cost memory
    polygraphy] [--limit SECONDS]

VIT.onnx is a vision transformer whose residual stream overflows fp16 (examples/vit_overflow makes
one). Each part prints a line of JSON. Polygraphy's `debug reduce` runs for at most ``--limit``
seconds, and what it reached by then is reported.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.cases import light_model
from benchmarks.figures import Figure
from bisect_trt.targets.base import TargetSettings
from bisect_trt.tensors.files import save_npz
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.worker.protocol import Compare, Compared, Order, Sample
from bisect_trt.worker.serve import Worker

_LIMIT = 600.0
PARTS = ("cost", "memory", "layerwise", "precision", "reduce", "polygraphy")


def timed(command: list[str], folder: Path, limit: float) -> tuple[float, int, str]:
    """Run a command: seconds, exit status (negative if it was ended at the limit), and what it printed."""
    began = time.monotonic()
    with (folder / "output.txt").open("w+") as output:
        process = subprocess.Popen(
            command, cwd=folder, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)
            try:
                status = -abs(process.wait(30) or 1)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                status = -process.wait()
        output.seek(0)
        return time.monotonic() - began, status, output.read()


def ours(name: str, model: Path, *words: str, limit: float) -> dict[str, Any]:
    """One of our commands on the model under ``--trt --fp16``."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "bisect_trt",
            name,
            str(model),
            "--trt",
            "--fp16",
            "--json",
            "r.json",
            *words,
        ]
        seconds, status, text = timed(command, Path(folder), limit)
        found = Path(folder, "r.json")
        result = json.loads(found.read_text()) if found.exists() else {}
        seen = {
            key: result.get(key) for key in ("probes", "minimality", "why", "latency_ms", "trtexec")
        }
        kept = [node["name"] for node in result.get("keep_fp32", [])]
        culprits = [f"{node['op']} {node['name']}" for node in result.get("culprits", [])]
        first = (result.get("first_mismatch") or {}).get("tensor")
        print(text[-6000:], file=sys.stderr)
        return {
            "part": name,
            "seconds": round(seconds, 1),
            "status": status,
            **seen,
            "culprits": culprits,
            "first": first,
            "keep": len(kept),
            "kept": kept,
        }


def figures() -> Iterator[Figure]:
    """On a GPU: seconds of whole commands, each in fp16 on TensorRT."""
    here = find_spec("tensorrt") is not None and shutil.which("nvidia-smi") is not None
    with tempfile.TemporaryDirectory() as folder:
        vit = Path(folder, "model.onnx")
        resnet = light_model("resnet50")
        if here:
            maker = Path(__file__).parents[1] / "examples" / "vit_overflow" / "make_model.py"
            subprocess.run([sys.executable, str(maker), "-o", folder], check=True)
        for what, name, model, aim in (
            ("a ViT: reduce", "reduce", vit, 60),
            ("a ViT: diagnose, with the fix", "diagnose", vit, 150),
            ("a ViT: precision to its safe set", "precision", vit, 150),
            ("ResNet-50, where nothing fails: diagnose", "diagnose", resnet, 60),
        ):
            if not here:
                note = "`python -m benchmarks gpu`, with TensorRT and a GPU"
                yield Figure(f"{what}, s", None, aim, note=note)
                continue
            seen = ours(name, model, limit=_LIMIT)
            theirs = polygraphy(model, _LIMIT)["seconds"] if name == "reduce" else None
            yield Figure(
                f"{what}, s",
                seen["seconds"],
                aim,
                polygraphy=theirs,
                note=f"exit status {seen['status']}",
            )


def polygraphy(model: Path, limit: float) -> dict[str, Any]:
    """``polygraphy debug reduce`` with the check its users write."""
    with tempfile.TemporaryDirectory() as folder:
        program = [
            sys.executable,
            "-c",
            "import sys; from polygraphy.tools import main; sys.exit(main())",
        ]
        check = [
            *program,
            "run",
            "polygraphy_debug.onnx",
            "--trt",
            "--fp16",
            "--onnxrt",
            "--atol",
            "0.01",
            "--rtol",
            "0.01",
        ]
        command = [
            *program,
            "debug",
            "reduce",
            str(model),
            "-o",
            "reduced.onnx",
            "--mode",
            "bisect",
            "--check",
            *check,
        ]
        seconds, status, text = timed(command, Path(folder), limit)
        reduced = Path(folder, "reduced.onnx")
        nodes = (
            len(onnx.load(str(reduced), load_external_data=False).graph.node)
            if reduced.exists()
            else None
        )
        candidate = Path(folder, "polygraphy_debug.onnx")
        left = (
            len(onnx.load(str(candidate), load_external_data=False).graph.node)
            if candidate.exists()
            else None
        )
        print(text[-3000:], file=sys.stderr)
        return {
            "part": "polygraphy",
            "seconds": round(seconds, 1),
            "status": status,
            "probes": text.count("RUNNING | Iteration"),
            "nodes": nodes,
            "candidate": left,
        }


def cost() -> dict[str, Any]:
    """What a probe costs beside its build: two nodes, again and again in one worker."""
    return {"part": "cost", **probes(small(), 10)}


def memory() -> dict[str, Any]:
    """Forty probes of different models in one worker: what the process and its GPU hold after each."""
    seen = probes([attention(width) for width in range(64, 64 + 40 * 8, 8)], 40)
    host = seen["host"]
    gpu = seen["gpu"]
    return {
        "part": "memory",
        **seen,
        "host_growth_after_10th": max(host[10:]) / host[9] - 1,
        "gpu_growth_after_10th": max(gpu[10:]) / gpu[9] - 1,
    }


def probes(models: list[onnx.ModelProto], count: int) -> dict[str, Any]:
    """Have one worker compare models, and ask it each time what it holds."""
    worker = Worker()
    target = TargetSettings(runtime="trt", fp16=True)
    seconds = []
    host = []
    gpu = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        output = os.dup(1)
        for number in range(count):
            proto = models[number % len(models)]
            onnx.save(proto, folder / "m.onnx")
            rng = np.random.default_rng(number)
            shapes = {
                v.name: [d.dim_value for d in v.type.tensor_type.shape.dim]
                for v in proto.graph.input
            }
            save_npz(folder / "in.npz", {k: rng.random(s, np.float32) for k, s in shapes.items()})
            save_npz(
                folder / "out.npz", {v.name: np.zeros(1, np.float32) for v in proto.graph.output}
            )
            samples = (Sample(folder / "in.npz", folder / "out.npz"),)
            request = Compare(target, folder / "m.onnx", samples, ToleranceOptions())
            began = time.monotonic()
            answer = worker.serve(Order(request, folder / "log", folder))
            seconds.append(round(time.monotonic() - began, 3))
            if not isinstance(answer.reply, Compared):
                raise SystemExit(str(answer.reply))
            host.append(answer.memory["host"])
            gpu.append(answer.memory["gpu"])
        os.dup2(output, 1)
    return {"seconds": seconds, "host": host, "gpu": gpu}


def small() -> list[onnx.ModelProto]:
    """A model of one node."""
    return [_model([helper.make_node("Relu", ["x"], ["y"])], [2, 3])]


def attention(width: int) -> onnx.ModelProto:
    """Self-attention without weights over a sequence of 64."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "t"], ["s"]),
        helper.make_node("Softmax", ["s"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "x"], ["y"]),
    ]
    return _model(nodes, [1, 64, width])


def _model(nodes: list[onnx.NodeProto], shape: list[int]) -> onnx.ModelProto:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "small", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def main() -> None:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--limit", type=float, default=500)
    options = parser.parse_args()
    model = options.model.resolve()
    limit = options.limit
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "cost": cost,
        "memory": memory,
        "layerwise": lambda: ours("layerwise", model, limit=limit),
        "precision": lambda: ours(
            "precision", model, "-o", "mixed.engine", "--max-time", str(limit - 30), limit=limit
        ),
        "reduce": lambda: ours("reduce", model, "-o", "reduced.onnx", limit=limit),
        "polygraphy": lambda: polygraphy(model, limit),
    }
    for name in options.only:
        print(json.dumps(parts[name]()), flush=True)


if __name__ == "__main__":
    main()
