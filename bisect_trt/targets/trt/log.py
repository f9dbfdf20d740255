"""TensorRT's log: its errors cleaned for people, and compared by signatures."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from bisect_trt.targets.messages import RuntimeFailure, mask_names, mask_values

OUT_OF_MEMORY = "out of memory"
_PLACE = re.compile(r"^(?:\d+: )?(?:\[[\w./]+(?:::[\w~<>:, ]+)?(?:::|:)\d+\]\s*|\w+(?:::\w+)+: (?=Error Code))?")
"""``[optimizer.cpp::computeCosts::3869]``, maybe after the error's number; since 10 the method that was called
(``IBuilder::buildSerializedNetwork: ``)."""
_CODE = re.compile(r"^Error Code \d+: (?P<kind>[\w ]+?)? ?\((?P<text>.*)\)$", re.DOTALL)
"""``Error Code 10: Internal Error (text)``."""
_SOURCE = re.compile(r"\s*In \S+ at \S+:\d+$")
"""Follows the text since 10."""
_SAYS_NOTHING = "no further information"
_DRIVER = re.compile(r" ?\[checkMacros\.cpp::catchCudaError::\d+\].*", re.DOTALL)
"""The parser appends CUDA's last error to its own: without a GPU, that there is no driver."""
_INVALID_NODE = re.compile(r"^Invalid Node - [^\n]*\n")
_CONDITION = re.compile(r"^(?:Assertion failed: .*?(?<![ :]): (?=\S)|Assertion failed: |.*&& (?=\"))", re.DOTALL)
"""The condition that the parser has checked, before its explanation."""
_BUILDER_GAVE_UP = re.compile(r"Assertion engine != nullptr failed|Builder failed", re.IGNORECASE)
"""Follows the reason of every failed build."""
_MEMORY = re.compile(r"out of memory|OutOfMemory|could not be allocated|insufficient memory", re.IGNORECASE)
_POISON = re.compile(r"Cuda Runtime|cuda(?:Error|Stream|Event|Launch)|illegal|misaligned|launch failure", re.IGNORECASE)
_IN_BRACES = re.compile(r"\{[^{}]*\}")
_UNNAMED_LAYER = re.compile(r"\(Unnamed Layer\* \d+\) \[[^\]]*\]")
_FUSED = re.compile(r"PWN\(#(?:, #)*\)|#(?: \+ #)+|#(?:\|\|#)+|#(?:, #)+")
"""Several layers that became one, their names masked."""
Failure = TypeVar("Failure", bound=RuntimeFailure)


def clean(message: str) -> str:
    """One message without its place in TensorRT's source and its number."""
    text = _PLACE.sub("", message.strip())
    match = _CODE.match(text)
    if match is None:
        return _SOURCE.sub("", text).strip()
    inner = _SOURCE.sub("", match["text"]).strip()
    return match["kind"] if match["kind"] and inner in ("", _SAYS_NOTHING) else inner


def clean_parser(message: str) -> str:
    """Return the explanation in a message of the ONNX parser, without the condition that it has checked."""
    text = clean(_INVALID_NODE.sub("", _DRIVER.sub("", message).strip()))
    return _CONDITION.sub("", _CONDITION.sub("", text)).strip().strip('"')


def reason(errors: Sequence[str], otherwise: str) -> str:
    """Why something failed: the first error with a reason."""
    telling = [error for error in errors if not _BUILDER_GAVE_UP.search(error)]
    return clean((telling or list(errors) or [otherwise])[0])


def is_out_of_memory(errors: Iterable[str]) -> bool:
    """Whether memory, of the GPU or the host, was the reason."""
    return any(_MEMORY.search(error) for error in errors)


def signature(message: str, names: Iterable[str]) -> str:
    """A message with numbers, addresses, paths, and the names of the model's nodes and tensors masked.

    The same failure of a smaller model has the same signature, although it names another region of nodes.
    """
    if is_out_of_memory([message]):
        return OUT_OF_MEMORY
    text = mask_names(_UNNAMED_LAYER.sub("#", _IN_BRACES.sub("#", message)), names)
    while (shorter := _FUSED.sub("#", text)) != text:
        text = shorter
    return mask_values(text)


class Log:
    """The logger of TensorRT: prints all messages, and keeps errors.

    Attributes:
        errors: The last ones.
        warnings: The last ones; that CUDA does not start is one of them.
    """

    def __init__(self) -> None:
        """Nothing is kept yet."""
        self.errors: deque[str] = deque(maxlen=50)
        self.warnings: deque[str] = deque(maxlen=5)

    def failure(self, kind: type[Failure], otherwise: str, names: Iterable[str] = ()) -> Failure:
        """Return what was logged since the errors were last cleared as an error to raise, and clear them.

        Args:
            kind: The class of the error.
            otherwise: The reason if nothing was logged.
            names: The names of the model's nodes and tensors.
        """
        errors = list(self.errors)
        self.errors.clear()
        message = reason(errors, otherwise)
        if is_out_of_memory(errors):
            message = f"{OUT_OF_MEMORY}: {message}"
        # A failed kernel fails every later call of the process too; lack of memory does not.
        poisoned = any(_POISON.search(error) and not _MEMORY.search(error) for error in errors)
        return kind(message, signature=signature(message, names), poisoned=poisoned)

    def make_logger(self, trt: Any) -> Any:
        """Return a logger of TensorRT's, which keeps the first one of a process for good."""
        # Looked up now: TensorRT still logs at the interpreter's end, when its module has been emptied.
        base, bad = trt.ILogger, (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR)
        doubtful, much, log = trt.ILogger.WARNING, trt.ILogger.VERBOSE, self

        class Logger(base):  # type: ignore[misc, valid-type]  # TensorRT ships no types
            def __init__(self) -> None:
                base.__init__(self)

            def log(self, severity: Any, message: str) -> None:
                if severity == much:
                    return
                if severity in bad:
                    log.errors.append(message)
                elif severity == doubtful:
                    log.warnings.append(message)
                print(f"TensorRT {severity.name}: {message}", flush=True)

        return Logger()
