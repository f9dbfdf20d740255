"""What was found, as tables: the compared outputs, where errors begin, what stays in fp32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bisect_trt.reporting.html.markup import Markup, shorten, tag
from bisect_trt.reporting.html.words import Json, number, plural, table

MOST_ROWS = 200
_NAME_LENGTH = 100


def findings_section(result: Json) -> Markup | None:
    """The tables that this result has something for."""
    parts = [_outputs(result.get("comparisons") or []), _origins(result.get("origins") or [])]
    parts.append(_kept(result.get("keep_fp32") or []))
    found = [part for part in parts if part is not None]
    return tag("section", *found, id="findings") if found else None


def _name(name: str) -> Markup:
    return tag("td", tag("code", shorten(name, _NAME_LENGTH), title=name if len(name) > _NAME_LENGTH else None))


def _numeric(value: float | str | None) -> Markup:
    return tag("td", number(value), class_="number")


def _verdict(comparison: Json) -> Markup:
    words = "matches" if comparison["passed"] else {"mismatch": "off"}.get(comparison["kind"], comparison["kind"])
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


def _origins(origins: Sequence[Json]) -> Markup | None:
    if not origins:
        return None
    rows = [
        [tag("td", origin["node"]["op"]), _name(origin["tensor"]), *_errors(origin["comparison"])]
        for origin in origins[:MOST_ROWS]
    ]
    return tag(
        "div",
        tag("h2", "Where errors begin"),
        tag("p", "Wrong tensors that are made of right ones, in topological order.", class_="quiet"),
        table(["Made by", "Tensor", *_ERRORS], rows, "Where errors begin", _NUMERIC),
        _cut(origins, "origin"),
    )


def _kept(kept: Sequence[Any]) -> Markup | None:
    if not kept:
        return None
    known = [entry if isinstance(entry, Mapping) else {"name": str(entry)} for entry in kept]
    rows = [
        [
            tag("td", entry.get("op") or ""),
            _name(entry.get("name") or next(iter(entry.get("outputs", ())), "?")),
            entry.get("reason") or "",
        ]
        for entry in known[:MOST_ROWS]
    ]
    return tag(
        "div",
        tag("h2", "What stays in fp32"),
        table(["Operator", "Node", "Why"], rows, "What stays in fp32"),
        _cut(kept, "node"),
    )
