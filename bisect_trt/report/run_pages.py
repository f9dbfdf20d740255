"""The pages of ``bisect-trt view``: a list of runs, and one run while it works."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from bisect_trt.report.page import frame, macro, sentence
from bisect_trt.report.text import Json, plural, seconds, shorten

NODE_STATES = {
    "culprit": "needed to fail",
    "kept": "kept in fp32",
    "best": "in the smallest model that fails so far",
    "out": "left out of it",
    "unknown": "not known yet",
}
"""States of a cell of the map, the most important first."""
_CELLS, _ROW, _STEP = 2000, 80, 11
"""Most cells of the map, cells a row, and pixels a cell."""
_SHOWN = 100
"""Probes in the table."""
_IDLE_S = 120
"""Seconds without a new line in the journal after which the page says so."""


@dataclass(frozen=True)
class RunView:
    """A run, read from its folder.

    Attributes:
        name: The folder's name.
        words: The command line, or the Python call.
        command: The command's name.
        began: Time of the start, in seconds since the epoch.
        touched: Time of the last write, likewise.
        result: The content of result.json, if the run has ended.
        probes: Entries of the journal, in the order in which the search asked.
        running: Titles of the probes that have not ended.
        best: The smallest failing candidate that was cut out of the whole model.
        nodes: Name and state of every node, in the model's order; empty where the model is missing.
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
        """The address of the run's page."""
        return f"/run/{quote(self.name, safe='')}"

    @property
    def progress(self) -> str:
        """The smallest failing candidate so far, or the number of probes."""
        if self.best is not None:
            return f"{self.best['title']} still fail{'s' if self.best['size'] == 1 else ''}"
        return f"{plural(len(self.probes), 'probe')} done" if self.probes else "nothing is known yet"

    @property
    def headline(self) -> str:
        """The answer, or the progress while there is none."""
        return self.progress if self.result is None else sentence(self.result)


def page(title: str, sections: Markup) -> tuple[str, str]:
    """Return a whole page and its content security policy.

    Its script asks the server for newer sections.

    Args:
        title: Of the window.
        sections: Its content; each section has an ``id``.
    """
    text, policy = frame(
        title,
        sections,
        "Made by bisect-trt from the folders of its runs.",
        "runs.js",
        [("/", "Runs")],
        styles=("report.css", "runs.css"),
        extra="connect-src 'self'; form-action 'self'",
    )
    return text, f"{policy}; frame-ancestors 'none'; base-uri 'none'"


def message_section(text: str) -> Markup:
    """Return a section with one sentence."""
    return macro("runs.html", "message", text)


def list_sections(runs: Sequence[RunView]) -> Markup:
    """Return the list of all runs, newest first."""
    return macro("runs.html", "list", runs)


def run_sections(run: RunView, now: float) -> Markup:
    """Return one run: its state, the state of each node, its probes."""
    counts = Counter(str(probe["verdict"]).lower() for probe in run.probes)
    verdicts = ", ".join(f"{counts[key]} {key}" for key in ("fail", "pass", "unresolved") if counts[key])
    facts = [
        ("Command", run.words),
        ("Started", f"{datetime.fromtimestamp(run.began):%Y-%m-%d %H:%M:%S}"),
        ("Probes", f"{len(run.probes):,}{f' ({verdicts})' if verdicts else ''}"),
        ("Best so far", run.progress if run.result is None else None),
        ("Running now", ", ".join(run.running) if run.result is None else None),
    ]
    idle = now - run.touched
    silent = seconds(idle // 60 * 60) if run.result is None and idle > _IDLE_S else None
    newest = list(reversed(run.probes[-_SHOWN:]))
    return macro("runs.html", "run", run, facts, silent, _node_map(run.nodes), newest)


def _node_map(nodes: Sequence[tuple[str, str]]) -> dict[str, Any] | None:
    """Return a cell for each node, or for several nodes of a large model, with its most important state."""
    if not nodes:
        return None
    each = -(-len(nodes) // _CELLS)
    order = list(NODE_STATES)
    cells = []
    for place, first in enumerate(range(0, len(nodes), each)):
        group = nodes[first : first + each]
        name, state = min(group, key=lambda node: order.index(node[1]))
        more = f" and {len(group) - 1} more" if len(group) > 1 else ""
        title = f"{shorten(name, 80)}{more}: {NODE_STATES[state]}"
        cells.append((place % _ROW * _STEP, place // _ROW * _STEP, state, title))
    present = Counter(state for _, state in nodes)
    legend = [(state, words, present[state]) for state, words in NODE_STATES.items() if present[state]]
    return {
        "each": each,
        "cells": cells,
        "legend": legend,
        "label": f"{plural(len(nodes), 'node')}: " + ", ".join(f"{count:,} {words}" for _, words, count in legend),
        "width": min(len(cells), _ROW) * _STEP,
        "height": -(-len(cells) // _ROW) * _STEP,
    }
