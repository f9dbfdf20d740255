"""Options of what is compared: outputs with the reference, scores of metrics, limits of time, memory and size."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any

from bisect_trt.errors import (
    ConflictError,
    MissingOptionError,
    UnsuitableModelError,
    ValueRefusedError,
)
from bisect_trt.options.spec import Option, changed, option, seconds, switch


class ErrorStat(str, Enum):
    """The number that is compared with the tolerances (Polygraphy's ``--check-error-stat``)."""

    ELEMWISE = "elemwise"
    """Fails where an element exceeds both tolerances."""
    MAX = "max"
    """Fails where the largest absolute and the largest relative error each exceed their
    tolerance."""
    MEAN = "mean"
    MEDIAN = "median"
    QUANTILE = "quantile"
    """As ``max``, but of the errors without the largest few: their quantile, 0.99 by default."""


PerOutput = dict[str, float]
"""A number for each output by name; the name ``''`` means all others."""


def threshold(unit: str, help: str, low: float = 0, high: float = float("inf")) -> Option:  # noqa: A002 - as in Typer
    """Declare a number for each output.

    Args:
        unit: The placeholder of the number in the help.
        help: The help of the option.
        low: The least number allowed.
        high: The largest number allowed.
    """
    return option(metavar=f"[OUT:]{unit}", help=help, min=low, max=high)


@dataclass(frozen=True)
class CompareOptions:
    """Comparison."""

    atol: Annotated[
        PerOutput,
        threshold(
            "TOL",
            "Absolute tolerance; default 1e-5 or 2e-4 of the RMS of each tensor, 1% of the RMS with fp16.",
        ),
    ] = field(default_factory=dict)
    rtol: Annotated[
        PerOutput, threshold("TOL", "Relative tolerance; default 1e-5, with --fp16 1e-2.")
    ] = field(default_factory=dict)
    check_error_stat: Annotated[
        dict[str, ErrorStat],
        option(
            metavar="[OUT:]STAT",
            help="elemwise (the default), max, mean, median or quantile.",
        ),
    ] = field(default_factory=dict)
    error_quantile: Annotated[
        PerOutput, threshold("Q", "The quantile of the errors to check; default 0.99.", 0, 1)
    ] = field(default_factory=dict)
    infinities_compare_equal: Annotated[bool, switch("Equal infinities on both sides match.")] = (
        False
    )
    validate: Annotated[bool, switch("Any NaN or Inf, on either side, is a failure.")] = False
    compare_func_script: Annotated[
        str | None,
        option(
            metavar="FILE[:FUNC]",
            help="Python file with a compare_outputs(target, reference) -> dict.",
        ),
    ] = None

    def require_numbers(self) -> None:
        """Check that outputs are compared number by number.

        Raises:
            UsageError: They are not.
        """
        if self.compare_func_script is not None:
            raise ConflictError(
                "--compare-func-script applies to outputs, and `diagnose` compares all inner tensors; use `run` or `reduce`."
            )


@dataclass(frozen=True)
class Drop:
    """The largest difference to the score of the reference.

    Attributes:
        size: From 0 up, in the unit of the metric, or in percent.
    """

    size: float
    relative: bool

    def __str__(self) -> str:
        size = repr(self.size).removesuffix(".0")
        return f"{size}%" if self.relative else size

    def of(self, reference: float) -> float:
        """Return the drop from a score, in its unit."""
        return self.size / 100 * abs(reference) if self.relative else self.size


def drop(value: Any) -> Drop:  # noqa: ANN401 - whatever was given
    """Read ``0.5%`` of the reference's score, or ``0.005`` absolute."""
    if isinstance(value, Drop):
        return value
    relative = isinstance(value, str) and value.endswith("%")
    try:
        size = float(value[:-1] if relative else value)
    except (TypeError, ValueError, OverflowError):
        size = math.nan
    if isinstance(value, bool) or not 0 <= size <= 1e300:
        raise ValueError("a number from 0 up, such as 0.005 or 0.5%")
    return Drop(size, relative)


@dataclass(frozen=True)
class MetricOptions:
    """Metric over a set of samples."""

    metric: Annotated[
        str | None,
        option(
            metavar="NAME|FILE[:FUNC]",
            help="Score of the outputs on the whole set: top-1 (top-K), kl, perplexity, common-prefix, cosine, scale or psnr, "
            "each with :OUTPUT if needed; or a Python file with a metric(outputs, reference, labels).",
        ),
    ] = None
    max_drop: Annotated[
        Drop | None,
        option(
            metavar="DROP",
            help="Largest difference to the reference's score: relative (0.5%) or absolute (0.005).",
            read=drop,
        ),
    ] = None
    min: Annotated[
        float | None,
        option(
            metavar="VALUE",
            help="Lower bound of the score; larger is better.",
            min=-1e300,
            max=1e300,
        ),
    ] = None
    max: Annotated[
        float | None,
        option(
            metavar="VALUE",
            help="Upper bound of the score; smaller is better.",
            min=-1e300,
            max=1e300,
        ),
    ] = None
    lower_is_better: Annotated[bool, switch("A smaller score of the file's metric is better.")] = (
        False
    )

    def check(self, *, bounded: bool) -> None:
        """Check that the options fit each other.

        Raises:
            UsageError: They do not.
        """
        bounds = {"--max-drop": self.max_drop, "--min": self.min, "--max": self.max}
        flags = [flag for flag, value in bounds.items() if value is not None]
        if self.metric is None:
            dependent = flags[0] if flags else "--lower-is-better" if self.lower_is_better else None
            if dependent is not None:
                raise MissingOptionError(f"{dependent} needs a metric; add --metric.")
            return
        if len(flags) > 1:
            raise ConflictError(f"{flags[0]} conflicts with {flags[1]}; give one bound.")
        if bounded and not flags:
            raise MissingOptionError("--metric needs a bound: add --max-drop 0.5%, --min or --max.")

    def bound(self, reference: float, *, lower_is_better: bool) -> float | None:
        """Return the bound of the score; ``None`` if none was given.

        Raises:
            UsageError: It is for a metric of the other direction, or relative to 0.
        """
        if self.min is not None and lower_is_better:
            raise ConflictError(f"--min {self.min:g}: a smaller score is better; use --max.")
        if self.max is not None and not lower_is_better:
            raise ConflictError(
                f"--max {self.max:g}: a larger score is better; use --min, or add --lower-is-better."
            )
        if self.max_drop is None:
            return self.max if lower_is_better else self.min
        if self.max_drop.relative and not reference:
            raise UnsuitableModelError(
                f"--max-drop {self.max_drop}: the reference's score is 0; give an absolute drop, such as 0.01."
            )
        # The bound of a huge score may overflow to Inf, which bounds nothing.
        size = self.max_drop.of(reference)
        limit = reference + size if lower_is_better else reference - size
        return limit if math.isfinite(limit) else None


BASELINE = option(
    metavar="WHAT",
    help="What speed is compared with: a release (onnxruntime==1.17.3), an option of the target "
    "(graph-optimization-level=basic), a precision (fp32) or a target (openvino), for layerwise also a profile of trtexec "
    "(FILE.json); default the reference.",
)
MEASURE_SECONDS = 20.0
_MEMORIES = ("run", "build", "device")


@dataclass(frozen=True)
class Limits:
    """Limits of time, memory and size (instead of tolerances)."""

    slower_than: Annotated[
        float | None,
        option(
            metavar="RATIO",
            min=0.01,
            max=1e6,
            help="Fail if a run takes more than RATIO times the baseline's time.",
        ),
    ] = None
    baseline: Annotated[str | None, BASELINE] = None
    latency_limit: Annotated[
        float | None,
        option(metavar="MS", min=1e-6, max=1e9, help="Fail if a run takes more milliseconds."),
    ] = None
    percentile: Annotated[
        float | None,
        option(
            metavar="P",
            min=1,
            max=99.99,
            help="The limit holds for P percent of the runs, such as 99.",
        ),
    ] = None
    build_time_limit: Annotated[
        float | None, seconds("Fail if a model takes longer to build or load.")
    ] = None
    memory_limit_of: Annotated[
        dict[str, float],
        option(
            metavar="run|build|device:MB",
            need_name=True,
            min=0,
            max=1e9,
            help="Fail if a run or the build takes more host memory at its peak, or a loaded model more of the GPU's (device).",
        ),
    ] = field(default_factory=dict)
    engine_size_limit: Annotated[
        float | None,
        option(metavar="MB", min=0, max=1e9, help="Fail if the engine file is larger (T)."),
    ] = None
    measure_time: Annotated[
        float,
        seconds(
            "Most time for one decision about speed; default 20. Without one it is UNRESOLVED."
        ),
    ] = MEASURE_SECONDS

    @property
    def times(self) -> bool:
        """Whether runs are timed."""
        return self.slower_than is not None or self.latency_limit is not None

    @property
    def others(self) -> bool:
        """Whether anything but the size of the engine is limited."""
        return self.times or self.build_time_limit is not None or bool(self.memory_limit_of)

    def check(self) -> Limits | None:
        """Return the limits; ``None`` if there are none.

        Raises:
            UsageError: An option has no effect, or memory of an unknown kind is limited.
        """
        changes = changed(self)
        for name in self.memory_limit_of:
            if name not in _MEMORIES:
                raise ValueRefusedError(
                    f"--memory-limit-of {name}: give one of {', '.join(_MEMORIES)}."
                )
        if self.baseline is not None and self.slower_than is None:
            raise MissingOptionError("--baseline needs --slower-than RATIO; add it.")
        if self.percentile is not None and (
            self.latency_limit is None or self.slower_than is not None
        ):
            raise ConflictError(
                "--percentile applies to --latency-limit alone; add it, or drop --slower-than."
            )
        if "measure_time" in changes and not self.times:
            raise MissingOptionError(
                "--measure-time needs --slower-than or --latency-limit; add one."
            )
        return self if changes else None
