"""The first part of every ``reproduce.py``, which needs nothing that is not Python's own.

The model runs in another process, so that a crash does not end the script: the exit status is 1
while the model still fails, 0 once it does not, and 2, with a sentence, for anything else. This
process imports neither NumPy nor the runtime.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

THERE = 1
GONE = 0
UNKNOWN = 2
INSIDE = "--inside"
"""Marks the process that runs the model."""
INSIDE_STATUS = 40
"""Added to the exit status of that process: Python itself has no use for 40 to 42."""


def run_outside(case: Mapping[str, Any]) -> int:
    """Run the script in another process, and return its exit status.

    Args:
        case: ``answer`` and ``target`` in words, the ``failure``'s signature, and how long to wait
            (``timeout``) where that is the failure.
    """
    say(f"{case['target']}: {case['answer']}")
    waits = case["timeout"] if case["failure"] == "time-out" else None
    try:
        done = subprocess.run([sys.executable, __file__, INSIDE], timeout=waits, check=False)
    except subprocess.TimeoutExpired:
        say(f"TIME-OUT: no answer after {waits} seconds")
        return THERE
    if done.returncode - INSIDE_STATUS in (THERE, GONE, UNKNOWN):
        return done.returncode - INSIDE_STATUS
    try:
        ending = f"signal {signal.Signals(-done.returncode).name}"
    except ValueError:
        ending = f"signal exit status {done.returncode}"
    if ending == case["failure"]:
        say(f"CRASHED: {ending}")
        return THERE
    ending = ending.replace("signal exit", "exit")
    say(f"inconclusive: the process that runs the model ended otherwise ({ending})")
    return UNKNOWN


def say(text: str) -> None:
    """Print a line; names and messages cannot move the cursor or pretend to be other lines."""
    print(
        "".join(
            character if character.isprintable() else ascii(character)[1:-1] for character in text
        ),
        flush=True,
    )
