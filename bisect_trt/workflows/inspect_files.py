"""What a file of saved inputs or outputs holds, what a TensorRT engine is made of, and which of these a file is."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.probing.models import ask
from bisect_trt.probing.protocol import Describe, Failed
from bisect_trt.probing.workers.pool import WorkerPool
from bisect_trt.reporting.tree import Branch
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.targets.trt.settings import TrtSettings
from bisect_trt.tensors.info import is_extension, is_string
from bisect_trt.tensors.saved import load_runs
from bisect_trt.tensors.stats import count_nonfinite
from bisect_trt.workflows.from_torch import SUFFIX


class Kind(str, Enum):
    """What a file is."""

    MODEL = "model"
    ENGINE = "engine"
    DATA = "data"
    TACTICS = "tactics"


_BEGINNINGS = {b"ftrt": Kind.ENGINE, b"PK\x03\x04": Kind.DATA}
"""The first bytes of TensorRT's plans and of zip files, which ``.npz`` files are."""
_SUFFIXES = {
    Kind.MODEL: (".onnx", ".pb", ".onnxtxt", ".onnxjson", ".textproto", ".prototxt", ".pbtxt"),
    Kind.ENGINE: (".engine", ".plan", ".trt"),
    Kind.DATA: (".npz", ".json"),
}
_IR_VERSION = b"\x08"
"""How the first field of an ONNX model begins in protobuf."""


def guess_kind(path: Path) -> Kind:
    """What a file is, by its first bytes where they say it for sure, else by its name.

    Args:
        path: The file; folders and numbered files hold saved values.

    Raises:
        UnavailableError: There is no such file.
        UsageError: Neither tells.
    """
    if path.is_dir():
        return Kind.DATA
    if path.suffix == SUFFIX:  # a zip, as .npz is
        return Kind.MODEL
    beginning = _beginning(path)
    named = next((kind for kind, suffixes in _SUFFIXES.items() if path.suffix.lower() in suffixes), None)
    known = _BEGINNINGS.get(beginning, named) or (Kind.MODEL if beginning.startswith(_IR_VERSION) else None)
    if known is not None:
        return known
    if not path.exists():
        raise UnavailableError(f"{path}: no such file; give the path of a model, an engine or saved values.")
    raise UsageError(
        f"{path} does not show whether it is a model, an engine or saved values; say which: "
        f"`bisect-trt inspect model {shlex.quote(str(path))}`, `inspect engine` or `inspect data`."
    )


def _beginning(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(4)
    except OSError:  # whoever reads it next says what is wrong with it
        return b""


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


def describe_engine(path: Path, folder: Path) -> dict[str, Any]:
    """An engine as plain values, read by TensorRT in a process of its own.

    Raises:
        UnavailableError: There is no TensorRT or no GPU, or the engine is not for this one.
    """
    if not path.is_file():
        raise UnavailableError(f"{path}: no such file; give the path of a TensorRT engine.")
    target = TargetSettings("trt", own=TrtSettings(load_engine=str(path.absolute())))
    with WorkerPool(folder) as workers:
        reply = ask(workers, Describe(target))
    if isinstance(reply, Failed):
        raise UnavailableError(
            f"TensorRT cannot read the engine {path}: {reply.message}; build it again with `bisect-trt convert`."
        )
    return reply.engine


def describe_parsed(path: Path, folder: Path) -> dict[str, Any]:
    """What TensorRT's parser makes of a model, as plain values; in a process of its own.

    Raises:
        UnavailableError: There is no such file, no TensorRT or no GPU, or the parser refuses the model.
    """
    if not path.is_file():
        raise UnavailableError(f"{path}: no such file; give the path of an ONNX model.")
    with WorkerPool(folder) as workers:
        reply = ask(workers, Describe(TargetSettings("trt"), path.absolute()))
    if isinstance(reply, Failed):
        raise UnavailableError(f"TensorRT does not parse {path}: {reply.message}.")
    return reply.engine


def parsed_tree(title: str, plain: Mapping[str, Any]) -> Branch:
    """The same for the terminal."""

    def line(tensor: Mapping[str, Any]) -> str:
        return (
            f"{tensor['name']}: {tensor['dtype']} {'shape not known' if tensor['shape'] is None else tensor['shape']}"
        )

    tree = Branch(f"{title} (as TensorRT {plain['version']} parses it)")
    for mode in ("inputs", "outputs"):
        tree.branches.append(Branch.of(f"{len(plain[mode])} {mode[:-1]}(s)", map(line, plain[mode])))
    layers = [
        Branch.of(
            f"{layer['kind']} {layer['name']}",
            [
                *(f"reads {line(each)}" for each in layer["inputs"]),
                *(f"makes {line(each)}" for each in layer["outputs"]),
            ],
        )
        for layer in plain["layers"]
    ]
    tree.branches.append(Branch(f"{len(layers)} layer(s)", layers))
    return tree


def engine_tree(title: str, plain: Mapping[str, Any]) -> Branch:
    """The same for the terminal."""
    tree = Branch(f"{title} (TensorRT {plain['version']})")
    for mode in ("inputs", "outputs"):
        lines = [f"{each['name']}: {each['dtype']} {each['shape']}{_range(each)}" for each in plain[mode]]
        tree.branches.append(Branch.of(f"{len(lines)} {mode[:-1]}(s)", lines))
    layers = [f"{layer['kind']} {layer['name']}: {', '.join(layer['precisions'])}" for layer in plain["layers"]]
    tree.branches.append(Branch.of(f"{len(layers)} layer(s)", layers))
    return tree


def _range(tensor: Mapping[str, Any]) -> str:
    return "".join(f", from {low} to {high}" for low, _, high in tensor.get("profiles", ()))
