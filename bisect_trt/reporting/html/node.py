"""One node of the graph in words: what the panel beside the drawing shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bisect_trt.reporting.html.markup import Child, Markup, shorten, tag
from bisect_trt.reporting.html.words import HIDES, PRECISIONS, VERDICTS, Json, definitions, kind, number

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
            "h4",
            tag("span", shorten(domain + node["op"], 80), class_="op"),
            " ",
            tag("code", shorten(node_title(node), _NAME_LENGTH)),
        ),
        tag("p", "; ".join(states), class_=f"state {node['verdict']}"),
        tag("p", HIDES, class_="state hides") if node.get("hides") else None,
        [tag("h5", "Attributes"), definitions(attributes, "pairs")] if attributes else None,
        tag("h5", "Reads"),
        tag("ul", *(_tensor(name, tensors.get(name, {}), _SOURCES.get(source, "")) for name, source in node["inputs"])),
        tag("p", f"... and {node['more_inputs']} more", class_="quiet") if node["more_inputs"] else None,
        tag("h5", "Makes"),
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
