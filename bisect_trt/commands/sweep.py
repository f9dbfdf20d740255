"""``sweep``: the sizes of the inputs at which the target goes wrong; nothing is claimed about a size that was not tried."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from bisect_trt.commands.fed import Fed, Values
from bisect_trt.commands.session import Session
from bisect_trt.commands.settings import CheckSettings, ModelSettings
from bisect_trt.commands.space import AskUnit, Space
from bisect_trt.commands.subject import Subject
from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.save import save_model
from bisect_trt.onnxlib.shapes import input_infos
from bisect_trt.options.reading import Sizes
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.ledger import BudgetSpent
from bisect_trt.probe.prober import DoesNotReproduce
from bisect_trt.report.result import Result
from bisect_trt.search.oracle import Verdict
from bisect_trt.search.sizes import AskSize, Grid, Point, fit, intervals, sweep_points
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.info import TensorInfo
from bisect_trt.tensors.inputs import make_inputs, resized
from bisect_trt.tensors.npz import save_npz

MOST_STEPS = 64
"""So far down from the smallest size that fails a smaller one is looked for."""
FAILING = "failing-inputs.npz"
_MOST_TAKEN = 128
"""So many sizes are run on the reference to find one that the model takes and the next ones."""
_WIDTH, _MOST_ROWS, _OF_A_PERIOD = 96, 40, 6
_MARKS = {"PASS": ".", "FAIL": "#", "UNRESOLVED": "?"}
_WORDS = {"PASS": "pass", "FAIL": "FAIL", "UNRESOLVED": "not known"}
_SEEN = {Verdict.FAIL: "failed", Verdict.PASS: "passed", Verdict.UNRESOLVED: "could not be judged"}

Json = Mapping[str, Any]
Place = tuple[str, int]
"""An input, and the number of one of its dimensions."""
Takes = Callable[[Point], bool]
"""Returns whether the reference runs the model at a point."""


@dataclass(frozen=True)
class SweepSettings:
    """How to sweep.

    Attributes:
        check: What says good or bad, and the time that one size may take.
        shapes: Inputs, each with the sizes of its dimensions.
        tries: How many sizes are tried at most.
    """

    check: CheckSettings
    shapes: tuple[tuple[str, tuple[Sizes, ...]], ...]
    tries: int = 64

    def check_shapes(self, fixed: Collection[str]) -> None:
        """Find mistakes before anything else is done.

        Raises:
            UsageError: No dimension has several sizes, an input is named twice, or its shape is given in two places.
        """
        if not any(len(each.sizes) > 1 for _, shape in self.shapes for each in shape):
            raise UsageError(
                "there is nothing to sweep: give an input with the sizes of a dimension, such as --shapes "
                "'x:[1..64,3,224,224]'; `bisect-trt inspect model FILE` lists the inputs."
            )
        names = [name for name, _ in self.shapes]
        for name in names:
            if names.count(name) > 1 or name in fixed:
                raise UsageError(f"--shapes: the shape of the input '{name}' is given twice; give it once.")


@dataclass(frozen=True)
class Dimension:
    """A dimension that is swept.

    Attributes:
        name: As the model calls it, or the user; else the input and its number.
        sizes: What it is tried at, in order.
        places: Where it is.
        step: What lies between the sizes that the model takes, where it takes no others.
    """

    name: str
    sizes: tuple[int, ...]
    places: tuple[Place, ...]
    step: int | None = None


def first_shapes(settings: SweepSettings, model: ModelSettings) -> dict[str, tuple[int, ...]]:
    """The shapes to open the model with: the smallest sizes that are in the target's profile; none where values are given."""
    if model.data.load_inputs or model.data.data_loader_script is not None:
        return {}
    target = settings.check.target
    profile = {} if target is None else target.target.profile(target)
    found = {}
    for name, shape in settings.shapes:
        lows = profile[name][0] if name in profile and len(profile[name][0]) == len(shape) else (0,) * len(shape)
        found[name] = tuple(
            next((size for size in each.sizes if size >= low), each.sizes[-1])
            for each, low in zip(shape, lows, strict=True)
        )
    return found


class Sized:
    """The model at any of the sizes that are swept: one model with these dimensions free, and its inputs at each size.

    Attributes:
        swept: The dimensions.
        target: The target with a profile of all sizes; ``None`` where a check of the user's judges.
        engine: Its engine for all of them, if it makes such.
    """

    def __init__(self, session: Session, target: TargetSettings | None, swept: Sequence[Dimension]) -> None:
        """Free the dimensions; nothing is built."""
        subject = session.subject
        self.swept, self._investigation, self._asked = swept, session, target
        self._base = {name: value.shape for name, value in subject.samples[0].items()}
        declared = {name: subject.declared.get(name, shape) for name, shape in self._base.items()}
        places = [place for each in swept for place in each.places]
        self._unlike_file = any(isinstance(declared[name][axis], int) for name, axis in places)
        for name, axis in places:
            dims = list(declared[name])
            dims[axis] = f"{name}_{axis}" if isinstance(dims[axis], int) else dims[axis]
            declared[name] = tuple(dims)
        self._fed = Fed(session, declared, lambda: map(self.inputs, starts(swept)), forget=self._unlike_file)
        self._names = [info.name for info in input_infos(Network(self._fed.proto))]
        self._outside: dict[Point, str | None] = {}
        self.target = target if target is None or target.target.profile(target) else self._spanning(target)
        self.engine: Path | None = None

    def _spanning(self, target: TargetSettings) -> TargetSettings:
        lows, highs = (self.shapes(tuple(pick(each.sizes) for each in self.swept)) for pick in (min, max))
        return target.target.spanning(target, {name: (lows[name], highs[name], highs[name]) for name in self._base})

    def shapes(self, point: Point) -> dict[str, tuple[int, ...]]:
        """The shapes of all inputs at a point."""
        sizes = {place: size for each, size in zip(self.swept, point, strict=True) for place in each.places}
        return {
            name: tuple(sizes.get((name, axis), size) for axis, size in enumerate(shape))
            for name, shape in self._base.items()
        }

    def file(self) -> Path:
        """A model file that takes every size: the user's own, or a copy with the swept dimensions free.

        Raises:
            UsageError: It cannot be written.
        """
        subject = self._investigation.subject
        if not self._unlike_file:
            return subject.settings.path
        path = subject.workspace.folder / "free.onnx"
        save_model(self._fed.proto, subject.workspace.weights.folder_of(self._fed.proto), path)
        return path

    def build(self, timeout: float | None) -> None:
        """Build the one engine that all sizes run on, where the target makes engines."""
        subject, console = self._investigation.subject, self._investigation.console
        if self.target is None or self.target.target.engines is None:
            return
        console.say(f"  one engine for all sizes: {' '.join(self.target.flags())}")
        to, smallest = subject.workspace.folder / "swept.engine", tuple(each.sizes[0] for each in self.swept)
        failed = subject.models.build("swept", self._fed.proto, self.inputs(smallest), to, self.target, timeout)
        if failed is None:
            self.engine = to
        else:
            console.say(f"  that is not built ({failed.message}), so each size gets its own")

    def inputs(self, point: Point) -> Values:
        """The values at a point: the user's, repeated or cut off, else random ones as for ``--input-shapes``."""
        subject = self._investigation.subject
        data, shapes = subject.settings.data, self.shapes(point)
        if data.load_inputs or data.data_loader_script is not None:
            return {name: resized(subject.samples[0][name], shapes[name]) for name in self._names}
        infos = input_infos(subject.network)
        return make_inputs([TensorInfo(info.name, info.dtype, shapes[info.name]) for info in infos], data)[0]

    def refused(self, point: Point) -> str | None:
        """Returns why a point cannot be judged: the reference does not run it, or it is outside of the profile."""
        if point not in self._outside:
            self._outside[point] = self._beyond_profile(point) or self._fed.refused(self.inputs(point))
        return self._outside[point]

    def _beyond_profile(self, point: Point) -> str | None:
        try:
            if self._asked is not None:
                self._asked.target.check_inputs(self._asked, self.shapes(point))
        except UsageError as error:
            return f"it is outside of the profile: {error}"
        return None

    def title(self, point: Point) -> str:
        """The sizes of a point."""
        return ", ".join(f"{each.name}={size}" for each, size in zip(self.swept, point, strict=True))

    def candidate(self, point: Point, *, fixed: bool = False) -> Candidate:
        """The model at a point that was not refused; ``fixed`` to its sizes, on the target as given, or free."""
        values, title = self.inputs(point), self.title(point)
        if fixed:
            target = None if self._asked is None else self._asked.target.spanning(self._asked, {})
            return self._fed.candidate(values, f"{title}, its shapes fixed", fixed=True, target=target)
        target = None if self.engine is not None or self.target == self._asked else self.target
        return self._fed.candidate(values, title, fixed=False, engine=self.engine, target=target)

    def below(self, point: Point) -> list[Point]:
        """The points with the next smaller size of one dimension that the model takes."""
        return below(self.swept, point, lambda other: self.refused(other) is None)


@dataclass(frozen=True)
class _Sweep:
    """A sweep: its space is the grid of sizes."""

    session: Session
    sized: Sized
    grid: Grid
    space: Space

    @classmethod
    def of(cls, session: Session, sized: Sized) -> _Sweep:
        grid = Grid([each.sizes for each in sized.swept])

        def build(units: frozenset[int]) -> Candidate:
            return sized.candidate(grid[next(iter(units))])

        return cls(session, sized, grid, Space(build, refuse=lambda unit: sized.refused(grid[unit]), apart=True))

    def run(self, tries: int, seen: dict[Point, Verdict]) -> None:
        """Try sizes; ``seen`` has the verdicts, however this ends."""
        swept = self.sized.swept
        profile = {} if self.sized.target is None else self.sized.target.target.profile(self.sized.target)
        marks = [
            [shape[axis] for name, axis in each.places for shape in profile.get(name, ()) if axis < len(shape)]
            for each in swept
        ]

        def strategy(ask: AskUnit) -> None:
            seen.clear()

            def at(point: Point) -> Verdict:
                seen[point] = ask(self.grid.number(point))
                return seen[point]

            sweep_points([each.sizes for each in swept], at, marks, tries)
            self._go_down(at, seen)

        self.space.search_units(self.session.prober, strategy)

    def _go_down(self, at: AskSize, seen: Mapping[Point, Verdict]) -> None:
        """From the smallest point that fails to the next smaller ones, until each of those passes."""
        for _ in range(MOST_STEPS):
            smallest = _smallest(seen)
            if smallest is None or not any(
                at(point) is Verdict.FAIL for point in self.sized.below(smallest) if point not in seen
            ):
                return

    def again(self, points: Sequence[Point], seen: Mapping[Point, Verdict]) -> str | None:
        """Try points once more; the first whose verdict changed, in words."""
        for point in points:
            if self.sized.refused(point) is not None:
                continue
            try:
                now = self.session.prober.probe(self.sized.candidate(point), again=True).verdict
            except BudgetSpent:
                return None
            if now is not seen[point]:
                return f"{self.sized.title(point)} {_SEEN[seen[point]]} and, tried again, {_SEEN[now]}"
        return None

    def fill(self, seen: Mapping[Point, Verdict]) -> Point | None:
        """Put what was seen into the result; returns the smallest point that fails."""
        swept, smallest, number = self.sized.swept, _smallest(seen), len(self.grid)
        records = self.space.seen(self.session.prober)
        base = _crossing(swept, seen)
        told: dict[str, Any] = {
            "dimensions": [] if base is None else [_dimension(swept, n, base, seen) for n in range(len(swept))],
            "tried": len(seen),
            "of": number,
            "exhaustive": len(seen) == number,
            "smallest_failing": None if smallest is None else self.sizes(smallest),
            "shapes": None if smallest is None else _plain(self.sized.shapes(smallest)),
            "map": [],
        }
        for point, verdict in sorted(seen.items()):
            refused = self.sized.refused(point)
            record = None if refused is not None else records.get(self.grid.number(point))
            told["map"].append(
                {
                    "sizes": self.sizes(point),
                    "shapes": _plain(self.sized.shapes(point)),
                    "verdict": verdict.value,
                    "reason": refused if record is None else record.reason,
                    "signature": None if record is None else record.signature,
                }
            )
        told["said"] = sentence(told)
        self.session.result.extra["sweep"] = told
        return smallest

    def sizes(self, point: Point) -> dict[str, int]:
        """The sizes of a point, by dimension."""
        return {each.name: size for each, size in zip(self.sized.swept, point, strict=True)}


def sweep(session: Session, settings: SweepSettings) -> Result:
    """Try sizes, and say which fail.

    Returns:
        The result; ``sweep`` in it has the ``dimensions`` with their ``intervals``, the ``map`` of all that was tried, and the
        ``smallest_failing``.

    Raises:
        DoesNotReproduce: None fails.
        UnavailableError: The reference runs none.
        UsageError: The dimensions do not fit the model.
    """
    console, result = session.console, session.result
    story = _Sweep.of(session, _opened(session, settings))
    sized, number = story.sized, len(story.grid)
    said = " by ".join(f"{len(each.sizes)} sizes of {each.name}" for each in sized.swept)
    by_check = settings.check.target is None
    what = "the check fail" if by_check else "the target go wrong"
    console.step(f"At which of {said} does {what}? {min(settings.tries, number)} of {number} are tried")
    sized.build(settings.check.timeout)
    seen: dict[Point, Verdict] = {}
    try:
        story.run(settings.tries, seen)
    except (BudgetSpent, KeyboardInterrupt):
        if story.fill(seen) is not None:
            console.answer(f"So far it fails {result.extra['sweep']['said']}")
        raise
    smallest = story.fill(seen)
    told = result.extra["sweep"]
    if smallest is None:
        if Verdict.PASS not in seen.values():
            reason = told["map"][0]["reason"] if told["map"] else "none was tried"
            raise UnavailableError(f"no size says anything: {reason}.")
        for line in draw(told):
            console.say(line)
        what = "the check fails" if by_check else "the target goes wrong"
        raise DoesNotReproduce(f"{what} at none of the sizes: {told['said']}")
    console.answer(f"It fails {told['said']}")
    for line in draw(told):
        console.answer(line)
    result.status = "found"
    below = sized.below(smallest)
    unsure = [point for point in below if seen.get(point) is not Verdict.PASS]
    result.minimality = "unproven" if unsure else "1-minimal"
    if unsure:
        result.why = f"the next smaller size, {sized.title(unsure[0])}, was not seen to pass"
    unsteady = story.again([smallest, smallest, *(point for point in below if point in seen)], seen)
    if unsteady is not None:
        result.minimality = "unproven"
        result.why = f"the failure comes and goes: {unsteady}, so that it is not of a size alone"
    _leave(story, settings, smallest, steady=unsteady is None)
    return result


def _opened(session: Session, settings: SweepSettings) -> Sized:
    """The model over the sizes that are swept, without those that it does not take where not all can be tried."""
    swept, target = dimensions(session.subject, settings), settings.check.target
    sized = Sized(session, target, swept)
    if prod(len(each.sizes) for each in swept) <= settings.tries:
        return sized
    taken = strided(swept, lambda point: sized.refused(point) is None)
    for each in (each for each in taken if each.step is not None):
        said = ", ".join(map(str, each.sizes[:3]))
        session.console.say(f"  the model takes {each.name} in steps of {each.step}: {said}, ...")
    return sized if taken == swept else Sized(session, target, taken)


def _leave(story: _Sweep, settings: SweepSettings, smallest: Point, *, steady: bool) -> None:
    """Write the values of the smallest size that fails, and say how to go on from it."""
    session, sized = story.session, story.sized
    console, result = session.console, session.result
    path = session.subject.workspace.folder / FAILING
    save_npz(path, sized.inputs(smallest))
    result.artifacts["inputs"] = str(path)
    fixed = known = False
    with suppress(BudgetSpent):
        fixed = steady and session.prober.probe(sized.candidate(smallest, fixed=True)).verdict is Verdict.FAIL
        known = steady
    target = settings.check.target if fixed else sized.target
    if target is None:
        name = "reduce" if steady else "repeat"
        command = settings.check.how_to(name, sized.file(), path, session.place_words)
    else:
        words = ["bisect-trt", "diagnose" if steady else "repeat", str(sized.file()), *target.flags()]
        words += [*session.place_words, "--load-inputs", str(path), *settings.check.tolerance.words()]
        command = shlex.join(words)
    result.extra["sweep"] |= {"needs_free_dimensions": not fixed if known else None, "command": command}
    how = "with its shapes fixed too" if fixed else "only while its dimensions are free"
    if not known:
        how = "while its dimensions are free, and fixed shapes were not tried" if steady else "now and then"
    console.answer(f"The smallest that fails is {sized.title(smallest)}; it fails {how}. Its inputs: {path}")
    console.answer(f"To {'find out why' if steady else 'see how often'}: {command}")


def _smallest(seen: Mapping[Point, Verdict]) -> Point | None:
    failing = (point for point, verdict in seen.items() if verdict is Verdict.FAIL)
    return min(failing, key=lambda point: (prod(point), point), default=None)


def _plain(shapes: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    return {name: list(shape) for name, shape in shapes.items()}


def dimensions(subject: Subject, settings: SweepSettings) -> list[Dimension]:
    """The dimensions that are swept; those of one name, the user's or the model's, are one.

    Raises:
        UsageError: There is no such input, it has another rank, or one dimension has different sizes in two places.
    """
    base = {name: value.shape for name, value in subject.samples[0].items()}
    sizes: dict[str, tuple[int, ...]] = {}
    places: dict[str, list[Place]] = {}
    for name, shape in settings.shapes:
        _check_rank(name, shape, base)
        for axis, each in enumerate(shape):
            called = each.name or _symbol(subject, name, axis) or f"{name}[{axis}]"
            if len(each.sizes) == 1 and called not in sizes and not each.name:
                continue
            if sizes.setdefault(called, each.sizes) != each.sizes:
                raise UsageError(
                    f"--shapes: the dimension '{called}' has other sizes in '{name}' than before; give the same."
                )
            places.setdefault(called, []).append((name, axis))
    everywhere = [(name, axis) for name, shape in base.items() for axis in range(len(shape))]
    for called, known in places.items():
        known += [place for place in everywhere if _symbol(subject, *place) == called and place not in known]
    return [Dimension(called, sizes[called], tuple(places[called])) for called in sizes if len(sizes[called]) > 1]


def _check_rank(name: str, shape: Sequence[Sizes], base: Mapping[str, tuple[int, ...]]) -> None:
    if name not in base:
        raise UsageError(f"--shapes: the model has no input '{name}'; its inputs are: {', '.join(base) or 'none'}.")
    if len(shape) != len(base[name]):
        raise UsageError(
            f"--shapes: the input '{name}' has {len(base[name])} dimensions, and {len(shape)} are given; give one for each."
        )


def _symbol(subject: Subject, name: str, axis: int) -> str | None:
    """What the model's file calls a dimension of an input, if it is free."""
    dim = subject.declared.get(name, (None,) * (axis + 1))[axis]
    return dim if isinstance(dim, str) else None


def strided(swept: Sequence[Dimension], takes: Takes) -> list[Dimension]:
    """The dimensions with the sizes alone that the model takes, where these have one step.

    The next two sizes that it takes say the step; where they do not say the same one, or nothing between is refused, all stay.
    """
    start = next((point for point in starts(swept) if takes(point)), None)
    if start is None:
        return list(swept)
    return [_strided(each, start, place, takes) for place, each in enumerate(swept)]


def starts(swept: Sequence[Dimension]) -> Iterator[Point]:
    """Points at which a model may be expected to run: powers of two, then from the smallest sizes on, alike and not."""
    powers = [
        tuple(next((size for size in each.sizes if size >= 1 << bit), each.sizes[-1]) for each in swept)
        for bit in range(3, 11)
    ]
    first = [
        tuple(each.sizes[place * (1 + way * number) % len(each.sizes)] for number, each in enumerate(swept))
        for way in range(2)
        for place in range(_MOST_TAKEN // 2)
    ]
    yield from dict.fromkeys(powers + first)


def _strided(dimension: Dimension, start: Point, place: int, takes: Takes) -> Dimension:
    sizes = dimension.sizes
    here = sizes.index(start[place])
    for way in (sizes[here:], sizes[here::-1]):
        taken = []
        for number, size in enumerate(way[:_MOST_TAKEN]):
            if takes((*start[:place], size, *start[place + 1 :])):
                taken.append(number)
            if len(taken) == 3:
                break
        if len(taken) < 3:
            continue
        (first, second, third), step = taken, abs(way[taken[1]] - way[taken[0]])
        if second - first == 1 or third - second != second - first or abs(way[third] - way[second]) != step:
            break
        kept = tuple(size for size in sizes if (size - start[place]) % step == 0)
        return replace(dimension, sizes=kept, step=step)
    return dimension


def below(swept: Sequence[Dimension], point: Point, takes: Takes) -> list[Point]:
    """The points with the next smaller size of one dimension that the model takes."""
    found = []
    for place, (each, size) in enumerate(zip(swept, point, strict=True)):
        smaller = each.sizes[: each.sizes.index(size)][: -_MOST_TAKEN - 1 : -1]
        points = ((*point[:place], less, *point[place + 1 :]) for less in smaller)
        first = next(filter(takes, points), None)
        if first is not None:
            found.append(first)
    return found


def _at(point: Point, place: int) -> Point:
    return (*point[:place], *point[place + 1 :])


def _crossing(swept: Sequence[Dimension], seen: Mapping[Point, Verdict]) -> Point | None:
    """The point that fails, else one that passes, through which most was tried along each dimension."""
    for wanted in (Verdict.FAIL, Verdict.PASS):
        points = [point for point, verdict in seen.items() if verdict is wanted]
        if points:
            tried = Counter((place, _at(point, place)) for point in seen for place in range(len(swept)))
            many = {point: sum(tried[place, _at(point, place)] for place in range(len(swept))) for point in points}
            return min(points, key=lambda point: (-many[point], prod(point), point))
    return None


def _dimension(swept: Sequence[Dimension], place: int, base: Point, seen: Mapping[Point, Verdict]) -> dict[str, Any]:
    """What was seen along one dimension, the others as at a point."""
    each = swept[place]
    line = {point[place]: verdict for point, verdict in seen.items() if _at(point, place) == _at(base, place)}
    rule = fit(line)
    return {
        "name": each.name,
        "inputs": [{"name": name, "axis": axis} for name, axis in each.places],
        "sizes": len(each.sizes),
        "low": each.sizes[0],
        "high": each.sizes[-1],
        "step": each.step,
        "at": {other.name: size for other, size in zip(swept, base, strict=True) if other is not each},
        "tried": sorted(line),
        **{
            name: sorted(size for size, verdict in line.items() if verdict is wanted)
            for name, wanted in (("fail", Verdict.FAIL), ("pass", Verdict.PASS), ("unresolved", Verdict.UNRESOLVED))
        },
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
        "rule": None if rule is None else {**vars(rule), "said": rule.describe()},
    }


def sentence(told: Json) -> str:
    """Which sizes fail, as far as they were tried."""
    tried = f"tried {told['tried']} of {told['of']} sizes"
    steps = [f"{each['name']} in steps of {each['step']}" for each in told["dimensions"] if each["step"]]
    tried += f" that the model takes ({', '.join(steps)})" if steps else ""
    limit = "" if told["exhaustive"] else "; of a size that was not tried nothing is known but its neighbours"
    if told["smallest_failing"] is None:
        return f"{tried}{limit}."
    parts = []
    for each in told["dimensions"]:
        at = ", ".join(f"{name}={size}" for name, size in each["at"].items())
        where = f" (with {at})" if at else ""
        rule = each["rule"]["said"] if each["rule"] is not None else f"at {_list(each['fail'])}, by no simple rule"
        many = f", as all {len(each['tried'])} that were tried say" if len(each["tried"]) < each["sizes"] else ""
        parts.append(f"{rule} of {each['name']}{where}{many}")
    return f"{'; '.join(parts)}: {tried}{limit}."


def _list(sizes: Sequence[int]) -> str:
    shown = ", ".join(map(str, sizes[:12]))
    return f"{shown}, ... ({len(sizes)})" if len(sizes) > 12 else shown


def draw(told: Json) -> list[str]:
    """The map as lines: of one dimension its intervals and a strip, of two a square, of each its intervals."""
    lines: list[str] = []
    for each in told["dimensions"]:
        at = ", ".join(f"{name}={size}" for name, size in each["at"].items())
        lines.append(f"  {each['name']}" + (f", with {at}" if at else ""))
        rows = each["intervals"]
        most = _MOST_ROWS if each["rule"] is None or each["rule"]["period"] is None else _OF_A_PERIOD
        for found in rows[:most]:
            span = f"{found['from']}" if found["from"] == found["to"] else f"{found['from']}..{found['to']}"
            between = "inferred" if each["rule"] is None or each["rule"]["period"] is None else "as the rule says"
            left = f"{len(found['tried'])} tried, what lies between {between}" if found["inferred"] else "all tried"
            lines.append(f"    {_WORDS[found['verdict']]:<9} {span:<14} {left}")
        if len(rows) > most:
            lines.append(f"    ... {len(rows) - most} more in the report")
        if len(told["dimensions"]) == 1 and len(told["map"]) <= _WIDTH:
            marks = "".join(_MARKS[entry["verdict"]] for entry in told["map"])
            lines.append(f"    {each['low']} {marks} {each['high']}   (. pass, # fail, ? not known; the sizes tried)")
    return lines + _ways(told)


def _ways(told: Json) -> list[str]:
    """How it fails, where that is not everywhere the same: each way with its smallest size."""
    first: dict[str, Json] = {}
    count = Counter(entry["signature"] for entry in told["map"] if entry["verdict"] == "FAIL")
    for entry in sorted(told["map"], key=lambda entry: prod(entry["sizes"].values())):
        if entry["verdict"] == "FAIL":
            first.setdefault(entry["signature"], entry)
    return [
        f"  {count[way]} of {count.total()} that fail: {entry['reason'] or way}, "
        f"first at {', '.join(f'{name}={size}' for name, size in entry['sizes'].items())}"
        for way, entry in (first.items() if len(first) > 1 else ())
    ]
