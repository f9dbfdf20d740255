"""Parts of the report that stand alone: a result in a notebook, a network as an SVG file."""

from __future__ import annotations

import re
from pathlib import Path

from bisect_trt.errors import UnavailableError
from bisect_trt.reporting.html.curve import curve_section
from bisect_trt.reporting.html.graph import drawing, graph_section
from bisect_trt.reporting.html.markup import VERDICTS, Json, Markup, join, tag
from bisect_trt.reporting.html.page import answer_section, sentence, template
from bisect_trt.tensors.npz import replacing

_ANSWER_HEIGHT, _PART_HEIGHT = 330, 420
"""Pixels: a frame cannot ask what is in it how high that is without a script."""
_DATA = re.compile(r"<script\b[^>]*>[^<]*</script>")
"""What the page's own script would read."""
_STYLE = "width:100%;border:1px solid #8884;border-radius:6px;background:transparent"
_LINK = re.compile(r' href="#node-\d+"')
_LEGEND_HEIGHT = 34
_KEY_WIDTH = 260


def embed(result: Json) -> str | None:
    """The result as HTML for a notebook, without scripts and without anything from outside.

    The answer stands before the frame as well, for viewers that leave frames out.

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


def write_picture(graph: Json, path: Path) -> None:
    """Write the drawing with a legend of the verdicts that are in it.

    Raises:
        UsageError: It cannot be written.
    """
    drawn = Markup(_LINK.sub("", drawing(graph)))
    match = re.search(r'viewBox="0 0 (\d+) (\d+)"', drawn)
    assert match is not None, "the drawing says how large it is"
    kinds = [kind for kind in VERDICTS if any(node["verdict"] == kind for node in graph["nodes"])]
    width, height = max(int(match[1]), _KEY_WIDTH * len(kinds)), int(match[2]) + _LEGEND_HEIGHT
    legend = [_key(kind, number * _KEY_WIDTH) for number, kind in enumerate(kinds)]
    page = tag(
        "svg",
        tag("style", Markup(_style())),
        tag("rect", width="100%", height="100%", class_="ground"),
        tag("g", *legend, class_="nodes"),
        tag("g", drawn, transform=f"translate(0 {_LEGEND_HEIGHT})"),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        id="graph",
    )
    with replacing(path) as file:
        file.write(join([Markup('<?xml version="1.0" encoding="utf-8"?>\n'), page, "\n"]).encode(errors="replace"))


def _key(kind: str, x: int) -> Markup:
    swatch = tag("rect", x=x + 12, y=8, width=18, height=18, rx=4)
    words = tag("text", VERDICTS[kind], x=x + 38, y=22)  # not in the colours of such a node: what is on it is white
    return join([tag("g", swatch, class_=f"node {kind}"), tag("g", words, class_="node")])


def _style() -> str:
    """The report's, of which a picture needs the colours and the nodes."""
    return template("report.css") + "\n.ground { fill: var(--page); }\ntext { font-family: system-ui, sans-serif; }\n"
