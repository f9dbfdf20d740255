"""What the command line does, from Python; :mod:`bisect_trt` has these names too (docs/api.md).

Each function runs the same engine as the command of its name, takes its options by keyword (``input_shapes=`` for
``--input-shapes``) and returns the result that ``--json`` writes. Nothing is printed unless ``verbose`` is set, nothing ends
the process, and mistakes raise :class:`~bisect_trt.errors.UsageError` or :class:`~bisect_trt.errors.UnavailableError`.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import onnx
from numpy.typing import NDArray

from bisect_trt.cli.keywords import Keywords
from bisect_trt.cli.options import Check, Compare, Data, Plots, Search
from bisect_trt.cli.precision import chosen
from bisect_trt.cli.run_options import MoreTargets, RunOptions
from bisect_trt.cli.target import Target
from bisect_trt.errors import BisectError, UsageError
from bisect_trt.graph.annotate import check_annotated
from bisect_trt.probing.ledger import BudgetSpent
from bisect_trt.probing.prober import DoesNotReproduce
from bisect_trt.probing.worker import keep_spare
from bisect_trt.probing.workspace import Workspace
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.quiet import QuietConsole
from bisect_trt.reporting.result import Result
from bisect_trt.runtimes.settings import TargetSettings
from bisect_trt.search.strategy import Mode
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.tensors.npz import save_npz
from bisect_trt.workflows import precision as precision_workflow
from bisect_trt.workflows import reduce as reduce_workflow
from bisect_trt.workflows.diagnose import DiagnoseSettings
from bisect_trt.workflows.record import leave_record
from bisect_trt.workflows.reproducer import check_folder
from bisect_trt.workflows.sessions import Session
from bisect_trt.workflows.settings import CheckSettings, ModelSettings, ReduceSettings

Model = str | Path | onnx.ModelProto
Values = Mapping[str, NDArray[Any]]
Inputs = Values | Sequence[Values] | str | Path
"""One sample, several, or a file as ``--load-inputs`` takes."""
Tolerance = float | Mapping[str, float]
"""For every output, or by its name (``""`` for all others)."""
TargetName = Literal["onnxrt", "trt"]
_PROTO_LIMIT_BYTES = (1 << 31) - 1
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
    run = _Run("reduce", model, inputs, given, verbose, ends["annotate"])
    settings = ReduceSettings(
        Path(output) if output is not None else run.workspace.folder / "reduced.onnx",
        None if ends["min_good"] is None else Path(ends["min_good"]),
        ends["reduce_inputs"],
        ends["reduce_outputs"],
        Mode(ends["mode"]),
        overwrite,
    )
    if not (settings.reduce_inputs or settings.reduce_outputs):
        raise UsageError("reduce_inputs and reduce_outputs are both off, which leaves nothing to reduce; turn one on.")
    reduce_workflow.check_outputs(settings)
    checks = run.checks(check, run.target.settings())
    return run.finish(lambda session: session.reduce(settings, checks, run.search.settings()))


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
        **options: The options of ``bisect-trt diagnose``, with underscores; ``archive`` for ``--zip``.

    Returns:
        The result; ``artifacts["reproducer"]`` is the folder.

    Raises:
        UsageError: Something was asked for that cannot be done as asked.
        UnavailableError: Something needed is not there.
    """
    given = Keywords(options, target=target, atol=atol, rtol=rtol, fp16=fp16)
    own = given.take(timeout=None, archive=False, anonymise=False, annotate=None)
    run = _Run("diagnose", model, inputs, given, verbose, own["annotate"])
    runtime = run.target.required()
    run.compare.require_numbers()
    checks = CheckSettings(target=runtime, tolerance=run.compare.settings(runtime), timeout=own["timeout"])
    folder = Path(output) if output is not None else run.workspace.folder / "reproducer"
    archive = folder.with_suffix(f"{folder.suffix}.zip") if own["archive"] else None
    check_folder(folder, archive, overwrite=overwrite)
    settings = DiagnoseSettings(checks, run.search.settings(), folder, archive, own["anonymise"])
    return run.finish(lambda session: session.diagnose(settings))


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
    run = _Run("precision", model, inputs, given, verbose, own["annotate"])
    low, runtime = chosen(run.target)
    if check is not None and runtime is not None and runtime.runtime == "onnxrt":
        runtime = None  # the check says good or bad
    settings = precision_workflow.PrecisionSettings(
        Path(output) if output is not None else run.workspace.folder / "mixed.onnx",
        low,
        runtime,
        tuple(own["include"]),
        tuple(own["exclude"]),
        own["io_fp16"],
        own["keep_weights"],
        overwrite,
        minimise=precision_workflow.Minimise(own["minimise"]),
    )
    precision_workflow.check_outputs(settings)
    checks = run.checks(check, runtime)
    return run.finish(lambda session: session.precision(settings, checks, run.search.settings()))


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
    run = _Run("layerwise", model, inputs, given, verbose, own["annotate"])
    runtime = run.target.required()
    tolerance = run.compare.settings(runtime)
    return run.finish(lambda session: session.layerwise(runtime, tolerance, own["timeout"], isolated=isolate))


def compare(
    model: Model,
    target: TargetName | None = "onnxrt",
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
        target: The runtime under suspicion; ``None`` if ``options`` name others (``onnx``, ``onnxrt_reference``,
            ``also_providers``).
        inputs: What the model is fed; random values if not given.
        atol: Absolute tolerance.
        rtol: Relative tolerance.
        fp16: Whether the target runs in half precision.
        verbose: Whether to print what the command line prints; 2 for what ``-v`` adds.
        **options: The options of ``bisect-trt run``, with underscores.

    Returns:
        The result; ``comparisons`` has one entry an output, the status is ``found`` if everything matches.

    Raises:
        UsageError: Something was asked for that cannot be done as asked.
        UnavailableError: Something needed is not there.
    """
    given = Keywords(options, target=target, atol=atol, rtol=rtol, fp16=fp16)
    own, more, plots = given.group(RunOptions), given.group(MoreTargets), given.group(Plots)
    run = _Run("run", model, inputs, given, verbose)
    run.model = replace(run.model, shape_inference=own.shape_inference)
    settings = own.settings(run.target, more, run.compare, plots)
    return run.finish(lambda session: session.compare(settings))


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


class _Run:
    """One call: its folder, its groups of options, and how it ends."""

    def __init__(
        self,
        command: str,
        model: Model,
        inputs: Inputs | None,
        given: Keywords,
        verbose: bool | int,
        annotation: str | Path | None = None,
    ) -> None:
        self.target = given.group(Target)
        self.compare = given.group(Compare)
        self.search = given.group(Search) if command in ("reduce", "diagnose", "precision") else Search()
        self._check = given.group(Check) if command in ("reduce", "precision") else Check()
        data = given.group(Data)
        given.finish(command)
        path = Path("model.onnx") if isinstance(model, onnx.ModelProto) else Path(model)
        self._annotation = None if annotation is None else Path(annotation)
        if self._annotation is not None:
            check_annotated(self._annotation, path)
        self.workspace = Workspace(Workspace.new_folder(command, path))
        self._console = Console(int(verbose) - 1) if verbose else QuietConsole()
        self._result = Result(command)
        if isinstance(model, onnx.ModelProto):
            path = _written(model, self.workspace.folder / path)
        self.model = self._with_inputs(data.settings(path), inputs)

    def _with_inputs(self, settings: ModelSettings, inputs: Inputs | None) -> ModelSettings:
        if inputs is None:
            return settings
        if isinstance(inputs, str | Path):
            files = [Path(inputs)]
        else:
            files = []
            for number, sample in enumerate([inputs] if isinstance(inputs, Mapping) else inputs, 1):
                files.append(self.workspace.folder / f"inputs-{number}.npz")
                save_npz(files[-1], sample)
        return replace(settings, data=replace(settings.data, load_inputs=(*settings.data.load_inputs, *files)))

    def checks(
        self, check: Callable[..., object] | str | Sequence[str] | None, target: TargetSettings | None
    ) -> CheckSettings:
        """What says good or bad.

        Raises:
            UsageError: Nothing does, or the command does not exist.
        """
        if check is None and target is None:
            raise UsageError("there is nothing to say good or bad: give check, a function or a command, or target.")
        if not callable(check) and check is not None:
            self._check.check = [check] if isinstance(check, str) else list(check)
        settings = self._check.settings(target, self.compare)
        return replace(settings, function=check if callable(check) else None)

    def finish(self, work: Callable[[Session], Result]) -> Result:
        """Do the work; leave ``result.json`` and ``report.html`` in the run's folder however it ends."""
        result, console = self._result, self._console
        keep_spare()  # the next call finds TensorRT started, and its timing cache warm
        session = Session(self.model, self.workspace, console, result, self.target.fresh_process, self._annotation)
        began = time.monotonic()
        try:
            work(session)
        except (DoesNotReproduce, BudgetSpent) as ending:
            result.status = "not_reproduced" if isinstance(ending, DoesNotReproduce) else "inconclusive"
            result.why = str(ending)
            console.answer(result.why)
        except BaseException as ending:
            result.status = "interrupted" if isinstance(ending, KeyboardInterrupt) else "error"
            result.why = f"{type(ending).__name__}: {ending}"
            raise
        finally:
            result.wall_s = round(time.monotonic() - began, 3)
            leave_record(result, self.workspace.folder, (), console, None)
            console.close()
        return result


def _written(model: onnx.ModelProto, path: Path) -> Path:
    if model.ByteSize() > _PROTO_LIMIT_BYTES:
        raise UsageError("the model is larger than 2 GiB; save it with external data, and give its path.")
    path.write_bytes(model.SerializeToString())
    return path
