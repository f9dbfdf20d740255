"""At which sizes of the inputs the target goes wrong; nothing is said of a size that was not tried, but what lies around it."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any

from bisect_trt.errors import UnavailableError
from bisect_trt.probing.ledger import BudgetSpent
from bisect_trt.probing.prober import DoesNotReproduce
from bisect_trt.reporting.result import Result
from bisect_trt.search.oracle import Ask, Verdict, over_units
from bisect_trt.search.size_conditions import Point
from bisect_trt.search.size_relations import FRESH, Guess, guess
from bisect_trt.search.size_rules import fit, intervals
from bisect_trt.search.sizes import AskSize, nth, sweep_points
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.npz import save_npz
from bisect_trt.workflows.investigation import Investigation
from bisect_trt.workflows.settings import CheckSettings
from bisect_trt.workflows.sweep.by_values import by_values
from bisect_trt.workflows.sweep.dimensions import Dimension, SweepSettings, dimensions
from bisect_trt.workflows.sweep.sized import Sized
from bisect_trt.workflows.sweep.taken import below, strided
from bisect_trt.workflows.sweep.telling import draw, sentence

MOST_STEPS = 64
"""So far down from the smallest size that fails it is looked for a smaller one."""
FAILING = "failing-inputs.npz"


def sweep(investigation: Investigation, settings: SweepSettings) -> Result:
    """Try sizes, and say which fail.

    Returns:
        The result; ``sweep`` in it has the ``dimensions`` with their ``intervals``, the ``map`` of all that was tried, and the
        ``smallest_failing``.

    Raises:
        DoesNotReproduce: None fails.
        UnavailableError: The reference runs none.
        UsageError: The dimensions do not fit the model.
    """
    console, result = investigation.console, investigation.result
    swept, sized = _opened(investigation, settings)
    number = prod(len(each.sizes) for each in swept)
    said = " by ".join(f"{len(each.sizes)} sizes of {each.name}" for each in swept)
    whose = "the check fail" if settings.check.target is None else "the target go wrong"
    console.step(f"At which of {said} does {whose}? {min(settings.tries, number)} of {number} are tried")
    sized.build(tuple(each.sizes[0] for each in swept), settings.check.timeout)
    investigation.prober.ledger.apart = True  # each size is a model of its own
    marks = [_marks(sized, each) for each in swept]
    seen: dict[Point, Verdict] = {}
    try:
        _search(investigation, sized, swept, marks, settings.tries, seen)
    except (BudgetSpent, KeyboardInterrupt):
        if _fill(investigation, sized, swept, seen, number) is not None:
            console.answer(f"So far it fails {result.extra['sweep']['said']}")
        raise
    smallest = _fill(investigation, sized, swept, seen, number)
    told = result.extra["sweep"]
    if smallest is None:
        if not any(verdict is Verdict.PASS for verdict in seen.values()):
            raise UnavailableError(
                f"no size says anything: {told['map'][0]['reason'] if told['map'] else 'none was tried'}."
            )
        for line in draw(told):
            console.say(line)
        whose = "the check fails" if settings.check.target is None else "the target goes wrong"
        raise DoesNotReproduce(f"{whose} at none of the sizes: {told['said']}")
    console.answer(f"It fails {told['said']}")
    for line in draw(told):
        console.answer(line)
    result.status = "found"
    below = _below(swept, smallest, sized)
    unsure = [point for point in below if seen.get(point) is not Verdict.PASS]
    result.minimality = "unproven" if unsure else "1-minimal"
    if unsure:
        result.why = f"the next smaller size, {_named(swept, unsure[0])}, was not seen to pass"
    unsteady = _again(investigation, sized, [smallest, smallest, *(point for point in below if point in seen)], seen)
    if unsteady is not None:
        result.minimality = "unproven"
        result.why = f"the failure comes and goes: {unsteady}, so that it is not of a size alone"
    other = by_values(investigation, sized, smallest, below, seen) if unsteady is None else None
    told["by_values"] = None if other is None else _sizes(swept, other)
    if other is not None:
        result.minimality = "unproven"
        said = f"{_named(swept, other)}, which passed, fails with the last values of {_named(swept, smallest)}"
        result.why = f"it may be the values and not the size: {said}"
        console.answer(f"  It may be the values and not the size: {said}; which of them, `bisect-trt samples` finds.")
    _leave(investigation, settings, sized, swept, smallest, steady=unsteady is None)
    return result


def _opened(investigation: Investigation, settings: SweepSettings) -> tuple[list[Dimension], Sized]:
    """What is swept, without the sizes that the model takes none of where not all can be tried."""
    swept, target = dimensions(investigation.subject, settings), settings.check.target
    sized = Sized(investigation, target, swept)
    if prod(len(each.sizes) for each in swept) <= settings.tries:
        return swept, sized
    taken = strided(swept, lambda point: sized.refused(point) is None)
    for each in (each for each in taken if each.step is not None):
        said = ", ".join(map(str, each.sizes[:3]))
        investigation.console.say(f"  the model takes {each.name} in steps of {each.step}: {said}, ...")
    return taken, sized if taken == swept else Sized(investigation, target, taken)


def _again(
    investigation: Investigation, sized: Sized, points: Sequence[Point], seen: Mapping[Point, Verdict]
) -> str | None:
    """Try points once more; the one of which another verdict came, in words."""
    words = {Verdict.FAIL: "failed", Verdict.PASS: "passed", Verdict.UNRESOLVED: "could not be judged"}
    for point in points:
        if sized.refused(point) is not None:
            continue
        try:
            now = investigation.prober.probe(sized.candidate(point), again=True).verdict
        except BudgetSpent:
            return None
        if now is not seen[point]:
            return f"{sized.title(point)} {words[seen[point]]} and, tried again, {words[now]}"
    return None


def _marks(sized: Sized, dimension: Dimension) -> list[int]:
    """The sizes that the target's profile names."""
    profile = {} if sized.target is None else sized.target.target.profile(sized.target)
    return [shape[axis] for name, axis in dimension.places for shape in profile.get(name, ()) if axis < len(shape)]


def _search(
    investigation: Investigation,
    sized: Sized,
    swept: Sequence[Dimension],
    marks: Sequence[Sequence[int]],
    most: int,
    seen: dict[Point, Verdict],
) -> None:
    axes = [each.sizes for each in swept]

    def story(ask: Ask) -> None:
        seen.clear()

        def at(point: Point) -> Verdict:
            refused = sized.refused(point) is not None
            seen[point] = Verdict.UNRESOLVED if refused else ask(frozenset({_number(axes, point)}))
            return seen[point]

        sweep_points(axes, at, marks, most)
        _go_down(swept, at, seen, sized)

    investigation.prober.search(
        over_units(Verdict.FAIL, story), lambda units: sized.candidate(nth(axes, next(iter(units))))
    )


def _go_down(swept: Sequence[Dimension], at: AskSize, seen: Mapping[Point, Verdict], sized: Sized) -> None:
    """From the smallest point that fails to the next smaller ones, until each of those passes."""
    for _ in range(MOST_STEPS):
        smallest = _smallest(seen)
        if smallest is None or not any(
            at(point) is Verdict.FAIL for point in _below(swept, smallest, sized) if point not in seen
        ):
            return


def _smallest(seen: Mapping[Point, Verdict]) -> Point | None:
    failing = (point for point, verdict in seen.items() if verdict is Verdict.FAIL)
    return min(failing, key=lambda point: (prod(point), point), default=None)


def _below(swept: Sequence[Dimension], point: Point, sized: Sized) -> list[Point]:
    return below(swept, point, lambda other: sized.refused(other) is None)


def _number(axes: Sequence[Sequence[int]], point: Point) -> int:
    number = 0
    for axis, size in zip(axes, point, strict=True):
        number = number * len(axis) + axis.index(size)
    return number


def _fill(
    investigation: Investigation, sized: Sized, swept: Sequence[Dimension], seen: Mapping[Point, Verdict], number: int
) -> Point | None:
    """Put what was seen into the result; the smallest point that fails."""
    smallest = _smallest(seen)
    records = {record.title: record for record in investigation.prober.ledger.records}
    entries = []
    for point, verdict in sorted(seen.items()):
        refused = sized.refused(point)
        record = None if refused is not None else records.get(sized.title(point))
        entries.append(
            {
                "sizes": _sizes(swept, point),
                "shapes": {name: list(shape) for name, shape in sized.shapes(point).items()},
                "verdict": verdict.value,
                "reason": refused if record is None else record.reason,
                "signature": None if record is None else record.signature,
            }
        )
    base = _crossing(swept, seen)
    together = guess([each.sizes for each in swept], seen) if len(swept) > 1 else None
    places = range(0 if base is None else len(swept))
    told = {
        "dimensions": [_dimension(swept, place, base, seen, together) for place in places if base is not None],
        "tried": len(seen),
        "of": number,
        "exhaustive": len(seen) == number,
        "smallest_failing": None if smallest is None else _sizes(swept, smallest),
        "shapes": None if smallest is None else {n: list(s) for n, s in sized.shapes(smallest).items()},
        "map": entries,
    }
    told["relation"] = None if together is None else _relation(swept, together, seen)
    told["said"] = sentence(told)
    investigation.result.extra["sweep"] = told
    return smallest


def _relation(swept: Sequence[Dimension], found: Guess, seen: Mapping[Point, Verdict]) -> dict[str, Any]:
    """The rule that all points obey, of all dimensions together."""
    names = [each.name for each in swept]
    return {
        "said": found.relation.said(names),
        "join": "and" if found.relation.every else "or",
        "conditions": [
            {
                "of": each.feature.kind,
                "dimensions": [names[place] for place in each.feature.places],
                "kind": each.kind,
                **({"period": each.period, "remainder": each.low} if each.period else {}),
                **({"low": each.low} if each.kind in ("from", "between", "outside") else {}),
                **({"high": each.high} if each.kind in ("up_to", "between", "outside") else {}),
            }
            for each in found.relation.conditions
        ],
        "obeyed_by": sum(verdict is not Verdict.UNRESOLVED for verdict in seen.values()),
        "foretold": found.fresh,
        "sure": prod(len(each.sizes) for each in swept) == len(seen) or (not found.others and found.fresh >= FRESH),
        "others": [each.said(names) for each in found.others],
    }


def _crossing(swept: Sequence[Dimension], seen: Mapping[Point, Verdict]) -> Point | None:
    """The point that fails, else one that passes, through which most was tried along each dimension."""
    for wanted in (Verdict.FAIL, Verdict.PASS):
        points = [point for point, verdict in seen.items() if verdict is wanted]
        if points:
            tried = Counter((place, _at(point, place)) for point in seen for place in range(len(swept)))
            many = {point: sum(tried[place, _at(point, place)] for place in range(len(swept))) for point in points}
            return min(points, key=lambda point: (-many[point], prod(point), point))
    return None


def _dimension(
    swept: Sequence[Dimension], place: int, base: Point, seen: Mapping[Point, Verdict], together: Guess | None
) -> dict[str, Any]:
    """What was seen along one dimension, the others as at a point; no rule that the one of all dimensions contradicts."""
    each = swept[place]
    line = {point[place]: verdict for point, verdict in seen.items() if _at(point, place) == _at(base, place)}
    rule = fit(line)
    if rule is not None and together is not None:
        whole = [together.relation.fails((*base[:place], size, *base[place + 1 :])) for size in each.sizes]
        rule = rule if whole == [rule.fails(size) for size in each.sizes] else None
    by_verdict = {v: sorted(size for size, seen_ in line.items() if seen_ is v) for v in Verdict}
    return {
        "name": each.name,
        "inputs": [{"name": name, "axis": axis} for name, axis in each.places],
        "sizes": len(each.sizes),
        "low": each.sizes[0],
        "high": each.sizes[-1],
        "step": each.step,
        "at": {other.name: size for other, size in zip(swept, base, strict=True) if other is not each},
        "tried": sorted(line),
        "fail": by_verdict[Verdict.FAIL],
        "pass": by_verdict[Verdict.PASS],
        "unresolved": by_verdict[Verdict.UNRESOLVED],
        "intervals": [
            {
                "from": found.sizes[0],
                "to": found.sizes[1],
                "verdict": found.verdict.value,
                "tried": list(found.tried),
                "inferred": [list(ends) for ends in found.inferred],
            }
            for found in intervals(each.sizes, line)
        ],
        "rule": None
        if rule is None
        else {
            "kind": rule.kind,
            "low": rule.low,
            "high": rule.high,
            "period": rule.period,
            "remainder": rule.remainder,
            "said": rule.describe(),
        },
    }


def _at(point: Point, place: int) -> Point:
    return (*point[:place], *point[place + 1 :])


def _sizes(swept: Sequence[Dimension], point: Point) -> dict[str, int]:
    return {each.name: size for each, size in zip(swept, point, strict=True)}


def _named(swept: Sequence[Dimension], point: Point) -> str:
    return ", ".join(f"{name}={size}" for name, size in _sizes(swept, point).items())


def _leave(
    investigation: Investigation,
    settings: SweepSettings,
    sized: Sized,
    swept: Sequence[Dimension],
    smallest: Point,
    *,
    steady: bool,
) -> None:
    """Leave the values of the smallest size that fails, and say how to go on from it, as was seen to fail."""
    console, result = investigation.console, investigation.result
    path = investigation.subject.workspace.folder / FAILING
    save_npz(path, sized.inputs(smallest))
    result.artifacts["inputs"] = str(path)
    fixed = known = False
    with suppress(BudgetSpent):
        fixed = steady and investigation.prober.probe(sized.candidate(smallest, fixed=True)).verdict is Verdict.FAIL
        known = steady
    target = settings.check.target if fixed else sized.target
    command = _command(investigation, sized.file(), settings.check, path, "diagnose" if steady else "repeat", target)
    result.extra["sweep"] |= {"needs_free_dimensions": not fixed if known else None, "command": command}
    where = f"The smallest that fails is {_named(swept, smallest)}"
    how = "with its shapes fixed too" if fixed else "only while its dimensions are free"
    if not known:
        how = "while its dimensions are free, and else nobody has tried" if steady else "now and then"
    console.answer(f"{where}; it fails {how}. Its inputs: {path}")
    console.answer(f"To {'find out why' if steady else 'see how often'}: {command}")


def _command(
    investigation: Investigation,
    model: Path,
    check: CheckSettings,
    inputs: Path,
    name: str,
    target: TargetSettings | None,
) -> str:
    """How to go on from a size: ``diagnose`` or ``repeat``, in place of the former ``reduce`` where a check says good or bad."""
    if target is None:
        return check.how_to("reduce" if name == "diagnose" else name, model, inputs, investigation.place_words)
    words = [
        "bisect-trt",
        name,
        str(model),
        *target.flags(),
        *investigation.place_words,
        "--load-inputs",
        str(inputs),
        *check.tolerance.words(),
    ]
    return shlex.join(words)
