"""What the target under test gets wrong, written into the names of nodes; the reference computes all of them right.

A name's part before its first ``.`` is the fault:

=============  =====================================================================================
``wrong``      its last output is a tenth too large
``nan``        its last output is NaN
``pair``       the same as ``wrong``, where two nodes of this kind are in the model
``crash``      the process ends with SIGSEGV
``hang``       no answer comes in time
``refuse``     the model is not built
``luck3``      ``wrong`` in 3 of 10 runs, by a seeded generator
``rows4``      ``wrong`` from 4 rows of what it reads on
``large``      ``wrong`` where a value that it reads is past 5
=============  =====================================================================================
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.inliner import inline_local_functions

from bisect_trt.onnxlib.nodes import all_nodes, bodies

_luck = random.Random(0)
_FAULTS = ("wrong", "nan", "pair", "crash", "hang", "refuse", "luck", "rows", "large")
_SPOILED = "spoiled-"


def begin(seed: int) -> None:
    """Start the chances over."""
    _luck.seed(seed)


@dataclass(frozen=True)
class Met:
    """What happens to a model: a ``kind`` that ends it, or another ``model`` that is run instead."""

    kind: str = ""
    message: str = ""
    model: Path | None = None


def is_reference(target: Any) -> bool:
    """Whether these are the settings of the reference: ONNX Runtime, optimisations off."""
    own = getattr(target, "own", None)
    return (
        target.runtime == "onnxrt"
        and getattr(own, "graph_optimization_level", None) == "ORT_DISABLE_ALL"
    )


def has_fault(path: Path) -> bool:
    """Whether a model has a node that the target gets wrong."""
    names = [
        node.name.split(".")[0]
        for node in all_nodes(onnx.load(str(path), load_external_data=False))
    ]
    return any(name.rstrip("0123456789") in _FAULTS for name in names)


def meet(path: Path) -> Met:
    """What the target makes of a model."""
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception:  # what cannot be read is the runtime's to refuse
        return Met()
    if model.functions:
        model = inline_local_functions(model)
    names = [node.name.split(".")[0] for node in all_nodes(model)]
    for kind in ("crash", "hang", "refuse"):
        if kind in names:
            return Met(kind, "no kernel for this node")
    bad = {
        node.name: kind
        for node, kind in zip(all_nodes(model), names, strict=True)
        if _strikes(kind, names)
    }
    if not bad:
        return Met()
    for graph in (model.graph, *(body for node in list(all_nodes(model)) for body in bodies(node))):
        _spoil_graph(graph, bad)
    spoiled = path.with_name(f"{_SPOILED}{path.name}")
    spoiled.write_bytes(model.SerializeToString())
    return Met(model=spoiled)


def _spoil_graph(graph: onnx.GraphProto, bad: dict[str, str]) -> None:
    """Change the outputs of the bad nodes of one graph."""
    for place in range(len(graph.node) - 1, -1, -1):
        if graph.node[place].name in bad:
            later = list(graph.node[place + 1 :])
            del graph.node[place + 1 :]
            _spoil(graph, graph.node[place], bad[graph.node[place].name])
            graph.node.extend(later)


def _spoil(graph: onnx.GraphProto, node: onnx.NodeProto, kind: str) -> None:
    """Change the last output of a node, always or by what the node reads."""
    last = len(node.output) - 1
    out = node.output[last]
    node.output[last] = f"{out}.right"

    def weight(name: str, value: object, dtype: type) -> str:
        graph.initializer.append(
            onnx.numpy_helper.from_array(np.array(value, dtype), f"{out}.{name}")
        )
        return f"{out}.{name}"

    def add(op: str, *reads: str, **attributes: Any) -> str:
        made = f"{out}.{op}{len(graph.node)}"
        graph.node.append(onnx.helper.make_node(op, list(reads), [made], **attributes))
        return made

    factor = weight("factor", np.nan if kind == "nan" else 1.1, np.float32)
    if kind.startswith("rows"):
        rows = add("Shape", node.input[0])
        first = add("Gather", rows, weight("first", 0, np.int64))
        struck = add("Greater", first, weight("most", int(kind[4:]) - 1, np.int64))
        factor = add("Where", struck, factor, weight("one", 1, np.float32))
    if kind == "large":
        largest = add("ReduceMax", add("Abs", node.input[0]), keepdims=0)
        struck = add("Greater", largest, weight("most", 5, np.float32))
        factor = add("Where", struck, factor, weight("one", 1, np.float32))
    graph.node.append(onnx.helper.make_node("Mul", [node.output[last], factor], [out]))


def _strikes(kind: str, names: list[str]) -> bool:
    if kind == "pair":
        return names.count("pair") > 1
    if kind.startswith("luck"):
        return _luck.random() < int(kind[4:]) / 10
    return kind in ("wrong", "nan", "large") or (kind.startswith("rows") and kind[4:].isdigit())
