"""Numbers, sizes, times, names and trees as text, for the terminal, the HTML report and Markdown."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from typing import Any

from bisect_trt.onnxlib.nodes import Node
from bisect_trt.search.oracle import Verdict

SCHEMA = 1
"""The number of the JSON schema; it rises if the meaning of a key changes."""
Json = Mapping[str, Any]
"""A part of a result, as ``result.json`` holds it."""
Entry = dict[str, Any]
"""A part of a result that is being made."""

VERDICT_STYLES = {Verdict.FAIL: "red", Verdict.PASS: "green", Verdict.UNRESOLVED: "yellow"}
"""Styles as rich names them."""
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff"  # control characters and surrogates: Unicode's Cc and Cs
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"  # line separators, and marks that change the text's direction
)
_ELLIPSIS = "\u2026"


@functools.cache
def template(name: str) -> str:
    """Return the text of a file of the report's templates."""
    return resources.files("bisect_trt.report").joinpath(f"templates/{name}").read_text("utf-8")


def clean(text: str) -> str:
    """Return the text without control characters, surrogates and direction marks; tabs become spaces."""
    return _UNPRINTABLE.sub("\ufffd", text.replace("\t", " ").replace("\r", " "))


def shorten(text: str, length: int) -> str:
    """Return a name of at most ``length`` characters; the middle is left out, because the beginning and the end carry meaning."""
    text = " ".join(clean(text).split())
    if len(text) <= length:
        return text
    head = (length - 1) // 3
    return text[:head] + _ELLIPSIS + text[len(text) - (length - 1 - head) :]


def number(value: float | str | None, digits: int = 5) -> str:
    """Return a number of a result as text."""
    if value is None:
        return "\u2013"
    if isinstance(value, str) or not math.isfinite(value):
        return {"inf": "\u221e", "-inf": "\u2212\u221e", "nan": "NaN"}.get(str(value), str(value))
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.{digits}g}"


def seconds(value: float, *, whole: bool = False) -> str:
    """Return a duration in seconds as text, such as ``1.25 s`` or ``3 min 4 s``; ``whole`` drops fractions of a second."""
    if value < 60:
        if whole:
            return f"{value:.0f} s"
        return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"
    minutes, remainder = divmod(round(value), 60)
    return (
        f"{minutes} min {remainder} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
    )


def plural(count: int, word: str) -> str:
    """Return ``1 node``, ``2 nodes``."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def spans(ends: Iterable[tuple[object, object]]) -> list[str]:
    """Return ranges as text, each by its first and its last element."""
    return [f"{low}" if low == high else f"{low} to {high}" for low, high in ends]


def named(node: Node) -> str:
    """Return operator and name of a node of a result."""
    return f"{node.op} '{node.name or next(iter(node.outputs), '?')}'"


_MARKUP = re.compile(r"([\\`*\[\]<>|~&#])|((?<![^\W_])_|_(?![^\W_]))")
_LEADING = re.compile(r"^(\s*\d*)(?=[-+=.)]+(?:\s|$))")
"""The start of a list, or an underlined heading."""


def plain(text: str) -> str:
    """Return the text on one line; characters that are not printable become escapes."""
    return "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in text
    )


def prose(text: str) -> str:
    """Return text for a paragraph, heading or table cell of Markdown; it is never markup, whatever it holds."""
    return _LEADING.sub(r"\1\\", _MARKUP.sub(r"\\\g<0>", plain(text)))


def code(text: str) -> str:
    """Return text as inline code of Markdown."""
    text = plain(text)
    ticks = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    pad = " " if not text or text[0] in "` " or text[-1] in "` " else ""
    return f"{ticks}{pad}{text}{pad}{ticks}"


def block(text: str) -> str:
    """Return lines as a fenced block of Markdown."""
    lines = "\n".join(map(plain, text.split("\n")))
    ticks = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", lines)), default=0))
    return f"{ticks}\n{lines}\n{ticks}"


def print_tree(title: str, content: Json) -> None:
    """Print JSON as indented lines; none is broken, so that names can be copied."""

    def lines(name: str, value: Any, indent: str) -> Iterator[str]:  # noqa: ANN401 - any JSON value
        if isinstance(value, Mapping):
            details = {key: entry for key, entry in value.items() if key not in _HEADLINE}
            head = _headline(name, value)
            if all(map(_is_short, details.values())):
                words = ", ".join(
                    f"{key} {_short(entry)}"
                    for key, entry in details.items()
                    if entry not in (None, 0, [], "")
                )
                yield f"{indent}{head}: {words}" if words else f"{indent}{head}"
                return
            yield f"{indent}{head}"
            for key, entry in details.items():
                yield from lines(key, entry, f"{indent}  ")
        elif not _is_short(value):
            yield f"{indent}{len(value)} {name}"
            for place, entry in enumerate(value, 1):
                yield from lines(f"{name} {place}", entry, f"{indent}  ")
        elif value not in (None, [], ""):
            yield f"{indent}{name}: {_short(value)}"

    print(plain(title))
    for key, entry in content.items():
        for line in lines(key, entry, "  "):
            print(plain(line))


_HEADLINE = ("op", "kind", "name", "dtype", "shape")
"""Fields that the first line of an entry has."""


def _headline(name: str, entry: Json) -> str:
    """The first line of an entry: its operator or kind, its name, its type and shape."""
    words = " ".join(str(entry[key]) for key in ("op", "kind", "name") if entry.get(key)) or name
    if "dtype" not in entry:
        return words
    shape = entry.get("shape")
    return f"{words}: {entry['dtype'] or 'type unknown'} {'shape unknown' if shape is None else _short(shape)}"


def _is_short(value: Any) -> bool:  # noqa: ANN401 - any JSON value
    return not isinstance(value, Mapping | list) or (
        isinstance(value, list) and not any(isinstance(entry, Mapping | list) for entry in value)
    )


def _short(value: Any) -> str:  # noqa: ANN401 - any JSON value
    if isinstance(value, list):
        return f"[{', '.join('?' if entry is None else _short(entry) for entry in value)}]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
