"""``matrix``: one verdict for each combination of releases, providers, precisions or other options.

Each cell is ``bisect-trt run`` in a process of its own, with a run folder of its own. Along the
releases the order is known, so a row is bisected there (:mod:`bisect_trt.search.ordered`).
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, product
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import structs

from bisect_trt.aliases import Names
from bisect_trt.errors import MissingOptionError, UsageError, ValueRefusedError
from bisect_trt.options.compare import CompareOptions
from bisect_trt.options.searches import Matrix
from bisect_trt.options.shared import Data
from bisect_trt.options.spec import written
from bisect_trt.report.parts import MatrixCell
from bisect_trt.report.result import Result, read_result
from bisect_trt.search.oracle import Verdict
from bisect_trt.search.ordered import find_edges
from bisect_trt.session.call import Call
from bisect_trt.steps.release_boundary import Range, list_releases
from bisect_trt.targets.base import PRECISIONS, Package, names
from bisect_trt.targets.options import Target
from bisect_trt.worker.environments import Environment, with_numpy
from bisect_trt.worker.process import run_to_end

_RELEASE = "release"
_PRECISION = "precision"
_TARGET = "target"
_VERDICTS = {0: Verdict.PASS, 1: Verdict.FAIL}
"""By the exit status of ``run``; any other says nothing of the outputs."""
_WORDS = {Verdict.PASS: "match", Verdict.FAIL: "FAILS", Verdict.UNRESOLVED: "no answer"}
_Value = tuple[str, tuple[str, ...]]
"""A value of an axis, and its options of ``run``."""


def run(call: Call) -> Result:
    """Compare the target with the reference in each cell, and print the table."""
    own = call[Matrix]
    target = call[Target]
    axis_names = [name for name, _ in own.over]
    if not axis_names:
        raise MissingOptionError("no axis; add one, such as --over precision=fp32,fp16.")
    settings = target.settings() if _TARGET in axis_names else target.required()
    package = None if settings is None else settings.target.package(settings)
    # Releases have an order, so they are the columns.
    ordered = sorted(own.over, key=lambda axis: axis[0] == _RELEASE)
    axes = [list(_values(name, text, package)) for name, text in ordered]
    *rows, columns = axes
    base = [*written(target), *written(call[CompareOptions]), *written(call[Data])]
    words = [
        str(own.model),
        *base,
        *([] if own.timeout is None else ["--timeout", str(own.timeout)]),
    ]
    bisects = _RELEASE in axis_names and not own.find_all
    cells: dict[Names, MatrixCell] = {}
    statuses = set[int]()
    call.result.axes = [name for name, _ in ordered]
    with TemporaryDirectory(prefix="bisect-trt-") as scratch:
        for row in product(*rows):

            def ask(place: int, row: Sequence[_Value] = row) -> Verdict:
                values = (*row, columns[place])
                call.console.step(" ".join(value for value, _ in values))
                cell, status = _ask(values, words, Path(scratch))
                cells[cell.values] = cell
                statuses.add(status)
                return cell.verdict

            find_edges(len(columns), ask, every=not bisects)
    if statuses == {UsageError.status}:
        # No combination runs: an option is wrong.
        raise ValueRefusedError(next(iter(cells.values())).why)
    shown = [[value for value, _ in axis] for axis in axes]
    for line in _lines(call.result.axes[-1], shown, cells):
        call.console.answer(line)
    call.result.cells = [cells[values] for values in product(*shown) if values in cells]
    return _conclude(call.result, cells.values())


def _conclude(result: Result, cells: Iterable[MatrixCell]) -> Result:
    """End with the worst verdict of all cells."""
    verdicts = {cell.verdict for cell in cells}
    if Verdict.FAIL in verdicts:
        return result.end("not_reproduced")
    if Verdict.UNRESOLVED in verdicts:
        return result.end("inconclusive", "some combinations have no answer")
    return result.end("found")


def _lines(
    corner: str, axes: Sequence[Sequence[str]], cells: Mapping[Names, MatrixCell]
) -> Iterator[str]:
    """Yield the table: a line for each value of the last axis, a column for each combination of the others."""
    *outer_axes, last = axes
    rows = [[corner, *(" ".join(row) for row in product(*outer_axes))]]
    for value in last:
        line = (cells.get((*row, value)) for row in product(*outer_axes))
        words = (f"{_WORDS[cell.verdict]} {cell.seconds:.1f} s" if cell else "" for cell in line)
        rows.append([value, *words])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        texts = (text.ljust(width) for text, width in zip(row, widths, strict=True))
        yield "  ".join(texts).rstrip()
    unresolved = [cell for cell in cells.values() if cell.verdict is Verdict.UNRESOLVED]
    for reason in dict.fromkeys(cell.why for cell in unresolved):
        named = ", ".join(" ".join(cell.values) for cell in unresolved if cell.why == reason)
        yield f"{named}: {reason}"


def _values(name: str, text: str, package: Package | None) -> Iterator[_Value]:
    """Yield the values of an axis with their options of ``run``; releases between two are listed on the index.

    Raises:
        UsageError: A target or precision is unknown, or the target has no releases.
    """
    flags = {_TARGET: names(), _PRECISION: ("fp32", *PRECISIONS)}
    if name == _RELEASE and package is None:
        raise MissingOptionError(
            "--over release: no target with releases; add one, such as --onnxrt."
        )
    for value in filter(None, (part.strip() for part in text.split(","))):
        if name == _RELEASE and package is not None:
            oldest, _, newest = value.partition("..")
            releases = list_releases(package.index_name, Range.read(oldest, newest or oldest))
            for release, python in releases.items():
                # Old releases were built against NumPy 1.
                wanted = with_numpy(package.requirements(release))
                place = Environment(wanted, python, alone=bool(package.parts))
                yield release, ("--on", f"env={place}")
        elif name not in flags:
            yield value, (f"--{name}", value)
        elif value in flags[name]:
            yield value, () if value == "fp32" else (f"--{value}",)
        else:
            raise ValueRefusedError(
                f"--over {name}={value}: it is one of {', '.join(flags[name])}."
            )


def _ask(values: Sequence[_Value], words: Sequence[str], scratch: Path) -> tuple[MatrixCell, int]:
    """Run a cell; returns its exit status too.

    Args:
        values: Of each axis, with their options.
        words: The model and the other options of ``run``.
        scratch: A folder for its log and its result.
    """
    file = scratch / "result.json"
    file.unlink(missing_ok=True)
    arguments = ["run", *words, *chain.from_iterable(options for _, options in values)]
    argv = [sys.executable, "-m", "bisect_trt", *arguments, "--quiet", "--json", str(file)]
    end = run_to_end(argv, log=scratch / "log", environment={})
    cell = MatrixCell(
        values=tuple(value for value, _ in values),
        verdict=_VERDICTS.get(end.code, Verdict.UNRESOLVED),
        why=end.describe(),
        seconds=end.seconds,
        run=None,
        command=shlex.join(["bisect-trt", *arguments]),
    )
    if not file.exists():
        # Killed, as by the kernel when memory runs out: the other cells have their answers.
        return structs.replace(cell, verdict=Verdict.UNRESOLVED), end.code
    answer = read_result(file)
    run_folder = answer.artifacts.get("run")
    cell = structs.replace(cell, why=answer.why or "", seconds=answer.wall_s, run=run_folder)
    return cell, end.code
