"""Measures ``bisect-trt reduce`` side by side with Polygraphy's ``debug reduce``.

    python -m benchmarks.reduce [TABLE...] [--only polygraphy|bisect-trt] [-- OPTION...]

Prints one markdown table for each TABLE (``one``, ``two``, ``many``, ``overhead``, ``workers``; all
of them where none is named) and writes every measurement to ``benchmarks/out/TABLE.json``. OPTIONs
after ``--`` go to bisect-trt.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import cases
from benchmarks.figures import Figure, machine
from benchmarks.tools import POLYGRAPHY, Outcome, Tool, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from benchmarks.cases import Case

OUT = Path(__file__).with_name("out")

Row = dict[str, str]


def measure(
    tools: Sequence[Tool], todo: Iterable[Case], check_seconds: float = 0.0
) -> list[Outcome]:
    """Runs every tool on every case, the tools in turn on each case, so that all see the same state of the machine."""
    outcomes = []
    for case in todo:
        for tool in tools:
            outcome = run(tool, case, check_seconds)
            outcomes.append(outcome)
            note = (
                f"  status {outcome.status}: {outcome.log.strip()[-300:]}" if outcome.status else ""
            )
            print(
                f"{tool.label:32} {case.name:36} {outcome.checks:4} checks {len(outcome.left):5} left "
                f"{outcome.wall_s:7.2f} s{note}",
                file=sys.stderr,
            )
    return outcomes


def summary(tool: Tool, outcomes: Iterable[Outcome]) -> Row:
    """One tool's row of a table, over all its outcomes."""
    mine = [outcome for outcome in outcomes if outcome.tool == tool.label]
    wall = sum(o.wall_s for o in mine)
    checks = sum(o.checks_s for o in mine)
    return {
        "tool": tool.label,
        "checks": str(sum(o.checks for o in mine)),
        "exact": f"{sum(o.exact for o in mine)} of {len(mine)}",
        "nodes left": str(sum(len(o.left) for o in mine)),
        "wall, s": f"{wall:.1f}",
        "checks' own, s": f"{checks:.1f}",
        # Checks that run side by side add up to more than the time that passes.
        "tool's own, s": f"{wall - checks:.1f}" if tool.workers == 1 else "-",
    }


def markdown(rows: Sequence[Row]) -> str:
    """A markdown table; the columns are those of the first row."""
    columns = list(rows[0])
    lines = [
        columns,
        ["---"] * len(columns),
        *([row[column] for column in columns] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def one(tools: list[Tool]) -> tuple[str, list[Outcome]]:
    """One required node, 27 cases."""
    return _plain(tools, cases.one_node_cases())


def two(tools: list[Tool]) -> tuple[str, list[Outcome]]:
    """Two required nodes, 18 cases."""
    return _plain(tools, cases.two_node_cases())


def _plain(tools: list[Tool], todo: list[Case]) -> tuple[str, list[Outcome]]:
    outcomes = measure(tools, todo)
    bound = sum(case.bound for case in todo)
    rows = [summary(tool, outcomes) for tool in tools]
    wall = {tool.label: sum(o.wall_s for o in outcomes if o.tool == tool.label) for tool in tools}
    if POLYGRAPHY.label in wall:
        for row in rows:
            row["wall / Polygraphy's"] = f"{wall[row['tool']] / wall[POLYGRAPHY.label]:.2f}"
    note = f"Information bound: {bound:.0f} checks, and {2 * len(todo)} for each case's first and last."
    return f"{markdown(rows)}\n\n{note}", outcomes


def many(tools: list[Tool]) -> tuple[str, list[Outcome]]:
    """Five and ten required nodes scattered over DenseNet-121, five cases each."""
    rows = []
    everything = []
    tools = [tool for tool in tools if tool.workers == 1]
    for count in (5, 10):
        todo = cases.scattered_cases(count)
        outcomes = measure(tools, todo)
        everything += outcomes
        bound = todo[0].bound
        for tool in tools:
            ratio = statistics.mean(o.checks / bound for o in outcomes if o.tool == tool.label)
            row = summary(tool, outcomes)
            rows.append(
                {
                    "required": str(count),
                    **row,
                    "bound a case": f"{bound:.1f}",
                    "checks / bound": f"{ratio:.2f}",
                }
            )
    return markdown(rows), everything


def overhead(tools: list[Tool]) -> tuple[str, list[Outcome]]:
    """The tool's own time for each check, on DenseNet-121 (three cases) and on generated models (one each)."""
    rows = []
    everything = []
    dense = cases.light_model("densenet121")
    subjects = [("DenseNet-121", 1_746, [cases.choose(dense, 1, seed) for seed in range(3)])]
    subjects += [
        ("generated", nodes, [cases.choose(cases.write_generated(OUT / "models", nodes), 1, 0)])
        for nodes in cases.GENERATED_SIZES
    ]
    for model, nodes, todo in subjects:
        able = [tool for tool in tools if tool.workers == 1]
        outcomes = measure(able, todo)
        everything += outcomes
        for tool in able:
            mine = [o for o in outcomes if o.tool == tool.label]
            mean = sum(o.own_s for o in mine) / max(1, sum(o.checks for o in mine))
            gaps = [gap for o in mine for gap in o.gaps_s]
            median = f"{1e3 * statistics.median(gaps):.0f}" if gaps else "-"
            own = {
                "own a check, mean, ms": f"{1e3 * mean:.0f}",
                "between checks, median, ms": median,
            }
            rows.append({"model": model, "nodes": f"{nodes:,}", **summary(tool, outcomes), **own})
    return markdown(rows) if rows else "", everything


def workers(tools: list[Tool]) -> tuple[str, list[Outcome]]:
    """A check of 1 s, one required node among the 668 of DenseNet-121, with 1, 2, 4 and 8 workers."""
    extra = next((tool.extra for tool in tools if tool.kind == "bisect-trt"), None)
    if extra is None:
        return "", []
    able = [Tool(f"bisect-trt, {n} workers", "bisect-trt", n, extra) for n in (1, 2, 4, 8)]
    outcomes = measure(
        able, [cases.choose(cases.light_model("densenet121"), 1, 0)], check_seconds=1.0
    )
    alone = outcomes[0]
    rows = []
    for tool, outcome in zip(able, outcomes, strict=True):
        same = _answer(outcome) == _answer(alone)
        part = f"{outcome.wall_s / alone.wall_s:.2f}"
        rows.append(
            {
                **summary(tool, outcomes),
                "wall / one worker's": part,
                "same answer": "yes" if same else "NO",
            }
        )
    return markdown(rows), outcomes


def _answer(outcome: Outcome) -> tuple[object, ...]:
    """All that must not depend on the number of workers: the reduced model to the byte, and what the result says."""
    return (
        outcome.reduced_sha256,
        outcome.left,
        outcome.result.get("culprits"),
        outcome.result.get("minimality"),
    )


def figures() -> Iterator[Figure]:
    """One required node in 27 models: checks, the tool's own time, and the wall beside Polygraphy."""
    tools = [
        POLYGRAPHY,
        Tool("1 worker", "bisect-trt", 1, _PLAIN),
        Tool("2 workers", "bisect-trt", 2, _PLAIN),
    ]
    outcomes = measure(tools, cases.one_node_cases())
    theirs, one_worker, two_workers = (
        [o for o in outcomes if o.tool == tool.label] for tool in tools
    )
    polygraphy_s = sum(o.wall_s for o in theirs)
    yield Figure(
        "checks", sum(o.checks for o in one_worker), 266, polygraphy=sum(o.checks for o in theirs)
    )
    yield Figure(
        "exact",
        sum(o.exact for o in one_worker),
        27,
        least=True,
        polygraphy=sum(o.exact for o in theirs),
    )
    yield Figure(
        "own time, s", sum(o.own_s for o in one_worker), 10, polygraphy=sum(o.own_s for o in theirs)
    )
    yield Figure(
        "own CPU time, s",
        sum(o.own_cpu_s for o in one_worker),
        polygraphy=sum(o.own_cpu_s for o in theirs),
    )
    yield Figure(
        "wall / Polygraphy's, two workers", sum(o.wall_s for o in two_workers) / polygraphy_s, 0.45
    )


def two_figures() -> Iterator[Figure]:
    """Two required nodes in 18 models: checks beside Polygraphy's, and exact answers."""
    tools = [POLYGRAPHY, Tool("1 worker", "bisect-trt", 1, _PLAIN)]
    outcomes = measure(tools, cases.two_node_cases())
    theirs, ours = ([o for o in outcomes if o.tool == tool.label] for tool in tools)
    note = "the proof asked again, and the rest of the model looked at, among them"
    yield Figure(
        "checks",
        sum(o.checks for o in ours),
        380,
        polygraphy=sum(o.checks for o in theirs),
        note=note,
    )
    yield Figure(
        "exact", sum(o.exact for o in ours), 18, least=True, polygraphy=sum(o.exact for o in theirs)
    )
    yield Figure(
        "own CPU time, s",
        sum(o.own_cpu_s for o in ours),
        polygraphy=sum(o.own_cpu_s for o in theirs),
    )


_PLAIN = (
    "--no-shrink",
)  # the check looks at nodes only, and shrinking tensors is work that Polygraphy does not do

TABLES: dict[str, Callable[[list[Tool]], tuple[str, list[Outcome]]]] = {
    "one": one,
    "two": two,
    "many": many,
    "overhead": overhead,
    "workers": workers,
}


def main(arguments: Sequence[str]) -> None:
    """The command line."""
    ours = list(arguments)
    extra = []
    if "--" in ours:
        split = ours.index("--")
        ours, extra = ours[:split], ours[split + 1 :]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reduce", description=__doc__)
    parser.add_argument(
        "tables", nargs="*", metavar="TABLE", help=f"any of: {', '.join(TABLES)} (default: all)"
    )
    parser.add_argument(
        "--only", choices=("polygraphy", "bisect-trt"), help="leave the other tool out"
    )
    options = parser.parse_args(ours)
    unknown = [table for table in options.tables if table not in TABLES]
    if unknown:
        parser.error(f"no table is called {unknown[0]!r}; there are: {', '.join(TABLES)}")
    tools = [
        POLYGRAPHY,
        Tool("bisect-trt, 1 worker", "bisect-trt", 1, tuple(extra)),
        Tool("bisect-trt, default workers", "bisect-trt", None, tuple(extra)),
    ]
    tools = [tool for tool in tools if options.only in (None, tool.kind)]
    OUT.mkdir(exist_ok=True)
    for name in options.tables or TABLES:
        before = machine()
        text, outcomes = TABLES[name](tools)
        record = {
            "machine": before,
            "outcomes": [{**asdict(o), "own_s": o.own_s} for o in outcomes],
        }
        (OUT / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
        print(f"### {TABLES[name].__doc__}\n\n{text or 'Nothing to measure.'}\n", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
