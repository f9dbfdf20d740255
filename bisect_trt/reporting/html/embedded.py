"""A result in a notebook: its answer, the graph and the curve in a frame of their own, so that no style leaks either way."""

from __future__ import annotations

import re

from bisect_trt.errors import UnavailableError
from bisect_trt.reporting.html.curve import curve_section
from bisect_trt.reporting.html.graph import graph_section
from bisect_trt.reporting.html.markup import Json, Markup, join, tag
from bisect_trt.reporting.html.page import answer_section, sentence, template

_ANSWER_HEIGHT, _PART_HEIGHT, _LOWEST = 330, 420, 160
"""Pixels: a frame cannot ask what is in it how high that is without a script."""
_DATA = re.compile(r"<script\b[^>]*>[^<]*</script>")
"""What the page's own script would read."""
_STYLE = "width:100%;border:1px solid #8884;border-radius:6px;background:transparent"


def embed(result: Json) -> str | None:
    """The result as HTML for a notebook, without scripts and without anything from outside.

    The answer stands before the frame as well, for viewers that leave frames out.

    Args:
        result: What ``result.json`` holds.

    Returns:
        ``None`` where the result is damaged or of another version.
    """
    try:
        parts = list(_parts(result))
        said = sentence(result)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, UnavailableError):
        return None
    page = join(
        [
            Markup('<!doctype html><html lang="en"><head><meta charset="utf-8">'),
            Markup(
                "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
            ),
            Markup(f"<style>{template('report.css')}</style></head><body>"),
            tag("main", *(Markup(_DATA.sub("", part)) for part in parts)),
            Markup("</body></html>"),
        ]
    )
    height = _ANSWER_HEIGHT + _PART_HEIGHT * (len(parts) - 1)
    frame = tag("iframe", srcdoc=page, sandbox=True, style=f"{_STYLE};height:{height}px", title="bisect-trt")
    return str(tag("div", tag("p", tag("b", said)), frame, class_="bisect-trt"))


def _parts(result: Json) -> list[Markup]:
    report = result.get("report") or {}
    graph, curve = report.get("graph"), report.get("curve")
    return [
        answer_section(result),
        *([graph_section(graph)] if graph else []),
        *([curve_section(curve, graph["nodes"] if graph else [])] if curve else []),
    ]
