"""What the command line does, from Python; :mod:`bisect_trt` has these names too (docs/api.md).

Each function runs the same engine as the command of its name, takes its options by keyword (``input_shapes=`` for
``--input-shapes``) and returns the result that ``--json`` writes. Nothing is printed unless ``verbose`` is set, nothing ends
the process, and mistakes raise :class:`~bisect_trt.errors.UsageError` or :class:`~bisect_trt.errors.UnavailableError`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from bisect_trt.cli.call import Call, Inputs, Model
from bisect_trt.cli.keywords import Keywords, choice, several
from bisect_trt.cli.precision import chosen, refuse_ends
from bisect_trt.errors import BisectError, UsageError
from bisect_trt.reporting.result import Result
from bisect_trt.search.strategy import Mode
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.workflows import precision as precision_workflow
from bisect_trt.workflows import reduce as reduce_workflow
from bisect_trt.workflows.compare import CompareSettings
from bisect_trt.workflows.compare_outputs import MARK_ALL
from bisect_trt.workflows.diagnose import DiagnoseSettings
from bisect_trt.workflows.reproducer import check_folder
from bisect_trt.workflows.settings import CheckSettings, ReduceSettings

Tolerance = float | Mapping[str, float]
"""For every output, or by its name (``""`` for all others)."""
TargetName = Literal["onnxrt", "trt"]
_SHOWN = 5


def reduce(
    model: Model,
    check: Callable[..., object] | str | Sequence[str] | None = None,
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
        model: The model, or its path.
        check: A function (see :class:`~bisect_trt.probing.function.FunctionCheck`: given the candidate's path, ``True`` or
            an ``AssertionError`` says that it fails), or a command as after ``--check``. Without it ``target`` is compared
            with the reference.
        target: The runtime under suspicion.
        output: Where the reduced model goes; in the run's folder if not given.
        inputs: What the model is fed; random values if not given.
        atol: Absolute tolerance.
        rtol: Relative tolerance.
        fp16: Whether the target runs in half precision.
        verbose: Whether to print what the command line prints; 2 for what ``-v`` adds.
        overwrite: Whether files that exist may be written over.
        run: The run's folder: a new one, or one that goes on where an earlier call of the same arguments was stopped; under
            ``.bisect-trt`` if not given.
        **options: The options of ``bisect-trt reduce``, with underscores.

    Returns:
        The result; its status is ``not_reproduced`` if the model does not fail.

    Raises:
        UsageError: Something was asked for that cannot be done as asked.
        UnavailableError: Something needed is not there.
    """
    _refuse_target(check)
    given = Keywords(options, target=target, atol=atol, rtol=rtol, fp16=fp16)
    ends = given.take(min_good=None, reduce_inputs=True, reduce_outputs=True, mode="auto", annotate=None)
    call = Call(
        "reduce", model, given, inputs=inputs, check=check, folder=run, verbose=verbose, annotation=ends["annotate"]
    )
    settings = ReduceSettings(
        Path(output) if output is not None else call.folder / "reduced.onnx",
        None if ends["min_good"] is None else Path(ends["min_good"]),
        ends["reduce_inputs"],
        ends["reduce_outputs"],
        choice("mode", Mode, ends["mode"]),
        overwrite,
    )
    if not (settings.reduce_inputs or settings.reduce_outputs):
        raise UsageError("reduce_inputs and reduce_outputs are both off, which leaves nothing to reduce; turn one on.")
    if not call.resumed:
        reduce_workflow.check_outputs(settings)
    checks = call.checks(call.target.settings())
    return call.finish(lambda session: session.reduce(settings, checks, call.search.settings()), checks.fixed_path)


def diagnose(
    model: Model,
    target: TargetName = "onnxrt",
    *,
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
    """Find out why the target is wrong, and leave a reproducer.

    Args:
        model: The model, or its path.
        target: The runtime under suspicion.
        output: The reproducer's folder; ``reproducer`` in the run's folder if not given.
        inputs: What the model is fed; random values if not given.
        atol: Absolute tolerance.
        rtol: Relative tolerance.
        fp16: Whether the target runs in half precision.
        verbose: Whether to print what the command line prints; 2 for what ``-v`` adds.
        overwrite: Whether a folder that exists may be written over.
        run: The run's folder: a new one, or one that goes on where an earlier call of the same arguments was stopped; under
            ``.bisect-trt`` if not given.
        **options: The options of ``bisect-trt diagnose``, with underscores; ``archive`` for ``--zip``.

    Returns:
        The result; ``artifacts["reproducer"]`` is the folder.

    Raises:
        UsageError: Something was asked for that cannot be done as asked.
        UnavailableError: Something needed is not there.
    """
    given = Keywords(options, target=target, atol=atol, rtol=rtol, fp16=fp16)
    own = given.take(timeout=None, archive=False, anonymise=False, annotate=None)
    call = Call("diagnose", model, given, inputs=inputs, folder=run, verbose=verbose, annotation=own["annotate"])
    runtime = call.target.required()
    call.compare.require_numbers()
    checks = CheckSettings(target=runtime, tolerance=call.compare.settings(runtime), timeout=own["timeout"])
    folder = Path(output) if output is not None else call.folder / "reproducer"
    archive = folder.with_suffix(f"{folder.suffix}.zip") if own["archive"] else None
    check_folder(folder, archive, overwrite=overwrite or call.resumed)
    settings = DiagnoseSettings(checks, call.search.settings(), folder, archive, own["anonymise"])
    return call.finish(lambda session: session.diagnose(settings))


def precision(
    model: Model,
    check: Callable[..., object] | str | Sequence[str] | None = None,
    *,
    low: Literal["fp16", "bf16"] = "fp16",
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
        model: The model, or its path.
        check: What says good or bad; see :func:`reduce`.
        low: What the rest is to run in.
        target: The runtime under suspicion.
        output: Where the mixed model goes; in the run's folder if not given.
        inputs: What the model is fed; random values if not given.
        atol: Absolute tolerance.
        rtol: Relative tolerance.
        verbose: Whether to print what the command line prints; 2 for what ``-v`` adds.
        overwrite: Whether a file that exists may be written over.
        run: The run's folder: a new one, or one that goes on where an earlier call of the same arguments was stopped; under
            ``.bisect-trt`` if not given.
        **options: The options of ``bisect-trt precision``, with underscores.

    Returns:
        The result; ``keep_fp32`` are the nodes, ``artifacts["mixed"]`` is the model.

    Raises:
        UsageError: Something was asked for that cannot be done as asked.
        UnavailableError: Something needed is not there.
    """
    _refuse_target(check)
    given = Keywords(options, target=target, atol=atol, rtol=rtol, **{low: True})
    own = given.take(include=(), exclude=(), io_fp16=False, keep_weights=False, minimise="nodes", annotate=None)
    call = Call(
        "precision", model, given, inputs=inputs, check=check, folder=run, verbose=verbose, annotation=own["annotate"]
    )
    low, runtime = chosen(call.target)
    refuse_ends(low, io_fp16=own["io_fp16"])
    settings = precision_workflow.PrecisionSettings(
        Path(output) if output is not None else call.folder / "mixed.onnx",
        low,
        runtime,
        several(own["include"]),
        several(own["exclude"]),
        own["io_fp16"],
        own["keep_weights"],
        overwrite,
        minimise=choice("minimise", precision_workflow.Minimise, own["minimise"]),
    )
    if not call.resumed:
        precision_workflow.check_outputs(settings)
    # A check command may judge TensorRT's engines; whether it does is seen when TensorRT is asked.
    checks = call.checks(runtime, used=runtime is not None and runtime.runtime == "trt")
    return call.finish(lambda session: session.precision(settings, checks, call.search.settings()), checks.fixed_path)


def layerwise(
    model: Model,
    target: TargetName = "onnxrt",
    *,
    inputs: Inputs | None = None,
    atol: Tolerance | None = None,
    rtol: Tolerance | None = None,
    fp16: bool = False,
    isolate: bool = False,
    verbose: bool | int = False,
    **options: Any,  # noqa: ANN401 - of many types
) -> Result:
    """Compare every tensor on the target with the reference's.

    Args:
        model: The model, or its path.
        target: The runtime under suspicion.
        inputs: What the model is fed; random values if not given.
        atol: Absolute tolerance.
        rtol: Relative tolerance.
        fp16: Whether the target runs in half precision.
        isolate: Whether to find each layer's own error too.
        verbose: Whether to print what the command line prints; 2 for what ``-v`` adds.
        **options: The options of ``bisect-trt layerwise``, with underscores.

    Returns:
        The result; ``first_mismatch`` and ``tensors`` say what was found.

    Raises:
        UsageError: Something was asked for that cannot be done as asked.
        UnavailableError: Something needed is not there.
    """
    given = Keywords(options, target=target, atol=atol, rtol=rtol, fp16=fp16)
    own = given.take(timeout=None, annotate=None)
    call = Call("layerwise", model, given, inputs=inputs, verbose=verbose, annotation=own["annotate"])
    runtime = call.target.required()
    tolerance = call.compare.settings(runtime)
    return call.finish(lambda session: session.layerwise(runtime, tolerance, own["timeout"], isolated=isolate))


def compare(
    model: Model,
    target: TargetName = "onnxrt",
    *,
    inputs: Inputs | None = None,
    atol: Tolerance | None = None,
    rtol: Tolerance | None = None,
    fp16: bool = False,
    verbose: bool | int = False,
    **options: Any,  # noqa: ANN401 - of many types
) -> Result:
    """Compare the outputs of a target with the reference's, as ``bisect-trt run`` does.

    Args:
        model: The model, or its path.
        target: The runtime under suspicion.
        inputs: What the model is fed; random values if not given.
        atol: Absolute tolerance.
        rtol: Relative tolerance.
        fp16: Whether the target runs in half precision.
        verbose: Whether to print what the command line prints; 2 for what ``-v`` adds.
        **options: The options of ``bisect-trt run``, with underscores: those of the target, the comparison and the data, and
            ``onnx_outputs``, ``fail_fast``, ``timeout``, ``save_inputs``, ``save_outputs`` and ``load_outputs``.

    Returns:
        The result; ``comparisons`` has one entry an output, the status is ``found`` if everything matches.

    Raises:
        UsageError: Something was asked for that cannot be done as asked.
        UnavailableError: Something needed is not there.
    """
    given = Keywords(options, target=target, atol=atol, rtol=rtol, fp16=fp16)
    own = given.take(
        onnx_outputs=(), fail_fast=False, timeout=None, save_inputs=None, save_outputs=None, load_outputs=()
    )
    call = Call("run", model, given, inputs=inputs, verbose=verbose)
    runtime = call.target.required(engines=True)
    wanted = own["onnx_outputs"]
    settings = CompareSettings(
        runtime,
        call.compare.settings(runtime, nonfinite_equal=False),
        MARK_ALL if wanted == " ".join(MARK_ALL) else several(wanted),
        own["fail_fast"],
        own["timeout"],
        None if own["save_inputs"] is None else Path(own["save_inputs"]),
        None if own["save_outputs"] is None else Path(own["save_outputs"]),
        tuple(map(Path, several(own["load_outputs"]))),
    )
    return call.finish(lambda session: session.compare(settings))


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


def _refuse_target(check: object) -> None:
    """Make sure that a target's name does not stand where a check belongs.

    Raises:
        UsageError: It does, and no program has that name.
    """
    if isinstance(check, str) and check in ("onnxrt", "trt") and shutil.which(check) is None:
        raise UsageError(f"there is no program '{check}' to check with; did you mean target='{check}'?")
