"""Norms and softmaxes that an exporter has spelled out, found by what reads what.

``graph.patterns`` finds what belongs together whatever it is; this finds out what it is, for the report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from bisect_trt.graph.network import Network

Attribute = Callable[[int, str], Any]
Constant = Callable[[str], Any]


def decomposed_patterns(network: Network, attribute: Attribute, constant: Constant) -> dict[int, str]:
    """What each member of a decomposed pattern is a part of, by node number, in words."""
    reader = _Reader(network, attribute, constant)
    found: dict[int, str] = {}
    for index, node in enumerate(network.nodes):
        if node.op_type == "Sqrt":
            name, members = reader.norm(index)
        elif node.op_type == "Exp":
            name, members = reader.softmax(index)
        else:
            continue
        found |= {member: f"decomposed {name}" for member in members if name}
    return found


class _Reader:
    """Walks a graph against its edges."""

    def __init__(self, network: Network, attribute: Attribute, constant: Constant) -> None:
        self._network = network
        self._attribute = attribute
        self._constant = constant

    def norm(self, root: int) -> tuple[str, list[int]]:
        """The norm that a Sqrt takes the deviation of: sqrt(mean((x - mean x)^2) + epsilon)."""
        members = [root]
        maker = self._maker(root, "Add")
        if maker is not None:
            members.append(maker)
        total = self._maker(members[-1], "ReduceMean", "ReduceSum", "Div", "Mul")
        mean = total is not None and self._network.nodes[total].op_type != "ReduceSum"
        if total is not None and self._network.nodes[total].op_type in ("Div", "Mul"):
            members.append(total)
            total = self._maker(total, "ReduceSum")
        square = None if total is None else self._maker(total, "Pow", "Mul")
        if total is None or square is None:
            return "", []
        members += [total, square]
        centred = self._maker(square, "Sub")
        average = None if centred is None else self._maker(centred, "ReduceMean")
        name = "RMSNorm" if mean else "L2 norm"
        if centred is not None and average is not None:
            members += [centred, average]
            name = "InstanceNorm" if self._spatial(total) else "LayerNorm"
        return name, members + self._readers(root, "Div", "Reciprocal")

    def softmax(self, root: int) -> tuple[str, list[int]]:
        """The softmax that an Exp is in: exp(x - max x) over the sum of that."""
        totals = self._readers(root, "ReduceSum")
        shares = [index for total in totals for index in self._readers(total, "Div")]
        if not shares:
            return "", []
        shift = self._maker(root, "Sub")
        highest = None if shift is None else self._maker(shift, "ReduceMax")
        before = [index for index in (shift, highest) if index is not None and highest is not None]
        return "Softmax", [root, *totals, *shares, *before]

    def _maker(self, index: int, *operators: str) -> int | None:
        """The node of one of these operators that makes something that a node reads."""
        parents = self._network.parents(index)
        return next((parent for parent in parents if self._network.nodes[parent].op_type in operators), None)

    def _readers(self, index: int, *operators: str) -> list[int]:
        readers: Iterable[int] = self._network.consumers.get(self._network.nodes[index].output[0], ())
        return [reader for reader in readers if self._network.nodes[reader].op_type in operators]

    def _spatial(self, reduction: int) -> bool:
        """Whether a reduction is over the pixels of each channel, so over several axes, and not over one."""
        node = self._network.nodes[reduction]
        axes = self._attribute(reduction, "axes")
        if axes is None and len(node.input) > 1:
            axes = self._constant(node.input[1])
        return axes is not None and len(axes) > 1
