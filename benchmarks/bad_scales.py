"""Planted bad scales in models that ONNX Runtime quantized: are they found exactly, and in how many probes?

``python -m benchmarks.bad_scales [--seeds N]``. Each seed is a ResNet or a BERT of random weights
with one to five bad scales or zero points. Beside it: ONNX Runtime's own ``qdq_loss_debug`` with
the float model in hand (the tensors with the least signal to noise of their own, as many as were
planted), and the sensitivity that people measure by hand (each group alone in floats, then keep
adding the one that helps most until all that is needed is among them).
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
import onnx

import bisect_trt
from benchmarks.bits import bert, quantize, resnet, spoil
from benchmarks.outliers import Arrays


@dataclass(frozen=True)
class Row:
    """The result of one seed."""

    model: str
    planted: str
    groups: int
    kept: int
    exact: bool
    needed: int
    probes: int
    bound: float
    fresh: str
    loss_debug: bool
    by_hand_kept: int
    by_hand_probes: int


def loss_debug(plain: Path, quantized: Path, samples: Sequence[Arrays], count: int) -> set[str]:
    """The tensors that ``qdq_loss_debug`` puts last: the ones with the least signal to noise in their own rounding."""
    from onnxruntime.quantization import CalibrationDataReader, qdq_loss_debug  # noqa: PLC0415 - it takes a second

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # of a package without types
        def __init__(self) -> None:
            self._samples = iter(samples)

        def get_next(self) -> Arrays | None:
            return next(self._samples, None)

    values = []
    for path in (plain, quantized):
        marked = path.with_name(f"{path.stem}-marked.onnx")
        qdq_loss_debug.modify_model_output_intermediate_tensors(str(path), str(marked))
        values.append(qdq_loss_debug.collect_activations(str(marked), Reader()))
    matched = qdq_loss_debug.create_activation_matching(values[1], values[0])
    errors = qdq_loss_debug.compute_activation_error(matched)
    ranked = sorted(errors, key=lambda name: float(errors[name]["qdq_err"]))
    return set(ranked[:count])


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
        run=folder / f"run-{seed}",
    )  # fmt: skip
    groups = result.groups
    planted = {group.id for group in groups if done.keys() & set(group.scales)}
    kept = {entry.group for entry in result.keep_fp32}
    held = result.validation
    needed = {entry.group for entry in result.minimal}
    helped = sorted(groups, key=lambda group: group.error_alone_removed or 0.0)
    by_hand = 1 + max(
        (place for place, group in enumerate(helped) if group.id in needed), default=-1
    )
    tensors = loss_debug(folder / f"{source.name}-float.onnx", path, samples, len(done))
    return Row(
        source.name, ", ".join(done.values()), len(groups), len(kept), kept == planted, len(needed),
        result.probes_minimal or 0, math.log2(math.comb(len(groups), len(needed))) + len(needed),
        "none" if held is None else f"{held.passed} of {held.samples}", {f"{name}_scale" for name in tensors} == done.keys(),
        by_hand, len(groups) + by_hand,
    )  # fmt: skip


def main() -> None:
    """Print a row for each seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=27)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    rows = []
    print("| " + " | ".join(entry.name for entry in fields(Row)) + " |")
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(arguments.first, arguments.first + arguments.seeds):
            rows.append(measure(seed, Path(folder)))
            cells = [
                f"{value:.1f}" if isinstance(value, float) else str(value)
                for value in astuple(rows[-1])
            ]
            print(f"| {' | '.join(cells)} |", flush=True)
    ratio = sum(row.probes for row in rows) / sum(row.bound for row in rows)
    worst = max(row.probes / row.bound for row in rows)
    print(f"{sum(row.exact for row in rows)} of {len(rows)} exact, {sum(row.loss_debug for row in rows)} by qdq_loss_debug; "
          f"probes {ratio:.2f} times the bound and the proof, {worst:.2f} at most; kept {sum(row.kept for row in rows)}, by hand "
          f"{sum(row.by_hand_kept for row in rows)} in {sum(row.by_hand_probes for row in rows)} probes for "
          f"{sum(row.probes for row in rows)}")  # fmt: skip


if __name__ == "__main__":
    main()
