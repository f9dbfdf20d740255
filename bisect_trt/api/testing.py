"""The Python function for tests: ``assert_matches``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bisect_trt.api.looks import compare, diagnose
from bisect_trt.errors import BisectError

if TYPE_CHECKING:
    from bisect_trt.api.types import Inputs, Model, TargetName, Tolerance

_SHOWN = 5


def assert_matches(
    model: Model,
    target: TargetName = "onnxrt",
    *,
    inputs: Inputs | None = None,
    atol: Tolerance | None = None,
    rtol: Tolerance | None = None,
    fp16: bool = False,
    reproducer: str | Path | None = None,
    **options: Any,  # noqa: ANN401 - of many types
) -> None:
    """Make sure, in a test, that a target computes what the reference does; leave a reproducer if not.

    Args:
        model: The model, or its path.
        target: The runtime under suspicion.
        inputs: What the model is fed; random values if not given.
        atol: Absolute tolerance.
        rtol: Relative tolerance.
        fp16: Whether the target runs in half precision.
        reproducer: Its folder, written over; in the run's folder if not given.
        **options: The options that :func:`compare` and :func:`diagnose` share: of the target, the comparison and the data.

    Raises:
        AssertionError: It does not; the message has the worst outputs and the reproducer's folder.
        UsageError: Something was asked for that cannot be done as asked.
        UnavailableError: Something needed is not there.
    """
    from bisect_trt.tensors.comparison import TensorComparison  # noqa: PLC0415 - it takes NumPy

    shared: dict[str, Any] = {"inputs": inputs, "atol": atol, "rtol": rtol, "fp16": fp16, **options}
    result = compare(model, target, **shared)
    failed = [c for c in map(TensorComparison.from_json, result.comparisons) if not c.passed]
    if not failed:
        return
    failed.sort(key=lambda comparison: -comparison.severity)
    lines = [f"{len(failed)} of {len(result.comparisons)} outputs do not match."]
    lines += [f"  '{comparison.name}': {comparison.describe()}" for comparison in failed[:_SHOWN]]
    lines += [f"  ... and {len(failed) - _SHOWN} more"] if len(failed) > _SHOWN else []
    try:
        found = diagnose(model, target, output=reproducer, overwrite=True, **shared)
        folder = found.artifacts.get("reproducer")
        lines.append(f"Reproducer: {folder}" if folder is not None else f"No reproducer: {found.why}")
    except BisectError as error:
        lines.append(f"No reproducer: {error}")
    raise AssertionError("\n".join(lines))
