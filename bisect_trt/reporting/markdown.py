"""Texts of a model, a runtime or a user in Markdown: whatever they are, they are never markup."""

from __future__ import annotations

import re

_MARKUP = re.compile(r"([\\`*\[\]<>|~&#])|((?<![^\W_])_|_(?![^\W_]))")
_LEADING = re.compile(r"^(\s*\d*)(?=[-+=.)]+(?:\s|$))")
"""What would begin a list, or underline a heading."""


def plain(text: str) -> str:
    """On one line, each character itself; what is not printable by its number."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def prose(text: str) -> str:
    """As a part of a paragraph, a heading or a table's cell."""
    return _LEADING.sub(r"\1\\", _MARKUP.sub(r"\\\g<0>", plain(text)))


def code(text: str) -> str:
    """As code in a paragraph or a heading."""
    text = plain(text)
    ticks = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    pad = " " if not text or text[0] in "` " or text[-1] in "` " else ""
    return f"{ticks}{pad}{text}{pad}{ticks}"


def block(text: str) -> str:
    """Lines of code, fenced."""
    lines = "\n".join(map(plain, text.split("\n")))
    ticks = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", lines)), default=0))
    return f"{ticks}\n{lines}\n{ticks}"


def table(rows: dict[str, str]) -> str:
    """Names and what they are."""
    return "\n".join(
        ["| | |", "| --- | --- |", *(f"| {prose(name)} | {prose(value)} |" for name, value in rows.items())]
    )
