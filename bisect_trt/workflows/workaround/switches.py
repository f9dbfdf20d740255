"""The first way around a failure: a switch of the target, as the search for the cause found it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bisect_trt.errors import BisectError
from bisect_trt.workflows.switched import make_panel
from bisect_trt.workflows.workaround.proof import Prover, Way

_MOST = 3
_PRECISION = "precision"
"""Without its low precision a target is another one: that is no way around, but all of it in fp32."""


def turn(prover: Prover) -> list[Way]:
    """The alternatives that were found for the cause, the whole model on each run on fresh inputs."""
    detail = prover.investigation.result.extra.get("cause_detail")
    entries = [] if detail is None else detail["alternatives"]
    kinds = [{name.partition(":")[0] for name in entry["switches"]} for entry in entries]
    usable = [entry for entry, some in zip(entries, kinds, strict=True) if some != {_PRECISION}]
    return [_proven(prover, entry) for entry in usable[:_MOST]]


def _proven(prover: Prover, entry: Mapping[str, Any]) -> Way:
    names = " and ".join(entry["switches"])
    line = "\n".join(entry["code"]) if entry["code"] and entry["code_ran"] is True else None
    way = {
        "kind": "switch",
        "what": f"{names}, with {entry['turned']}",
        "line": line,
        "latency_ms": entry["latency_ms"],
    }
    if not entry["whole"]:
        return Way(**way, passes=False, why="the minimal case passes with it, and the whole model does not")
    subject = prover.investigation.subject
    try:
        panel = make_panel(prover.investigation, prover.target, subject.original, frozenset())
    except BisectError as error:
        return Way(**way, passes=True, why=f"not run on fresh inputs: {error}")
    units = frozenset(unit for unit, switch in enumerate(panel.switches) if switch.name in entry["switches"])
    measured = (
        prover.measure(subject.network.proto, panel.turned(units)) if len(units) == len(entry["switches"]) else None
    )
    if measured is None:
        return Way(**way, passes=True, why="not run on fresh inputs")
    held = f"held on {measured.passed} of {measured.samples} fresh inputs"
    passes = measured.passed == measured.samples
    return Way(
        **{**way, "latency_ms": measured.latency_ms},
        passes=passes,
        worst_error=measured.worst_error,
        fresh=(measured.samples, measured.passed),
        why=held if passes else f"{held}: {measured.why}",
    )
