"""Python functions: each runs the command of its name; :mod:`bisect_trt` has these names too (docs/api.md).

A function takes the options of its command by keyword (``input_shapes=`` for ``--input-shapes``)
and returns the result that ``--json`` writes. It prints nothing unless ``verbose`` is set, never
ends the process, and raises :class:`~bisect_trt.errors.UsageError` or
:class:`~bisect_trt.errors.UnavailableError`. The first call imports NumPy and ONNX.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from bisect_trt.aliases import Fields
from bisect_trt.commands.table import COMMANDS
from bisect_trt.errors import (
    BisectError,
    ExitStatus,
    OutputFileError,
    UnknownNameError,
    ValueRefusedError,
)
from bisect_trt.options.searches import Run
from bisect_trt.options.shared import General
from bisect_trt.options.spec import Params, entries
from bisect_trt.targets.options import selectable

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from bisect_trt import keywords
    from bisect_trt.report.answers import Answer
    from bisect_trt.session.source import Inputs, Model

Check: TypeAlias = Callable[..., object] | str | Sequence[str]
"""A function, or a command as after ``--check``."""
_SHOWN = 5
__tracebackhide__ = True
"""pytest shows the caller of a function in this module, not the module."""
_FREE = ("verbose", "overwrite", "workers", "max_probes", "max_time")
"""Options that do not affect verdicts, so a run may be resumed with other values."""
_HELP = """{help}

Args:
    model: The model (an onnx.ModelProto or a torch.nn.Module), or its path.
    {check}inputs: The values of the model's inputs, or a file of them; random values if not given.
    target: The runtime under test.
    **options: The options of the command, by name:
{options}

        Also ``run``, the run's folder: a new one, or one that goes on where an earlier call of the same
        arguments was stopped; ``output``, in that folder if not given; and ``verbose``, whether to print
        what the command line prints.

Returns:
    The answer; its fields are the keys of the JSON (docs/json.md).

Raises:
    UsageError: An option does not exist or does not fit.
    UnavailableError: A file, package, runtime or device is missing."""
_CHECK = """check: A function (given the candidate's path, ``True`` or an ``AssertionError`` means that it fails), or a command as
        after ``--check``. Without it ``target`` is compared with the reference.
    """


def function_of(
    command: str, target: str | None = None, low: str | None = None, *, checks: bool = False
) -> Callable[..., Any]:
    """Return the function of a command: of the model, its inputs, and its options by keyword.

    Args:
        command: The command, which may be of another package.
        target: The default of the function's parameter.
        low: The precision to search, where no keyword ``low`` names one; by default that is no
            keyword.
        checks: Whether a check is its second parameter, and the inputs are given by name.
    """

    def compares(
        model: Model,
        inputs: Inputs | None = None,
        target: str | None = target,
        **options: Any,  # noqa: ANN401 - of many types
    ) -> Answer:
        return _run(command, model, inputs, target, **options)

    def searches(
        model: Model,
        check: Check | None = None,
        *,
        inputs: Inputs | None = None,
        target: str | None = target,
        **options: Any,  # noqa: ANN401 - of many types
    ) -> Answer:
        # A ladder names its own precisions.
        if low is not None and not options.get("ladder"):
            options = {options.pop("low", low): True, **options}
        return _run(command, model, inputs, target, check=check, **options)

    described = COMMANDS[command]
    listed = [
        f"        ``{entry.python}``: {entry.help}"
        for group in described.groups
        if group not in (Run, General)
        for entry in entries(group)
        if not entry.positional and entry.name not in ("output", "check")
    ]
    function = searches if checks else compares
    function.__name__ = function.__qualname__ = (
        "compare" if command == "run" else command.replace("-", "_")
    )
    function.__doc__ = _HELP.format(
        help=described.help, check=_CHECK if checks else "", options="\n".join(listed)
    )
    return function


diagnose: keywords.Diagnose = function_of("diagnose", "onnxrt")
workaround: keywords.Workaround = function_of("workaround", "onnxrt")
cause: keywords.Cause = function_of("cause", "onnxrt")
layerwise: keywords.Layerwise = function_of("layerwise", "onnxrt")
compare: keywords.Compare = function_of("run", "onnxrt")
sweep: keywords.Sweep = function_of("sweep")
reduce: keywords.Reduce = function_of("reduce", checks=True)
precision: keywords.Precision = function_of("precision", low="fp16", checks=True)
releases: keywords.Releases = function_of("releases", checks=True)
repeat: keywords.Repeat = function_of("repeat", checks=True)
samples: keywords.Samples = function_of("samples", checks=True)


def assert_matches(
    model: Model,
    inputs: Inputs | None = None,
    target: str = "onnxrt",
    *,
    reproducer: str | None = None,
    **options: Unpack[keywords.MatchKeywords],
) -> None:
    """Raise an AssertionError and write a reproducer if outputs of a target do not match the reference.

    Args:
        model: As for :func:`diagnose`.
        inputs: As there.
        target: As there.
        reproducer: The reproducer's folder, which is replaced; by default in the run's folder.
        **options: Options that ``run`` and ``diagnose`` both take, with underscores.

    Raises:
        AssertionError: An output does not match.
        UsageError: An option does not exist or does not fit.
        UnavailableError: A file, package, runtime or device is missing.
    """
    from bisect_trt.report.console import listed  # noqa: PLC0415 - it takes NumPy
    from bisect_trt.report.outcomes import describe_comparison  # noqa: PLC0415 - as above

    try:
        comparisons = compare(model, inputs, target, **options).comparisons
    except BisectError as error:
        # The sentence of a failed test says all.
        raise error.with_traceback(None) from None
    failed = [comparison for comparison in comparisons if not comparison.passed]
    if not failed:
        return
    failed.sort(key=lambda comparison: -comparison.severity)
    lines = [f"{len(failed)} of {len(comparisons)} outputs do not match."]
    lines += listed(
        [f"'{comparison.name}': {describe_comparison(comparison)}" for comparison in failed], _SHOWN
    )
    lines.append("")
    try:
        if reproducer is not None:
            options = {**options, "output": reproducer}
        answer = diagnose(model, inputs, target, overwrite=True, **options)
        if answer.artifacts.get("reproducer") is None:
            lines.append("No reproducer:")
        lines.append(answer.summary())
    except BisectError as error:
        lines.append(f"No reproducer: {error}")
    raise AssertionError("\n".join(lines))


def _run(
    command: str,
    model: Model,
    inputs: Inputs | None,
    target: str | None,
    *,
    check: Check | None = None,
    output: str | PathLike[str] | None = None,
    run: str | PathLike[str] | None = None,
    verbose: bool | int = False,
    **options: Any,  # noqa: ANN401 - of many types
) -> Answer:
    """Return the answer of a command; ``result.json`` and ``report.html`` are left in the run's folder however it ends."""
    from bisect_trt.probe.workspace import Workspace, make_run_folder  # noqa: PLC0415
    from bisect_trt.report.answers import answer_of  # noqa: PLC0415
    from bisect_trt.report.console import Console, QuietConsole  # noqa: PLC0415
    from bisect_trt.report.result import Result  # noqa: PLC0415
    from bisect_trt.report.summary import summary_lines  # noqa: PLC0415
    from bisect_trt.session.binding import RUN_FILE  # noqa: PLC0415 - NumPy and ONNX are imported by the first call
    from bisect_trt.session.call import Call  # noqa: PLC0415
    from bisect_trt.session.ending import attempt, keeps_earlier  # noqa: PLC0415
    from bisect_trt.session.paths import Paths  # noqa: PLC0415
    from bisect_trt.session.record import leave_record  # noqa: PLC0415
    from bisect_trt.session.source import Source  # noqa: PLC0415
    from bisect_trt.worker.worker import keep_spare  # noqa: PLC0415

    groups = [group for group in COMMANDS[command].groups if group not in (Run, General)]
    # Callers write Python's names, and groups of options have their own.
    fields = {entry.python: entry.name for group in groups for entry in entries(group)}
    _refuse(check, target)
    values = _values(command, fields, options, target)
    words = [
        f"{name}={json.dumps(value, default=str, sort_keys=True)}"
        for name, value in sorted(values.items())
        if name not in _FREE
    ]
    if check is not None and not callable(check):
        values["check"] = [check] if isinstance(check, str) else list(check)
        words.append(f"check={values['check']}")
    source = Source(model, inputs)
    values["model"] = source.named
    paths = Paths.of(groups, {**values, "output": output}, inputs)
    # Before there is a folder: a refused call leaves nothing behind.
    paths.refuse()
    folder = Workspace.new_folder(command, source.named) if run is None else Path(run)
    resumed = (folder / RUN_FILE).exists()
    if not resumed and (folder.is_file() or (folder.is_dir() and any(folder.iterdir()))):
        raise OutputFileError(
            f"run: {folder} exists and is no run of a Python function; name another folder."
        )
    if (home := COMMANDS[command].output) is not None:
        values["output"] = folder / home if output is None else output
    console = Console(int(verbose)) if verbose else QuietConsole()
    result = Result(command)
    function = check if callable(check) else None
    params = Params(groups, values, words=False)
    call = Call(
        command,
        params,
        console,
        result,
        (command, *words),
        source,
        folder,
        resumed,
        function,
        paths=paths,
    )
    make_run_folder(folder)
    keep_spare()  # the next call finds TensorRT started, and its timing cache warm
    with call.kept, closing(console):
        status, ending = attempt(call, lambda: COMMANDS[command].run(call))
        # An answer that nothing reproduces, or that is unproven, is returned; only errors are
        # raised.
        answered = isinstance(ending, BisectError) and status in (
            ExitStatus.NOT_REPRODUCED,
            ExitStatus.UNPROVEN,
        )
        # A resume that was refused must not replace the result of the run.
        if not keeps_earlier(call):
            leave_record(result, folder, (), console, None)
    if ending is not None and not answered:
        raise ending
    lines = tuple(map("".join, summary_lines(result)))
    for line in lines:
        console.tell(line, bool(verbose))
    return answer_of(result.to_json(), lines)


def _values(
    command: str, fields: Mapping[str, str], options: Mapping[str, Any], target: str | None
) -> Fields:
    """Return the options that are given, by field name.

    Raises:
        UsageError: One does not exist.
    """
    values = {fields.get(name, name): value for name, value in options.items() if value is not None}
    if target is not None:
        # The flag of a target may have a value, which is a keyword then.
        values.setdefault(target, True)
    for name in values.keys() - {*fields.values()}:
        raise UnknownNameError(
            f"`{command}` has no option '{name}'; `bisect-trt {command} --help-all` lists them.",
            name,
            fields,
        )
    return values


def _refuse(check: object, target: str | None) -> None:
    """Refuse a check of another type, an unknown target, and the name of a target in place of a check.

    Raises:
        UsageError: It is one.
    """
    if not (check is None or callable(check) or isinstance(check, Sequence)):
        raise ValueRefusedError(
            f"check: give a function, a command or the list of its words, not {check!r:.60}; "
            "input values are given by keyword (inputs=)."
        )
    names = [plugin.name for plugin in selectable()]
    if target is not None and target not in names:
        raise UnknownNameError(
            f"there is no target '{target}'; write one of {', '.join(map(repr, names))}.",
            target,
            names,
        )
    if isinstance(check, str) and check in names and shutil.which(check) is None:
        raise ValueRefusedError(
            f"there is no program '{check}' to check with; did you mean target='{check}'?"
        )
