"""A network as one SVG file that stands alone: as the report draws a graph, without links, scripts or anything from outside."""

from __future__ import annotations

import re
from pathlib import Path

from bisect_trt.reporting.html.graph import drawing
from bisect_trt.reporting.html.markup import VERDICTS, Json, Markup, join, tag
from bisect_trt.reporting.html.page import template
from bisect_trt.tensors.npz import replacing

_LINK = re.compile(r' href="#node-\d+"')
_LEGEND_HEIGHT = 34
_KEY_WIDTH = 260


def write_picture(graph: Json, path: Path) -> None:
    """Write the drawing with a legend of the verdicts that are in it.

    Args:
        graph: As in the report.
        path: Where to; a file that exists is replaced.

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
