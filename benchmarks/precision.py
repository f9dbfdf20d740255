"""Measures ``bisect-trt precision`` on ONNX Runtime's CPU provider, beside ModelOpt's AutoCast.

    python -m benchmarks.precision [EXAMPLE...] [--autocast PYTHON]

Prints a markdown table over the examples (all of them where none is named) and writes every
measurement to ``benchmarks/out/precision.json``. PYTHON is the interpreter of an environment with
``nvidia-modelopt[onnx]``, which is large and wants other versions of ONNX; without it AutoCast is
left out. What either writes is judged in the same way: its low-precision nodes are emulated by fp32
ones with every value rounded between them, and the outputs compared with the fp32 model's at the
tolerance that ``--fp16`` has by default.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import ModelProto, TensorProto

from benchmarks.figures import machine
from benchmarks.reduce import OUT, markdown
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.roundings import emulate
from bisect_trt.tensors.tolerance import Precision, automatic_tolerance

EXAMPLES = Path(__file__).parents[1] / "examples"
NAMES = ("vit_overflow", "masked_attention", "instance_norm")
Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Measured:
    """The result of a tool on an example.

    Attributes:
        example: The name of the example.
        tool: The name of the tool.
        nodes: Nodes of the model that compute in floats.
        kept: How many of them are in fp32 in the mixed model.
        probes: How many candidates were run; AutoCast runs none.
        wall_s: From the start of the command to its end.
        error: The largest error over the tolerance of its element; passes up to 1, NaN where the
            outputs have new ones.
        minimality: What the search says of its answer.
    """

    example: str
    tool: str
    nodes: int
    kept: int
    probes: int
    wall_s: float
    error: float
    minimality: str

    def row(self) -> dict[str, str]:
        """For the table."""
        return {
            "example": self.example,
            "tool": self.tool,
            "nodes in fp32": f"{self.kept} of {self.nodes}",
            "passes": "yes" if self.error <= 1 else "NO",
            "error / tolerance": f"{self.error:.2f}",
            "probes": str(self.probes),
            "wall, s": f"{self.wall_s:.1f}",
        }


def float_nodes(model: ModelProto) -> dict[str, set[int]]:
    """By name, each node that computes with floats: the float types it makes, or else those it reads."""
    types = Network(model).element_types
    floats = (TensorProto.FLOAT, TensorProto.FLOAT16)
    found = {
        node.name: {types[name] for name in node.output if types.get(name) in floats}
        or {types[name] for name in node.input if types.get(name) in floats}
        for node in model.graph.node
        if node.op_type not in ("Cast", "Constant", "ConstantOfShape", "Shape")
    }
    return {name: kinds for name, kinds in found.items() if kinds}


def run(model: ModelProto, feeds: Arrays) -> Arrays:
    """On ONNX Runtime's CPU provider, optimisations off."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, ["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def error_of(mixed: Path, feeds: Arrays, golden: Arrays) -> float:
    """The largest error of an element over what it may be off by."""
    typed = onnx.shape_inference.infer_shapes(
        onnx.load(str(mixed))
    )  # emulation goes by declared types
    worst = 0.0
    for name, value in run(emulate(typed), feeds).items():
        tolerance = automatic_tolerance(golden[name], Precision.FP16)
        allowed = tolerance.atol + tolerance.rtol * np.abs(golden[name])
        worst = max(worst, float(np.max(np.abs(value - golden[name]) / allowed)))
    return worst


def measure(name: str, folder: Path, autocast: str | None) -> list[Measured]:
    """Both tools on one example."""
    subprocess.run(
        [sys.executable, EXAMPLES / name / "make_model.py", "-o", folder],
        check=True,
        capture_output=True,
    )
    program = [sys.executable, "-m", "bisect_trt"]
    inputs = folder / "inputs.npz"
    given = ["--load-inputs", str(inputs)] if inputs.exists() else ["--save-inputs", str(inputs)]
    subprocess.run(
        [*program, "run", "model.onnx", "--onnxrt", *given],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    with np.load(inputs) as file:
        feeds = dict(file)
    source = onnx.load(str(folder / "model.onnx"))
    golden = run(source, feeds)
    computing = float_nodes(source)

    commands = {
        "bisect-trt": [
            *program,
            "precision",
            "model.onnx",
            "--onnxrt",
            "--fp16",
            "--load-inputs",
            "inputs.npz",
        ]
    }
    commands["bisect-trt"] += ["-o", "bisect-trt.onnx", "--json", "result.json"]
    if autocast is not None:
        script = str(Path(__file__).with_name("autocast.py"))
        commands["AutoCast"] = [autocast, script, "model.onnx", "inputs.npz", "AutoCast.onnx"]
    rows = []
    for tool, command in commands.items():
        began = time.perf_counter()
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        wall = time.perf_counter() - began
        mixed = folder / f"{tool}.onnx"
        typed = float_nodes(onnx.load(str(mixed)))
        kept = sum(TensorProto.FLOAT in typed[node] for node in computing)
        said = json.loads((folder / "result.json").read_text()) if tool == "bisect-trt" else {}
        probes = said["probes"]["run"] if said else 0
        error = error_of(mixed, feeds, golden)
        rows.append(
            Measured(
                name, tool, len(computing), kept, probes, wall, error, said.get("minimality", "")
            )
        )
    return rows


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.precision", description=__doc__)
    parser.add_argument(
        "examples", nargs="*", metavar="EXAMPLE", help=f"any of: {', '.join(NAMES)} (default: all)"
    )
    parser.add_argument(
        "--autocast", metavar="PYTHON", help="interpreter that has nvidia-modelopt[onnx]"
    )
    options = parser.parse_args()
    unknown = [name for name in options.examples if name not in NAMES]
    if unknown:
        parser.error(f"no example is called {unknown[0]!r}; there are: {', '.join(NAMES)}")
    before = machine()
    rows: list[Measured] = []
    for name in options.examples or NAMES:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            rows += measure(name, Path(folder), options.autocast)
    OUT.mkdir(exist_ok=True)
    (OUT / "precision.json").write_text(
        json.dumps({"machine": before, "rows": [asdict(r) for r in rows]}, indent=1) + "\n"
    )
    print(markdown([row.row() for row in rows]))


if __name__ == "__main__":
    main()
