"""Which sizes fail: a map of those that were tried, and the intervals of each dimension."""

from __future__ import annotations

from collections.abc import Sequence

from bisect_trt.reporting.html.markup import Json, Markup, number, plural, table, tag

_WORDS = {"PASS": ("passes", "pass"), "FAIL": ("fails", "fail"), "UNRESOLVED": ("not known", "unresolved")}
_WIDTH, _CELL, _HEIGHT, _GAP = 960, 18, 28, 60
MOST_ROWS = 200


def sweep_section(told: Json | None) -> Markup | None:
    """The part of the page; ``None`` where no sizes were swept."""
    if not told or not told["dimensions"]:
        return None
    names = [each["name"] for each in told["dimensions"]]
    return tag(
        "section",
        tag("h2", f"Sizes: {', '.join(names)}"),
        tag("p", f"{plural(told['tried'], 'size')} of {number(told['of'])} tried.", class_="quiet"),
        tag("p", f"It fails where {told['relation']['said']}, as all that were tried say.")
        if told.get("relation")
        else None,
        _picture(told) if len(names) <= 2 else None,
        *(_intervals(each) for each in told["dimensions"]),
        id="sweep",
    )


def _intervals(each: Json) -> Markup:
    rows = []
    for found in each["intervals"][:MOST_ROWS]:
        words, style = _WORDS[found["verdict"]]
        ends = str(found["from"]) if found["from"] == found["to"] else f"{found['from']} to {found['to']}"
        between = ", ".join(str(low) if low == high else f"{low} to {high}" for low, high in found["inferred"][:20])
        more = ", ..." if len(found["inferred"]) > 20 else ""
        cell = tag("td", tag("b", words, class_=style))
        rows.append([cell, ends, number(len(found["tried"])), f"{between}{more}" or "none"])
    at = ", ".join(f"{name} = {size}" for name, size in each["at"].items())
    head = ["Verdict", "Sizes", "Tried", "Not tried, inferred from those around"]
    return tag("div", tag("h3", f"{each['name']}{f', with {at}' if at else ''}"), table(head, rows, each["name"]))


def _picture(told: Json) -> Markup:
    """A rectangle for each size that was tried; with two dimensions, the first goes down and the second across."""
    names = [each["name"] for each in told["dimensions"]]
    across, down = names[-1], names[0] if len(names) == 2 else None
    columns = sorted({entry["sizes"][across] for entry in told["map"]})
    rows = sorted({entry["sizes"][down] for entry in told["map"]}) if down is not None else []
    step = min(_CELL, (_WIDTH - _GAP) / max(len(columns), 1))
    tall = _CELL if rows else _HEIGHT
    cells = []
    for entry in told["map"]:
        words, style = _WORDS[entry["verdict"]]
        row = rows.index(entry["sizes"][down]) if down is not None else 0
        said = ", ".join(f"{name} = {size}" for name, size in entry["sizes"].items())
        place = {"x": _GAP + columns.index(entry["sizes"][across]) * step, "y": float(row * tall)}
        box = tag("rect", tag("title", f"{said}: {words}"), **place, width=step, height=tall, class_=style)
        cells.append(box)
    height = max(len(rows), 1) * tall
    labels = [*_labels(columns, step, height + 14.0), *(_row_label(row, place) for place, row in enumerate(rows))]
    said = f"{down} down, {across} across" if down is not None else across
    picture = tag(
        "svg", *cells, *labels, viewBox=f"0 0 {_WIDTH} {height + 20}", role="img", aria_label=said, class_="sizes"
    )
    return tag("figure", picture, tag("figcaption", f"{said}: green passes, red fails, amber is not known."))


def _labels(columns: Sequence[int], step: float, y: float) -> list[Markup]:
    """As many of the sizes as have room; the last one always."""
    each = max(int(40 / step), 1)
    places = [place for place in range(0, len(columns), each) if place + each <= len(columns)]
    places += [len(columns) - 1] if columns and len(columns) - 1 not in places else []
    return [tag("text", columns[place], x=_GAP + (place + 0.5) * step, y=y, text_anchor="middle") for place in places]


def _row_label(size: int, place: int) -> Markup:
    return tag("text", size, x=_GAP - 6.0, y=place * _CELL + 13.0, text_anchor="end")
