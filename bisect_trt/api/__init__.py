"""What the command line does, from Python; :mod:`bisect_trt` has these names too (docs/api.md).

Each function runs the same engine as the command of its name, takes its options by keyword (``input_shapes=`` for
``--input-shapes``) and returns the result that ``--json`` writes. Nothing is printed unless ``verbose`` is set, nothing ends
the process, and mistakes raise :class:`~bisect_trt.errors.UsageError` or :class:`~bisect_trt.errors.UnavailableError`.

The functions are made from the commands' declarations; NumPy and ONNX are imported by the first call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from bisect_trt.commands.commands import COMMANDS
from bisect_trt.errors import BisectError, UsageError
from bisect_trt.plugins import COMMANDS as GROUP
from bisect_trt.plugins import installed
from bisect_trt.targets.options import selectable

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
_OFF = ("fp16", "verbose", "overwrite", "isolate")
"""Parameters that are off unless they are given; the others are ``None``."""
_SAVED = (".json", ".npz")
_SHOWN = 5
_RAISES = (
    "Raises:",
    "    UsageError: Something was asked for that cannot be done as asked.",
    "    UnavailableError: Something needed is not there.",
)
_SAID = {
    "model": "The model (an onnx.ModelProto, an onnx_graphsurgeon.Graph, a torch.nn.Module), or its path.",
    "check": "A function (given the candidate's path, ``True`` or an ``AssertionError`` says that it fails), or a command as\n"
    "        after ``--check``. Without it ``target`` is compared with the reference. Values, a path, or the name of a ``.npz``\n"
    "        or ``.json`` file in its place are ``inputs``.",
    "inputs": "The values of the model's inputs; random values if not given.",
    "target": "The runtime under suspicion.",
    "output": "The path of what is found; in the run's folder if not given.",
    "atol": "Absolute tolerance.",
    "rtol": "Relative tolerance.",
    "fp16": "Whether the target runs in half precision.",
    "low": "The precision of all other nodes: fp16, bf16, int8, fp8 or int4.",
    "shapes": "Inputs with the sizes of their dimensions, as after ``--shapes``: ``x:[1..64,3,224,224]``.",
    "isolate": "Whether to find each layer's own error too.",
    "reproducer": "The reproducer's folder, written over; in the run's folder if not given.",
    "verbose": "Whether to print what the command line prints; 2 for what ``-v`` adds.",
    "overwrite": "Whether what exists may be written over.",
    "run": "The run's folder: a new one, or one that goes on where an earlier call of the same arguments was stopped; under\n"
    "        ``.bisect-trt`` if not given.",
    "**options": "The options of the command, with underscores.",
}


class _Compares(Protocol[Returned_co]):
    """A function about a target."""

    def __call__(
        self,
        model: Model,
        inputs: Inputs | str | None = None,
        target: str | None = ...,
        **options: Any,  # noqa: ANN401 - of many types
    ) -> Returned_co:
        """Run it."""


class _Searches(Protocol):
    """A function with a check, or a target that is compared with the reference."""

    def __call__(
        self,
        model: Model,
        check: Check | Inputs | None = None,
        *,
        target: str | None = None,
        **options: Any,  # noqa: ANN401 - of many types
    ) -> Result:
        """Run it."""


def _made(name: str, words: str, run: Callable[[dict[str, Any]], Any], **defaults: str) -> Any:  # noqa: ANN401 - see the callers
    """A function with these parameters, those after ``*`` by keyword, and more options of its command.

    Args:
        name: Of the function.
        words: Its parameters; see ``_SAID``.
        run: Given its arguments.
        **defaults: Defaults that are not ``None``.
    """
    positional, _, keywords = words.partition(" * ")
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY

    def parameter(each: str, kind: Any) -> inspect.Parameter:  # noqa: ANN401 - of inspect
        default = False if each in _OFF else defaults.get(each)
        required = each in ("model", "shapes")
        return inspect.Parameter(each, kind, default=inspect.Parameter.empty if required else default)

    signature = inspect.Signature(
        [
            *(
                parameter(each, kind)
                for part, kind in zip((positional, keywords), kinds, strict=True)
                for each in part.split()
            ),
            inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD),
        ]
    )

    def function(*args: Any, **given: Any) -> Any:  # noqa: ANN401 - of many types
        if "inputs" in positional:
            args, given = target_second(args, given, optional=name in ("compare", "sweep"))
        bound = signature.bind(*args, **given)
        bound.apply_defaults()
        return run({**bound.arguments})

    if name == "assert_matches":
        said = "Raise an AssertionError, and leave a reproducer, unless a target computes what the reference does."
    else:
        said = COMMANDS["run" if name == "compare" else name].help
    arguments = [f"    {each}: {_SAID[each]}" for each in (*words.replace("* ", "").split(), "**options")]
    function.__name__ = function.__qualname__ = name
    function.__signature__ = signature  # type: ignore[attr-defined]  # inspect and help() read it
    function.__doc__ = "\n".join([said, "", "Args:", *arguments, "", *_RAISES])
    return function


def target_second(
    args: tuple[Any, ...], given: dict[str, Any], *, optional: bool
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a function with ``inputs`` behind the model, where the name of a target may stand there too.

    ``diagnose(model, "trt")`` is then ``diagnose(model, target="trt")``; a file of that name is ``"./trt"``. So it is
    with ``None``, where there may be no target.
    """
    if len(args) != 2 or "target" in given:
        return args, given
    second = args[1]
    if (isinstance(second, str) and ("inputs" in given or _is_target(second))) or (second is None and optional):
        return args[:1], {**given, "target": second}
    return args, given


def _is_target(text: str) -> bool:
    """Whether it is a target's name, mistyped perhaps, and no file's."""
    path = Path(text)
    known = {plugin.name for plugin in selectable()}
    return text in known or (path.name == text and not path.suffix and not path.exists())


def _check_or_inputs(given: dict[str, Any]) -> None:
    """Move what stands behind the model to ``inputs``, unless it is a check.

    A function, a command and a list of its words are checks; values, a path and the name of a ``.npz`` or ``.json`` file are not.

    Raises:
        UsageError: The model would be fed two things.
    """
    second = given["check"]
    words = isinstance(second, list | tuple) and all(isinstance(word, str) for word in second)
    command = isinstance(second, str) and not second.endswith(_SAVED)
    if second is None or callable(second) or words or command:
        return
    if given["inputs"] is not None:
        raise UsageError("inputs are given twice, behind the model and by name; leave one out.")
    given["check"], given["inputs"] = None, second


def _call(command: str, given: dict[str, Any]) -> Result:
    """The result of a command with the arguments of its function."""
    from bisect_trt.api.call import run_call  # noqa: PLC0415 - NumPy and ONNX are imported by the first call

    options = given["options"]
    if "check" in given:
        _check_or_inputs(given)
    if command == "precision":
        low = given.pop("low")
        options |= {} if options.get("ladder") else {low: True}  # a ladder names its own
    elif command == "sweep":
        given["check"] = options.pop("check", None)
        given["target"] = given["target"] or (None if given["check"] is not None else "onnxrt")
    return run_call(command, **given)


def _assert_matches(given: dict[str, Any]) -> None:
    """Compare; diagnose and raise if something is off."""
    from bisect_trt.report.console import listed  # noqa: PLC0415 - it takes NumPy
    from bisect_trt.tensors.comparison import TensorComparison  # noqa: PLC0415 - as above

    model, target, reproducer = (given.pop(each) for each in ("model", "target", "reproducer"))
    shared = {**given.pop("options"), **given}
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


def _compares(name: str, keywords: str, target: str | None = "onnxrt", command: str = "") -> _Compares[Result]:
    known = {} if target is None else {"target": target}
    return cast(
        "_Compares[Result]", _made(name, f"model inputs target * {keywords}", partial(_call, command or name), **known)
    )


def _searches(name: str, keywords: str, **defaults: str) -> _Searches:
    return cast("_Searches", _made(name, f"model check * {keywords}", partial(_call, name), **defaults))


diagnose = _compares("diagnose", "output atol rtol fp16 verbose overwrite run")
workaround = _compares("workaround", "output atol rtol fp16 verbose overwrite run")
cause = _compares("cause", "atol rtol fp16 verbose run")
layerwise = _compares("layerwise", "atol rtol fp16 isolate verbose")
compare = _compares("compare", "atol rtol fp16 verbose", command="run")
sweep = _compares("sweep", "shapes atol rtol fp16 verbose run", target=None)
reduce = _searches("reduce", "target output inputs atol rtol fp16 verbose overwrite run")
precision = _searches("precision", "low target output inputs atol rtol verbose overwrite run", low="fp16")
releases = _searches("releases", "target inputs atol rtol fp16 verbose run")
repeat = _searches("repeat", "target inputs atol rtol fp16 verbose run")
samples = _searches("samples", "target inputs output atol rtol fp16 verbose overwrite run")
assert_matches: _Compares[None] = _made(
    "assert_matches", "model inputs target * atol rtol fp16 reproducer", _assert_matches, target="onnxrt"
)


def function_of(command: str) -> Callable[..., Result]:
    """The function of a command that another package adds: of the model, its inputs, and the command's options by keyword.

    Raises:
        AttributeError: There is no such command.
    """
    if command not in installed(GROUP):
        raise AttributeError(f"module 'bisect_trt' has no attribute {command!r}")
    return cast("Callable[..., Result]", _made(command, "model inputs * verbose run", partial(_call, command)))
