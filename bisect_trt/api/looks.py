"""The Python functions that look at a target: ``diagnose``, ``workaround``, ``layerwise``, ``compare``; ``assert_matches``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bisect_trt.api.keywords import called, documented, target_second
from bisect_trt.errors import BisectError

if TYPE_CHECKING:
    from bisect_trt.api.types import Inputs, Model, TargetName, Tolerance
    from bisect_trt.reporting.result import Result


@documented
@target_second
def diagnose(
    model: Model,
    inputs: Inputs | None = None,
    target: TargetName = "onnxrt",
    *,
    output: str | Path | None = None,
    atol: Tolerance | None = None,
    rtol: Tolerance | None = None,
    fp16: bool = False,
    verbose: bool | int = False,
    overwrite: bool = False,
    run: str | Path | None = None,
    **options: Any,  # noqa: ANN401 - of many types
) -> Result:
    """Find out why the target is wrong, and leave a reproducer.

    Args:
        output: The reproducer's folder; ``reproducer`` in the run's folder if not given.
        **options: ``archive`` for ``--zip``.

    Returns:
        The result; ``artifacts["reproducer"]`` is the folder.
    """
    return called("diagnose", **locals())


@documented
@target_second
def workaround(
    model: Model,
    inputs: Inputs | None = None,
    target: TargetName = "onnxrt",
    *,
    output: str | Path | None = None,
    atol: Tolerance | None = None,
    rtol: Tolerance | None = None,
    fp16: bool = False,
    verbose: bool | int = False,
    overwrite: bool = False,
    run: str | Path | None = None,
    **options: Any,  # noqa: ANN401 - of many types
) -> Result:
    """Find what makes the whole model pass today, with the least loss.

    Args:
        output: Where the patched model goes; in the run's folder if not given.

    Returns:
        The result; ``workarounds`` are the ways that were tried, ``artifacts["patched"]`` is the model.
    """
    return called("workaround", **locals())


@documented
@target_second
def layerwise(
    model: Model,
    inputs: Inputs | None = None,
    target: TargetName = "onnxrt",
    *,
    atol: Tolerance | None = None,
    rtol: Tolerance | None = None,
    fp16: bool = False,
    isolate: bool = False,
    verbose: bool | int = False,
    **options: Any,  # noqa: ANN401 - of many types
) -> Result:
    """Compare every tensor on the target with the reference's.

    Args:
        isolate: Whether to find each layer's own error too.

    Returns:
        The result; ``first_mismatch`` and ``tensors`` say what was found.
    """
    return called("layerwise", **locals())


@documented
@target_second
def compare(
    model: Model,
    inputs: Inputs | None = None,
    target: TargetName | None = "onnxrt",
    *,
    atol: Tolerance | None = None,
    rtol: Tolerance | None = None,
    fp16: bool = False,
    verbose: bool | int = False,
    **options: Any,  # noqa: ANN401 - of many types
) -> Result:
    """Compare the outputs of a target with the reference's, as ``bisect-trt run`` does.

    Args:
        target: The runtime under suspicion; ``None`` if ``options`` name others (``onnx``, ``onnxrt_reference``,
            ``also_providers``).
        **options: The options of ``bisect-trt run``, with underscores.

    Returns:
        The result; ``comparisons`` has one entry an output, the status is ``found`` if everything matches.
    """
    return called("run", **locals())


_SHOWN = 5


@documented
@target_second
def assert_matches(
    model: Model,
    inputs: Inputs | None = None,
    target: TargetName = "onnxrt",
    *,
    atol: Tolerance | None = None,
    rtol: Tolerance | None = None,
    fp16: bool = False,
    reproducer: str | Path | None = None,
    **options: Any,  # noqa: ANN401 - of many types
) -> None:
    """Make sure, in a test, that a target computes what the reference does; leave a reproducer if not.

    Args:
        reproducer: Its folder, written over; in the run's folder if not given.
        **options: The options that :func:`compare` and :func:`diagnose` share: of the target, the comparison and the data.

    Raises:
        AssertionError: It does not; the message has the worst outputs and the reproducer's folder.
    """
    from bisect_trt.reporting.console import listed  # noqa: PLC0415 - it takes NumPy
    from bisect_trt.tensors.comparison import TensorComparison  # noqa: PLC0415 - as above

    shared: dict[str, Any] = {"inputs": inputs, "atol": atol, "rtol": rtol, "fp16": fp16, **options}
    result = compare(model, target=target, **shared)
    failed = [c for c in map(TensorComparison.from_json, result.comparisons) if not c.passed]
    if not failed:
        return
    failed.sort(key=lambda comparison: -comparison.severity)
    lines = [f"{len(failed)} of {len(result.comparisons)} outputs do not match."]
    lines += listed(failed, _SHOWN, lambda comparison: f"  '{comparison.name}': {comparison.describe()}")
    try:
        found = diagnose(model, target=target, output=reproducer, overwrite=True, **shared)
        folder = found.artifacts.get("reproducer")
        lines.append(f"Reproducer: {folder}" if folder is not None else f"No reproducer: {found.why}")
    except BisectError as error:
        lines.append(f"No reproducer: {error}")
    raise AssertionError("\n".join(lines))
