"""What the command line does, from Python; :mod:`bisect_trt` has these names too (docs/api.md).

Each function runs the same engine as the command of its name, takes its options by keyword (``input_shapes=`` for
``--input-shapes``) and returns the result that ``--json`` writes. Nothing is printed unless ``verbose`` is set, nothing ends
the process, and mistakes raise :class:`~bisect_trt.errors.UsageError` or :class:`~bisect_trt.errors.UnavailableError`.

The functions are made from the commands' declarations; NumPy and ONNX are imported by the first call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from bisect_trt.commands.commands import COMMANDS
from bisect_trt.errors import BisectError
from bisect_trt.plugins import COMMANDS as GROUP
from bisect_trt.plugins import installed

if TYPE_CHECKING:
    from bisect_trt.api.call import Check
    from bisect_trt.commands.source import Inputs, Model
    from bisect_trt.report.result import Result

__all__ = [
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
Returned_co = TypeVar("Returned_co", covariant=True)
_SHOWN = 5
_SAID = """{help}

Args:
    model: The model (an onnx.ModelProto, an onnx_graphsurgeon.Graph, a torch.nn.Module), or its path.
    {check}inputs: The values of the model's inputs, or a file of them; random values if not given.
    target: The runtime under suspicion.
    **options: The options of the command, with underscores (docs/reference.md): ``fp16=True``, ``atol=1e-3``. Also ``run``,
        the run's folder: a new one, or one that goes on where an earlier call of the same arguments was stopped; ``output``, in
        that folder if not given; and ``verbose``, whether to print what the command line prints.

Raises:
    UsageError: Something was asked for that cannot be done as asked.
    UnavailableError: Something needed is not there."""
_CHECK = """check: A function (given the candidate's path, ``True`` or an ``AssertionError`` says that it fails), or a command as
        after ``--check``. Without it ``target`` is compared with the reference.
    """


class _Compares(Protocol[Returned_co]):
    """A function about a target."""

    def __call__(
        self,
        model: Model,
        inputs: Inputs | None = None,
        target: str | None = ...,
        **options: Any,  # noqa: ANN401 - of many types
    ) -> Returned_co:
        """Run it."""


class _Searches(Protocol):
    """A function with a check, or a target that is compared with the reference."""

    def __call__(
        self,
        model: Model,
        check: Check | None = None,
        *,
        inputs: Inputs | None = None,
        target: str | None = None,
        **options: Any,  # noqa: ANN401 - of many types
    ) -> Result:
        """Run it."""


def _run(command: str, *given: Any, **options: Any) -> Result:  # noqa: ANN401 - of many types
    from bisect_trt.api.call import run_call  # noqa: PLC0415 - NumPy and ONNX are imported by the first call

    return run_call(command, *given, **options)


def _named(function: Callable[..., Any], name: str, command: str, check: str = "") -> Any:  # noqa: ANN401 - see the callers
    function.__name__ = function.__qualname__ = name
    function.__doc__ = _SAID.format(help=COMMANDS[command].help, check=check)
    return function


def _compares(name: str, command: str = "", known: str | None = "onnxrt") -> _Compares[Result]:
    """The function of a command that is about a target, ``known`` if none is given."""

    def function(model: Model, inputs: Inputs | None = None, target: str | None = known, **options: Any) -> Result:  # noqa: ANN401 - of many types
        return _run(command or name, model, inputs, target, **options)

    return cast("_Compares[Result]", _named(function, name, command or name))


def _searches(name: str) -> _Searches:
    """The function of a command that takes a check."""

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

    return cast("_Searches", _named(function, name, name, _CHECK))


diagnose = _compares("diagnose")
workaround = _compares("workaround")
cause = _compares("cause")
layerwise = _compares("layerwise")
compare = _compares("compare", "run")
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
    """Raise an AssertionError, and leave a reproducer, unless a target computes what the reference does.

    Args:
        model: As for :func:`diagnose`.
        inputs: As there.
        target: As there.
        reproducer: The reproducer's folder, written over; in the run's folder if not given.
        **options: Options that ``run`` and ``diagnose`` both take, with underscores.

    Raises:
        AssertionError: An output does not match.
        UsageError: Something was asked for that cannot be done as asked.
        UnavailableError: Something needed is not there.
    """
    from bisect_trt.report.console import listed  # noqa: PLC0415 - it takes NumPy
    from bisect_trt.tensors.comparison import TensorComparison  # noqa: PLC0415 - as above

    result = compare(model, inputs, target, **options)
    failed = [c for c in map(TensorComparison.from_json, result.comparisons) if not c.passed]
    if not failed:
        return
    failed.sort(key=lambda comparison: -comparison.severity)
    lines = [f"{len(failed)} of {len(result.comparisons)} outputs do not match."]
    lines += listed(failed, _SHOWN, lambda comparison: f"  '{comparison.name}': {comparison.describe()}")
    try:
        found = diagnose(model, inputs, target, output=reproducer, overwrite=True, **options)
        folder = found.artifacts.get("reproducer")
        lines.append(f"Reproducer: {folder}" if folder is not None else f"No reproducer: {found.why}")
    except BisectError as error:
        lines.append(f"No reproducer: {error}")
    raise AssertionError("\n".join(lines))


def function_of(command: str) -> Callable[..., Result]:
    """The function of a command that another package adds: of the model, its inputs, and the command's options by keyword.

    Raises:
        AttributeError: There is no such command.
    """
    if command not in installed(GROUP):
        raise AttributeError(f"module 'bisect_trt' has no attribute {command!r}")
    return _compares(command, known=None)
