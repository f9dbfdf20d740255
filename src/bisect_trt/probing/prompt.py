"""The user as the check."""

from __future__ import annotations

import time
from dataclasses import dataclass

from bisect_trt.probing.outcome import Ending, Outcome
from bisect_trt.probing.process import Cancel
from bisect_trt.probing.workspace import CandidateFiles


class Undo(Exception):  # noqa: N818 - a request, not an error
    """The user takes the last answer back."""


ANSWERS = ("good", "bad", "skip", "undo", "quit")


@dataclass(frozen=True)
class PromptCheck:
    """Asks at the terminal: good, bad, skip, undo or quit; first letters do."""

    parallel: bool = False

    def run(self, files: CandidateFiles, cancel: Cancel | None = None) -> Outcome:  # noqa: ARG002 - nothing to cancel
        """Ask until the answer is one of the five.

        Raises:
            Undo: The user takes the last answer back.
            KeyboardInterrupt: The user quits, or closes the input.
        """
        began = time.monotonic()
        while True:
            try:
                answer = input(f"Is {files.model} good or bad? [{'/'.join(ANSWERS)}] ").strip().lower()
            except EOFError:
                raise KeyboardInterrupt from None
            seconds = time.monotonic() - began
            if answer in ("good", "g"):
                return Outcome(Ending.PASSED, "good", "you said good", seconds)
            if answer in ("bad", "b"):
                return Outcome(Ending.FAILED, "bad", "you said bad", seconds)
            if answer in ("skip", "s"):
                return Outcome(Ending.SKIPPED, "skip", "you said skip", seconds)
            if answer in ("undo", "u"):
                raise Undo
            if answer in ("quit", "q"):
                raise KeyboardInterrupt
            print(f"'{answer}' is none of {', '.join(ANSWERS)} (or their first letters).")
