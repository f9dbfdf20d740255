"""The user as the check."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bisect_trt.probing.outcome import Ending, Outcome
from bisect_trt.probing.workers.process import Cancel
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
        if files.more:
            print(_samples(files))
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


def _samples(files: CandidateFiles) -> str:
    """Which input samples one answer is about, and how to look at each."""
    fed = [each.inputs for each in files.samples()]
    made = [each.golden for each in files.samples()]
    return (
        f"Its {len(fed)} input samples are {_first_to_last(fed)} in {files.folder}, and what should come out of each "
        f"{_first_to_last(made)}. It is bad if it is bad on any of them.\n"
        f"To look at one: bisect-trt inspect data {shlex.quote(str(fed[1]))} --show values"
    )


def _first_to_last(paths: Sequence[Path]) -> str:
    names = [path.name for path in paths]
    return " and ".join(names) if len(names) == 2 else f"{names[0]}, {names[1]} to {names[-1]}"
