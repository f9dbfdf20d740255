"""A tool from ONNX to ONNX that plants a fault: ``python spoil.py FAULT NODE NUMBER model.onnx out.onnx``.

The target is the model that it writes. A candidate without the node is left as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper


class Patch:
    """Nodes around one node of a model."""

    def __init__(self, model: onnx.ModelProto, node: onnx.NodeProto) -> None:
        self.graph = model.graph
        self.node = node
        self.before: list[onnx.NodeProto] = []
        self.after: list[onnx.NodeProto] = []
        self._target = self.before

    def const(self, value: object, kind: type = np.float32) -> str:
        name = f"spoilt{len(self.graph.initializer)}"
        self.graph.initializer.append(numpy_helper.from_array(np.array(value, kind), name))
        return name

    def op(self, kind: str, *reads: str, **attributes: Any) -> str:
        name = f"spoilt_{len(self.before)}_{len(self.after)}"
        self._target.append(helper.make_node(kind, [*reads], [name], name, **attributes))
        return name

    def output(self) -> Any:
        """Go on behind the node: return its own output, which :meth:`end` replaces."""
        self._target = self.after
        self.end_name = self.node.output[0]
        self.node.output[0] = f"{self.end_name}_right"
        return self.node.output[0]

    def end(self, value: str) -> None:
        self.after.append(helper.make_node("Identity", [value], [self.end_name], "spoilt_end"))


def short(patch: Patch, number: float) -> None:
    """A table of positions has so many rows; later positions take the last."""
    patch.node.input[1] = patch.op("Min", patch.node.input[1], patch.const(number - 1, np.int64))


def mask(patch: Patch, number: float) -> None:
    """From so many places on, the first is masked."""
    value = patch.output()
    length = patch.op("Gather", patch.op("Shape", value), patch.const(-1, np.int64))
    row = patch.op("Range", patch.const(0, np.int64), length, patch.const(1, np.int64))
    first = patch.op("Cast", patch.op("Equal", row, patch.const(0, np.int64)), to=1)
    late = patch.op("GreaterOrEqual", length, patch.const(number, np.int64))
    hidden = patch.op(
        "Mul", patch.op("Mul", first, patch.op("Cast", late, to=1)), patch.const(-1e4)
    )
    patch.end(patch.op("Add", value, hidden))


def blind(patch: Patch, number: float) -> None:
    """From so many positions on, a mask of what is later covers the first place too."""
    row, position = patch.node.input
    value = patch.output()
    late = patch.op("GreaterOrEqual", position, patch.const(number, np.int64))
    first = patch.op("Equal", row, patch.const(0, np.int64))
    patch.end(patch.op("Or", value, patch.op("And", first, late)))


def swapped(patch: Patch, _: float) -> None:
    """A cache is joined in the wrong order."""
    first, second = patch.node.input
    patch.node.input[0] = second
    patch.node.input[1] = first


def shifted(patch: Patch, _: float) -> None:
    """A cache of a fixed length is written one place later."""
    here = patch.node.input[0]
    minus, low, high, axis = (patch.const([each], np.int64) for each in (-1, 0, 1 << 40, 2))
    last = patch.op("Slice", here, minus, high, axis)
    patch.node.input[0] = patch.op(
        "Concat", last, patch.op("Slice", here, low, minus, axis), axis=2
    )


def overflow(patch: Patch, number: float) -> None:
    """What is past a limit becomes Inf."""
    value = patch.output()
    past = patch.op("Greater", patch.op("Abs", value), patch.const(number))
    patch.end(patch.op("Where", past, patch.const(np.inf), value))


def scale(patch: Patch, number: float) -> None:
    """A cache is kept in eight bits, whose scale is read larger than it was written."""
    value = patch.output()
    step = patch.const(number)
    kept = patch.op("Round", patch.op("Div", value, step))
    patch.end(patch.op("Mul", kept, patch.op("Mul", step, patch.const(1.2))))


def reset(patch: Patch, number: float) -> None:
    """At each multiple of a number of steps the state is lost; whatever the rounding of the steps' number."""
    count = patch.node.input[0]
    value = patch.output()
    rest = patch.op("Mod", patch.op("Sub", count, patch.const(0.75)), patch.const(number), fmod=1)
    first = patch.op("Cast", patch.op("Less", rest, patch.const(0.5)), to=1)
    began = patch.op("Cast", patch.op("Greater", count, patch.const(1.5)), to=1)
    lost = patch.op("Mul", first, began)
    patch.end(patch.op("Mul", value, patch.op("Sub", patch.const(1.0), lost)))


def wrap(patch: Patch, number: float) -> None:
    """A ring has so many places."""
    patch.node.input[1] = patch.const([int(number)], np.int64)


def held(patch: Patch, number: float) -> None:
    """A count goes no further."""
    value = patch.output()
    patch.end(patch.op("Min", value, patch.const(number, np.int64)))


def early(patch: Patch, number: float) -> None:
    """A cache is cut so many places too early."""
    for place in (1, 2):
        name = patch.node.input[place]
        (given,) = (each for each in patch.graph.initializer if each.name == name)
        value = numpy_helper.to_array(given)
        patch.node.input[place] = patch.const(value - int(number), np.int64)


def strict(patch: Patch, _: float) -> None:
    """A boundary counts as outside."""
    patch.node.op_type = "Greater"


def before_reset(patch: Patch, _: float) -> None:
    """The reset gate of a GRU is applied before the product."""
    for attribute in patch.node.attribute:
        if attribute.name == "linear_before_reset":
            attribute.i = 0


def gain(patch: Patch, number: float) -> None:
    """A value is so many times as large."""
    patch.end(patch.op("Mul", patch.output(), patch.const(number)))


def rescale(patch: Patch, number: float) -> None:
    """A scale is read wrong."""
    patch.node.input[1] = patch.const(number)


FAULTS: dict[str, Callable[[Patch, float], None]] = {
    each.__name__: each
    for each in (
        *(short, mask, blind, swapped, shifted, overflow, scale, reset),
        *(wrap, held, early, strict, before_reset, gain, rescale),
    )
}


def spoil(model: onnx.ModelProto, fault: str, name: str, number: float) -> None:
    """Plant a fault in a node of a model, where it has it."""
    nodes = list(model.graph.node)
    for place, node in enumerate(nodes):
        if node.name == name:
            patch = Patch(model, node)
            FAULTS[fault](patch, number)
            nodes[place : place + 1] = [*patch.before, node, *patch.after]
            del model.graph.node[:]
            model.graph.node.extend(nodes)
            return


if __name__ == "__main__":
    fault, name, number, path, out = sys.argv[1:]
    model = onnx.load(path)
    spoil(model, fault, name, float(number))
    onnx.save(model, out)
