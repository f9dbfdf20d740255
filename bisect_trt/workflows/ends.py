"""``reduce`` where one end of the graph is held: how far the other can move, and nothing that it does not need."""

from __future__ import annotations

from dataclasses import replace

from bisect_trt.graph.surgeon import given_back
from bisect_trt.options.choices import Mode
from bisect_trt.probing.candidate import Candidate
from bisect_trt.search.oracle import Minimum, Oracle, Search, Subset, Transcript, Verdict, about_units, over_units
from bisect_trt.search.strategy import minimise, shrink_end, shrink_start
from bisect_trt.workflows.investigation import Case, Investigation


def reduce_one_end(investigation: Investigation, mode: Mode, *, start_held: bool) -> Case:
    """The fewest units that fail as ends, with all that leads to them; or as starts, with all that they lead to.

    The last unit of the shortest failing prefix is an end that is needed. It is asked about with what leads to it alone,
    then together with ever shorter prefixes, whose last units are ends too, until what was found fails by itself. So it
    is with suffixes and their first units.

    Args:
        investigation: The model, and who probes.
        mode: ``linear`` tries each end in turn, the others bisect.
        start_held: Whether the graph's start is held; else it is its end.
    """
    subject, units = investigation.subject, investigation.subject.units

    def build(ends: Subset) -> Candidate:
        if start_held:
            return subject.cut(units.leading_to(ends), outputs=_outputs(investigation, ends))
        return subject.cut(units.with_weights(units.led_to(ends)))

    def algorithm(oracle: Oracle) -> tuple[Minimum, Minimum]:
        heard = Transcript(oracle)
        ask = about_units(heard)
        moved = (shrink_end if start_held else shrink_start)(units.searched, ask, mode)
        order = units.searched if start_held else units.searched[::-1]
        # From here on each length was asked about that a bisection of these comes to first.
        ends = minimise(order[: len(moved.units)] if mode is Mode.LINEAR else order, ask)
        return moved, investigation.confirmed(heard, ends, frozenset)

    moved, ends = investigation.prober.search_from(subject.original, Search(Verdict.FAIL, algorithm), build)
    left = build(ends.units)
    minimum = replace(ends, units=left.units, why=ends.why or moved.why)
    return _fewest_outputs(investigation, Case(minimum, outputs=left.outputs)) if start_held else Case(minimum)


def _outputs(investigation: Investigation, ends: Subset) -> list[str]:
    """What units give back, as ends of what leads to them."""
    network, units = investigation.subject.network, investigation.subject.units
    inside = units.to_nodes(units.leading_to(ends))
    return [name for unit in sorted(ends) for name in given_back(network, network.order[unit], inside)]


def _fewest_outputs(investigation: Investigation, case: Case) -> Case:
    """Of the outputs of ends that have several, only those that are needed to fail."""
    subject = investigation.subject
    network, units = subject.network, subject.units
    names = case.outputs or ()

    def keep(chosen: Subset) -> Case:
        outputs = tuple(name for place, name in enumerate(names) if place in chosen)
        needed = units.leading_to(network.rank[network.producer[name]] for name in outputs)
        return replace(case, minimum=replace(case.minimum, units=needed), outputs=outputs)

    def build(chosen: Subset) -> Candidate:
        kept = keep(chosen)
        return subject.cut(kept.minimum.units, outputs=kept.outputs)

    search = over_units(Verdict.FAIL, lambda ask: minimise(range(len(names)), ask))
    fewest = investigation.prober.search(search, build)
    kept = keep(fewest.units)
    return replace(kept, minimum=replace(kept.minimum, proven=case.minimum.proven and fewest.proven))
