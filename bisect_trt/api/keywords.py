"""The options of a command as keywords of a Python function."""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from bisect_trt.errors import UsageError
from bisect_trt.options.given import from_python
from bisect_trt.options.spec import entries
from bisect_trt.targets.options import selectable

if TYPE_CHECKING:
    from bisect_trt.api.types import Check, Inputs
    from bisect_trt.reporting.result import Result

Group = TypeVar("Group")
Given = ParamSpec("Given")
Answer = TypeVar("Answer")
PLACE = Path("model.onnx")
"""In place of the model's path, and of the output's where it goes into the run's folder, until these are known."""
_SAVED = (".json", ".npz")
_SECTION = r"(?ms)^(Args|Returns|Raises):$(.*?)(?=^\S|\Z)"

_SAID = {
    "model": "The model, or its path.",
    "check": "What says good or bad; see :func:`reduce`.",
    "inputs": "What the model is fed; random values if not given.",
    "target": "The runtime under suspicion.",
    "atol": "Absolute tolerance.",
    "rtol": "Relative tolerance.",
    "fp16": "Whether the target runs in half precision.",
    "verbose": "Whether to print what the command line prints; 2 for what ``-v`` adds.",
    "overwrite": "Whether what exists may be written over.",
    "run": "The run's folder: a new one, or one that goes on where an earlier call of the same arguments was stopped; under\n"
    "        ``.bisect-trt`` if not given.",
}
_RAISED = (
    "UsageError: Something was asked for that cannot be done as asked.",
    "UnavailableError: Something needed is not there.",
)


def documented(function: Callable[Given, Answer]) -> Callable[Given, Answer]:
    """The function, with what it shares with others in its docstring too: parameters, and what it raises."""
    text = inspect.cleandoc(function.__doc__ or "")
    sections = {title: re.split(r"\n    (?! )", each)[1:] for title, each in re.findall(_SECTION, text)}
    own = dict(each.rstrip().split(": ", 1) for each in sections.get("Args", ()))
    names = [f"**{each.name}" if each.kind is each.VAR_KEYWORD else each.name for each in _parameters(function)]
    if not (more := own.get("**options", "")).startswith("The options"):
        own["**options"] = f"The options of ``bisect-trt {function.__name__}``, with underscores. {more}"
    sections["Args"] = [f"{name}: {own.get(name) or _SAID[name]}" for name in names]
    sections["Raises"] = [*_RAISED, *sections.get("Raises", ())]
    order = [(title, sections[title]) for title in ("Args", "Returns", "Raises") if title in sections]
    body = (f"{title}:\n    " + "\n    ".join(map(str.rstrip, each)) for title, each in order)
    function.__doc__ = "\n\n".join((text.partition("\n")[0], *body))
    return function


def _parameters(function: Callable[..., object]) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


def target_second(function: Callable[Given, Answer]) -> Callable[Given, Answer]:
    """A function with ``inputs`` behind the model that takes the name of a target in their place too.

    ``diagnose(model, "trt")`` is then ``diagnose(model, target="trt")``; a file of that name is ``"./trt"``. So it is
    with ``None``, where there may be no target.
    """
    parameters = inspect.signature(function).parameters
    place, optional = list(parameters).index("inputs"), "None" in parameters["target"].annotation

    @functools.wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Answer:
        last = args[-1] if len(args) == place + 1 and "target" not in kwargs else ()
        named = isinstance(last, str) and ("inputs" in kwargs or _is_word(last))
        if named or (last is None and optional):
            kwargs["target"] = last
            return function(*args[:place], **kwargs)  # type: ignore[arg-type]  # no type says that they have changed places
        return function(*args, **kwargs)

    return call


def _is_word(text: str) -> bool:
    """Whether it is a target's name, mistyped perhaps, and no file's."""
    if text in {plugin.name for plugin in selectable()}:
        return True
    path = Path(text)
    return path.name == text and not path.suffix and not path.exists()


def check_or_inputs(second: Check | Inputs | None, inputs: Inputs | None) -> tuple[Check | None, Inputs | None]:
    """What stands behind the model, as a check or as what the model is fed, with the ``inputs`` given by name.

    A function, a command and a list of its words are checks; values, a path and the name of a ``.npz`` or ``.json`` file are not.

    Raises:
        UsageError: The model would be fed two things.
    """
    words = isinstance(second, list | tuple) and all(isinstance(word, str) for word in second)
    command = isinstance(second, str) and not second.endswith(_SAVED)
    if second is None or callable(second) or words or command:
        return cast("Check | None", second), inputs
    if inputs is not None:
        raise UsageError("inputs are given twice, behind the model and by name; leave one out.")
    return None, cast("Inputs", second)


def called(command: str, **given: Any) -> Result:  # noqa: ANN401 - of many types
    """What a call of a command's function comes to; ``given`` are its arguments: those of :class:`~bisect_trt.api.call.Call`."""
    from bisect_trt.api.call import Call  # noqa: PLC0415 - NumPy and ONNX are imported by the first call
    from bisect_trt.workflows import searching  # noqa: PLC0415 - as above

    story: Callable[[searching.Door], Result] = getattr(searching, command)
    return story(Call(command, **given))


class Keywords:
    """What a function was given, until it is taken for one group of options or another."""

    def __init__(
        self,
        options: Mapping[str, Any],
        *,
        target: str | None = None,
        **named: Any,  # noqa: ANN401 - of many types
    ) -> None:
        """Nothing is taken yet.

        Args:
            options: Options by their name on the command line, with underscores.
            target: ``onnxrt``, ``trt``, that of a plug-in, or none.
            **named: More options; ``None`` and ``False`` count as not given.

        Raises:
            UsageError: There is no such target.
        """
        known = [plugin.name for plugin in selectable()]
        if target is not None and target not in known:
            *first, last = [f"'{name}'" for name in known]
            raise UsageError(f"there is no target '{target}'; write {', '.join(first)} or {last}.")
        self._left = {**options, **{name: v for name, v in named.items() if v is not None and v is not False}}
        if target is not None:
            self._left.setdefault(target, True)  # one that has a value says it by a keyword of its name
        self._all = dict(self._left)

    def words(self, free: Collection[str]) -> list[str]:
        """All that was given, as text, but for some options."""
        given = {name: value for name, value in sorted(self._all.items()) if name not in free}
        return [f"{name}={json.dumps(value, default=str, sort_keys=True)}" for name, value in given.items()]

    def group(self, kind: type[Group], **own: Any) -> Group:  # noqa: ANN401 - of many types
        """A group of options, the rest of it as by default.

        Args:
            kind: The group, a dataclass.
            **own: Those of its options that are parameters of the function.

        Raises:
            UsageError: A value is not one that the option takes.
        """
        taken = {entry.name: self._left.pop(entry.name) for entry in entries(kind) if entry.name in self._left}
        return from_python(kind, {**taken, **own})

    def finish(self, command: str) -> None:
        """Make sure that nothing is left.

        Raises:
            UsageError: Something is.
        """
        for name in self._left:
            raise UsageError(f"`{command}` has no option '{name}'; `bisect-trt {command} --help` lists them.")
