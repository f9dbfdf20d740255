"""``sweep``: the sizes of the inputs at which the target fails.

The space is the grid of sizes, the strategy is :func:`~bisect_trt.search.ordered.sweep_points`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from math import prod
from pathlib import Path

from msgspec import Struct, structs

from bisect_trt.errors import (
    ConflictError,
    MissingOptionError,
    ModelRefusedError,
    UsageError,
    ValueRefusedError,
)
from bisect_trt.onnxlib.inputs import input_infos
from bisect_trt.onnxlib.shapes import Shape, require_input
from bisect_trt.options.reading import Sizes
from bisect_trt.options.searches import Sweep
from bisect_trt.options.shared import Data
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.prober import DoesNotReproduce
from bisect_trt.report.parts import (
    InputAxis,
    Shapes,
    SizesSpan,
    SizesVerdict,
    SweptDimension,
    SweptSizes,
)
from bisect_trt.report.result import Result
from bisect_trt.report.sentences import (
    OUTSIDE_PROFILE,
    describe_sizes,
    describe_swept,
    tell_smallest,
    tell_swept,
    why_sizes,
)
from bisect_trt.search.oracle import Verdict
from bisect_trt.search.ordered import Point, go_down, intervals, smallest_failing, sweep_points
from bisect_trt.session.call import Call, refuse_repeat
from bisect_trt.session.checks import CheckSettings
from bisect_trt.session.session import Session, saving_best
from bisect_trt.session.space import Fed, Series, contradicted
from bisect_trt.session.subject import ModelSettings, Subject
from bisect_trt.steps.dynamic_dims import profile_of
from bisect_trt.targets.base import TargetSettings
from bisect_trt.targets.options import Target
from bisect_trt.tensors.files import Values, save_npz, shapes_of
from bisect_trt.tensors.inputs import make_inputs, resized

FAILING = "failing-inputs.npz"
_MOST_REFUSED = 128
"""The largest number of sizes at which the reference is tried until it runs."""
Swept = Sequence[tuple[str, tuple[Sizes, ...]]]
"""Inputs, each with the sizes of its dimensions."""


def first_shapes(shapes: Swept, target: TargetSettings | None, model: ModelSettings) -> Shapes:
    """Return the shapes to open the model with: the smallest sizes in the target's profile; none if values are given.

    Args:
        shapes: The sizes of each dimension that is swept, by input, ascending.
        target: The target; its profile bounds the sizes.
        model: The model and the data that it is opened with.
    """
    if model.data.given:
        return {}
    profile = profile_of(target)
    smallest = {}
    for name, shape in shapes:
        lows, *_ = profile.get(name, ((),))
        lows = lows if len(lows) == len(shape) else (0,) * len(shape)
        smallest[name] = tuple(
            next((size for size in axis.sizes if size >= low), axis.sizes[-1])
            for axis, low in zip(shape, lows, strict=True)
        )
    return smallest


class Dimension(Struct, frozen=True):
    """A swept dimension: its sizes in ascending order, and the inputs and axes that have it."""

    name: str
    sizes: tuple[int, ...]
    places: tuple[tuple[str, int], ...]


class Sized:
    """The model with the swept dimensions free, and its inputs at any point.

    Attributes:
        swept: The dimensions.
        target: The target with a profile of all sizes; ``None`` if the user's check decides.
    """

    def __init__(self, session: Session, swept: Sequence[Dimension], check: CheckSettings) -> None:
        """Free the dimensions, and build one engine for all sizes if the target makes engines."""
        subject = session.subject
        asked = check.target
        self.swept = swept
        self._session = session
        self._asked = asked
        self._base = shapes_of(subject.samples[0])
        places = {place for each in swept for place in each.places}
        known = {name: subject.declared.get(name, shape) for name, shape in self._base.items()}
        free = _with_names(known, places)
        self._unlike_file = free != known
        # Sizes that the reference should run, if it runs any.
        likely = [
            tuple(each.sizes[place % len(each.sizes)] for each in swept)
            for place in range(_MOST_REFUSED)
        ]
        self._fed = Fed(session, free, lambda: map(self.inputs, likely), forget=self._unlike_file)
        self.refused = cache(self._refused)
        self.target = asked
        self._engine = None
        if asked is None or asked.build_only:  # each size is built by itself
            return
        lowest, highest = (tuple(each.sizes[end] for each in swept) for end in (0, -1))
        if not asked.target.profile(asked):
            lows = self.shapes(lowest)
            highs = self.shapes(highest)
            asked = asked.target.spanning(
                asked, {name: (lows[name], highs[name], highs[name]) for name in lows}
            )
        self.target = asked
        if asked.target.engines:
            session.console.say(f"  one engine for all sizes: {' '.join(asked.flags())}")
            self._engine = self._fed.engine(
                "swept", self._fed.proto, self.inputs(lowest), asked, check.timeout
            )
            if self._engine is None:
                session.console.say("  the build fails, so each size gets its own engine")

    def shapes(self, point: Point) -> Shapes:
        """Return the shapes of all inputs at a point."""
        sizes = {
            place: size
            for axis, size in zip(self.swept, point, strict=True)
            for place in axis.places
        }
        return {
            name: tuple(sizes.get((name, axis), size) for axis, size in enumerate(shape))
            for name, shape in self._base.items()
        }

    def sizes(self, point: Point) -> dict[str, int]:
        """Return the sizes of a point, by dimension."""
        return {axis.name: size for axis, size in zip(self.swept, point, strict=True)}

    def file(self) -> Path:
        """Return a model file for all sizes: the user's own, or a copy with the swept dimensions free."""
        subject = self._session.subject
        if not self._unlike_file:
            return subject.settings.path
        path = subject.workspace.folder / "free.onnx"
        subject.workspace.save(self._fed.proto, path)
        return path

    def inputs(self, point: Point) -> Values:
        """Return the values at a point: the user's, repeated or cut off, else random values."""
        subject = self._session.subject
        data = subject.data
        shapes = self.shapes(point)
        if data.given:
            return {
                name: resized(subject.samples[0][name], shapes[name])
                for name in subject.network.inputs
            }
        infos = input_infos(subject.network)
        return make_inputs([replace(info, shape=shapes[info.name]) for info in infos], data)[0]

    def _refused(self, point: Point) -> str | None:
        """Return why a point has no verdict: the reference does not run it, or it is outside the user's profile."""
        try:
            if self._asked is not None:
                self._asked.target.check_inputs(self._asked, self.shapes(point))
        except UsageError as error:
            return OUTSIDE_PROFILE.format(error)
        return self._fed.refused(self.inputs(point))

    def candidate(self, point: Point) -> Candidate:
        """Return the candidate of a point that was not refused, with free dimensions."""
        target = None if self._engine is not None or self.target == self._asked else self.target
        title = describe_sizes(self.sizes(point))
        return self._fed.candidate(
            self.inputs(point), title, fixed=False, engine=self._engine, target=target
        )

    def below(self, point: Point) -> list[Point]:
        """Return the points with the next smaller size of one dimension that the reference runs."""
        neighbours: list[Point] = []
        for place, (axis, size) in enumerate(zip(self.swept, point, strict=True)):
            smaller = reversed(axis.sizes[: axis.sizes.index(size)])
            points = (
                (*point[:place], less, *point[place + 1 :])
                for less in islice(smaller, _MOST_REFUSED)
            )
            neighbours += islice(
                (neighbour for neighbour in points if self.refused(neighbour) is None), 1
            )
        return neighbours


def _with_names(
    shapes: Mapping[str, Shape], places: Container[tuple[str, int]]
) -> dict[str, Shape]:
    """Return shapes with a name for each fixed size that is swept."""
    return {
        name: tuple(
            f"{name}_{axis}" if (name, axis) in places and isinstance(size, int) else size
            for axis, size in enumerate(shape)
        )
        for name, shape in shapes.items()
    }


def sweep(session: Session, check: CheckSettings, shapes: Swept, tries: int) -> Result:
    """Probe sizes, and report which fail.

    Returns:
        The result; its ``sweep`` has the ``dimensions`` with their ``intervals``, the ``map`` of
        all probed points, and the ``smallest_failing``.

    Raises:
        DoesNotReproduce: None fails.
        UnavailableError: The reference runs none.
        UsageError: The dimensions do not fit the model.
    """
    console = session.console
    result = session.result
    swept = dimensions(session.subject, shapes)
    axes = [each.sizes for each in swept]
    number = prod(len(each.sizes) for each in swept)
    by = "the check" if check.target is None else "the target"
    grid = " by ".join(f"{len(each.sizes)} sizes of {each.name}" for each in swept)
    console.step(f"At which of {grid} does {by} fail? {min(tries, number)} of {number} are probed")
    sized = Sized(session, swept, check)
    series: Series[Point] = Series(sized.candidate, sized.refused, apart=True)

    def so_far() -> None:
        answer, *_ = _fill(session, sized, series)
        if answer.smallest_failing is not None:
            tell_swept(answer, console, ended=False)

    with saving_best(so_far):
        series.search(
            session.prober, lambda ask: go_down(sweep_points(axes, ask, tries), ask, sized.below)
        )
    answer, probed, smallest = _fill(session, sized, series)
    if smallest is None:
        if Verdict.PASS not in probed.values():
            raise ModelRefusedError(f"no size has a verdict: {answer.map[0].reason}.")
        raise DoesNotReproduce(f"{by} fails at none of the sizes: {answer.said}")
    tell_swept(answer, console, ended=True)
    path = session.subject.workspace.folder / FAILING
    save_npz(path, sized.inputs(smallest))
    result.artifacts["inputs"] = str(path)
    below = sized.below(smallest)
    unsure = next((point for point in below if probed.get(point) is not Verdict.PASS), None)
    # The smallest twice: whether it fails by chance matters more than its neighbours.
    points = (smallest, smallest, *(point for point in below if point in probed))
    changed = contradicted(
        session.prober, ((sized.candidate(point), probed[point]) for point in points)
    )
    name = "reduce" if sized.target is None else "diagnose"
    if changed is not None:
        name = "repeat"
    command = session.command(name, replace(check, target=sized.target), sized.file(), path)
    result.sweep = structs.replace(answer, command=command)
    tell_smallest(result.sweep, str(path), console, steady=changed is None)
    return result.end(why=why_sizes(None if unsure is None else sized.sizes(unsure), changed))


def dimensions(subject: Subject, shapes: Swept) -> list[Dimension]:
    """Return the swept dimensions; dimensions with the same name, the user's or the model's, are one.

    Raises:
        UsageError: An input does not exist or has another rank, or a dimension has different sizes
            in two places.
    """
    base = shapes_of(subject.samples[0])
    symbols = {
        (name, axis): dim
        for name in base
        for axis, dim in enumerate(subject.declared.get(name, ()))
        if isinstance(dim, str)
    }
    sizes: dict[str, tuple[int, ...]] = {}
    places: dict[str, list[tuple[str, int]]] = {}
    for name, shape in shapes:
        require_input(name, base, "--shapes: ")
        if len(shape) != len(base[name]):
            raise ValueRefusedError(
                f"--shapes: the input '{name}' has {len(base[name])} dimensions, and {len(shape)} are given; give one for each."
            )
        for axis, dimension in enumerate(shape):
            called = dimension.name or symbols.get((name, axis)) or f"{name}[{axis}]"
            # A single size is swept only under a name that has several sizes elsewhere.
            if len(dimension.sizes) == 1 and called not in sizes and not dimension.name:
                continue
            if sizes.setdefault(called, dimension.sizes) != dimension.sizes:
                raise ValueRefusedError(
                    f"--shapes: the dimension '{called}' has other sizes in '{name}' than before; give the same sizes."
                )
            places.setdefault(called, []).append((name, axis))
    for called, axes_of_name in places.items():
        axes_of_name += [
            place
            for place, symbol in symbols.items()
            if symbol == called and place not in axes_of_name
        ]
    return [
        Dimension(called, sizes[called], tuple(places[called]))
        for called in sizes
        if len(sizes[called]) > 1
    ]


def _fill(
    session: Session, sized: Sized, series: Series[Point]
) -> tuple[SweptSizes, dict[Point, Verdict], Point | None]:
    """Put the probed sizes into the result; return that field, the verdicts and the smallest point that fails."""
    verdicts = series.verdicts(session.prober)
    probed = {point: Verdict(record["verdict"]) for point, record in verdicts.items()}
    smallest = smallest_failing(probed)
    number = prod(len(axis.sizes) for axis in sized.swept)
    swept = (
        [_dimension(sized, place, probed) for place in range(len(sized.swept))] if probed else []
    )
    answer = SweptSizes(
        dimensions=tuple(swept),
        tried=len(probed),
        of=number,
        exhaustive=len(probed) == number,
        smallest_failing=None if smallest is None else sized.sizes(smallest),
        shapes=None if smallest is None else sized.shapes(smallest),
        map=tuple(
            SizesVerdict(sizes=sized.sizes(point), shapes=sized.shapes(point), **verdicts[point])
            for point in sorted(probed)
        ),
        said="",
    )
    session.result.sweep = structs.replace(answer, said=describe_swept(answer))
    return session.result.sweep, probed, smallest


def _dimension(sized: Sized, place: int, probed: Mapping[Point, Verdict]) -> SweptDimension:
    """Return the verdicts along one dimension, at the sizes of the others with a failure and the most probes."""
    lines: dict[Point, dict[int, Verdict]] = {}
    for point, verdict in sorted(probed.items()):
        lines.setdefault((*point[:place], *point[place + 1 :]), {})[point[place]] = verdict
    other_sizes, line = max(
        lines.items(), key=lambda line: (Verdict.FAIL in line[1].values(), len(line[1]))
    )
    each = sized.swept[place]
    names = [axis.name for axis in sized.swept]
    sizes = {of: tuple(size for size, probed in line.items() if probed is of) for of in Verdict}
    return SweptDimension(
        name=each.name,
        inputs=tuple(InputAxis(name=name, axis=axis) for name, axis in each.places),
        at=dict(zip([*names[:place], *names[place + 1 :]], other_sizes, strict=True)),
        fail=sizes[Verdict.FAIL],
        passed=sizes[Verdict.PASS],
        unresolved=sizes[Verdict.UNRESOLVED],
        intervals=tuple(
            SizesSpan(first=row[0], last=row[-1], verdict=verdict.value, tried=tuple(row))
            for verdict, row in intervals(line)
        ),
    )


def run(call: Call) -> Result:
    """Find the sizes at which the target fails."""
    options = call[Sweep]
    fixed = call[Data].input_shapes
    check = call.check(call[Target].settings())
    opened = call.open(check)
    refuse_repeat(call)
    if not any(len(dimension.sizes) > 1 for _, shape in options.shapes for dimension in shape):
        raise MissingOptionError(
            "no dimension to sweep: give an input with several sizes, such as --shapes 'x:[1..64,3,224,224]'; "
            "`bisect-trt inspect model FILE` lists the inputs."
        )
    for name, count in Counter([*fixed, *(name for name, _ in options.shapes)]).items():
        if count > 1:
            raise ConflictError(
                f"--shapes: the shape of the input '{name}' is given twice; give it once."
            )
    check = check.without_target(call.console)
    shapes = {**fixed, **first_shapes(options.shapes, check.target, opened.model)}
    model = structs.replace(opened.model, data=replace(opened.model.data, input_shapes=shapes))
    with structs.replace(opened, model=model).searching(check, fed=False) as session:
        return sweep(session, check, options.shapes, options.tries)
