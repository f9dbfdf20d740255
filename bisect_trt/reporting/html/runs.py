"""Pages about runs that are watched or compared: what `bisect-trt view` shows, made of what lies in their folders."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import quote

from bisect_trt.reporting.html.markup import (
    Child,
    Json,
    Markup,
    definitions,
    join,
    plural,
    seconds,
    shorten,
    split,
    table,
    tag,
)
from bisect_trt.reporting.html.page import badge, fill, sentence, template
from bisect_trt.reporting.html.search import chart

NODE_STATES = {
    "culprit": "needed to fail",
    "kept": "kept in fp32",
    "best": "in the smallest model that fails so far",
    "out": "left out of it",
    "unknown": "nothing is known of it yet",
}
"""What a cell of the map says, the most telling first."""
_CELLS = 2000
"""At most; a cell of a larger model stands for several nodes, and shows the most telling."""
_ROW = 80
_SIDE, _STEP = 9, 11
_SHOWN = 100
"""Probes in the table, the newest first."""
_STILL = 120
"""Seconds without a line in the journal from which that is said."""


@dataclass(frozen=True)
class RunView:
    """A run as its folder shows it.

    Attributes:
        name: Of its folder.
        words: Its command line, or call, in words.
        command: Which command.
        began: When it was started, in seconds since the epoch.
        touched: When anything of it was last written, likewise.
        result: What its result.json holds, if it has ended.
        probes: What the search was told, in the order in which it asked: entries of the journal.
        running: The titles of the probes that run now, or ran when it was killed.
        best: The smallest candidate that fails, of those that the whole model was cut down to.
        nodes: Name and state of every node of the model, in its order; empty where the model is not there.
    """

    name: str
    words: str
    command: str
    began: float
    touched: float
    result: Json | None
    probes: Sequence[Json]
    running: Sequence[str]
    best: Json | None
    nodes: Sequence[tuple[str, str]] = field(default_factory=tuple)

    @property
    def link(self) -> str:
        """Where its page is."""
        return f"/run/{quote(self.name, safe='')}"


def page(title: str, sections: Sequence[Markup], *, follow: bool) -> tuple[str, str]:
    """A whole page and its content security policy.

    Args:
        title: Of the window.
        sections: What is on it; each with an ``id``.
        follow: Whether it asks the server for newer sections by itself.
    """
    script = Markup(template("runs.js")) if follow else Markup("")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
    policy += "connect-src 'self'; form-action 'self'"
    parts = {
        "POLICY": policy,
        "TITLE": join([shorten(title, 100), " \u2013 bisect-trt"]),
        "STYLE": Markup(template("report.css") + template("runs.css")),
        "LINKS": tag("li", tag("a", "Runs", href="/")) if follow else Markup(""),
        "MAIN": join(sections),
        "FOOT": Markup("Made by bisect-trt from the folders of its runs."),
        "SCRIPT": script,
    }
    return fill(parts), f"{policy}; frame-ancestors 'none'; base-uri 'none'"


def list_sections(runs: Sequence[RunView]) -> list[Markup]:
    """All runs, the newest first, with a choice of those to compare."""
    rows: list[list[Child]] = [
        [
            tag("td", tag("input", type="checkbox", name="run", value=run.name, aria_label=f"compare {run.name}")),
            tag("td", tag("a", run.name, href=run.link)),
            tag("td", state_of(run)),
            plural(len(run.probes), "probe"),
            shorten(sentence(run.result) if run.result else _best(run), 160),
        ]
        for run in runs
    ]
    body: Child = tag("p", "There is no run here yet.")
    if rows:
        form = table(["", "Run", "State", "Probes", "Answer"], rows, "Runs")
        body = tag("form", form, tag("p", tag("button", "Compare", type="submit")), action="/compare", method="get")
    return [tag("section", tag("h1", plural(len(runs), "run")), body, id="runs")]


def run_sections(run: RunView, now: float) -> list[Markup]:
    """One run: where it is, what is known of each node, every probe."""
    sections = [_head(run, now), _map(run), _probes(run)]
    return [section for section in sections if section is not None]


def state_of(run: RunView) -> Markup:
    """How a run is, in a word or two."""
    if run.result is not None:
        return badge(run.result)
    return tag("span", "running" if run.running else "at work", class_="badge neutral")


def _head(run: RunView, now: float) -> Markup:
    counts = Counter(str(probe["verdict"]).lower() for probe in run.probes)
    said = ", ".join(f"{counts[verdict]} {verdict}" for verdict in ("fail", "pass", "unresolved") if counts[verdict])
    spent: Counter[str] = Counter()
    for probe in run.probes:
        spent.update(probe.get("times") or {})
    idle = now - run.touched
    silent = run.result is None and idle > _STILL
    entries: list[tuple[str, Child]] = [
        ("Command", tag("code", run.words)),
        ("Started", f"{datetime.fromtimestamp(run.began):%Y-%m-%d %H:%M:%S}"),
        ("Probes", f"{len(run.probes):,}{f' ({said})' if said else ''}"),
        ("Best so far", _best(run) if run.result is None else None),
        ("Where the time of its probes went", split(spent)),
        ("Running now", ", ".join(run.running) if run.result is None else None),
    ]
    why = f"Nothing has been written for {seconds(idle // 60 * 60)}: it waits, or it was killed." if silent else None
    report = tag("p", tag("a", "The whole report", href=f"{run.link}/report")) if run.result is not None else None
    return tag(
        "section",
        tag("p", state_of(run), tag("span", run.name, class_="quiet"), class_="eyebrow"),
        tag("h1", sentence(run.result) if run.result is not None else f"{run.command}: {_best(run)}"),
        tag("p", why, class_="why") if why else None,
        definitions(entries),
        report,
        id="run",
        data_ended=run.result is not None,
    )


def _best(run: RunView) -> str:
    if run.best is not None:
        return f"{run.best['title']} still fail{'s' if run.best['size'] == 1 else ''}"
    return f"{plural(len(run.probes), 'probe')} done" if run.probes else "nothing is known yet"


def _map(run: RunView) -> Markup | None:
    """A cell a node, in the order of the file."""
    if not run.nodes:
        return None
    each = -(-len(run.nodes) // _CELLS)
    order = list(NODE_STATES)
    cells = []
    for place, first in enumerate(range(0, len(run.nodes), each)):
        group = run.nodes[first : first + each]
        name, state = min(group, key=lambda node: order.index(node[1]))
        more = f" and {len(group) - 1} more" if len(group) > 1 else ""
        where = {"x": place % _ROW * _STEP, "y": place // _ROW * _STEP, "width": _SIDE, "height": _SIDE}
        cells.append(
            tag("rect", tag("title", f"{shorten(name, 80)}{more}: {NODE_STATES[state]}"), **where, rx=1.5, class_=state)
        )
    present = Counter(state for _, state in run.nodes)
    legend = [
        tag("li", tag("span", class_=f"swatch {state}", aria_hidden="true"), f"{words} ({present[state]:,})")
        for state, words in NODE_STATES.items()
        if present[state]
    ]
    said = ", ".join(f"{present[state]:,} {words}" for state, words in NODE_STATES.items() if present[state])
    across, down = min(len(cells), _ROW) * _STEP, -(-len(cells) // _ROW) * _STEP
    drawing = tag(
        "svg", *cells, viewBox=f"0 0 {across} {down}", role="img", aria_label=f"{plural(len(run.nodes), 'node')}: {said}",
        class_="map", style=f"max-width:{across}px",
    )  # fmt: skip
    note = "in the order of the file" if each == 1 else f"in the order of the file, {each} to a cell"
    return tag(
        "section",
        tag("h2", "The network"),
        tag("p", f"{plural(len(run.nodes), 'node')}, {note}; what was ruled out fades.", class_="quiet"),
        tag("ul", *legend, class_="legend"),
        drawing,
        id="network",
    )


def _probes(run: RunView) -> Markup | None:
    if not run.probes:
        return None
    most = max(probe["size"] for probe in run.probes) or 1
    rows: list[list[Child]] = [
        [
            tag("td", probe["number"], class_="number"),
            tag("td", tag("b", probe["verdict"], class_=str(probe["verdict"]).lower())),
            tag("td", probe["size"], class_="number"),
            tag("td", seconds(probe["seconds"]), class_="number"),
            probe["title"],
            shorten(probe["reason"], 300),
        ]
        for probe in reversed(run.probes[-_SHOWN:])
    ]
    head = ["#", "Verdict", "Units", "Time", "Candidate", "What was seen"]
    older = len(run.probes) - len(rows)
    return tag(
        "section",
        tag("h2", "Probes, the newest first"),
        chart([{**probe, "units": probe["size"]} for probe in run.probes], most),
        table(head, rows, "Probes, the newest first", numeric=("#", "Units", "Time")),
        tag("p", f"{plural(older, 'earlier probe')} not shown; `bisect-trt log` has them.", class_="quiet")
        if older
        else None,
        id="probes",
    )
