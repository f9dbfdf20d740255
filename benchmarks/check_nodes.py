"""The check command of every benchmark: fails while all the named tensors are still produced by some node.

    python check_nodes.py MODEL TENSOR...

Exit status: 1 when each tensor is an output of some node of MODEL, 0 when one is not, 2 when MODEL
cannot be read.

Environment:
    BENCH_COUNT: A file to append one line to: ``status start end cpu``, times in seconds, the first
    two on the system's boot
        clock, so that the checks a tool runs can be counted, timed, and told from the time between
        them, whatever the tool.
    BENCH_SECONDS: Last at least this long, counted from the start of the process. Stands for a
    slower check.

It imports as little as it can, since its own time is what every tool pays for each question.
"""

from __future__ import annotations

import os
import sys
import time

import onnx


def now() -> float:
    """Seconds on a clock that all processes of this machine share."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def process_start() -> float:
    """When this process was started, in seconds on the clock of :func:`now`.

    The kernel tells it to 10 ms (proc(5), ``starttime``). The CPU time used so far, taken off the
    present, is finer but puts the start too late by any time spent waiting, so it only chooses
    within those 10 ms.
    """
    estimate = now() - time.process_time()
    tick = 1 / os.sysconf("SC_CLK_TCK")
    with open("/proc/self/stat", encoding="utf-8") as stat:  # noqa: PTH123 - pathlib takes 5 ms to import
        earliest = int(stat.read().rpartition(")")[2].split()[19]) * tick
    return min(max(estimate, earliest), earliest + tick)


def check(model: str, tensors: list[str]) -> int:
    """Exit status for one model, as the module's docstring gives it."""
    try:
        graph = onnx.load(model, load_external_data=False).graph
    except (
        Exception
    ) as error:  # an unreadable model, of whatever kind, must not look like the failure
        print(f"check_nodes.py: cannot read {model}: {error}", file=sys.stderr)
        return 2
    produced = {output for node in graph.node for output in node.output}
    missing = [tensor for tensor in tensors if tensor not in produced]
    print(f"missing: {missing}" if missing else "FAIL: every required tensor is produced")
    return 0 if missing else 1


def main() -> int:
    """Checks, waits out ``BENCH_SECONDS``, records itself in ``BENCH_COUNT``."""
    start = process_start()
    status = check(sys.argv[1], sys.argv[2:])
    time.sleep(max(0.0, start + float(os.environ.get("BENCH_SECONDS", "0")) - now()))
    count = os.environ.get("BENCH_COUNT")
    if count:
        # One write to a file opened for appending: lines of checks that run at the same time do not
        # mix.
        file = os.open(count, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(file, f"{status} {start:.6f} {now():.6f} {time.process_time():.6f}\n".encode())
        os.close(file)
    return status


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the interpreter's shutdown is neither measured nor needed
