"""What comparing every tensor of a large model takes: peak resident memory of all processes together, and time.

Writes a model of 100 layers (MatMul, Add, Mul, Relu) with 1.5 GB of weights in a file of their own
and 400 tensors, 1.6 GB of activations, runs ``bisect-trt layerwise`` on it in slices as it comes
and in one piece, and adds up the resident memory of the command and all that it starts, ten times a
second.

    python -m benchmarks.memory FOLDER
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

LAYERS = 100
WIDTH = 1960
ROWS = 512
WHOLE = str(1 << 20)
"""MiB: more than any model has, so nothing is sliced."""


def make_model(folder: Path) -> Path:
    """Write the model, its weights a layer at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "large.onnx"
    weights = folder / "large.bin"
    if path.exists():
        return path
    rng = np.random.default_rng(0)
    nodes = []
    tensors = []
    last = "x"
    with weights.open("wb") as file:
        for layer in range(LAYERS):
            weight = rng.standard_normal((WIDTH, WIDTH), np.float32) / np.float32(WIDTH**0.5)
            tensor = TensorProto(name=f"w{layer}", data_type=TensorProto.FLOAT, dims=weight.shape)
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in {
                "location": weights.name,
                "offset": file.tell(),
                "length": weight.nbytes,
            }.items():
                tensor.external_data.add(key=key, value=str(value))
            file.write(weight.tobytes())
            tensors.append(tensor)
            for op, other in (
                ("MatMul", f"w{layer}"),
                ("Add", "one"),
                ("Mul", "gain"),
                ("Relu", None),
            ):
                name = f"{op.lower()}{layer}"
                nodes.append(
                    helper.make_node(op, [last, other] if other else [last], [name], name=name)
                )
                last = name
    scalars = {"one": 0.01, "gain": 1.3}
    tensors += [
        onnx.numpy_helper.from_array(np.array(value, np.float32), name)
        for name, value in scalars.items()
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [ROWS, WIDTH])
        for name in ("x", last)
    ]
    graph = helper.make_graph(nodes, "large", ends[:1], ends[1:], tensors)
    path.write_bytes(
        helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8
        ).SerializeToString()
    )
    return path


def resident(root: int) -> int:
    """Bytes of resident memory of a process and all below it."""
    parents = {}
    memory = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = dict(
                    line.split(":", 1) for line in (folder / "status").read_text().splitlines()
                )
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended
            parents[int(folder.name)] = int(fields["PPid"])
            memory[int(folder.name)] = int(fields.get("VmRSS", "0 kB").split()[0]) << 10
    family = {root}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(memory.get(pid, 0) for pid in family)


def measure(model: Path, folder: Path, *options: str) -> tuple[float, float, str]:
    """Peak resident memory in GB, seconds, and the last line that the command prints."""
    command = [sys.executable, "-m", "bisect_trt", "layerwise", str(model), "--onnxrt", *options]
    began = time.monotonic()
    peak = 0
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        while process.poll() is None:
            peak = max(peak, resident(process.pid))
            time.sleep(0.1)
        assert process.stdout is not None
        lines = process.stdout.read().strip().splitlines()
    return peak / 1e9, time.monotonic() - began, lines[-1]


def main() -> None:
    """Print a row for each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="Where the model and the runs go; takes 7 GB.")
    folder = parser.parse_args().folder.resolve()
    model = make_model(folder)
    ways = {
        "as it comes": (),
        "--array-swap-mb 256": ("--array-swap-mb", "256"),
        "in one piece": ("--array-swap-mb", WHOLE),
    }
    print("| `layerwise` | peak resident memory | time | answer |\n| --- | --- | --- | --- |")
    for name, options in ways.items():
        gigabytes, seconds, answer = measure(model, folder, *options)
        print(f"| {name} | {gigabytes:.2f} GB | {seconds:.0f} s | {answer} |", flush=True)


if __name__ == "__main__":
    main()
