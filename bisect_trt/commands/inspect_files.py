"""``inspect``: what saved values, TensorRT engines and models as TensorRT parses them hold, and which of these a file is."""

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

from bisect_trt.commands.from_torch import SUFFIX
from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.probe.models import ask
from bisect_trt.report.tree import Branch
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.targets.trt.settings import TrtSettings
from bisect_trt.tensors.info import is_extension, is_string
from bisect_trt.tensors.saved import load_runs
from bisect_trt.tensors.stats import count_nonfinite
from bisect_trt.worker.pool import WorkerPool
from bisect_trt.worker.protocol import Describe, Failed


class FileKind(str, Enum):
    """What a file is."""

    MODEL = "model"
    ENGINE = "engine"
    DATA = "data"
    TACTICS = "tactics"


_BEGINNINGS = {b"ftrt": FileKind.ENGINE, b"PK\x03\x04": FileKind.DATA}
"""The first bytes of TensorRT's plans and of zip files, which ``.npz`` files are."""
_SUFFIXES = {
    FileKind.MODEL: (".onnx", ".pb", ".onnxtxt", ".onnxjson", ".textproto", ".prototxt", ".pbtxt"),
    FileKind.ENGINE: (".engine", ".plan", ".trt"),
    FileKind.DATA: (".npz", ".json"),
}
_IR_VERSION = b"\x08"
"""How the first field of an ONNX model begins in protobuf."""
_STATISTICS = ("min", "max", "mean", "median", "std", "rms")
_BAR_LENGTH = 40


def guess_kind(path: Path) -> FileKind:
    """What a file is, by its first bytes where they are unique, else by its name; folders hold saved values.

    Raises:
        UnavailableError: There is no such file.
        UsageError: Neither tells.
    """
    if path.is_dir():
        return FileKind.DATA
    if path.suffix == SUFFIX:  # a zip, as .npz is
        return FileKind.MODEL
    try:
        with path.open("rb") as file:
            beginning = file.read(4)
    except OSError:  # reported when the file is read
        beginning = b""
    named = next((kind for kind, suffixes in _SUFFIXES.items() if path.suffix.lower() in suffixes), None)
    known = _BEGINNINGS.get(beginning, named) or (FileKind.MODEL if beginning.startswith(_IR_VERSION) else None)
    if known is not None:
        return known
    if not path.exists():
        raise UnavailableError(f"{path}: no such file; give the path of a model, an engine or saved values.")
    raise UsageError(
        f"{path} does not show whether it is a model, an engine or saved values; say which: "
        f"`bisect-trt inspect model {shlex.quote(str(path))}`, `inspect engine` or `inspect data`."
    )


def describe_data(path: Path, *, values: int | None = None, histogram: bool = False) -> dict[str, Any]:
    """Saved tensors as JSON: type, shape and statistics of the finite elements.

    Args:
        path: A file that :func:`bisect_trt.tensors.saved.load_runs` reads.
        values: How many values to give of each end of an axis, -1 for all; none where it is ``None``.
        histogram: Whether to add a histogram of the finite values.

    Raises:
        UsageError: It cannot be read.
    """

    def samples(run: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - a saved run
        return [{name: _tensor(np.asarray(s[name]), values, histogram=histogram) for name in s} for s in run.samples]

    return {"runs": [{"name": run.name, "samples": samples(run)} for run in load_runs(path)]}


def _tensor(tensor: NDArray[Any], values: int | None, *, histogram: bool) -> dict[str, Any]:
    """One tensor; statistics are ``None`` where it has no finite element, and missing for strings."""
    text = is_string(tensor.dtype)
    plain: dict[str, Any] = {"dtype": "string" if text else tensor.dtype.name, "shape": list(tensor.shape)}
    if not text:
        real = tensor.astype(np.float32) if is_extension(tensor.dtype) else tensor
        numbers = np.abs(real) if real.dtype.kind == "c" else real.astype(np.float64)
        finite = np.asarray(numbers[np.isfinite(numbers)])
        plain |= _statistics(tensor, finite)
        if histogram:
            plain["histogram"] = _histogram(finite)
    if values is not None:
        limit = sys.maxsize if values < 0 else 2 * values
        shown = np.array2string(tensor, threshold=limit, edgeitems=max(values, 1), separator=", ")
        plain["values"] = " ".join(shown.split())
    return plain


def _histogram(finite: NDArray[Any]) -> dict[str, Any] | None:
    """The counts between each two edges; ``None`` without values, or if they are too far apart to count."""
    with np.errstate(over="ignore"):
        if not finite.size or not np.isfinite(finite.max() - finite.min()):
            return None
    counts, edges = np.histogram(finite)
    return {"counts": counts.tolist(), "edges": edges.tolist()}


def _statistics(tensor: NDArray[Any], finite: NDArray[Any]) -> dict[str, Any]:
    nan, inf = count_nonfinite(tensor)
    found: dict[str, Any] = {"nan": nan, "inf": inf, "zeros": int(np.count_nonzero(finite == 0))}
    if not finite.size:
        return {**found, **dict.fromkeys(_STATISTICS)}
    with np.errstate(over="ignore", invalid="ignore"):  # the square of numbers next to the largest float64
        numbers = np.array([finite.min(), finite.max(), finite.mean(), np.median(finite), finite.std()])
        known = [*map(float, numbers), math.sqrt(float(np.mean(np.square(finite))))]
    return {**found, **{n: v if math.isfinite(v) else None for n, v in zip(_STATISTICS, known, strict=True)}}


def data_tree(title: str, plain: Mapping[str, Any]) -> Branch:
    """The result of :func:`describe_data` for the terminal."""
    tree = Branch(title)
    for run in plain["runs"]:
        place = tree
        if len(plain["runs"]) > 1:
            place = Branch(run["name"])
            tree.branches.append(place)
        for number, sample in enumerate(run["samples"], 1):
            branches = [_tensor_branch(name, tensor) for name, tensor in sample.items()]
            place.branches += [Branch(f"sample {number}", branches)] if len(run["samples"]) > 1 else branches
    return tree


def _tensor_branch(name: str, tensor: Mapping[str, Any]) -> Branch:
    lines = []
    if tensor.get("max") is not None:
        lines.append(", ".join(f"{word} {tensor[word]:.6g}" for word in _STATISTICS if tensor[word] is not None))
    counts = {"NaN": tensor.get("nan"), "Inf": tensor.get("inf"), "zeros": tensor.get("zeros")}
    if said := ", ".join(f"{count} {word}" for word, count in counts.items() if count):
        lines.append(said)
    branch = Branch.of(f"{name}: {tensor['dtype']} {tensor['shape']}", lines)
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
    """An engine as JSON, read by TensorRT in a worker process.

    Raises:
        UnavailableError: There is no TensorRT or no GPU, or the engine is not for this one.
    """
    target = TargetSettings("trt", own=TrtSettings(load_engine=str(path.absolute())))
    fix = "build it again with `bisect-trt convert`"
    return _described(
        path, folder, Describe(target), "a TensorRT engine", f"TensorRT cannot read the engine {path}", fix
    )


def describe_parsed(path: Path, folder: Path) -> dict[str, Any]:
    """A model as TensorRT's parser reads it, as JSON; in a worker process.

    Raises:
        UnavailableError: There is no such file, no TensorRT or no GPU, or the parser refuses the model.
    """
    request = Describe(TargetSettings("trt"), path.absolute())
    return _described(path, folder, request, "an ONNX model", f"TensorRT does not parse {path}")


def _described(path: Path, folder: Path, request: Describe, what: str, refused: str, fix: str = "") -> dict[str, Any]:
    if not path.is_file():
        raise UnavailableError(f"{path}: no such file; give the path of {what}.")
    with WorkerPool(folder) as workers:
        reply = ask(workers, request)
    if isinstance(reply, Failed):
        raise UnavailableError(f"{refused}: {reply.message}{f'; {fix}' if fix else ''}.")
    return reply.engine


def parsed_tree(title: str, plain: Mapping[str, Any]) -> Branch:
    """The result of :func:`describe_parsed` for the terminal."""

    def line(tensor: Mapping[str, Any]) -> str:
        return (
            f"{tensor['name']}: {tensor['dtype']} {'shape not known' if tensor['shape'] is None else tensor['shape']}"
        )

    def layer(each: Mapping[str, Any]) -> Branch:
        lines = [*(f"reads {line(one)}" for one in each["inputs"]), *(f"makes {line(one)}" for one in each["outputs"])]
        return Branch.of(f"{each['kind']} {each['name']}", lines)

    ends = [Branch.of(f"{len(plain[mode])} {mode[:-1]}(s)", map(line, plain[mode])) for mode in ("inputs", "outputs")]
    layers = Branch(f"{len(plain['layers'])} layer(s)", list(map(layer, plain["layers"])))
    return Branch(f"{title} (as TensorRT {plain['version']} parses it)", [*ends, layers])


def engine_tree(title: str, plain: Mapping[str, Any]) -> Branch:
    """The result of :func:`describe_engine` for the terminal."""
    tree = Branch(f"{title} (TensorRT {plain['version']})")
    for mode in ("inputs", "outputs"):
        ranges = ["".join(f", from {low} to {high}" for low, _, high in e.get("profiles", ())) for e in plain[mode]]
        named = zip(plain[mode], ranges, strict=True)
        lines = [f"{each['name']}: {each['dtype']} {each['shape']}{range_}" for each, range_ in named]
        tree.branches.append(Branch.of(f"{len(lines)} {mode[:-1]}(s)", lines))
    layers = [f"{layer['kind']} {layer['name']}: {', '.join(layer['precisions'])}" for layer in plain["layers"]]
    tree.branches.append(Branch.of(f"{len(layers)} layer(s)", layers))
    return tree
