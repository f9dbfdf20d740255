"""``docs/modules.md``, from the modules' docstrings: ``python docs/modules.py`` prints it."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

_PACKAGE = Path(__file__).parents[1] / "bisect_trt"
_HEAD = """# Modules

What each module is, in the first words of its docstring. This page is generated (`make docs`); why the rooms are as they are
says [architecture.md](architecture.md).
"""


def modules() -> str:
    """The page.

    Raises:
        ValueError: if a module has no docstring.
    """
    return "\n".join([_HEAD, *_folder(_PACKAGE)])


def _folder(folder: Path) -> Iterator[str]:
    """The folder's own modules as a table, then the folders in it."""
    yield f"{'##' if folder.parent in (_PACKAGE, _PACKAGE.parent) else '###'} `{_place(folder)}/`\n"
    yield f"{_first_words(folder / '__init__.py')}\n"
    if rows := [_row(path) for path in sorted(folder.glob("*.py")) if path.name != "__init__.py"]:
        yield from ("| module | what |", "| --- | --- |", *rows, "")
    for inner in sorted(path.parent for path in folder.glob("*/__init__.py")):
        yield from _folder(inner)


def _row(path: Path) -> str:
    return f"| `{_place(path)}` | {_first_words(path).replace('|', chr(92) + '|')} |"


def _place(path: Path) -> str:
    return str(path.relative_to(_PACKAGE.parent))


def _first_words(path: Path) -> str:
    """The first paragraph of a module's docstring, in Markdown."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    if not text:
        msg = f"{_place(path)} has no docstring"
        raise ValueError(msg)
    paragraph = " ".join(text.split("\n\n")[0].split())
    return re.sub(r"(?::\w+:)?`+([^`]+)`+", r"`\1`", paragraph)


if __name__ == "__main__":
    sys.stdout.write(modules())
