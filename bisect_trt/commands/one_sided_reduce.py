"""``reduce`` with one end of the graph held: how far the other can move, and the fewest ends that are needed."""

from __future__ import annotations

from dataclasses import replace

from bisect_trt.commands.session import Case, Session
from bisect_trt.onnxlib.cut import given_back
from bisect_trt.options.choices import Mode
from bisect_trt.probe.candidate import Candidate
from bisect_trt.search.oracle import Minimum, Oracle, Subset, Transcript, about_units, over_units
from bisect_trt.search.strategy import minimise, shrink_end, shrink_start


def reduce_one_end(session: Session, mode: Mode, *, start_held: bool) -> Case:
    """The fewest units that fail as ends, with all that leads to them; or as starts, with all that they lead to.

    The last unit of the shortest failing prefix is an end that is needed. It is probed with what leads to it alone,
    then together with ever shorter prefixes, whose last units are ends too, until what was found fails by itself. Suffixes
    and their first units are searched in the same way.

    Args:
        session: The model, and the prober.
        mode: ``linear`` tries each end in turn, the others bisect.
        start_held: Whether the graph's start is held; else its end is.
    """
    subject, network, units = session.subject, session.subject.network, session.subject.units

    def outputs_of(ends: Subset) -> list[str]:
        """The outputs of a candidate with these ends."""
        inside = units.to_nodes(units.leading_to(ends))
        return [name for unit in sorted(ends) for name in given_back(network, network.order[unit], inside)]

    def build(ends: Subset) -> Candidate:
        if start_held:
            return subject.cut(units.leading_to(ends), outputs=outputs_of(ends))
        return subject.cut(units.with_weights(units.led_to(ends)))

    def algorithm(oracle: Oracle) -> tuple[Minimum, Minimum]:
        heard = Transcript(oracle)
        ask = about_units(heard)
        moved = (shrink_end if start_held else shrink_start)(units.searched, ask, mode)
        order = units.searched if start_held else units.searched[::-1]
        # From here on each length was probed that a bisection of these comes to first.
        ends = minimise(order[: len(moved.units)] if mode is Mode.LINEAR else order, ask)
        return moved, session.confirmed(heard, ends, frozenset)

    moved, ends = session.prober.search_from(subject.original, algorithm, build)
    left = build(ends.units)
    minimum = replace(ends, units=left.units, why=ends.why or moved.why)
    return _fewest_outputs(session, Case(minimum, outputs=left.outputs)) if start_held else Case(minimum)


def _fewest_outputs(session: Session, case: Case) -> Case:
    """Of the outputs of ends that have several, only those that are needed to fail."""
    network, units, names = session.subject.network, session.subject.units, case.outputs or ()

    def keep(chosen: Subset) -> tuple[Subset, tuple[str, ...]]:
        outputs = tuple(name for place, name in enumerate(names) if place in chosen)
        return units.leading_to(network.rank[network.producer[name]] for name in outputs), outputs

    def build(chosen: Subset) -> Candidate:
        needed, outputs = keep(chosen)
        return session.subject.cut(needed, outputs=outputs)

    search = over_units(lambda ask: minimise(range(len(names)), ask))
    fewest = session.prober.search(search, build)
    needed, outputs = keep(fewest.units)
    minimum = replace(case.minimum, units=needed, proven=case.minimum.proven and fewest.proven)
    return replace(case, minimum=minimum, outputs=outputs)
