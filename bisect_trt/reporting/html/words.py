"""Numbers, tensors and verdicts in words, as every part of the page says them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bisect_trt.reporting.html.markup import Child, Markup, tag

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
    return tag(
        "div",
        tag(
            "table",
            tag("caption", caption, class_="visually-hidden"),
            tag(
                "thead",
                tag(
                    "tr", *(tag("th", name, scope="col", class_="number" if name in numeric else None) for name in head)
                ),
            ),
            tag("tbody", *cells),
        ),
        class_="scroll",
        tabindex=0,
        role="region",
        aria_label=caption,
    )
