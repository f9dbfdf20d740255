"""The answer in a sentence, how sure it is, and the files that were left."""

from __future__ import annotations

from collections.abc import Sequence

from bisect_trt.reporting.html.markup import Child, Json, Markup, plural, seconds, shorten, size, table, tag

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
    answers = result.get("report", {}).get("story", {}).get("answers", [])
    if result["status"] == "error" or not answers:
        return str(result["why"] or _names(result["culprits"]) or f"The run ended as '{result['status']}'.")
    if result["status"] == "interrupted":
        return f"Stopped by the user. {answers[0]}"
    return str(answers[0])


def _names(culprits: Sequence[Json]) -> str:
    names = ", ".join(f"{c['op']} '{c['name'] or c['outputs'][0]}'" for c in culprits[:6])
    return f"Needed to fail: {names}{', ...' if len(culprits) > 6 else ''}." if names else ""


def answer_section(result: Json) -> Markup:
    """The top of the page."""
    said = sentence(result)
    report = result.get("report", {})
    why = result["why"] if result["why"] and result["why"] not in said else None
    rest = [line for line in report.get("story", {}).get("answers", [])[1:] if line.strip() != why]
    return tag(
        "section",
        tag("p", _badge(result), tag("span", result["command"], class_="quiet"), class_="eyebrow"),
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


def _badge(result: Json) -> Markup:
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
    pairs = [tag("div", tag("dt", name), tag("dd", value)) for name, value in entries if value]
    return tag("dl", *pairs, class_="facts")


def _files(files: Sequence[Json]) -> Markup | None:
    if not files:
        return None
    rows = [[tag("td", tag("code", file["path"], class_="path")), size(file["bytes"]), file["what"]] for file in files]
    heading = tag("h2", f"What was left: {plural(len(files), 'file')}")
    return tag("div", heading, table(["File", "Size", ""], rows, "Files"), class_="files")
