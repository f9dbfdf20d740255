"""The options by which speed, memory, build time or size is the verdict, instead of the values of the outputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from bisect_trt.errors import MissingOptionError, ValueRefusedError
from bisect_trt.options.spec import changed, option, seconds

MEASURE_SECONDS = 20.0
_KINDS = ("run", "build", "device")


@dataclass(frozen=True)
class Limits:
    """Limits of time, memory and size (instead of tolerances)."""

    slower_than: Annotated[
        float | None,
        option(
            metavar="RATIO", min=0.01, max=1e6, help="Fail if a run takes more than RATIO times the baseline's time."
        ),
    ] = None
    baseline: Annotated[
        str | None,
        option(
            metavar="WHAT",
            help="What --slower-than compares with: a release (onnxruntime==1.17.3), an option of the target "
            "(graph-optimization-level=basic), a precision (fp32) or a target (openvino); default the reference.",
        ),
    ] = None
    latency_limit: Annotated[
        float | None, option(metavar="MS", min=1e-6, max=1e9, help="Fail if a run takes more milliseconds.")
    ] = None
    build_time_limit: Annotated[float | None, seconds("Fail if a model takes longer to build or load.")] = None
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
        float | None, option(metavar="MB", min=0, max=1e9, help="Fail if the engine file is larger (T).")
    ] = None
    measure_time: Annotated[
        float, seconds("Most time for one decision about speed; default 20. Without one it is UNRESOLVED.")
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
        given = changed(self)
        for name in self.memory_limit_of:
            if name not in _KINDS:
                raise ValueRefusedError(f"--memory-limit-of {name}: give one of {', '.join(_KINDS)}.")
        if self.baseline is not None and self.slower_than is None:
            raise MissingOptionError("--baseline needs --slower-than RATIO; add it.")
        if "measure_time" in given and not self.times:
            raise MissingOptionError("--measure-time needs --slower-than or --latency-limit; add one.")
        return self if given else None
