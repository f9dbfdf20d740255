"""The page as a whole: first the answer in a sentence, how sure it is, and the files that were left."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path

from bisect_trt.errors import UnavailableError
from bisect_trt.reporting.html.builds import builds_section
from bisect_trt.reporting.html.curve import curve_section
from bisect_trt.reporting.html.findings import findings_section
from bisect_trt.reporting.html.graph import graph_section
from bisect_trt.reporting.html.markup import (
    Child,
    Json,
    Markup,
    definitions,
    join,
    plural,
    seconds,
    shorten,
    size,
    split,
    table,
    tag,
)
from bisect_trt.reporting.html.metric import metric_section
from bisect_trt.reporting.html.search import search_section
from bisect_trt.reporting.html.size_map import sweep_section
from bisect_trt.reporting.result import SCHEMA
from bisect_trt.tensors.npz import replacing

_BADGES = {
    "found": ("Proven", "good"),
    "not_reproduced": ("Does not reproduce", "neutral"),
    "inconclusive": ("Unproven", "doubt"),
    "interrupted": ("Stopped early", "doubt"),
    "error": ("Error", "bad"),
}
_COMPARED = {"found": ("All match", "good"), "not_reproduced": ("Mismatch", "bad")}
"""What the statuses mean where nothing is searched for."""
_NAME_LENGTH = 120


def sentence(result: Json) -> str:
    """The answer."""
    chosen = _answer(result)
    if result["status"] == "error" or chosen is None:
        return str(result["why"] or _names(result["culprits"]) or f"The run ended as '{result['status']}'.")
    return f"Stopped by the user. {chosen}" if result["status"] == "interrupted" else chosen


def _answer(result: Json) -> str | None:
    """Of all that was answered, what names a culprit; else the first."""
    answers = result.get("report", {}).get("story", {}).get("answers", [])
    named = [f"'{culprit['name'] or culprit['outputs'][0]}'" for culprit in result["culprits"]]
    telling = [str(said) for said in answers if not said.startswith(" ") and any(name in said for name in named)]
    return next(iter([*telling, *map(str, answers)]), None)


def _names(culprits: Sequence[Json]) -> str:
    names = ", ".join(f"{c['op']} '{c['name'] or c['outputs'][0]}'" for c in culprits[:6])
    return f"Needed to fail: {names}{', ...' if len(culprits) > 6 else ''}." if names else ""


def answer_section(result: Json) -> Markup:
    """The top of the page."""
    said = sentence(result)
    report = result.get("report", {})
    why = result["why"] if result["why"] and result["why"] not in said else None
    rest = list(report.get("story", {}).get("answers", []))
    if (chosen := _answer(result)) in rest:
        rest.remove(chosen)
    rest = [line for line in rest if line.strip() != why]
    return tag(
        "section",
        tag("p", badge(result), tag("span", result["command"], class_="quiet"), class_="eyebrow"),
        tag("h1", said),
        tag("p", why, class_="why") if why else None,
        tag("div", *_rest(rest), class_="rest") if rest else None,
        _facts(result),
        _files(report.get("files") or []),
        id="answer",
    )


def _rest(lines: Sequence[str]) -> list[Markup]:
    """What else was answered; lines that are set in belong to the one before them."""
    parts: list[Markup] = []
    inner: list[Markup] = []
    for line in [*lines, ""]:
        if line.startswith("  "):
            inner.append(tag("li", line.strip()))
            continue
        parts += [tag("ul", *inner)] if inner else []
        parts += [tag("p", line)] if line else []
        inner = []
    return parts


def badge(result: Json) -> Markup:
    """How a run ended, in a word or two."""
    words, style = _BADGES.get(result["status"], (result["status"], "neutral"))
    if result["command"] in ("run", "layerwise"):
        words, style = _COMPARED.get(result["status"], (words, style))
        if result["command"] == "layerwise" and result["status"] in _COMPARED:
            words, style = ("Mismatch", "bad") if result["status"] == "found" else ("All match", "good")
    elif result["command"] == "extract" and result["status"] == "found":
        words = "Done"
    elif result["status"] == "found" and result["minimality"] != "1-minimal":
        words, style = "Unproven", "doubt"
    return tag("span", words, class_=f"badge {style}")


def _facts(result: Json) -> Markup:
    model, probes = result["model"], result["probes"]
    entries: list[tuple[str, Child]] = []
    if model:
        entries.append(("Model", tag("code", shorten(model["path"], _NAME_LENGTH))))
        entries.append(("Nodes", f"{model['nodes']:,}, {model['units']:,} of them depend on an input"))
    entries.append(("Target", result.get("report", {}).get("target")))
    if probes["run"]:
        verdicts = ", ".join(f"{probes[key]} {key}" for key in ("fail", "pass", "unresolved") if probes[key])
        entries.append(("Probes", f"{probes['run']:,} ({verdicts})"))
    entries.append(("Took", seconds(result["wall_s"])))
    entries.append(("Where the time went", split(result.get("times", {}))))
    pairs = [tag("div", tag("dt", name), tag("dd", value)) for name, value in entries if value]
    return tag("dl", *pairs, class_="facts")


def _files(files: Sequence[Json]) -> Markup | None:
    if not files:
        return None
    rows = [[tag("td", tag("code", file["path"], class_="path")), size(file["bytes"]), file["what"]] for file in files]
    heading = tag("h2", f"What was left: {plural(len(files), 'file')}")
    return tag("div", heading, table(["File", "Size", ""], rows, "Files"), class_="files")


REPORT_FILE = "report.html"
_PLACE = re.compile(r"@([A-Z]+)@")


def write_report(result: Json, path: Path) -> None:
    """Write the page.

    Raises:
        UnavailableError: It is no result of bisect-trt, or of another version.
        UsageError: The file cannot be written.
    """
    page = render(result)
    with replacing(path) as file:
        file.write(page.encode(errors="backslashreplace"))  # a path need not be text


def render(result: Json) -> str:
    """The page as text.

    Raises:
        UnavailableError: It is no result of bisect-trt, or of another version.
    """
    if result.get("schema") != SCHEMA:
        raise UnavailableError(
            f"the result has schema {result.get('schema')}, and this version of bisect-trt reads {SCHEMA}; "
            "use the version that wrote it."
        )
    try:
        return _render(result)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise UnavailableError(
            f"the result is damaged ({type(error).__name__}: {error}), so there is nothing to show; run the command again."
        ) from error


def _render(result: Json) -> str:
    sections = list(_sections(result))
    script = Markup(template("report.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    links = [tag("li", tag("a", name, href=f"#{anchor}")) for anchor, name, _ in sections]
    parts = {
        "POLICY": f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:",
        "TITLE": join([shorten(sentence(result), 100), " \u2013 bisect-trt"]),
        "STYLE": Markup(template("report.css")),
        "LINKS": join(links),
        "MAIN": join(section for _, _, section in sections),
        "FOOT": _foot(result),
        "SCRIPT": script,
    }
    return fill(parts)


def fill(parts: Mapping[str, str]) -> str:
    """The frame of a page with what goes into its places; in one pass, so that nothing that was put in is looked at again."""
    return _PLACE.sub(lambda match: parts[match[1]], template("report.html"))


def template(name: str) -> str:
    """A file of the templates."""
    return resources.files("bisect_trt.reporting").joinpath(f"templates/{name}").read_text("utf-8")


def _sections(result: Json) -> Iterator[tuple[str, str, Markup]]:
    """Anchor, name in the navigation and content of each part that there is something for."""
    report = result.get("report") or {}
    graph, curve = report.get("graph"), report.get("curve")
    made: list[tuple[str, str, Callable[[], Markup | None]]] = [
        ("answer", "Answer", lambda: answer_section(result)),
        ("graph", "Graph", lambda: graph_section(graph) if graph else None),
        ("error", "Error", lambda: curve_section(curve, graph["nodes"] if graph else []) if curve else None),
        ("metric", "Metric", lambda: metric_section(result.get("metric"))),
        ("sweep", "Sizes", lambda: sweep_section(result.get("sweep"))),
        ("builds", "Builds", lambda: builds_section(result)),
        ("findings", "Findings", lambda: findings_section(result)),
        ("search", "Search", lambda: search_section(report, result["probes"])),
        ("commands", "Commands", lambda: _commands(report.get("commands") or [])),
        ("environment", "Environment", lambda: _environment(report.get("environment") or {}, result)),
    ]
    for anchor, name, make in made:
        section = make()
        if section is not None:
            yield anchor, name, section


def _commands(commands: Sequence[Json]) -> Markup | None:
    if not commands:
        return None
    items = [
        tag("li", tag("p", entry["what"]), tag("pre", tag("code", entry["command"]), class_="command"))
        for entry in commands
    ]
    return tag("section", tag("h2", "Commands"), tag("ul", *items, class_="commands"), id="commands")


def _environment(environment: Json, result: Json) -> Markup:
    entries = [*environment.items(), ("model SHA-256", result["model"].get("sha256"))]
    return tag(
        "section",
        tag("h2", "Environment"),
        definitions([(name, str(value)) for name, value in entries if value], "pairs wide"),
        id="environment",
    )


def _foot(result: Json) -> Markup:
    created = (result.get("report") or {}).get("created")
    return join(["Made by bisect-trt", f" on {created.replace('T', ' ')}" if created else None, " from result.json."])
