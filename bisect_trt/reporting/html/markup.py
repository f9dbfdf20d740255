"""HTML and SVG that cannot be broken by what is put into it.

All text comes from models, checks and file names, which may hold anything. So elements are made by one function that
escapes whatever is not markup made by itself.
Numbers, tensors and verdicts are put into words here, as every part of the page says them.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_HIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff"  # control characters and surrogates: Unicode's Cc and Cs
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"  # what ends a line, or changes the direction of the text around it
)
_VOID = frozenset({"br", "col", "input", "meta", "wbr"})
_CAMEL = ("viewBox", "preserveAspectRatio")
_ELLIPSIS = "\u2026"


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | int | float | None | Iterable["Child"]
"""What may stand in an element; ``None`` is nothing."""


def clean(text: str) -> str:
    """Text without control characters, which no page may hold, and without what would turn the text around it."""
    return _HIDDEN.sub("\ufffd", text.replace("\t", " ").replace("\r", " "))


def escape(text: str) -> Markup:
    """Text as it stands between tags and in quoted attributes."""
    return Markup(html.escape(clean(text), quote=True))


def join(children: Iterable[Child]) -> Markup:
    """Several children in a row."""
    return Markup("".join(map(_child, children)))


def _child(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, (str, int, float)):
        return escape(str(child))
    return join(child)


def tag(name: str, /, *children: Child, **attributes: str | float | bool | None) -> Markup:
    """An element.

    Args:
        name: Of the element; never what a model says.
        children: Markup, text to escape, or lists of them.
        attributes: Values are escaped; a trailing underscore in a key is dropped and others become hyphens; ``None`` and
            ``False`` leave the attribute out, ``True`` gives it without a value.
    """
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        attribute = key if key in _CAMEL else key.rstrip("_").replace("_", "-")
        words.append(attribute if value is True else f'{attribute}="{escape(_attribute(value))}"')
    opening = f"<{' '.join(words)}>"
    return Markup(opening if name in _VOID else f"{opening}{join(children)}</{name}>")


def _attribute(value: str | float) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def script_data(value: object) -> Markup:
    """A value as JSON that may stand in a script element: no ``<`` can end it."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def breakable(text: str) -> list[Child]:
    """A name that may be broken after its slashes, where a column is too narrow for it."""
    return [child for part in re.split("(?<=/)(?=.)", text) for child in (part, tag("wbr"))][:-1]


def shorten(text: str, length: int) -> str:
    """A name with its middle left out: the beginning says where it is, the end what."""
    text = " ".join(clean(text).split())
    if len(text) <= length:
        return text
    head = (length - 1) // 3
    return text[:head] + _ELLIPSIS + text[len(text) - (length - 1 - head) :]


Json = Mapping[str, Any]

VERDICTS = {
    "culprit": "needed to fail",
    "left": "not ruled out, of the smallest that fails so far",
    "origin": "wrong, made of right tensors",
    "mild": "off by far less than the outputs",
    "mismatch": "wrong, made of wrong tensors",
    "match": "right",
    "spare": "not needed to fail",
    "unseen": "not compared",
}
"""What is known of a node; the order is that of the legend."""
HIDES = "as an output of the model too, what it makes hides the failure"
PRECISIONS = {"fp32": "kept in fp32", "low": "lowered"}


def number(value: float | str | None, digits: int = 5) -> str:
    """A number of the result: ``inf`` and ``nan`` come as strings."""
    if value is None:
        return "\u2013"
    if isinstance(value, str):
        return {"inf": "\u221e", "-inf": "\u2212\u221e", "nan": "NaN"}.get(value, value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.{digits}g}"


def seconds(value: float, *, whole: bool = False) -> str:
    """A time for people; ``whole`` leaves fractions of a second out."""
    if value < 60:
        if whole:
            return f"{value:.0f} s"
        return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def split(times: Mapping[str, float]) -> str:
    """What time went into, the most first, without what took next to nothing; empty where that is not known."""
    least = sum(times.values()) / 100
    parts = sorted(((spent, part) for part, spent in times.items() if spent > least), reverse=True)
    return ", ".join(f"{part} {seconds(spent)}" for spent, part in parts)


def size(count: int) -> str:
    """A file's size."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.3g} {unit}" if unit != "B" else f"{count} B"


def plural(count: int, word: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def kind(tensor: Json) -> str:
    """Type and shape of a tensor."""
    if "dtype" not in tensor:
        return "type unknown"
    dtype = "string" if tensor["dtype"] == "object" else tensor["dtype"]
    shape = tensor["shape"]
    return f"{dtype}[?]" if shape is None else f"{dtype}[{', '.join(map(str, shape))}]"


def definitions(entries: Sequence[tuple[str, Child]], class_: str = "facts") -> Markup:
    """A list of terms and what they are; a wrapper around each pair, so that they can stand in a grid."""
    pairs = [tag("div", tag("dt", name), tag("dd", value)) for name, value in entries if value not in (None, "")]
    return tag("dl", *pairs, class_=class_)


def table(head: Sequence[str], rows: Sequence[Sequence[Child]], caption: str, numeric: Sequence[str] = ()) -> Markup:
    """A plain table that scrolls by itself where it is too wide; the headings of ``numeric`` columns stand right."""
    cells = [tag("tr", *(cell if isinstance(cell, Markup) else tag("td", cell) for cell in row)) for row in rows]
    names = (
        tag("th", name, scope="col", class_="number" if name in numeric else None) if name else tag("td")
        for name in head
    )
    return tag(
        "div",
        tag(
            "table",
            tag("caption", caption, class_="visually-hidden"),
            tag("thead", tag("tr", *names)),
            tag("tbody", *cells),
        ),
        class_="scroll",
        tabindex=0,
        role="region",
        aria_label=caption,
    )


def figure(label: str, caption: str, parts: Sequence[Markup | None], width: int, height: int) -> Markup:
    """A drawing as wide as the page.

    Args:
        label: What it shows, for those who do not see it.
        caption: What stands below it.
        parts: Its paths and other elements of SVG.
        width: In the units of their coordinates.
        height: Likewise.
    """
    drawing = tag(
        "svg", *parts, viewBox=f"0 0 {width} {height}", preserveAspectRatio="none", role="img", aria_label=label
    )
    return tag("figure", tag("div", drawing, class_="plot"), tag("figcaption", caption, class_="quiet"))
