"""What a sweep found, in words and as a map of letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

Json = Mapping[str, Any]

MARKS = {"PASS": ".", "FAIL": "#", "UNRESOLVED": "?"}
"""Of a size in a map; a blank for one that was not tried."""
_WIDTH = 96
_MOST_ROWS, _OF_A_PERIOD = 40, 6
_WORDS = {"PASS": "pass", "FAIL": "FAIL", "UNRESOLVED": "not known"}


def sentence(told: Json) -> str:
    """Which sizes fail, as far as they were tried."""
    tried = f"tried {told['tried']} of {told['of']} sizes"
    steps = [f"{each['name']} in steps of {each['step']}" for each in told["dimensions"] if each["step"]]
    tried += f" that the model takes ({', '.join(steps)})" if steps else ""
    limit = "" if told["exhaustive"] else "; of a size that was not tried nothing is known but its neighbours"
    if told["smallest_failing"] is None:
        return f"{tried}{limit}."
    parts = [] if told["relation"] is None else [_together(told)]
    for each in told["dimensions"]:
        if each["rule"] is None and told["relation"] is not None:
            continue  # what is said of all dimensions together says more than a list
        at = ", ".join(f"{name}={size}" for name, size in each["at"].items())
        where = f" (with {at})" if at else ""
        rule = each["rule"]["said"] if each["rule"] is not None else f"at {_list(each['fail'])}, by no simple rule"
        many = f", as all {len(each['tried'])} that were tried say" if len(each["tried"]) < each["sizes"] else ""
        parts.append(f"{rule} of {each['name']}{where}{many}")
    return f"{'; '.join(parts)}: {tried}{limit}."


def _together(told: Json) -> str:
    """The rule of all dimensions together, with how much it rests on where not every point was tried."""
    rule = told["relation"]
    if told["exhaustive"]:
        return f"where {rule['said']}"
    sure = f"as all {rule['obeyed_by']} that were tried say, {rule['foretold']} of them after it was guessed"
    also = "".join(f", or where {each}, which nothing that was tried tells apart" for each in rule["others"])
    return f"{'' if rule['sure'] else 'perhaps '}where {rule['said']}, {sure}{also}"


def _list(sizes: Sequence[int]) -> str:
    shown = ", ".join(map(str, sizes[:12]))
    return f"{shown}, ... ({len(sizes)})" if len(sizes) > 12 else shown


def draw(told: Json) -> list[str]:
    """The map as lines: of one dimension its intervals and a strip, of two a square, of each its intervals."""
    lines: list[str] = []
    for each in told["dimensions"]:
        at = ", ".join(f"{name}={size}" for name, size in each["at"].items())
        lines.append(f"  {each['name']}" + (f", with {at}" if at else ""))
        rows = each["intervals"]
        most = _MOST_ROWS if each["rule"] is None or each["rule"]["period"] is None else _OF_A_PERIOD
        for found in rows[:most]:
            span = f"{found['from']}" if found["from"] == found["to"] else f"{found['from']}..{found['to']}"
            between = "inferred" if each["rule"] is None or each["rule"]["period"] is None else "as the rule says"
            left = f"{len(found['tried'])} tried, what lies between {between}" if found["inferred"] else "all tried"
            lines.append(f"    {_WORDS[found['verdict']]:<9} {span:<14} {left}")
        if len(rows) > most:
            lines.append(f"    ... {len(rows) - most} more in the report")
        if len(told["dimensions"]) == 1 and len(told["map"]) <= _WIDTH:
            marks = "".join(MARKS[entry["verdict"]] for entry in told["map"])
            lines.append(f"    {each['low']} {marks} {each['high']}   (. pass, # fail, ? not known; the sizes tried)")
    if len(told["dimensions"]) == 2:
        lines += _square(told)
    return lines + _ways(told)


def _ways(told: Json) -> list[str]:
    """How it fails, where that is not everywhere the same: each way with its smallest size."""
    first: dict[str, Json] = {}
    count = Counter(entry["signature"] for entry in told["map"] if entry["verdict"] == "FAIL")
    for entry in sorted(told["map"], key=lambda entry: prod(entry["sizes"].values())):
        if entry["verdict"] == "FAIL":
            first.setdefault(entry["signature"], entry)
    return [
        f"  {count[way]} of {count.total()} that fail: {entry['reason'] or way}, "
        f"first at {', '.join(f'{name}={size}' for name, size in entry['sizes'].items())}"
        for way, entry in (first.items() if len(first) > 1 else ())
    ]


def _square(told: Json) -> list[str]:
    """Two dimensions: the first down, the second across; sizes at which only few points were tried are left out."""
    rows, columns, cells = grid(told)
    first, second = (each["name"] for each in told["dimensions"])
    if not rows or len(columns) > _WIDTH or len(rows) > _MOST_ROWS:
        return []
    width = max(len(str(size)) for size in rows)
    lines = [f"  {first} down, {second} across: {_list(columns)}"]
    for row in rows:
        marks = "".join(MARKS.get(cells.get((row, column), ""), " ") for column in columns)
        lines.append(f"    {row:>{width}} {marks}")
    return lines


def grid(told: Json) -> tuple[list[int], list[int], dict[tuple[int, int], str]]:
    """The sizes of two dimensions that were tried, and the verdict at each two that were tried together."""
    first, second = (each["name"] for each in told["dimensions"])
    cells = {(entry["sizes"][first], entry["sizes"][second]): entry["verdict"] for entry in told["map"]}
    return sorted({row for row, _ in cells}), sorted({column for _, column in cells}), cells
