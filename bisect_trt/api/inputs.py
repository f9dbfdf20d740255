"""The Python functions about what a model is fed: ``sweep`` and ``samples``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bisect_trt.api.keywords import PLACE, Keywords, check_or_inputs, documented, target_second
from bisect_trt.options.searches import Samples, Sweep

if TYPE_CHECKING:
    from bisect_trt.api.types import Check, Inputs, Model, TargetName, Tolerance
    from bisect_trt.reporting.result import Result


@documented
@target_second
def sweep(
    model: Model,
    inputs: Inputs | None = None,
    target: TargetName | None = None,
    *,
    shapes: str | list[str],
    atol: Tolerance | None = None,
    rtol: Tolerance | None = None,
    fp16: bool = False,
    verbose: bool | int = False,
    run: str | Path | None = None,
    **options: Any,  # noqa: ANN401 - of many types
) -> Result:
    """Find the sizes at which the target goes wrong.

    Args:
        inputs: What the model is fed, repeated or cut at other sizes; random values if not given.
        target: The runtime under suspicion; ``onnxrt`` where neither it nor ``check`` is given.
        shapes: Inputs with the sizes of their dimensions, as after ``--shapes``: ``x:[1..64,3,224,224]``.
        **options: ``check`` may be a function too, see :func:`reduce`. It is given the model with its
            dimensions free, and the inputs of a size.

    Returns:
        The result; ``extra["sweep"]`` has what was tried. Its status is ``not_reproduced`` if no size fails.

    Raises:
        UnavailableError: No size says anything.
    """
    from bisect_trt.api.call import Call  # noqa: PLC0415 - NumPy and ONNX are imported by the first call
    from bisect_trt.workflows.sweep.dimensions import SweepSettings  # noqa: PLC0415 - as above

    check: Check | None = options.pop("check", None)
    target = "onnxrt" if target is None and check is None else target
    given = Keywords(options, target=target, atol=atol, rtol=rtol, fp16=fp16, shapes=shapes)
    own = given.group(Sweep, model=PLACE)
    call = Call("sweep", model, given, inputs=inputs, check=check, folder=run, verbose=verbose)
    settings = SweepSettings(call.checks(call.target.settings()), tuple(own.shapes), own.tries)
    return call.finish(lambda job: job.sweep(settings, call.search_settings), settings.check.fixed_path)


@documented
def samples(
    model: Model,
    check: Check | Inputs | None = None,
    *,
    target: TargetName | None = None,
    inputs: Inputs | None = None,
    output: str | Path | None = None,
    atol: Tolerance | None = None,
    rtol: Tolerance | None = None,
    fp16: bool = False,
    verbose: bool | int = False,
    overwrite: bool = False,
    run: str | Path | None = None,
    **options: Any,  # noqa: ANN401 - of many types
) -> Result:
    """Find which of many inputs fail, what they have in common, and the smallest that still fails.

    Args:
        inputs: The samples, or their file; random ones if not given (``iterations=`` says how many).
        output: Where the smallest failing input goes; in the run's folder if not given.

    Returns:
        The result; ``extra["samples"]`` has which fail. Its status is ``not_reproduced`` if none does.

    Raises:
        UnavailableError: No sample says anything.
    """
    from bisect_trt.api.call import Call  # noqa: PLC0415 - NumPy and ONNX are imported by the first call
    from bisect_trt.workflows.samples.samples import SamplesSettings  # noqa: PLC0415 - as above

    check, inputs = check_or_inputs(check, inputs)
    given = Keywords(options, target=target, atol=atol, rtol=rtol, fp16=fp16)
    own = given.group(Samples, model=PLACE, output=PLACE if output is None else output, overwrite=overwrite)
    call = Call("samples", model, given, inputs=inputs, check=check, folder=run, verbose=verbose)
    where = call.folder / "minimal-input.npz" if output is None else own.output
    settings = SamplesSettings(call.checks(call.target.settings()), where)
    if not call.resumed:
        settings.check_output(overwrite=own.overwrite)
    search = call.search_settings
    return call.finish(lambda job: job.samples(settings, search), settings.check.fixed_path)
