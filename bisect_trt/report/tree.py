"""A tree on the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.console import Console as RichConsole
from rich.markup import escape
from rich.tree import Tree

from bisect_trt.report.text import plain


@dataclass
class Branch:
    """A line, and what belongs to it.

    Attributes:
        text: The line.
        branches: The lines below it.
    """

    text: str
    branches: list[Branch] = field(default_factory=list)

    @classmethod
    def of(cls, text: str, lines: Iterable[str]) -> Branch:
        """A line with plain lines below it."""
        return cls(text, [cls(line) for line in lines])


def print_tree(root: Branch) -> None:
    """Show it, without control codes off a terminal; lines are not broken, so that names can be copied and searched for."""
    # Past the console's width a tree is cut off, numbers in their middle.
    console = RichConsole(highlight=False, soft_wrap=True, emoji=False, width=_width(root))
    console.print(_grow(root, Tree(f"[bold]{escape(plain(root.text))}[/bold]")))


def _width(branch: Branch, depth: int = 0) -> int:
    """Of the longest line, in columns."""
    return max([_INDENT * depth + cell_len(plain(branch.text)), *(_width(each, depth + 1) for each in branch.branches)])


_INDENT = 4
"""Columns that a level takes: what the lines of a tree are drawn with."""


def _grow(branch: Branch, tree: Tree) -> Tree:
    for each in branch.branches:
        _grow(each, tree.add(escape(plain(each.text))))
    return tree
