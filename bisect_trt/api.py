"""Python functions: each runs the command of its name; :mod:`bisect_trt` has these names too (docs/api.md).

A function takes the options of its command by keyword (``input_shapes=`` for ``--input-shapes``)
and returns the result that ``--json`` writes. It prints nothing unless ``verbose`` is set, never
ends the process, and raises :class:`~bisect_trt.errors.UsageError` or
:class:`~bisect_trt.errors.UnavailableError`. The first call imports NumPy and ONNX.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

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
    from bisect_trt.report.result import Result
    from bisect_trt.session.source import Inputs, Model

Check: TypeAlias = Callable[..., object] | str | Sequence[str]
"""A function, or a command as after ``--check``."""
_SHOWN = 5
_FREE = ("verbose", "overwrite", "workers", "max_probes", "max_time")
"""Options that do not affect verdicts, so a run may be resumed with other values."""
_HELP = """{help}

Args:
    model: The model (an onnx.ModelProto or a torch.nn.Module), or its path.
    {check}inputs: The values of the model's inputs, or a file of them; random values if not given.
    target: The runtime under test.
    **options: The options of the command, with underscores (docs/reference.md): ``fp16=True``, ``atol=1e-3``. Also ``run``,
        the run's folder: a new one, or one that goes on where an earlier call of the same arguments was stopped; ``output``, in
        that folder if not given; and ``verbose``, whether to print what the command line prints.

Raises:
    UsageError: An option does not exist or does not fit.
    UnavailableError: A file, package, runtime or device is missing."""
_CHECK = """check: A function (given the candidate's path, ``True`` or an ``AssertionError`` means that it fails), or a command as
        after ``--check``. Without it ``target`` is compared with the reference.
    """


def _compares(name: str, known: str | None = "onnxrt", command: str = "") -> Callable[..., Result]:
    """Return the function of a command about a target, ``known`` if none is given."""

    def function(
        model: Model,
        inputs: Inputs | None = None,
        target: str | None = known,
        **options: Any,  # noqa: ANN401 - of many types
    ) -> Result:
        return _run(command or name, model, inputs, target, **options)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = _HELP.format(help=COMMANDS[command or name].help, check="")
    return function


def _searches(name: str) -> Callable[..., Result]:
    """Return the function of a command that takes a check."""

    def function(
        model: Model,
        check: Check | None = None,
        *,
        inputs: Inputs | None = None,
        target: str | None = None,
        **options: Any,  # noqa: ANN401 - of many types
    ) -> Result:
        if name == "precision" and not options.get("ladder"):  # a ladder names its own
            options = {options.pop("low", "fp16"): True, **options}
        return _run(name, model, inputs, target, check=check, **options)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = _HELP.format(help=COMMANDS[name].help, check=_CHECK)
    return function


diagnose = _compares("diagnose")
workaround = _compares("workaround")
cause = _compares("cause")
layerwise = _compares("layerwise")
compare = _compares("compare", command="run")
sweep = _compares("sweep", known=None)
reduce = _searches("reduce")
precision = _searches("precision")
releases = _searches("releases")
repeat = _searches("repeat")
samples = _searches("samples")


def assert_matches(
    model: Model,
    inputs: Inputs | None = None,
    target: str = "onnxrt",
    *,
    reproducer: str | None = None,
    **options: Any,  # noqa: ANN401 - of many types
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
    from bisect_trt.tensors.comparison import TensorComparison  # noqa: PLC0415 - as above

    result = compare(model, inputs, target, **options)
    failed = [
        c for c in map(TensorComparison.from_json, result.extra["comparisons"]) if not c.passed
    ]
    if not failed:
        return
    failed.sort(key=lambda comparison: -comparison.severity)
    lines = [f"{len(failed)} of {len(result.extra['comparisons'])} outputs do not match."]
    lines += listed([f"  '{each.name}': {each.describe()}" for each in failed], _SHOWN)
    try:
        found = diagnose(model, inputs, target, output=reproducer, overwrite=True, **options)
        folder = found.artifacts.get("reproducer")
        lines.append(
            f"Reproducer: {folder}" if folder is not None else f"No reproducer: {found.why}"
        )
    except BisectError as error:
        lines.append(f"No reproducer: {error}")
    raise AssertionError("\n".join(lines))


def function_of(command: str) -> Callable[..., Result]:
    """The function of a command that another package adds: of the model, its inputs, and the command's options by keyword."""
    return _compares(command, known=None)


def _run(
    command: str,
    model: Model,
    inputs: Inputs | None,
    target: str | None,
    *,
    check: Check | None = None,
    output: str | Path | None = None,
    run: str | Path | None = None,
    verbose: bool | int = False,
    **options: Any,  # noqa: ANN401 - of many types
) -> Result:
    """Run a command; ``result.json`` and ``report.html`` are left in the run's folder however it ends."""
    from bisect_trt.probe.workspace import Workspace  # noqa: PLC0415
    from bisect_trt.report.console import Console, QuietConsole  # noqa: PLC0415
    from bisect_trt.report.result import Result  # noqa: PLC0415
    from bisect_trt.session.binding import RUN_FILE  # noqa: PLC0415 - NumPy and ONNX are imported by the first call
    from bisect_trt.session.call import Call  # noqa: PLC0415
    from bisect_trt.session.ending import attempt, keeps_earlier  # noqa: PLC0415
    from bisect_trt.session.paths import Paths  # noqa: PLC0415
    from bisect_trt.session.record import leave_record  # noqa: PLC0415
    from bisect_trt.session.source import Source  # noqa: PLC0415
    from bisect_trt.worker.worker import keep_spare  # noqa: PLC0415

    given = {name: value for name, value in options.items() if value is not None}
    _refuse_target(check, target)
    if target is not None:
        given.setdefault(
            target, True
        )  # the flag of a target may have a value, which is a keyword then
    fixed = {name: value for name, value in sorted(given.items()) if name not in _FREE}
    words = [
        f"{name}={json.dumps(value, default=str, sort_keys=True)}" for name, value in fixed.items()
    ]
    home = COMMANDS[command].output
    groups = [group for group in COMMANDS[command].groups if group not in (Run, General)]
    named = {entry.name for group in groups for entry in entries(group)}
    for name in given.keys() - (named - {"model"} - ({"output"} if home is not None else set())):
        raise UnknownNameError(
            f"`{command}` has no option '{name}'; `bisect-trt {command} --help-all` lists them."
        )
    if check is not None and not callable(check):
        if not isinstance(check, Sequence):
            raise ValueRefusedError(
                f"check: give a function, a command or the list of its words, not {check!r:.60}."
            )
        given["check"] = [check] if isinstance(check, str) else list(check)
        words.append(f"check={given['check']}")
    source = Source(model, inputs)
    paths = Paths.of(groups, {**given, "model": source.named, "output": output}, inputs)
    paths.refuse()
    folder = Workspace.new_folder(command, source.named) if run is None else Path(run)
    resumed = (folder / RUN_FILE).exists()
    if not resumed and folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise OutputFileError(
            f"run: {folder} exists and is no run of a Python function; name another folder."
        )
    given |= {"model": source.named} if "model" in named else {}
    given |= {} if home is None else {"output": folder / home if output is None else output}
    console = Console(int(verbose)) if verbose else QuietConsole()
    result = Result(command)
    function = check if callable(check) else None
    params = Params(groups, given, words=False)
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
    Workspace(folder)
    keep_spare()  # the next call finds TensorRT started, and its timing cache warm
    with call.kept, closing(console):
        status, ending = attempt(call, lambda: COMMANDS[command].load()(call))
        answered = isinstance(ending, BisectError) and status in (
            ExitStatus.NOT_REPRODUCED,
            ExitStatus.UNPROVEN,
        )
        if not keeps_earlier(call):
            leave_record(result, folder, (), console, None)
    if ending is not None and not answered:
        raise ending
    return result


def _refuse_target(check: object, target: str | None) -> None:
    """Refuse an unknown target, and the name of a target in place of a check.

    Raises:
        UsageError: It is one.
    """
    known = [plugin.name for plugin in selectable()]
    if target is not None and target not in known:
        raise UnknownNameError(
            f"there is no target '{target}'; write one of {', '.join(map(repr, known))}."
        )
    if isinstance(check, str) and check in known and shutil.which(check) is None:
        raise ValueRefusedError(
            f"there is no program '{check}' to check with; did you mean target='{check}'?"
        )
