"""Builds or runs that come and go: how often they fail, and what the bad ones chose."""

from __future__ import annotations

from bisect_trt.reporting.html.markup import Json, Markup, breakable, number, plural, shorten, table, tag

MOST_ROWS = 200
_LENGTH = 120
_WORDS = {"PASS": ("good", "match"), "FAIL": ("bad", "wrong"), "UNRESOLVED": ("not known", "quiet")}


def builds_section(result: Json) -> Markup | None:
    """The part of the page; ``None`` where nothing was repeated."""
    builds = result.get("builds")
    if not builds or result.get("interval") is None:
        return None
    low, high = result["interval"]
    of = result["good"] + result["bad"]
    rate = f"{result['bad']} of {of} fail: {result['rate']:.1%}, {low:.1%} to {high:.1%}"
    how = f"with {result['confidence']:g} confidence ({result['method']})."
    return tag(
        "section",
        tag("h2", "How often it fails"),
        tag("p", f"{rate} {how}"),
        *(_reason(each) for each in result.get("reasons") or []),
        _choices(result),
        _builds(result),
        id="builds",
    )


def _reason(reason: Json) -> Markup:
    named = " and ".join(f"{each['layer']}: {each['choice']}" for each in reason["choices"])
    if reason["proven"]:
        return tag("p", tag("b", "The reason: "), tag("code", breakable(named)))
    return tag("p", f"Not proven{f' ({named})' if named else ''}: {reason['why']}.")


def _choices(result: Json) -> Markup | None:
    chosen = [
        each for each in result.get("choices") or [] if each["bad"] * result["good"] > each["good"] * result["bad"]
    ]
    if not chosen:
        return None
    rows = [
        [
            tag("td", tag("code", breakable(shorten(each["layer"], _LENGTH)))),
            tag("td", breakable(shorten(each["choice"], _LENGTH))),
            tag("td", f"{each['bad']} of {result['bad']}", class_="number"),
            tag("td", f"{each['good']} of {result['good']}", class_="number"),
            tag("td", number(each["p"], 3), class_="number"),
            tag("td", tag("b", "proven", class_="wrong") if each["proven"] else ""),
        ]
        for each in chosen[:MOST_ROWS]
    ]
    hidden = len(chosen) - MOST_ROWS
    head = ["Layer", "Choice", "Bad builds", "Good builds", "p", ""]
    return tag(
        "div",
        tag("h3", "What bad builds chose more often than good ones"),
        table(head, rows, "Choices", ("Bad builds", "Good builds", "p")),
        tag("p", f"{plural(hidden, 'choice')} more in result.json.", class_="quiet") if hidden > 0 else None,
        tag("p", f"p: {result['test']}, {plural(result['compared'], 'comparison')}.", class_="quiet"),
    )


def _builds(result: Json) -> Markup:
    rows = []
    for each in result["builds"][:MOST_ROWS]:
        words, style = _WORDS[each["verdict"]]
        rows.append([str(each["number"]), tag("td", tag("b", words, class_=style)), shorten(each["reason"], _LENGTH)])
    return tag("div", tag("h3", "One by one"), table(["Number", "", "Why"], rows, "Builds"))
