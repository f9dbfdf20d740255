"""What is swept: the dimensions of the inputs that take several sizes, and which of them are one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from bisect_trt.errors import UsageError
from bisect_trt.options.reading import Sizes
from bisect_trt.search.size_conditions import Point
from bisect_trt.workflows.settings import CheckSettings, ModelSettings
from bisect_trt.workflows.subject import Subject

Place = tuple[str, int]
"""An input, and the number of one of its dimensions."""


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


def shapes_at(base: Mapping[str, tuple[int, ...]], swept: list[Dimension], point: Point) -> dict[str, tuple[int, ...]]:
    """The shapes of all inputs at a point."""
    sizes = {place: size for dimension, size in zip(swept, point, strict=True) for place in dimension.places}
    return {
        name: tuple(sizes.get((name, axis), size) for axis, size in enumerate(shape)) for name, shape in base.items()
    }
