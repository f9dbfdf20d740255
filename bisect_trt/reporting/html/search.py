"""The search as it went: the steps in words, and every probe."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from bisect_trt.reporting.html.markup import Child, Json, Markup, plural, seconds, split, tag

VERDICTS = ("FAIL", "PASS", "UNRESOLVED")
_COLUMNS = (
    ("number", "#", True),
    ("verdict", "Verdict", False),
    ("units", "Units", True),
    ("seconds", "Time", True),
    ("title", "Candidate", False),
    ("reason", "What was seen", False),
    ("step", "Asked for", False),
)
"""Of the table of probes: class of the cells, heading, whether it sorts by number."""
_BAR, _HIGHEST = 12, 72
"""Pixels a probe, and of the tallest bar."""
_STEP_LENGTH = 48
_FEWEST_BARS, _MOST_BARS = 8, 400


def search_section(report: Json, counts: Json) -> Markup | None:
    """The steps and the probes; ``None`` if there was neither."""
    steps = [step for step in report.get("story", {}).get("steps", ()) if step["title"] or step["lines"]]
    probes = report.get("probes") or []
    if not steps and not probes:
        return None
    return tag("section", tag("h2", "The search as it went"), _steps(steps), _probes(probes, counts), id="search")


def _steps(steps: Sequence[Json]) -> Markup | None:
    items = [
        tag("li", tag("p", step["title"]), tag("pre", "\n".join(step["lines"])) if step["lines"] else None)
        for step in steps
    ]
    return tag("ol", *items, class_="steps") if items else None


def _probes(probes: Sequence[Json], counts: Json) -> Markup | None:
    if not probes:
        return None
    most = max((probe["units"] for probe in probes), default=1) or 1
    titles = list(dict.fromkeys(probe["step"] for probe in probes))
    left_out = counts["run"] - len(probes)
    return tag(
        "div",
        tag("h3", "Probes"),
        chart(probes, most),
        _filters(probes),
        tag(
            "div",
            tag(
                "table",
                tag("caption", "Probes, in the order in which the search asked", class_="visually-hidden"),
                tag("thead", tag("tr", *(_heading(*column) for column in _COLUMNS))),
                tag("tbody", *(_row(probe, most, titles) for probe in probes)),
                id="probes",
            ),
            class_="scroll",
            role="region",
            tabindex=0,
            aria_label="Probes",
        ),
        tag(
            "p",
            f"{plural(left_out, 'probe')} in the middle are left out here; `bisect-trt log` has them.",
            class_="quiet",
        )
        if left_out > 0
        else None,
    )


def _heading(name: str, title: str, numeric: bool) -> Markup:
    return tag("th", title, scope="col", class_=name, data_sort="number" if numeric else "text")


def _filters(probes: Sequence[Json]) -> Markup:
    present = [verdict for verdict in VERDICTS if any(probe["verdict"] == verdict for probe in probes)]
    options = [tag("option", "all", value=""), *(tag("option", verdict, value=verdict) for verdict in present)]
    return tag(
        "div",
        tag("label", "Verdict ", tag("select", *options, id="by-verdict")),
        tag("label", "Contains ", tag("input", type="search", id="by-text", autocomplete="off")),
        tag("span", id="shown", aria_live="polite", class_="quiet"),
        class_="live filters",
    )


def _row(probe: Json, most: int, titles: Sequence[str]) -> Markup:
    def cell(name: str, value: str | float, *children: Child, number: bool = False) -> Markup:
        return tag("td", *children, class_=f"{name} number" if number else name, data_value=value)

    share = 100 * probe["units"] / most
    bar = tag("span", class_="bar", style=f"width:{share:.1f}%", aria_hidden="true")
    runs = f" ({probe['runs']} runs)" if probe["runs"] > 1 else ""
    tail = tag("details", tag("summary", "its last lines"), tag("pre", probe["tail"])) if probe["tail"] else None
    step = titles.index(probe["step"]) + 1
    return tag(
        "tr",
        cell("number", probe["number"], probe["number"], number=True),
        cell("verdict", probe["verdict"], tag("b", probe["verdict"], class_=probe["verdict"].lower())),
        cell("units", probe["units"], probe["units"], bar, number=True),
        cell(
            "seconds",
            probe["seconds"],
            tag("span", seconds(probe["seconds"]) + runs, title=split(probe.get("times", {}))),
            number=True,
        ),
        cell("title", probe["title"], probe["title"]),
        cell("reason", probe["reason"], probe["reason"], tail),
        cell("step", f"{step:03}", tag("span", _short(probe["step"]), title=probe["step"])),
        data_verdict=probe["verdict"],
    )


def _short(step: str) -> str:
    """The beginning of a step's title: what it is called, if it says so before a colon, or its first words."""
    called = step.split(": ", maxsplit=1)[0]
    return called if len(called) <= _STEP_LENGTH else textwrap.shorten(step, _STEP_LENGTH, placeholder=" ...")


def chart(probes: Sequence[Json], most: int) -> Markup | None:
    """A bar a probe, as high as the logarithm of its units; only where that says something."""
    if not _FEWEST_BARS <= len(probes) <= _MOST_BARS or most < 2:
        return None
    bars = []
    for place, probe in enumerate(probes):
        high = max(_HIGHEST * math.log2(probe["units"] + 1) / math.log2(most + 1), 2)
        where = {"x": place * _BAR, "y": _HIGHEST - high, "width": _BAR - 2, "height": high}
        bars.append(tag("rect", **where, class_=probe["verdict"].lower()))
    least = min(probe["units"] for probe in probes)
    label = f"Units of {plural(len(probes), 'probe')} in order, from {most:,} down to {least:,}"
    width = _BAR * len(probes)
    drawing = tag(
        "svg",
        *bars,
        viewBox=f"0 0 {width} {_HIGHEST}",
        preserveAspectRatio="none",
        style=f"max-width:{width}px",
        role="img",
        aria_label=label,
        class_="bars",
    )
    note = f"{label}, on a logarithmic scale; the colour is the verdict."
    return tag("figure", drawing, tag("figcaption", note, class_="quiet"))
