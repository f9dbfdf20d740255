"""HTML and SVG that cannot be broken by what is put into it.

All text comes from models, checks and file names, which may hold anything. So elements are made by one function that
escapes whatever is not markup made by itself.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable

_HIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff"  # control characters and surrogates: Unicode's Cc and Cs
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"  # what changes the direction of the text around it
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
