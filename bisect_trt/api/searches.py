"""The Python functions that search: ``reduce``, ``cause``, ``releases``, ``repeat`` and ``precision``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bisect_trt.api.keywords import PLACE, Keywords, check_or_inputs, documented, target_second
from bisect_trt.errors import UsageError
from bisect_trt.options.searches import Cause, Precision, Reduce, Releases, Repeat

if TYPE_CHECKING:
    from bisect_trt.api.types import Check, Inputs, Model, TargetName, Tolerance
    from bisect_trt.reporting.result import Result


@documented
def reduce(
    model: Model,
    check: Check | Inputs | None = None,
    *,
    target: TargetName | None = None,
    output: str | Path | None = None,
    inputs: Inputs | None = None,
    atol: Tolerance | None = None,
    rtol: Tolerance | None = None,
    fp16: bool = False,
    verbose: bool | int = False,
    overwrite: bool = False,
    run: str | Path | None = None,
    **options: Any,  # noqa: ANN401 - of many types
) -> Result:
    """Find the smallest model that still fails.

    Args:
        check: A function (see :class:`~bisect_trt.probing.function.FunctionCheck`: given the candidate's path, ``True`` or
            an ``AssertionError`` says that it fails), or a command as after ``--check``. Without it ``target`` is compared
            with the reference. Values, a path, or the name of a ``.npz`` or ``.json`` file in its place are ``inputs``.
        output: Where the reduced model goes; in the run's folder if not given.

    Returns:
        The result; its status is ``not_reproduced`` if the model does not fail.
    """
    from bisect_trt.api.call import Call  # noqa: PLC0415 - NumPy and ONNX are imported by the first call
    from bisect_trt.workflows.reduce import check_outputs  # noqa: PLC0415 - as above
    from bisect_trt.workflows.settings import ReduceSettings  # noqa: PLC0415 - as above

    check, inputs = check_or_inputs(check, inputs)
    given = Keywords(options, target=target, atol=atol, rtol=rtol, fp16=fp16)
    own = given.group(Reduce, model=PLACE, output=PLACE if output is None else output, overwrite=overwrite)
    call = Call(
        "reduce", model, given, inputs=inputs, check=check, folder=run, verbose=verbose, annotation=own.annotate
    )
    settings = ReduceSettings.of(own, call.folder / "reduced.onnx" if output is None else own.output)
    if settings.find_all and not settings.both_ends:
        raise UsageError(
            "find_all takes what failed out of the model, so both its ends must be free to move; drop one."
        )
    if not (settings.reduce_inputs or settings.reduce_outputs):
        raise UsageError("reduce_inputs and reduce_outputs are both off, which leaves nothing to reduce; turn one on.")
    if not call.resumed:
        check_outputs(settings)
    checks, search = call.checks(call.target.settings()), call.search_settings
    return call.finish(lambda job: job.reduce(settings, checks, search), checks.fixed_path)


@documented
@target_second
def cause(
    model: Model,
    inputs: Inputs | None = None,
    target: TargetName = "onnxrt",
    *,
    atol: Tolerance | None = None,
    rtol: Tolerance | None = None,
    fp16: bool = False,
    verbose: bool | int = False,
    run: str | Path | None = None,
    **options: Any,  # noqa: ANN401 - of many types
) -> Result:
    """Find which pass, option or tactic of the target does it.

    Returns:
        The result; its ``cause`` is a list of alternatives, each a list of switches that are enough to turn.
    """
    from bisect_trt.api.call import Call  # noqa: PLC0415 - NumPy and ONNX are imported by the first call

    given = Keywords(options, target=target, atol=atol, rtol=rtol, fp16=fp16)
    own = given.group(Cause, model=PLACE)
    call = Call("cause", model, given, inputs=inputs, folder=run, verbose=verbose, annotation=own.annotate)
    checks, search = call.checks(call.target.required(), used=True), call.search_settings
    return call.finish(lambda job: job.cause(checks, search), checks.fixed_path)


@documented
def releases(
    model: Model,
    check: Check | Inputs | None = None,
    *,
    target: TargetName | None = None,
    inputs: Inputs | None = None,
    atol: Tolerance | None = None,
    rtol: Tolerance | None = None,
    fp16: bool = False,
    verbose: bool | int = False,
    run: str | Path | None = None,
    **options: Any,  # noqa: ANN401 - of many types
) -> Result:
    """Find the release of the target in which a failure appeared, and the one in which it went.

    Args:
        model: The model, or its path, or the folder of a reproducer.
        check: A command as after ``--check``, with ``{python}`` in it for the interpreter of a release. Without it ``target``
            is compared with the reference.
        target: The runtime whose releases are asked.
        **options: ``from_`` for ``--from``, ``find_all`` for ``--all``, ``beside`` for ``--with``.

    Returns:
        The result; ``extra`` has ``releases``, ``first_failing`` and ``first_passing``. Its status is ``not_reproduced`` if no
        release fails.

    Raises:
        UnavailableError: No release says anything.
    """
    from bisect_trt.api.call import Call  # noqa: PLC0415 - NumPy and ONNX are imported by the first call
    from bisect_trt.workflows.from_options import case_of, releases_settings  # noqa: PLC0415 - as above

    check, inputs = check_or_inputs(check, inputs)
    given = Keywords(options, target=target, atol=atol, rtol=rtol, fp16=fp16)
    own = given.group(Releases, model=PLACE)
    if isinstance(model, str | Path):
        model, values = case_of(Path(model))
        inputs = values[0] if values and inputs is None else inputs
    call = Call("releases", model, given, inputs=inputs, check=check, folder=run, verbose=verbose)
    runtime, search = call.target.settings(), call.search_settings
    settings = releases_settings(own, runtime, call.search, has_check=check is not None)
    checks = call.checks(runtime, used=True)
    return call.finish(lambda job: job.releases(settings, checks, search), checks.fixed_path)


@documented
def repeat(
    model: Model,
    check: Check | Inputs | None = None,
    *,
    target: TargetName | None = None,
    inputs: Inputs | None = None,
    atol: Tolerance | None = None,
    rtol: Tolerance | None = None,
    fp16: bool = False,
    verbose: bool | int = False,
    run: str | Path | None = None,
    **options: Any,  # noqa: ANN401 - of many types
) -> Result:
    """Build or run a model again and again: how often it fails, and what the bad builds choose.

    Args:
        check: What says good or bad; see :func:`reduce`. Beside a target that makes engines, a command judges those.
        **options: ``number`` is ``-n``.

    Returns:
        The result; its ``extra`` has ``runs``, ``good``, ``bad``, ``rate``, ``interval`` and ``choices``.
    """
    from bisect_trt.api.call import Call  # noqa: PLC0415 - NumPy and ONNX are imported by the first call
    from bisect_trt.workflows.from_options import repeat_settings  # noqa: PLC0415 - as above

    check, inputs = check_or_inputs(check, inputs)
    given = Keywords(options, target=target, atol=atol, rtol=rtol, fp16=fp16)
    own = given.group(Repeat, model=PLACE)
    call = Call("repeat", model, given, inputs=inputs, check=check, folder=run, verbose=verbose)
    settings = repeat_settings(own, call.search, call.check_options)
    checks, search = call.checks(call.target.settings(), used=True), call.search_settings
    return call.finish(lambda job: job.repeat(settings, checks, search), checks.fixed_path)


@documented
def precision(
    model: Model,
    check: Check | Inputs | None = None,
    *,
    low: Literal["fp16", "bf16", "int8", "fp8", "int4"] = "fp16",
    target: TargetName | None = None,
    output: str | Path | None = None,
    inputs: Inputs | None = None,
    atol: Tolerance | None = None,
    rtol: Tolerance | None = None,
    verbose: bool | int = False,
    overwrite: bool = False,
    run: str | Path | None = None,
    **options: Any,  # noqa: ANN401 - of many types
) -> Result:
    """Find the fewest nodes that have to stay in fp32.

    Args:
        low: What the rest is to run in.
        output: Where the mixed model goes; in the run's folder if not given.

    Returns:
        The result; ``keep_fp32`` are the nodes, ``artifacts["mixed"]`` is the model.
    """
    from bisect_trt.api.call import Call  # noqa: PLC0415 - NumPy and ONNX are imported by the first call
    from bisect_trt.workflows.precision.task import PrecisionSettings  # noqa: PLC0415 - as above
    from bisect_trt.workflows.precision.wanted import low_precision, precision_files  # noqa: PLC0415 - as above

    check, inputs = check_or_inputs(check, inputs)
    named = {} if options.get("ladder") else {low: True}  # a ladder names its own
    given = Keywords(options, target=target, atol=atol, rtol=rtol, **named)
    own = given.group(Precision, model=PLACE, output=PLACE if output is None else output, overwrite=overwrite)
    call = Call(
        "precision", model, given, inputs=inputs, check=check, folder=run, verbose=verbose, annotation=own.annotate
    )
    lows, runtime = low_precision(call.target, own)
    own.refuse_ends(low)
    call.files += precision_files(own)
    mixed = call.folder / "mixed.onnx" if output is None else own.output
    settings = PrecisionSettings.of(own, mixed, lows, runtime)
    if not call.resumed:
        settings.check_output()
    # A check command may judge TensorRT's engines; whether it does is seen when TensorRT is asked.
    checks = call.checks(runtime, used=runtime is not None and runtime.target.capabilities.lowers_layers)
    search = call.search_settings
    return call.finish(lambda job: job.precision(settings, checks, search), checks.fixed_path)
