"""The reduced model: its smallest form, written and read back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from msgspec import UNSET

from bisect_trt.onnxlib.nodes import Node
from bisect_trt.options.searches import Reduce
from bisect_trt.options.shared import Search
from bisect_trt.probe.candidate import Candidate, Probe
from bisect_trt.report.proofs import HELD
from bisect_trt.report.result import Result
from bisect_trt.search.confirm import READ_BACK
from bisect_trt.search.oracle import Minimum, Subset
from bisect_trt.session.session import Case, Session
from bisect_trt.steps.dynamic_dims import (
    needed_dimensions,
    note_dynamic,
)
from bisect_trt.steps.inside import look_inside
from bisect_trt.steps.minimal_case import (
    by_blame,
)
from bisect_trt.steps.shrink import shrink
from bisect_trt.tensors.files import save_npz

_SHOWN = 12


def smallest(session: Session, settings: Reduce, search: Search, case: Case) -> Candidate:
    """A case as a candidate, its tensors shrunk unless the user does not want that."""
    settled = session.settle(case)
    if session.prober.check.bounds_whole:
        # The rest of the model could not run on other tensors, and small ones are not slow.
        return settled
    answer = needed_dimensions(session, settled)
    if not (search.shrink and settings.both_ends):
        return answer
    session.console.step("Shrink tensors of the minimal case")
    return shrink(session, answer)


def deliver(session: Session, settings: Reduce, answer: Candidate, minimum: Minimum) -> Result:
    """Write the answer, and print it."""
    console = session.console
    result = session.result
    minimum, result.culprits = write_reduced(session, settings, answer, minimum)
    session.conclude(minimum)
    result.artifacts |= {
        "reduced": str(settings.output),
        "inputs": str(settings.inputs),
        "golden": str(settings.golden),
        "min_good": save_min_good(session, settings.min_good, answer),
    }
    count = len(result.culprits)
    session.score_whole(answer)
    console.answer(
        f"{settings.output}: {count} node{'s still fail' if count != 1 else ' still fails'} ({result.minimality})."
    )
    if answer.held:
        result.held = True
        console.answer(f"  {HELD}")
    note_dynamic(session, answer)
    result.inside = look_inside(session, answer) or UNSET
    return result


def write_reduced(
    session: Session, settings: Reduce, answer: Candidate, minimum: Minimum
) -> tuple[Minimum, list[Node]]:
    """Write an answer with its inputs and expected outputs, read it back, and probe it.

    Args:
        session: The model with its prober.
        settings: Where the files go.
        answer: The minimal case.
        minimum: Its units, and whether they are proven minimal.

    Returns:
        The minimum, unproven if the model that was read back does not fail; and the nodes, the most
        guilty first.
    """
    console = session.console
    prober = session.prober
    workspace = session.subject.workspace
    workspace.save(answer.proto, settings.output)
    console.step("Write the model, read it back: does it still fail?")
    read_back = replace(answer, made=workspace.read_back(settings.output), title=READ_BACK)
    again = Probe(read_back, again=True)
    if prober.ledger.outcome(again.key) is not None:
        console.say("  the same bytes were probed once more just now")
    record = prober.probe(again)
    subject = session.subject
    for path, names in ((settings.inputs, answer.inputs), (settings.golden, answer.outputs)):
        save_npz(path, subject.values(answer, names))
    alone = replace(read_back, values=subject.values(answer, answer.inputs + answer.outputs))
    if subject.earlier(answer) and not prober.probe(alone).fails:
        console.warn(
            f"it fails only after other samples in the same session, and {settings.inputs} has the last one: "
            "`diagnose` writes all"
        )
    culprits = session.subject.describe_nodes(by_blame(session, answer))
    return minimum if record.fails else session.disagreed(minimum, record), culprits


def save_min_good(session: Session, path: Path | None, answer: Candidate) -> str | None:
    """Write the largest passing candidate that shares a unit, or an edge of the graph, with the answer."""
    subject, network = session.subject, session.subject.network

    def tensors(units: Subset, *, made: bool) -> set[str]:
        nodes = [network.order[unit] for unit in units]
        return {
            name for node in nodes for name in (network.made(node) if made else network.reads[node])
        }

    reads = tensors(answer.units, made=False)
    makes = tensors(answer.units, made=True)
    # A passing model without a connection to the answer shows nothing about it.
    neighbours = [
        units
        for units in {
            identity.units for identity in session.prober.ledger.passed if path is not None
        }
        if not answer.units <= units
        and (
            units & answer.units
            or reads & tensors(units, made=True)
            or makes & tensors(units, made=False)
        )
    ]
    if path is None or not neighbours:
        return None
    good = subject.cut(
        max(neighbours, key=lambda units: (subject.units.count(units), sorted(units)))
    )
    subject.workspace.save(good.proto, path)
    return str(path)
