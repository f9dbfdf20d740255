"""A number that the outputs on a whole set of samples are worth, in place of tolerances."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

from bisect_trt.errors import ConflictError, MissingOptionError, UnsuitableModelError
from bisect_trt.options.spec import option, switch


@dataclass(frozen=True)
class Drop:
    """How much worse than the reference's own number one may be.

    Attributes:
        size: From 0 up, in the metric's own unit, or in percent.
        relative: Whether it is percent of that number.
    """

    size: float
    relative: bool

    def __str__(self) -> str:
        return f"{self.size!r}%" if self.relative else repr(self.size)

    def of(self, reference: float) -> float:
        """The drop from a number, in its unit."""
        return self.size / 100 * abs(reference) if self.relative else self.size


def drop(value: Any) -> Drop:  # noqa: ANN401 - whatever was given
    """``0.5%`` of the reference's number, or ``0.005`` absolute."""
    if isinstance(value, Drop):
        return value
    relative = isinstance(value, str) and value.endswith("%")
    try:
        size = float(value[:-1] if relative else value)
    except (TypeError, ValueError, OverflowError):
        size = math.nan
    if isinstance(value, bool) or not 0 <= size <= 1e300:
        raise ValueError("a number from 0 up, such as 0.005, or a part of the reference's, such as 0.5%")
    return Drop(size, relative)


@dataclass(frozen=True)
class MetricOptions:
    """Metric over a set of samples."""

    metric: Annotated[
        str | None,
        option(
            metavar="NAME|FILE[:FUNC]",
            help="What the outputs on the set are worth, not how far each is off: top-1 (top-K), cosine, psnr or "
            "snr, each with :OUTPUT if need be; or a Python file with a metric(outputs, reference, labels).",
        ),
    ] = None
    max_drop: Annotated[
        Drop | None,
        option(
            metavar="DROP", help="How much worse than the reference's it may be: 0.5% of that, or 0.005.", read=drop
        ),
    ] = None
    min: Annotated[
        float | None, option(metavar="VALUE", help="What it has to be at least; more is better.", min=-1e300, max=1e300)
    ] = None
    max: Annotated[
        float | None, option(metavar="VALUE", help="What it may be at most; less is better.", min=-1e300, max=1e300)
    ] = None
    lower_is_better: Annotated[bool, switch("A smaller number of the FILE's metric is better.")] = False

    def check(self, *, bounded: bool) -> None:
        """Make sure that the options fit each other.

        Raises:
            UsageError: They do not.
        """
        bounds = {"--max-drop": self.max_drop, "--min": self.min, "--max": self.max}
        given = [flag for flag, value in bounds.items() if value is not None]
        if self.metric is None:
            beside = given[0] if given else "--lower-is-better" if self.lower_is_better else None
            if beside is not None:
                raise MissingOptionError(f"{beside} is about a metric, and there is none; add --metric.")
            return
        if len(given) > 1:
            raise ConflictError(f"{given[0]} and {given[1]} both say how good the metric has to be; give one.")
        if bounded and not given:
            raise MissingOptionError(
                "--metric needs to know what is too bad: add --max-drop 0.5%, or --min or --max with the number itself."
            )

    def bound(self, reference: float, *, lower_is_better: bool) -> float | None:
        """What a candidate has to reach; ``None`` if nothing was said.

        Raises:
            UsageError: It is said for a metric of the other direction, or as a part of nothing.
        """
        if self.min is not None and lower_is_better:
            raise ConflictError(f"--min {self.min:g}: of this metric less is better; say --max.")
        if self.max is not None and not lower_is_better:
            raise ConflictError(f"--max {self.max:g}: of this metric more is better; say --min, or --lower-is-better.")
        if self.max_drop is None:
            return self.max if lower_is_better else self.min
        if self.max_drop.relative and not reference:
            raise UnsuitableModelError(
                f"--max-drop {self.max_drop}: the reference's own number is 0, of which there are no parts; give an absolute "
                "drop, such as 0.01."
            )
        size = self.max_drop.of(reference)
        found = reference + size if lower_is_better else reference - size
        return found if math.isfinite(found) else None
