"""Runs beside each other, before and after a fix or on one release and another: what each found, and where they differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from bisect_trt.reporting.html.markup import Child, Json, Markup, number, plural, seconds, shorten, split, table, tag
from bisect_trt.reporting.html.page import sentence
from bisect_trt.reporting.html.runs import RunView, state_of

_MOST = 200
"""Tensors that are listed."""


def compare_sections(runs: Sequence[RunView]) -> list[Markup]:
    """Several runs beside each other: first what was found, then what differs in where they ran, then tensor by tensor."""
    head = ["", *(run.name for run in runs)]
    rows = [
        [tag("th", name, scope="row"), *(tag("td", cell) for cell in cells)]
        for name, cells in _facts(runs)
        if any(cells)
    ]
    sections = [
        tag(
            "section",
            tag("h1", f"{plural(len(runs), 'run')} compared"),
            table(head, rows, "What was found"),
            id="found",
        )
    ]
    places = [run.result.get("report", {}).get("environment", {}) if run.result else {} for run in runs]
    differing = [
        name
        for name in dict.fromkeys(k for place in places for k in place)
        if len({str(p.get(name)) for p in places}) > 1
    ]
    if differing:
        rows = [
            [tag("th", name, scope="row"), *(tag("td", str(place.get(name, "\u2013"))) for place in places)]
            for name in differing
        ]
        sections.append(
            tag("section", tag("h2", "What differs around them"), table(head, rows, "Environments"), id="environment")
        )
    if (tensors := _tensors(runs)) is not None:
        sections.append(tensors)
    return sections


def _facts(runs: Sequence[RunView]) -> list[tuple[str, list[Child]]]:
    """Each finding, and what each run says of it."""
    of_result: dict[str, Callable[[Json], Child]] = {
        "Answer": sentence,
        "Target": lambda result: result.get("report", {}).get("target"),
        "Model": lambda result: (result["model"] or {}).get("path"),
        "Nodes": lambda result: (result["model"] or {}).get("nodes"),
        "SHA-256": lambda result: str((result["model"] or {}).get("sha256") or "")[:12],
        "Needed to fail": lambda result: ", ".join(c["name"] or c["outputs"][0] for c in result["culprits"][:6]),
        "First mismatch": lambda result: (result.get("first_mismatch") or {}).get("name"),
        "Whose fault": lambda result: (result.get("fault") or {}).get("whose"),
        "Kept in fp32": lambda result: plural(len(result["keep_fp32"]), "node") if result.get("keep_fp32") is not None else None,
        "Latency": lambda result: _milliseconds(result.get("latency_ms")),
        "Outputs": _outputs,
        "Probes": lambda result: f"{result['probes']['run']:,}" if result["probes"]["run"] else None,
        "Took": lambda result: seconds(result["wall_s"]),
        "Where the time went": lambda result: split(result.get("times", {})),
    }  # fmt: skip
    facts: list[tuple[str, list[Child]]] = [
        ("State", [state_of(run) for run in runs]),
        ("Command", [tag("code", run.words) for run in runs]),
        ("Page", [tag("a", "this run", href=run.link) for run in runs]),
    ]
    return facts + [
        (name, [say(run.result) if run.result is not None else None for run in runs]) for name, say in of_result.items()
    ]


def _milliseconds(latency: object) -> str | None:
    parts = latency if isinstance(latency, Mapping) else {"": latency}
    return (
        ", ".join(f"{name} {value:.4g} ms".strip() for name, value in parts.items() if isinstance(value, (int, float)))
        or None
    )


def _outputs(result: Json) -> str | None:
    compared = result.get("comparisons") or []
    wrong = sum(not comparison["passed"] for comparison in compared)
    return f"{wrong} of {len(compared)} do not match" if compared else None


def _tensors(runs: Sequence[RunView]) -> Markup | None:
    """The tensors of which the runs say different things; ``None`` where fewer than two looked at tensors."""
    looked = [{t["name"]: t for t in (run.result or {}).get("tensors") or []} for run in runs]
    if sum(map(bool, looked)) < 2:
        return None
    names = dict.fromkeys(name for tensors in looked for name in tensors)
    differing = [name for name in names if len({tensors[name]["passed"] for tensors in looked if name in tensors}) > 1]
    rows: list[list[Child]] = [
        [tag("td", tag("code", shorten(name, 100))), *(_tensor(tensors.get(name)) for tensors in looked)]
        for name in differing[:_MOST]
    ]
    heading = f"{plural(len(differing), 'tensor')} of {len(names):,} are right in one and wrong in another"
    body = table(["Tensor", *(run.name for run in runs)], rows, "Tensors that differ") if rows else None
    return tag("section", tag("h2", heading), body, id="tensors")


def _tensor(tensor: Json | None) -> Child:
    if tensor is None:
        return "\u2013"
    words, style = ("right", "match") if tensor["passed"] else ("wrong", "wrong")
    return tag("td", tag("b", words, class_=style), f", off by {number(tensor.get('max_abs'))}")
