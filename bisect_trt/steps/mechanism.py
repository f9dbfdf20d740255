"""Finds the smallest part of the model that the switches fix which fix the whole model, where the minimal case still fails."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from msgspec import structs

from bisect_trt.onnxlib.network import Network
from bisect_trt.search.keep import shortest_prefix
from bisect_trt.search.oracle import Minimum, Subset, Verdict
from bisect_trt.session.session import Case, Session
from bisect_trt.steps.panel import Panel


def larger_case(
    session: Session, panel: Panel, switches: Subset, units: Iterable[int]
) -> Case | None:
    """Return a part of the model that holds the minimal case, fails, and passes with some switches.

    The case grows by the nearest nodes first. It is at most an eighth larger than needed, if larger
    parts behave as the whole model does.

    Args:
        session: The model's session.
        panel: The switches of the target.
        switches: Those that fix the whole model; indices into the panel.
        units: The units of the minimal case, which still fails with them.

    Returns:
        ``None`` where only the whole model does.
    """
    subject = session.subject
    probe = session.prober.probe
    case = frozenset(units)
    neighbours = _nearest_first(subject.network, case)

    def shows(prefix: Sequence[int]) -> bool:
        part = subject.cut(case.union(prefix))
        fixed = structs.replace(panel, base=part).candidate(switches)
        return probe(part).verdict is Verdict.FAIL and probe(fixed).verdict is Verdict.PASS

    count = shortest_prefix(neighbours, shows)
    if count is None or count == len(neighbours):
        return None
    return Case(Minimum(case.union(neighbours[:count]), proven=False))


def _nearest_first(network: Network, case: Subset) -> list[int]:
    """Return the other units by their distance from the case, in edges of either direction."""
    neighbours = defaultdict[int, set[int]](set)
    for index in network.order:
        for parent in network.parents(index):
            unit = network.rank[index]
            neighbours[unit].add(network.rank[parent])
            neighbours[network.rank[parent]].add(unit)
    ordered = sorted(case)
    # The list grows while it is read.
    for unit in ordered:
        visited = {*ordered}
        ordered += sorted(neighbours[unit] - visited)
    remaining = {*range(len(network.order))}.difference(ordered)
    return [*ordered[len(case) :], *sorted(remaining)]
