"""Good builds beside bad ones: what did the bad ones choose that the good ones did not?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bisect_trt.reporting.console import Console
from bisect_trt.search.exact import TEST_METHOD, fisher, holm
from bisect_trt.targets.chosen import Choice

_SHOWN = 20


@dataclass(frozen=True)
class Build:
    """A build that was judged.

    Attributes:
        name: What it is called: its number, or the file that says what it chose.
        good: Whether it is good.
        choices: What it chose.
    """

    name: str
    good: bool
    choices: frozenset[Choice]


@dataclass(frozen=True)
class Row:
    """A choice that some builds made and others did not.

    Attributes:
        choice: The choice.
        good: How many good builds made it.
        bad: How many bad ones did.
        p: How likely the two groups are to differ so by chance, corrected for how many choices are compared.
        alone: The same, not corrected.
        proven: Whether builds that were held to it, and kept from it, showed that it is the reason.
    """

    choice: Choice
    good: int
    bad: int
    p: float
    alone: float
    proven: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        choice = self.choice
        said = {"layer": choice.layer, "choice": choice.said, "kind": choice.kind, "value": choice.value}
        return {**said, "good": self.good, "bad": self.bad, "p": self.p, "p_alone": self.alone, "proven": self.proven}


@dataclass(frozen=True)
class Table:
    """All choices that differ from build to build, those that speak most against the bad ones first.

    Attributes:
        rows: The choices.
        good: How many builds are good.
        bad: How many are bad.
        compared: How many comparisons were made; choices that are always made together are one.
    """

    rows: tuple[Row, ...]
    good: int
    bad: int
    compared: int

    def proven(self, choices: frozenset[Choice], builds: Sequence[Build]) -> Table:
        """The same with some choices proven, which come first.

        One that all of these builds made, or none, is no comparison, and proven all the same where it takes others to be bad: it
        has a row here too.
        """
        rows = [replace(row, proven=row.choice in choices) for row in self.rows]
        for choice in sorted(choices - {row.choice for row in rows}):
            made = [build.good for build in builds if choice in build.choices]
            rows.append(Row(choice, sum(made), len(made) - sum(made), p=1.0, alone=1.0, proven=True))
        return replace(self, rows=tuple(sorted(rows, key=lambda row: not row.proven)))

    def to_json(self) -> dict[str, Any]:
        """Plain values: ``choices``, ``compared`` and the ``test``."""
        return {"choices": [row.to_json() for row in self.rows], "compared": self.compared, "test": TEST_METHOD}


def compare_builds(builds: Sequence[Build]) -> Table:
    """Count of each choice that not all builds made how many good and how many bad ones did."""
    goods = sum(build.good for build in builds)
    bads = len(builds) - goods
    made: dict[Choice, int] = {}
    for place, build in enumerate(builds):
        for choice in build.choices:
            made[choice] = made.get(choice, 0) | 1 << place
    everyone = (1 << len(builds)) - 1
    varying = {choice: by for choice, by in made.items() if by != everyone}
    good_ones = sum(1 << place for place, build in enumerate(builds) if build.good)
    counts = {by: ((by & good_ones).bit_count(), (by & ~good_ones).bit_count()) for by in varying.values()}
    chances = {by: fisher(bad, bads, good, goods) for by, (good, bad) in counts.items()}
    corrected = dict(zip(chances, holm(list(chances.values())), strict=True))
    rows = [Row(choice, *counts[by], corrected[by], chances[by]) for choice, by in varying.items()]

    def rank(row: Row) -> tuple[bool, float, bool, Choice]:
        more_bad = row.bad * max(goods, 1) > row.good * max(bads, 1)
        return not more_bad, row.alone, row.good > 0, row.choice

    return Table(tuple(sorted(rows, key=rank)), goods, bads, len(chances))


def tell_table(table: Table, console: Console) -> None:
    """What the bad builds chose and the good ones did not, as a table."""
    only = [row for row in table.rows if row.bad and not row.good]
    often = [row for row in table.rows if row not in only and row.bad * table.good > row.good * table.bad]
    shown = only or often
    if not table.rows:
        console.say("  all builds chose the same, as far as they say")
        return
    if not shown:
        console.say(f"  no choice is made by more of the bad builds than of the good ones ({len(table.rows)} differ)")
        return
    what = "only in bad builds" if only else "in more of the bad builds than of the good ones"
    console.say(f"  {len(shown)} of {len(table.rows)} choices that differ are {what}:")
    width = max(len(row.choice.layer) for row in shown[:_SHOWN])
    console.say(f"    {'layer':{width}}  bad  good  p        choice")
    for row in shown[:_SHOWN]:
        bad, good = f"{row.bad}/{table.bad}", f"{row.good}/{table.good}"
        mark = "  <- proven" if row.proven else ""
        console.say(f"    {row.choice.layer:{width}}  {bad}  {good}  {row.p:<7.2g}  {row.choice.said}{mark}")
    if len(shown) > _SHOWN:
        console.say(f"    and {len(shown) - _SHOWN} more, which the JSON has")
    console.say(f"  (p: {TEST_METHOD} over {table.compared} comparisons)")
