"""The graph around the culprit: a drawing that is there without JavaScript, and each node in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bisect_trt.reporting.html.layout import Edge, Layout, lay_out
from bisect_trt.reporting.html.markup import (
    HIDES,
    PRECISIONS,
    VERDICTS,
    Child,
    Json,
    Markup,
    breakable,
    definitions,
    kind,
    number,
    plural,
    shorten,
    tag,
)

_WIDTH, _HEIGHT = 168, 42
_COLUMN, _ROW = 176, 82
"""How far the centres of neighbours are apart, in pixels."""
_MARGIN = 24
_STUB = 20
_DRAWN_LENGTH = 24
_MARKS = {"culprit": "\u2716", "origin": "\u2716", "mild": "\u223c", "mismatch": "\u223c", "match": "\u2713"}
"""What stands beside the colour, for those who do not see it."""


def graph_section(graph: Json) -> Markup:
    """The drawing, its legend, the panel, and the nodes as a list."""
    nodes = graph["nodes"]
    hidden = graph["total"] - len(nodes)
    around = "All of it is drawn." if hidden <= 0 else f"{plural(hidden, 'more node')} of the model lie farther away."
    return tag(
        "section",
        tag("h2", "The graph around it"),
        tag("p", f"{plural(len(nodes), 'node')}, makers above readers. {around}", class_="quiet"),
        _toolbar(nodes, graph["centre"]),
        tag(
            "div",
            tag("div", drawing(graph), class_="canvas", id="canvas"),
            tag("aside", tag("p", "Choose a node to see its attributes, shapes, ranges and errors.", class_="quiet"),
                class_="panel", id="panel", aria_live="polite", aria_label="The chosen node", tabindex=0),
            class_="split",
        ),
        tag(
            "details",
            tag("summary", f"The {plural(len(nodes), 'node')} in words"),
            tag("div", *(describe_node(node, graph["tensors"]) for node in nodes), class_="articles"),
            id="nodes",
        ),
        id="graph",
        class_=None if _is_about_errors(nodes) else "precision",
    )  # fmt: skip


def _is_about_errors(nodes: Sequence[Json]) -> bool:
    """Whether colours tell of errors at first: nodes have been compared, or there is nothing else to tell of."""
    return any(node["verdict"] not in ("spare", "unseen") for node in nodes) or not any(
        node["precision"] for node in nodes
    )


def _toolbar(nodes: Sequence[Json], centre: Sequence[int]) -> Markup:
    kinds = [kind for kind in VERDICTS if any(node["verdict"] == kind for node in nodes)]
    precisions = [kind for kind in PRECISIONS if any(node["precision"] == kind for node in nodes)]
    legend = [_key(kind, VERDICTS[kind], "by-verdict") for kind in kinds]
    legend += [_key("hides", HIDES, "")] if any(node.get("hides") for node in nodes) else []
    legend += [_key(kind, PRECISIONS[kind], "by-precision") for kind in precisions]
    choice = tag(
        "fieldset",
        tag("legend", "Colour"),
        *(
            tag(
                "label",
                tag(
                    "input",
                    type="radio",
                    name="colour",
                    value=value,
                    checked=(value == "verdict") == _is_about_errors(nodes),
                ),
                word,
            )
            for value, word in (("verdict", "error"), ("precision", "precision"))
        ),
        class_="live choice",
    )
    middle = "Culprit" if {"culprit", "origin"}.intersection(kinds) else "Centre"
    buttons = [
        tag("button", sign, type="button", data_zoom=action, title=title, aria_label=title)
        for action, sign, title in (
            ("in", "+", "Zoom in"),
            ("out", "\u2212", "Zoom out"),
            ("fit", "Fit", "Fit: show all of it"),
            ("centre", middle, f"Back to the {middle.lower()}"),
        )
    ]
    return tag(
        "div",
        tag("ul", *legend, class_="legend", aria_label="Legend"),
        choice if precisions else None,
        tag("a", f"To the {middle.lower()}", href=f"#drawn-{int(centre[0])}", class_="static") if centre else None,
        tag("div", *buttons, class_="live buttons", role="group", aria_label="Zoom"),
        class_="toolbar",
    )


def _key(kind: str, word: str, group: str) -> Markup:
    return tag("li", tag("span", _MARKS.get(kind, ""), class_=f"swatch {kind}", aria_hidden="true"), word, class_=group)


def drawing(graph: Json) -> Markup:
    """The nodes and what leads from one to another, as SVG."""
    nodes = graph["nodes"]
    edges = list(dict.fromkeys((maker, reader) for maker, reader, _ in graph["edges"]))
    layout = lay_out([node["id"] for node in nodes], edges)
    width = layout.width * _COLUMN + 2 * _MARGIN
    height = (layout.height - 1) * _ROW + _HEIGHT + 2 * (_MARGIN + _STUB)
    wrong = {
        (m, r)
        for m, r, name in graph["edges"]
        if not graph["tensors"].get(name, {}).get("error", {}).get("passed", True)
    }
    return tag(
        "svg",
        tag("g", *(_edge(edge, layout, wrong=edge in wrong) for edge in edges), class_="edges", aria_hidden="true"),
        tag("g", *(_node(node, layout, graph["centre"]) for node in nodes), class_="nodes"),
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        width=round(width),
        height=round(height),
        role="group",
        aria_label=f"Graph of {plural(len(nodes), 'node')} around the culprit",
        id="drawing",
    )  # fmt: skip


def _point(place: tuple[float, float]) -> tuple[float, float]:
    return _MARGIN + place[0] * _COLUMN, _MARGIN + _STUB + _HEIGHT / 2 + place[1] * _ROW


def _edge(edge: Edge, layout: Layout, *, wrong: bool) -> Markup:
    """From the lower side of the maker over its way to the upper side of the reader."""
    x, y = _point(layout.places[edge[0]])
    y += _HEIGHT / 2
    path = f"M{x:.1f} {y:.1f}"
    end_x, end_y = _point(layout.places[edge[1]])
    for to_x, to_y in [*map(_point, layout.routes[edge]), (end_x, end_y - _HEIGHT / 2)]:
        middle = (y + to_y) / 2
        path += f"C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}"
        x, y = to_x, to_y
    return tag("path", d=path, class_="wrong" if wrong else None, data_edge=f"{edge[0]} {edge[1]}")


def _node(node: Json, layout: Layout, centre: Sequence[int]) -> Markup:
    x, y = _point(layout.places[node["id"]])
    title = node_title(node)
    op, name = shorten(node["op"], 15), shorten(title, _DRAWN_LENGTH)
    words = [node["op"], shorten(title, _NAME_LENGTH), VERDICTS.get(node["verdict"], "")]
    words += [PRECISIONS[node["precision"]]] if node["precision"] else []
    words += [HIDES] if node.get("hides") else []
    words += (
        [] if (op, name) == (node["op"], title) else [f"drawn as {op} {name}"]
    )  # who says what is seen is understood
    classes = [
        node["verdict"],
        f"p-{node['precision']}" if node["precision"] else "",
        "hides" if node.get("hides") else "",
        "centre" if node["id"] in centre else "",
    ]
    stubs = [
        tag("path", d=f"M0 {edge}v{step}", class_="stub")
        for count, edge, step in (
            (node["hidden_makers"], -_HEIGHT / 2, -_STUB),
            (node["hidden_readers"], _HEIGHT / 2, _STUB),
        )
        if count
    ]
    return tag(
        "a",
        tag("title", ", ".join(filter(None, words))),
        *stubs,
        tag("rect", x=-_WIDTH / 2, y=-_HEIGHT / 2, width=_WIDTH, height=_HEIGHT, rx=6),
        tag("text", op, x=-_WIDTH / 2 + 12, y=-4, class_="op"),
        " ",
        tag("text", name, x=-_WIDTH / 2 + 12, y=12, class_="name"),
        " ",
        tag("text", _MARKS.get(node["verdict"], ""), x=_WIDTH / 2 - 12, y=-3, class_="mark"),
        href=f"#node-{int(node['id'])}",
        class_=" ".join(filter(None, ["node", *classes])),
        transform=f"translate({x:.1f} {y:.1f})",
        id=f"drawn-{int(node['id'])}",
        data_id=int(node["id"]),
        aria_label=", ".join(filter(None, words)),
    )  # fmt: skip


_SOURCES = {"input": "input of the graph", "weight": "weight", "node": ""}
_NAME_LENGTH = 200


def node_title(node: Json) -> str:
    """Its name, or that of what it makes."""
    return str(node["name"] or next(iter(node["outputs"]), "?"))


def describe_node(node: Json, tensors: Mapping[str, Json]) -> Markup:
    """All that is known of a node."""
    domain = f"{node['domain']}::" if node["domain"] else ""
    states = [VERDICTS.get(node["verdict"], "")] if node["verdict"] != "unseen" or not node["precision"] else []
    if node["precision"]:
        states.append(PRECISIONS[node["precision"]] + (f": {node['reason']}" if node["reason"] else ""))
    attributes = list(node["attributes"].items())
    return tag(
        "article",
        tag(
            "h3",
            tag("span", shorten(domain + node["op"], 80), class_="op"),
            " ",
            tag("code", shorten(node_title(node), _NAME_LENGTH)),
        ),
        tag("p", "; ".join(states), class_=f"state {node['verdict']}"),
        tag("p", "In module ", tag("code", breakable(shorten(node["written"], 300)))) if node.get("written") else None,
        tag("p", HIDES, class_="state hides") if node.get("hides") else None,
        [tag("h4", "Attributes"), definitions(attributes, "pairs")] if attributes else None,
        tag("h4", "Reads"),
        tag("ul", *(_tensor(name, tensors.get(name, {}), _SOURCES.get(source, "")) for name, source in node["inputs"])),
        tag("p", f"... and {node['more_inputs']} more", class_="quiet") if node["more_inputs"] else None,
        tag("h4", "Makes"),
        tag("ul", *(_tensor(name, tensors.get(name, {}), "") for name in node["outputs"])),
        id=f"node-{int(node['id'])}",
    )


def _tensor(name: str, tensor: Json, source: str) -> Markup:
    facts: list[tuple[str, Child]] = [
        (label, _range(tensor[key]))
        for label, key in (("reference", "reference"), ("target", "target"))
        if key in tensor
    ]
    for label, key in (("error", "error"), ("alone", "own")):
        if key in tensor:
            facts.append((label, _error(tensor[key])))
    facts += [
        (label, tensor[key]) for label, key in (("not seen", "unseen"), ("not alone", "own_unseen")) if key in tensor
    ]
    return tag(
        "li",
        tag("code", shorten(name, _NAME_LENGTH)),
        tag("span", kind(tensor), f", {source}" if source else "", class_="quiet"),
        definitions(facts, "pairs") if facts else None,
    )


def _range(stats: Json) -> str:
    text = f"{number(stats['min'])} to {number(stats['max'])}"
    others = [f"{number(stats[key])} {word}" for key, word in (("nan", "NaN"), ("inf", "Inf")) if stats[key]]
    return ", ".join([text, *others])


def _error(error: dict[str, Any]) -> Markup:
    verdict = tag(
        "b", "matches" if error["passed"] else "does not match", class_="match" if error["passed"] else "wrong"
    )
    if error["kind"] in ("shape", "dtype", "missing"):
        return tag("span", verdict, f" ({error['kind']})")
    if error.get("reason"):
        return tag("span", verdict, f": {error['reason']}")
    worst = error["worst"]
    if error["max_abs"] == 0:
        return tag("span", verdict, ", each element the same" if error["passed"] else None)
    text = f": at most {number(error['max_abs'])}"
    text += f", {number(error['ratio'], 3)} of the tolerance" if error["ratio"] != "inf" else ""
    if worst is not None and worst["error"] != 0:
        text += f"; at {worst['index']} {number(worst['reference'], 7)} became {number(worst['target'], 7)}"
    if error["mismatching"]:
        text += f"; {error['mismatching']:,} of {error['total']:,} elements off"
    if error["atol"] is not None:
        text += f" (atol {number(error['atol'], 3)}, rtol {number(error['rtol'], 3)})"
    return tag("span", verdict, text)
