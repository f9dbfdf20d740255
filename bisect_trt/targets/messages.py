"""Shared code of every ``runner.py``: its package, the failures of a runtime, the signatures by which two compare equal, options.

It needs the standard library and the errors alone, because its source is sent to remote workers and
joined into ``reproduce.py``.
"""

from __future__ import annotations

import importlib
import math
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from bisect_trt.aliases import Fields
from bisect_trt.errors import RuntimeMissingError, UnknownNameError, ValueRefusedError

Feed = Mapping[str, Any]
"""Arrays by the name of their input."""
Found = dict[str, Any]
"""The outputs, layers or times that a runner returns, by name."""
TINY_MODEL = (
    b'\x08\x07:<\n\x10\n\x01x\x12\x01y"\x08Identity\x12\x04tinyZ\x10\n\x01x\x12\x0b\n\t\x08\x01\x12\x05\n\x03\x12\x01n'
    b"b\x10\n\x01y\x12\x0b\n\t\x08\x01\x12\x05\n\x03\x12\x01nB\x04\n\x00\x10\r"
)
"""An ONNX model with one Identity node. A runtime that refuses it refuses its settings."""

_ORT_PREFIX = re.compile(
    r"^\[ONNXRuntimeError\] : \d+ : \w+ : (?:Load model from .*? failed: ?)?", re.DOTALL
)
"""Its codes, and the file that it was given, which is mostly one of ours."""
# A file and line of its source, mostly followed by the C++ signature of the function there.
_SOURCE_PLACE = re.compile(
    r"\S+\.(?:h|cc|cpp|cu|cuh):\d+ "
    r"(?:[^()\n]{0,200}?::[^()\s]+\((?:[^()]|\([^()]*\))*\)(?: const)?(?: \[with [^\]]*\])? )?"
)
_RUNNING = re.compile(
    r"Non-zero status code returned while running (\w+) node\. Name:('.*?') Status Message: "
)
_AROUND = re.compile(r"^(?:\w+ node '.*?': )+(?=\w+ node ')")
"""The nodes around the one that fails: the same failure comes from its body alone."""
# After it come all the kernels that do not fit.
_CANDIDATES = re.compile(r"\.? Encountered following errors: .*", re.DOTALL)

_PATH_OR_ADDRESS = re.compile(r"0x[0-9a-fA-F]+|(?<![\w>)])[\w.+-]*/[^\s\"',:;()]+")
_NUMBERS = re.compile(r"\d+(?:\s*[,x]\s*-?\d+)*")

_NAMED = r"{}(?<![\w/.]){}{}(?:_\w+)?(?: \[\w+\])?(?![\w/])"
"""A known name, and what a runtime derives from it: a number, an operator or a word before or after
it."""
_A_WORD = r"(?:(?<=node )|(?<=layer )|(?<=tensor )|(?<=name: )|(?<=['\"(])|^(?=\w+:))"
"""Places where a word is a name: a tensor may be called ``axis``, and messages contain the word
too."""
_OPERANDS = r"\((?:\"[^\"]*\"(?:: [\w()]+)?,\s*)*\)"
_ORT_NODE = re.compile(rf"\(\"[^\"]*\", (\w+), \"([^\"]*)\", -?\d+\) : {_OPERANDS} -> {_OPERANDS}")
"""``("name", Op, "domain", -1) : ("x": tensor(float),) -> ("y": tensor(float),)``."""
_THING = r"node|input|output|initializer|tensor|layer|parameter|value|edge"
_QUOTED_NAME = re.compile(
    rf"(?i)\b((?:(?:{_THING})s?(?: with)?(?: name)?|name|fused)(?: ?: ?| ))(?:'[^']*'|\"[^\"]*\"|\((?:fused )?[^()\s]*\))"
)
"""Names in a message; the runtime names what it makes itself."""
_PLAIN_NAME = re.compile(rf"(?i)\b((?:{_THING}|name): )[^\s'\"()\[\]{{}}#,;:]+")
_GENERATED = re.compile(r"[\w/.]+_token_\d+(?!\w)")
_LIST = re.compile(r"(['\"]?)#\1(?:, ?\1#\1)+")
"""Names in a row, masked; how many there are is the model's matter."""
_MOST_PASSES = 8
OUT_OF_MEMORY = "out of memory"
"""The signature of a model that does not fit, whatever the runtime's words."""


NO_TELEMETRY = {"ORT_DISABLE_TELEMETRY": "1", "RAY_USAGE_STATS_ENABLED": "0", "DO_NOT_TRACK": "1"}
"""Environment variables of each process that loads a runtime: ONNX Runtime 1.32 would report
models, and Ray its use."""
_REPORTERS = ("openvino_telemetry",)
"""Packages that report the use of a runtime when it is imported, and have no variable; it goes on
without them."""


def load_package(module: str, title: str, install: str) -> ModuleType:
    """Import the package of a runtime.

    Args:
        module: The name of the module to import.
        title: The name of the runtime, for messages.
        install: The advice on installing it, for messages.

    Raises:
        UnavailableError: It is not installed, or cannot be loaded.
    """
    os.environ.update(NO_TELEMETRY)
    for reporter in _REPORTERS:
        sys.modules.setdefault(reporter, None)  # type: ignore[arg-type]  # importing it is an ImportError then
    try:
        return importlib.import_module(module)
    except (ImportError, OSError) as error:
        raise RuntimeMissingError(
            f"{title} cannot be loaded by {sys.executable}: {error!r}; {install}."
        ) from error


def clean_message(message: str) -> str:
    """A runtime's message on one line, without codes and places in its source."""
    text = _CANDIDATES.sub("", _ORT_PREFIX.sub("", message.strip()))
    text = _SOURCE_PLACE.sub("", _RUNNING.sub(r"\1 node \2: ", text))
    return re.sub(r"\s+", " ", text).strip().rstrip(".")


def mask_message(message: str, names: Iterable[str] = ()) -> str:
    """A cleaned message as a template: names, numbers, addresses and paths masked.

    What derives from one of the model's names (``fused NAME``, ``NAME_nchwc``) is masked too, and
    so is what the message itself calls a name, for a runtime gives names to what it makes.
    """
    return mask_values(mask_names(_AROUND.sub("", message), names))


def mask_names(text: str, names: Iterable[str]) -> str:
    """The names alone."""
    for name in sorted(set(names), key=len, reverse=True):
        if name and name in text:
            word = name.isalpha()
            text = re.sub(
                _NAMED.format(
                    _A_WORD if word else "", "" if word else r"(?:\w+_)?", re.escape(name)
                ),
                "#",
                text,
            )
    # Lists may contain lists, so one pass may not mask everything.
    for _ in range(_MOST_PASSES):
        masked = _QUOTED_NAME.sub(r"\1#", _ORT_NODE.sub(r"(#, \1, \2)", text))
        masked = _LIST.sub("#", _GENERATED.sub("#", _PLAIN_NAME.sub(r"\1#", masked)))
        if masked == text:
            break
        text = masked
    return text


def mask_values(text: str) -> str:
    """Addresses, paths and numbers alone; a list of numbers, such as a shape, counts as one."""
    return _NUMBERS.sub("#", _PATH_OR_ADDRESS.sub("#", text))


_TYPE = re.compile(r"\b(?:tensor|seq|optional|map)\((?:[^()]|\([^()]*\))*\)")
_BRACKETS = re.compile(r"\([^()]*\)|\{[^{}]*\}|\[[^\[\]]*\]|'[^']*'|\"[^\"]*\"")
_OPERATOR = re.compile(r"\b[A-Z]\w*(?= node\b)")


def error_class(signature: str) -> str:
    """The signature without operands: types, operators and whatever else stands in brackets or quotes.

    Two failures of one class broke in the same function of the runtime, but not on the same.
    """
    text = _OPERATOR.sub("#", _TYPE.sub("#", signature))
    while True:
        masked = re.sub(r"#(?:[ ,:]*#)+", "#", _BRACKETS.sub("#", text))
        if masked == text:
            return text
        text = masked


_OUT_OF_MEMORY = re.compile(
    r"bad_alloc|bad allocation|out of memory|OutOfMemory|cudaErrorMemoryAllocation|CUDA failure 2:|could not be allocated|"
    r"Failed to allocate memory|(?:not enough|insufficient) memory",
    re.IGNORECASE,
)


def is_out_of_memory(message: str) -> bool:
    """Whether memory, of a GPU or the host, is the reason."""
    return _OUT_OF_MEMORY.search(message) is not None


# TensorRT 8 spells it with one f.
_TACTIC_LEFT_OUT = re.compile(
    r"insuff?icient memory on requested size|Device memory is insufficient to use tactic"
)


def leaves_tactics_out(text: str) -> bool:
    """Whether a build's log says that the free memory of the GPU did not suffice for some of TensorRT's tactics."""
    return _TACTIC_LEFT_OUT.search(text) is not None


class RuntimeFailure(Exception):  # noqa: N818 - a finding about the model, not an error of ours
    """A runtime fails to build or run a model.

    Attributes:
        message: Why, in the runtime's words, on one line.
        masked: The signature that the runtime gave, where it knows more of what to mask.
        poisoned: Whether whatever else this process runs would fail too.
    """

    def __init__(
        self, message: str, *, signature: str | None = None, poisoned: bool = False
    ) -> None:
        """``message`` as the runtime gave it; ``signature`` where the runtime knows more of what to mask."""
        super().__init__(message)
        self.message = clean_message(message)
        self.poisoned = poisoned
        self.masked = signature

    def sign(self, names: Iterable[str] = ()) -> str:
        """The message with numbers, addresses, paths and the model's names masked: the same for this failure of another model."""
        if self.masked is not None:
            return self.masked
        return (
            OUT_OF_MEMORY if is_out_of_memory(self.message) else mask_message(self.message, names)
        )


class BuildError(RuntimeFailure):
    """The runtime refuses the model."""


class RunError(RuntimeFailure):
    """The runtime takes the model and fails while running it."""


def names_of(graph: Any) -> Iterator[str]:  # noqa: ANN401 - a GraphProto; there may be no ONNX
    """Every name of a node or tensor of an ONNX graph, also in bodies of control flow."""
    for value in (*graph.input, *graph.output):
        yield value.name
    for tensor in graph.initializer:
        yield tensor.name
    for node in graph.node:
        yield from (node.name, *node.input, *node.output)
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from names_of(body)


_PROFILED_RUNS = 20
_LEAST_RUNS = 4
_PROFILED_SECONDS = 5.0


def profiled(run: Callable[[], object]) -> None:
    """Run a model as often as a profile needs: the median leaves the first run out."""
    began = time.monotonic()
    for count in range(_PROFILED_RUNS):
        if count < _LEAST_RUNS or time.monotonic() - began < _PROFILED_SECONDS:
            run()


def layer_times(
    times: Mapping[str, Sequence[float]], tensors: Mapping[str, Sequence[str]]
) -> Fields:
    """Return a profile, given the milliseconds of each run of each layer, and the ends or nodes of layers."""
    return {
        "layers": [
            {"name": name, "ms": statistics.median(several), "tensors": list(tensors.get(name, ()))}
            for name, several in times.items()
        ]
    }


def set_option(owner: object, name: str, value: str, option: str, of: str = "") -> None:
    """Set an attribute of a runtime's options from text, by the type of its current value, and read it back.

    Args:
        owner: The object to change.
        name: The name of the attribute.
        value: The value, as text.
        option: The option, as it is written, for messages.
        of: The owner in words, for messages.

    Raises:
        UsageError: The owner has no such attribute, or that takes other values.
    """
    current = getattr(owner, name, None)
    if name.startswith("_") or current is None or callable(current):
        attributes = ", ".join(
            attribute for attribute, kind in vars(type(owner)).items() if isinstance(kind, property)
        )
        raise UnknownNameError(f"{option}: {of} has no such attribute; it has: {attributes}.")
    members = getattr(type(current), "__members__", {})
    try:
        wanted = _like(current, members, value)
        setattr(owner, name, wanted)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        kinds = {bool: "1 or 0", int: "a whole number"}
        takes = " or ".join(members) or kinds.get(type(current), f"a {type(current).__name__}")
        raise ValueRefusedError(f"{option}: it takes {takes}, not '{value}'.") from error
    require_kept(option, wanted, getattr(owner, name))


def require_kept(option: str, wanted: object, actual: object) -> None:
    """Refuse a value that a runtime has not kept: TensorRT reports many only in its log.

    Args:
        option: The option, as it is written.
        wanted: The value that was set.
        actual: The value that the runtime returns.

    Raises:
        UsageError: They differ.
    """
    if actual != wanted and not (
        isinstance(actual, float) and math.isclose(actual, float(str(wanted)), rel_tol=1e-6)
    ):
        raise ValueRefusedError(
            f"{option}: the runtime keeps {actual}, not {wanted}; give a value that it takes."
        )


def _like(current: Any, members: Fields, value: str) -> object:  # noqa: ANN401 - of a runtime
    """Return a word as a value of the type that another value has; a member of an enumeration also by its last part."""
    if members:
        short = {
            name.rpartition("_")[2].lower(): enum_member for name, enum_member in members.items()
        }
        return {**short, **{name.lower(): enum_member for name, enum_member in members.items()}}[
            value.lower()
        ]
    if isinstance(current, bool):
        return {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}[
            value.lower()
        ]
    if isinstance(current, int):
        return int(value, 0)
    return value.split(",") if isinstance(current, list) else type(current)(value)
