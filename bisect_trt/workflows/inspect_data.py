"""What a file of saved inputs or outputs holds."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bisect_trt.reporting.tree import Branch
from bisect_trt.tensors.info import is_extension, is_string
from bisect_trt.tensors.saved import load_runs
from bisect_trt.tensors.stats import count_nonfinite

_BAR_LENGTH = 40


def describe_data(path: Path, *, values: int | None = None, histogram: bool = False) -> dict[str, Any]:
    """Tensors as plain values: type, shape and statistics of what is finite.

    Args:
        path: What :func:`bisect_trt.tensors.saved.load_runs` reads.
        values: How many values to give of each end of an axis, -1 for all; none where it is ``None``.
        histogram: Whether to say how the finite values are distributed.

    Raises:
        UsageError: It cannot be read.
    """
    return {
        "runs": [
            {
                "name": run.name,
                "samples": [
                    {name: _tensor(np.asarray(sample[name]), values, histogram=histogram) for name in sample}
                    for sample in run.samples
                ],
            }
            for run in load_runs(path)
        ]
    }


def _tensor(tensor: NDArray[Any], values: int | None, *, histogram: bool) -> dict[str, Any]:
    """One tensor; statistics are ``None`` where it has no finite element, and missing for strings."""
    text = is_string(tensor.dtype)
    plain: dict[str, Any] = {"dtype": "string" if text else tensor.dtype.name, "shape": list(tensor.shape)}
    if not text:
        plain |= _statistics(tensor)
        if histogram:
            plain["histogram"] = _histogram(_finite(tensor))
    if values is not None:
        limit = sys.maxsize if values < 0 else 2 * values
        shown = np.array2string(tensor, threshold=limit, edgeitems=max(values, 1), separator=", ")
        plain["values"] = " ".join(shown.split())
    return plain


def _finite(tensor: NDArray[Any]) -> NDArray[Any]:
    """The finite elements in float64, of complex ones the magnitude."""
    real = tensor.astype(np.float32) if is_extension(tensor.dtype) else tensor
    numbers = np.abs(real) if real.dtype.kind == "c" else real.astype(np.float64)
    return np.asarray(numbers[np.isfinite(numbers)])


def _histogram(finite: NDArray[Any]) -> dict[str, Any] | None:
    """How many values lie between each two edges; ``None`` without values, or if they are too far apart to count."""
    with np.errstate(over="ignore"):
        if not finite.size or not np.isfinite(finite.max() - finite.min()):
            return None
    counts, edges = np.histogram(finite)
    return {"counts": counts.tolist(), "edges": edges.tolist()}


def _statistics(tensor: NDArray[Any]) -> dict[str, Any]:
    nan, inf = count_nonfinite(tensor)
    finite = _finite(tensor)
    found: dict[str, Any] = {"nan": nan, "inf": inf, "zeros": int(np.count_nonzero(finite == 0))}
    names = ("min", "max", "mean", "median", "std", "rms")
    if not finite.size:
        return {**found, **dict.fromkeys(names)}
    with np.errstate(over="ignore", invalid="ignore"):  # the square of what is next to the largest float64
        numbers = np.array([finite.min(), finite.max(), finite.mean(), np.median(finite), finite.std()])
        rms = math.sqrt(float(np.mean(np.square(finite))))
    known = (*map(float, numbers), rms)
    return {**found, **{n: v if math.isfinite(v) else None for n, v in zip(names, known, strict=True)}}


def data_tree(title: str, plain: Mapping[str, Any]) -> Branch:
    """The same for the terminal."""
    tree = Branch(title)
    for run in plain["runs"]:
        place = tree
        if len(plain["runs"]) > 1:
            place = Branch(run["name"])
            tree.branches.append(place)
        several = len(run["samples"]) > 1
        for number, sample in enumerate(run["samples"], 1):
            branches = [_tensor_branch(name, tensor) for name, tensor in sample.items()]
            place.branches += [Branch(f"sample {number}", branches)] if several else branches
    return tree


def _tensor_branch(name: str, tensor: Mapping[str, Any]) -> Branch:
    branch = Branch(f"{name}: {tensor['dtype']} {tensor['shape']}")
    if tensor.get("max") is not None:
        words = ("min", "max", "mean", "median", "std", "rms")
        branch.branches.append(Branch(", ".join(f"{w} {tensor[w]:.6g}" for w in words if tensor[w] is not None)))
    counts = ((tensor.get(word, 0), word) for word in ("nan", "inf", "zeros"))
    if said := ", ".join(
        f"{count} {word.replace('nan', 'NaN').replace('inf', 'Inf')}" for count, word in counts if count
    ):
        branch.branches.append(Branch(said))
    if tensor.get("histogram") is not None:
        branch.branches.append(Branch.of("how many lie where", _histogram_lines(tensor["histogram"])))
    if "values" in tensor:
        branch.branches.append(Branch(tensor["values"]))
    return branch


def _histogram_lines(plain: Mapping[str, Any]) -> Iterator[str]:
    counts, edges = plain["counts"], [f"{edge:.3g}" for edge in plain["edges"]]
    width = max(map(len, edges))
    for count, low, high in zip(counts, edges, edges[1:], strict=False):
        bar = "#" * math.ceil(_BAR_LENGTH * count / max(counts))
        yield f"{low:>{width}} to {high:>{width}} {count:>{len(str(max(counts)))}} {bar}".rstrip()
