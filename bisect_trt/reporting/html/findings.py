"""What was found, as tables: the compared outputs, where errors begin, what of the target does it, what stays in fp32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bisect_trt.graph.exported import in_module
from bisect_trt.reporting.html.markup import Json, Markup, breakable, number, plural, shorten, table, tag
from bisect_trt.reporting.html.quantized_groups import groups_section

MOST_ROWS = 200
_NAME_LENGTH = 100


def findings_section(result: Json) -> Markup | None:
    """The tables that this result has something for."""
    tensors = result.get("tensors") or []
    parts = [
        _ways(result.get("workarounds") or [], result.get("workaround_baseline") or {}, result.get("fault") or {}),
        _cause(result.get("cause_detail")),
        _outputs(result.get("comparisons") or []),
        _origins(result.get("origins") or [], {tensor["name"]: tensor.get("own") for tensor in tensors}),
        _alone(tensors),
        _hiding(result.get("hiding"), {tensor["name"]: tensor["op"] for tensor in tensors}),
        _kept(result.get("keep_fp32") or [], _held(result)),
        groups_section(result.get("groups") or [], result.get("error_all_quantized")),
    ]
    found = [part for part in parts if part is not None]
    return tag("section", *found, id="findings") if found else None


_PASSES = {True: ("passes", "match"), False: ("does not pass", "wrong"), None: ("not tried", "quiet")}


def _ways(ways: Sequence[Json], baseline: Json, fault: Json) -> Markup | None:
    """Whose fault it is, and the ways around it."""
    if not ways and not fault:
        return None
    said = tag("p", fault["sentence"]) if fault else None
    if not ways:
        return tag("div", tag("h2", "Whose fault it is"), said)
    rows = []
    for way in ways:
        words, style = _PASSES[way["passes"]]
        if way["passes"] and way["fresh"]["passed"] < way["fresh"]["samples"]:
            words = "passes on the inputs given, does not hold on fresh ones"
        what = [
            f"{way['kind']}: {shorten(way['what'], 300)}",
            *([tag("pre", tag("code", way["line"]))] if way["line"] else []),
        ]
        file = tag("td", tag("code", breakable(shorten(way["file"], _NAME_LENGTH))) if way["file"] else "")
        numbers = [_numeric(way["worst_error"]), _numeric(way["latency_ms"])]
        rows.append([tag("td", *what), tag("td", tag("b", words, class_=style)), *numbers, file, tag("td", way["why"])])
    for key, words in (("failing_ms", "as it fails"), ("fp32_ms", "all in fp32")):
        if baseline.get(key) is not None:
            empty = [tag("td", ""), tag("td", "")]
            rows.append([tag("td", words), tag("td", ""), tag("td", ""), _numeric(baseline[key]), *empty])
    heads = ["What", "Whole model", "Worst error, in tolerances", "Latency, ms", "File", ""]
    return tag(
        "div",
        tag("h2", "Whose fault it is, and ways around it"),
        said,
        table(heads, rows, "Ways around it", (heads[2], heads[3])),
    )


def _name(name: str) -> Markup:
    return tag(
        "td", tag("code", breakable(shorten(name, _NAME_LENGTH)), title=name if len(name) > _NAME_LENGTH else None)
    )


def _numeric(value: float | str | None) -> Markup:
    return tag("td", number(value), class_="number")


def _verdict(comparison: Json | None) -> Markup:
    if comparison is None:
        return tag("td", number(None))
    words = (
        "matches"
        if comparison["passed"]
        else {"mismatch": "off", "nan": "NaN", "inf": "Inf"}.get(comparison["kind"], comparison["kind"])
    )
    return tag("td", tag("b", words, class_="match" if comparison["passed"] else "wrong"))


def _errors(comparison: Json) -> list[Markup]:
    worst = comparison["worst"]
    became = (
        comparison.get("reason") or ""
        if worst is None
        else f"{number(worst['reference'], 7)} became {number(worst['target'], 7)}"
    )
    off = f"{comparison['mismatching']:,} of {comparison['total']:,}"
    numbers = [_numeric(comparison[key]) for key in ("max_abs", "atol", "rtol")]
    return [*numbers, tag("td", became), tag("td", off, class_="number")]


_ERRORS = ("Largest error", "atol", "rtol", "Worst element", "Elements off")
_NUMERIC = ("Largest error", "atol", "rtol", "Elements off")


def _cut(parts: Sequence[Any], word: str) -> Markup | None:
    hidden = len(parts) - MOST_ROWS
    return tag("p", f"{plural(hidden, word)} more in result.json.", class_="quiet") if hidden > 0 else None


def _outputs(comparisons: Sequence[Json]) -> Markup | None:
    if not comparisons:
        return None
    rows = [[_name(c["name"]), _verdict(c), *_errors(c)] for c in comparisons[:MOST_ROWS]]
    return tag(
        "div",
        tag("h2", "Outputs"),
        table(["Output", "", *_ERRORS], rows, "Outputs", _NUMERIC),
        _cut(comparisons, "output"),
    )


def _origins(origins: Sequence[Json], own: Mapping[str, Json | None]) -> Markup | None:
    if not origins:
        return None
    isolated = any(own.values())
    rows = [
        [
            tag("td", origin["node"]["op"]),
            _name(origin["tensor"]),
            *([_verdict(own.get(origin["tensor"]))] if isolated else []),
            *_errors(origin["comparison"]),
        ]
        for origin in origins[:MOST_ROWS]
    ]
    return tag(
        "div",
        tag("h2", "Where errors begin"),
        tag("p", "Wrong tensors that are made of right ones, in topological order.", class_="quiet"),
        table(["Made by", "Tensor", *(["Alone"] if isolated else []), *_ERRORS], rows, "Where errors begin", _NUMERIC),
        _cut(origins, "origin"),
    )


def _alone(tensors: Sequence[Json]) -> Markup | None:
    """Which layers are off by themselves; ``None`` if that was not looked at."""
    known = [tensor for tensor in tensors if tensor.get("own") is not None]
    if not known:
        return None
    wrong = [tensor for tensor in known if not tensor["own"]["passed"]]
    rows = [
        [tag("td", tensor["op"]), _name(tensor["name"]), _verdict(tensor), *_errors(tensor["own"])]
        for tensor in wrong[:MOST_ROWS]
    ]
    said = f"Fed the reference's values, {len(wrong):,} of {plural(len(known), 'tensor')} are off by themselves"
    said += ", in topological order. The errors are those of the layer alone." if wrong else "."
    return tag(
        "div",
        tag("h2", "Off by themselves"),
        tag("p", said, class_="quiet"),
        table(["Made by", "Tensor", "In the network", *_ERRORS], rows, "Off by themselves", _NUMERIC) if rows else None,
        _cut(wrong, "tensor"),
    )


def _hiding(hiding: Json | None, makers: Mapping[str, str]) -> Markup | None:
    """The marks that hide the failure: a workaround."""
    if not hiding or not hiding["marks"]:
        return None
    marks = hiding["marks"]
    those = "this tensor as an output" if len(marks) == 1 else "these tensors as outputs"
    role = "That is a workaround." if hiding.get("workaround", True) else "So many outputs are no workaround."
    said = f"With {those} of the model too, the failure is gone ({hiding['minimality']}). {role}"
    if not hiding.get("holds", True):
        said = f"With {those} of the model too, it passed by luck. That is no workaround."
    return tag(
        "div",
        tag("h2", "What hides the failure"),
        tag("p", said, class_="quiet"),
        tag("p", hiding["why"], class_="quiet") if hiding["why"] else None,
        table(
            ["Made by", "Tensor"],
            [[tag("td", makers.get(name, "")), _name(name)] for name in marks[:MOST_ROWS]],
            "What hides the failure",
        ),
        _cut(marks, "tensor"),
    )


def _cause(detail: Json | None) -> Markup | None:
    """Which switches of the target make it pass, with what that costs and how it is said."""
    if not detail or not detail["alternatives"]:
        return None
    rows = [
        [
            tag("td", tag("code", " and ".join(entry["switches"]))),
            "passes" if entry["whole"] else "the minimal case alone",
            _numeric(entry["latency_ms"]),
            tag("td", tag("code", breakable("; ".join(entry["code"] or entry["options"])))),
        ]
        for entry in detail["alternatives"][:MOST_ROWS]
    ]
    failing = detail["failing_ms"]
    said = "Each is enough to turn." if len(rows) > 1 else "It is enough to turn."
    said += "" if failing is None else f" As it fails, one run takes {failing:.4g} ms."
    return tag(
        "div",
        tag("h2", f"What of {detail['target']} does it"),
        tag("p", said, class_="quiet"),
        table(["Turned", "The whole model", "ms", "As code"], rows, "What does it", ("ms",)),
        _cut(detail["alternatives"], "alternative"),
    )


def _written(entry: Json) -> str:
    """The module that a node comes from, where that is known."""
    words = in_module(entry).strip()
    return f"; {words}" if words else ""


def _held(result: Json) -> str | None:
    """How what stays in fp32 did on fresh samples, and how much of it is needed on those that were given."""
    validation, minimal = result.get("validation"), result.get("minimal") or []
    if not isinstance(validation, Mapping):
        return None
    needed = f" {len(minimal)} of these are enough for the inputs that were given." if minimal else ""
    return f"It {validation['sentence']}.{needed}"


def _kept(kept: Sequence[Any], held: str | None) -> Markup | None:
    if not kept:
        return None
    known = [entry if isinstance(entry, Mapping) else {"name": str(entry)} for entry in kept]
    rows = [
        [
            tag("td", entry.get("op") or ""),
            _name(entry.get("name") or next(iter(entry.get("outputs", ())), "?")),
            f"{entry.get('reason') or ''}{_written(entry)}",
        ]
        for entry in known[:MOST_ROWS]
    ]
    return tag(
        "div",
        tag("h2", "What stays in fp32"),
        tag("p", held) if held is not None else None,
        table(["Operator", "Node", "Why"], rows, "What stays in fp32"),
        _cut(kept, "node"),
    )
