"""A check command of the corpus: says by the nodes of a candidate how it ends.

``check.py MODEL RULE...``, the first rule that applies; each is ``NODE[+NODE...]=ENDING``, where
all of these nodes have to be there, and the ending is an exit status, ``signal``, ``hang``,
``luck3`` (status 1 in 3 of 10 runs) or a text that is printed with status 1. Without one that
applies, 0.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Sequence

import onnx

HANGS = -signal.SIGKILL
_luck = random.Random(0)


def begin(seed: int) -> None:
    """Start the chances over."""
    _luck.seed(seed)


def judge(words: Sequence[str]) -> tuple[int, str]:
    """The exit status, or minus a signal's number, and what is printed."""
    nodes = {node.name for node in onnx.load(words[0]).graph.node}
    for rule in words[1:]:
        wanted, _, ending = rule.partition("=")
        if not nodes.issuperset(filter(None, wanted.split("+"))):
            continue
        if ending == "signal":
            return -signal.SIGSEGV, ""
        if ending == "hang":
            return HANGS, ""
        if ending.startswith("luck"):
            return int(_luck.random() < int(ending[4:]) / 10), ""
        return (int(ending), "") if ending.isdigit() else (1, f"{ending}\n")
    return 0, ""


def main() -> None:
    """Do in a process of its own what it says."""
    code, said = judge(sys.argv[1:])
    sys.stdout.write(said)
    sys.stdout.flush()
    if code == HANGS:
        time.sleep(3600)
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main()
