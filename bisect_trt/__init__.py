"""Find why an ONNX model that runs right in ONNX Runtime runs wrong in TensorRT.

The functions of :mod:`bisect_trt.api`, and what they take, return and raise, are found here too;
they are imported when first used, so that importing this package costs nothing.
"""

from __future__ import annotations

from importlib import import_module

# Typing takes longer to import than all else before the handlers of signals are installed.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from bisect_trt.api import (
        assert_matches,
        cause,
        compare,
        diagnose,
        layerwise,
        precision,
        reduce,
        releases,
        repeat,
        samples,
        sweep,
        workaround,
    )
    from bisect_trt.errors import BisectError, UnavailableError, UsageError
    from bisect_trt.report.answers import (
        Answer,
        CauseAnswer,
        CompareAnswer,
        DiagnoseAnswer,
        LayerwiseAnswer,
        PrecisionAnswer,
        ReduceAnswer,
        ReleasesAnswer,
        RepeatAnswer,
        SamplesAnswer,
        SweepAnswer,
        WorkaroundAnswer,
    )
    from bisect_trt.search.oracle import Verdict
    from bisect_trt.version import __version__ as __version__
__all__ = [
    "Answer",
    "BisectError",
    "CauseAnswer",
    "CompareAnswer",
    "DiagnoseAnswer",
    "LayerwiseAnswer",
    "PrecisionAnswer",
    "ReduceAnswer",
    "ReleasesAnswer",
    "RepeatAnswer",
    "SamplesAnswer",
    "SweepAnswer",
    "UnavailableError",
    "UsageError",
    "Verdict",
    "WorkaroundAnswer",
    "assert_matches",
    "cause",
    "compare",
    "diagnose",
    "layerwise",
    "precision",
    "reduce",
    "releases",
    "repeat",
    "samples",
    "sweep",
    "workaround",
]
_HOMES = {
    "BisectError": "errors",
    "UnavailableError": "errors",
    "UsageError": "errors",
    **{name: "report.answers" for name in __all__ if name.endswith("Answer")},
    "Verdict": "search.oracle",
    "__version__": "version",
}


def __getattr__(name: str) -> object:
    if name not in {*__all__, "__version__"}:
        from bisect_trt.plugins import COMMANDS, installed  # noqa: PLC0415 - see above

        command = next(
            (command for command in installed(COMMANDS) if command.replace("-", "_") == name), None
        )
        if command is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return import_module(f"{__name__}.api").function_of(command)
    value: object = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'api')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
