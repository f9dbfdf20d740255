"""TensorRT's error messages, made readable and comparable."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from bisect_trt.targets.messages import mask_names, mask_values

_PLACE = re.compile(r"^(?:\d+: )?(?:\[[\w./]+(?:::[\w~<>:, ]+)?(?:::|:)\d+\]\s*|\w+(?:::\w+)+: (?=Error Code))?")
"""``[optimizer.cpp::computeCosts::3869]``: where in its source; its error's number may stand before it. Since 10 it is the method
that was called (``IBuilder::buildSerializedNetwork: ``)."""
_CODE = re.compile(r"^Error Code \d+: (?P<kind>[\w ]+?)? ?\((?P<text>.*)\)$", re.DOTALL)
"""``Error Code 10: Internal Error (text)``."""
_SOURCE = re.compile(r"\s*In \S+ at \S+:\d+$")
"""What comes after the text since 10: where in its source."""
_SAYS_NOTHING = "no further information"
_BUILDER_GAVE_UP = re.compile(r"Assertion engine != nullptr failed|Builder failed", re.IGNORECASE)
"""What follows every failed build and says nothing of why."""
_MEMORY = re.compile(r"out of memory|OutOfMemory|could not be allocated|insufficient memory", re.IGNORECASE)
_POISON = re.compile(r"Cuda Runtime|cuda(?:Error|Stream|Event|Launch)|illegal|misaligned|launch failure", re.IGNORECASE)
OUT_OF_MEMORY = "out of memory"

_IN_BRACES = re.compile(r"\{[^{}]*\}")
_UNNAMED = re.compile(r"\(Unnamed Layer\* \d+\) \[[^\]]*\]")
_FUSED = re.compile(r"PWN\(#(?:, #)*\)|#(?: \+ #)+|#(?:\|\|#)+|#(?:, #)+")
"""Several layers that became one, their names masked."""


def clean(message: str) -> str:
    """One message without its place in TensorRT's source and its number."""
    text = _PLACE.sub("", message.strip())
    match = _CODE.match(text)
    if match is None:
        return text.strip()
    inner = _SOURCE.sub("", match["text"]).strip()
    return match["kind"] if match["kind"] and inner in ("", _SAYS_NOTHING) else inner


def reason(errors: Sequence[str], otherwise: str) -> str:
    """Why something failed: the first error that says more than that it did."""
    telling = [error for error in errors if not _BUILDER_GAVE_UP.search(error)]
    return clean((telling or list(errors) or [otherwise])[0])


def is_out_of_memory(errors: Iterable[str]) -> bool:
    """Whether memory, of the GPU or the host, was the reason."""
    return any(_MEMORY.search(error) for error in errors)


def is_poisoning(errors: Iterable[str]) -> bool:
    """Whether CUDA itself failed, so that every later call of the process fails too; no memory left is no such failure."""
    return any(_POISON.search(error) and not _MEMORY.search(error) for error in errors)


def signature(message: str, names: Iterable[str]) -> str:
    """A message with numbers, addresses, paths, and the names of the model's nodes and tensors masked.

    The same failure of a smaller model is then the same signature, although it names another region of nodes.
    """
    if is_out_of_memory([message]):
        return OUT_OF_MEMORY
    text = mask_names(_UNNAMED.sub("#", _IN_BRACES.sub("#", message)), names)
    while (shorter := _FUSED.sub("#", text)) != text:
        text = shorter
    return mask_values(text)
