"""What a TensorRT engine is made of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bisect_trt.errors import UnavailableError
from bisect_trt.probing.models import ask
from bisect_trt.probing.protocol import Describe, Failed
from bisect_trt.probing.workers.pool import WorkerPool
from bisect_trt.reporting.tree import Branch
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.targets.trt.settings import TrtSettings


def describe_engine(path: Path, folder: Path) -> dict[str, Any]:
    """An engine as plain values, read by TensorRT in a process of its own.

    Args:
        path: The engine.
        folder: Where TensorRT's log goes.

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
