"""How a runtime fails, and its messages: cleaned for people, masked so that the same failure of another model is equal."""

from __future__ import annotations

import re


class RuntimeFailure(Exception):  # noqa: N818 - a finding about the model, not an error of ours
    """The runtime does not run the model.

    Attributes:
        message: Why, in the runtime's words, on one line.
        signature: The same with numbers, addresses and paths masked, so that the same failure of another model is equal.
        poisoned: Whether whatever else this process runs would fail too.
    """

    def __init__(self, message: str, *, signature: str | None = None, poisoned: bool = False) -> None:
        """``message`` as the runtime gave it; ``signature`` where the runtime knows more of what to mask."""
        super().__init__(message)
        self.message = clean_message(message)
        self.signature = mask_message(self.message) if signature is None else signature
        self.poisoned = poisoned


class BuildError(RuntimeFailure):
    """It refuses the model."""


class RunError(RuntimeFailure):
    """It takes the model and fails while running it."""


_ORT_PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")
# A file and line of its source, mostly followed by the C++ signature of the function there.
_SOURCE_PLACE = re.compile(
    r"\S+\.(?:h|cc|cpp|cu|cuh):\d+ "
    r"(?:[^()\n]{0,200}?::[^()\s]+\((?:[^()]|\([^()]*\))*\)(?: const)?(?: \[with [^\]]*\])? )?"
)
_RUNNING = re.compile(r"Non-zero status code returned while running (\w+) node\. Name:('[^']*') Status Message: ")
# After it come all the kernels that do not fit.
_CANDIDATES = re.compile(r"\.? Encountered following errors: .*", re.DOTALL)
_PATH_OR_ADDRESS = re.compile(r"0x[0-9a-fA-F]+|(?<![\w>)])[\w.+-]*/[^\s\"',:;()]+")
_NUMBERS = re.compile(r"\d+(?:\s*[,x]\s*-?\d+)*")


def clean_message(message: str) -> str:
    """A runtime's message on one line, without what says nothing to a user: codes, and places in its source."""
    text = _CANDIDATES.sub("", _ORT_PREFIX.sub("", message.strip()))
    text = _SOURCE_PLACE.sub("", _RUNNING.sub(r"\1 node \2: ", text))
    return re.sub(r"\s+", " ", text).strip().rstrip(".")


def mask_message(message: str) -> str:
    """A message with addresses, paths and numbers masked; a list of numbers, such as a shape, counts as one."""
    return _NUMBERS.sub("#", _PATH_OR_ADDRESS.sub("#", message))
