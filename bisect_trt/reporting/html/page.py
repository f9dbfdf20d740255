"""The page as a whole."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from pathlib import Path

from bisect_trt.errors import UnavailableError
from bisect_trt.reporting.html.answer import answer_section, sentence
from bisect_trt.reporting.html.curve import curve_section
from bisect_trt.reporting.html.findings import findings_section
from bisect_trt.reporting.html.graph import graph_section
from bisect_trt.reporting.html.markup import Json, Markup, definitions, join, shorten, tag
from bisect_trt.reporting.html.search import search_section
from bisect_trt.reporting.result import SCHEMA
from bisect_trt.tensors.npz import replacing

REPORT_FILE = "report.html"
_PLACE = re.compile(r"@([A-Z]+)@")


def write_report(result: Json, path: Path) -> None:
    """Write the page.

    Args:
        result: What ``result.json`` holds.
        path: Where to; a file that exists is replaced.

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
    script = Markup(_template("report.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    links = [tag("li", tag("a", name, href=f"#{anchor}")) for anchor, name, _ in sections]
    parts = {
        "POLICY": f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:",
        "TITLE": join([shorten(sentence(result), 100), " \u2013 bisect-trt"]),
        "STYLE": Markup(_template("report.css")),
        "LINKS": join(links),
        "MAIN": join(section for _, _, section in sections),
        "FOOT": _foot(result),
        "SCRIPT": script,
    }
    # In one pass, so that nothing that was put in is looked at again.
    return _PLACE.sub(lambda match: parts[match[1]], _template("report.html"))


def _template(name: str) -> str:
    return resources.files("bisect_trt.reporting").joinpath(f"templates/{name}").read_text("utf-8")


def _sections(result: Json) -> Iterator[tuple[str, str, Markup]]:
    """Anchor, name in the navigation and content of each part that there is something for."""
    report = result.get("report") or {}
    graph, curve = report.get("graph"), report.get("curve")
    made: list[tuple[str, str, Callable[[], Markup | None]]] = [
        ("answer", "Answer", lambda: answer_section(result)),
        ("graph", "Graph", lambda: graph_section(graph) if graph else None),
        ("error", "Error", lambda: curve_section(curve, graph["nodes"] if graph else []) if curve else None),
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
