"""The order in which a search walks a graph."""

from __future__ import annotations

from collections.abc import Sequence


def depth_first_order(parents: Sequence[Sequence[int]]) -> list[int]:
    """Order nodes so that each comes after its parents and a branch stays in one piece.

    Post-order of a depth-first walk against the edges: before a node, all of one parent's chain, then all of the next
    one's. Contiguous windows of the result are therefore mostly connected regions, which the order of many exporters
    (breadth first) is not; cutting a window out then opens few edges.

    Args:
        parents: For each node the nodes that it depends on.

    Returns:
        Node numbers. Nodes on a cycle, and those that depend on one, are missing.
    """
    done: list[int] = []
    state = [0] * len(parents)  # 0 not seen, 1 on the stack, 2 in the order, 3 stands on a cycle
    for start in _sinks(parents):
        stack = [(start, iter(parents[start]))] if state[start] == 0 else []
        state[start] = state[start] or 1
        while stack:
            node, rest = stack[-1]
            parent = next((p for p in rest if state[p] != 2), None)
            if parent is None:
                stack.pop()
                state[node] = 2
                done.append(node)
            elif state[parent] == 0:
                state[parent] = 1
                stack.append((parent, iter(parents[parent])))
            else:  # on the stack already: a cycle
                for member, _ in stack:
                    state[member] = 3
                stack.clear()
    return done


def _sinks(parents: Sequence[Sequence[int]]) -> list[int]:
    """Nodes nobody depends on first, in their order, then all others (which only a cycle leaves unvisited)."""
    used = {parent for node in parents for parent in node}
    return [node for node in range(len(parents)) if node not in used] + list(range(len(parents)))
