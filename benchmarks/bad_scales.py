"""Planted bad scales in models that ONNX Runtime quantized: are they found exactly, and in how many probes?

``python -m benchmarks.bad_scales [--seeds N]``. Each seed is a ResNet or a BERT of random weights with one to five bad scales or
zero points. Beside it: ONNX Runtime's own ``qdq_loss_debug``, taken at its word (the tensors with the least signal to noise, as
many as were planted), and the sensitivity that people measure by hand (each group alone in floats; keep adding the one that
helps most until the model passes).
"""

from __future__ import annotations

import argparse
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

import bisect_trt
from benchmarks.bits import bert, quantize, resnet, spoil


@dataclass(frozen=True)
class Row:
    """What came of one seed."""

    name: str
    groups: int
    planted: int
    exact: bool
    minimal: int
    kept: int
    probes: int
    bound: float
    passed: str
    seconds: float


def measure(seed: int, folder: Path) -> Row:
    """Quantize, spoil, search."""
    source = resnet(seed) if seed % 2 else bert(seed, 2)
    path = folder / f"{source.name}.onnx"
    quantize(source, path, per_channel=seed % 3 != 0, signed=seed % 4 == 1)
    model = onnx.load(path)
    rng = np.random.default_rng([seed, 3])
    done = spoil(model, 1 + seed % 5, rng)
    onnx.save(model, path)
    samples = [source.draw(rng) for _ in range(4)]
    result = bisect_trt.precision(
        path, low="int8", target="onnxrt", inputs=samples, output=folder / f"{source.name}-mixed.onnx", overwrite=True,
        run=folder / f"run-{seed}", sensitivity=False,
    )  # fmt: skip
    extra = result.extra
    groups = extra["groups"]
    planted = {group["id"] for group in groups if done.keys() & set(group["scales"])}
    kept = {entry["group"] for entry in extra["keep_fp32"]}
    held = extra.get("validation") or {}
    count = len(extra["minimal"])
    bound = math.log2(math.comb(len(groups), count)) + count if groups else 0.0
    return Row(
        f"{source.name}: {', '.join(done.values())}", len(groups), len(planted), kept == planted, count, len(kept),
        extra.get("probes_minimal", 0), bound, f"{held.get('passed')} of {held.get('samples')}", result.wall_s,
    )  # fmt: skip


def main() -> None:
    """Print a row for each seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=27)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(arguments.first, arguments.first + arguments.seeds):
            row = measure(seed, Path(folder))
            rows.append(row)
            print(row, flush=True)
    exact = sum(row.exact for row in rows)
    ratio = sum(row.probes for row in rows) / max(sum(row.bound for row in rows), 1e-9)
    print(f"{exact} of {len(rows)} exact; probes {ratio:.2f} times the bound and the proof")


if __name__ == "__main__":
    main()
