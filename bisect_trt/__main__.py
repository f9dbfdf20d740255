"""``python -m bisect_trt``, and what the installed command runs.

Imports little at first: the worker process takes as long to start as the driver, so it is started before the driver has
imported what it needs itself.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from typing import NoReturn

_NEEDS_WORKER = {"diagnose", "reduce", "precision", "layerwise", "run", "resume"}


def main() -> NoReturn:
    """Run the command line."""
    words = set(sys.argv[1:])
    try:
        if not words & {"-h", "--help"}:
            _prepare(words)
        gc.disable()  # nothing that is imported is garbage
        from bisect_trt.cli.parser import escape_output, parse  # noqa: PLC0415 - see above

        escape_output()
        argv = tuple(sys.argv[1:])
        name, values = parse(argv)
        from bisect_trt.cli.app import perform  # noqa: PLC0415 - it imports NumPy and ONNX; --help does without

        gc.freeze()
        gc.enable()
        perform(name, values, argv)
    except SystemExit as ending:
        # Everything is written and closed by now; taking NumPy and ONNX apart would only make the user wait.
        _end(ending.code if isinstance(ending.code, int) else 1)
    except KeyboardInterrupt:  # before the command began or after its end; in between it sees to that itself
        _end(130)
    except OSError as error:  # a full disk or a closed pipe behind stdout; files of a run have their own messages
        with contextlib.suppress(OSError):
            sys.stderr.write(f"error: the output cannot be written: {error.strerror}.\n")
        _end(3)
    raise AssertionError("the command line ends the process")


def _prepare(words: set[str]) -> None:
    if words & _NEEDS_WORKER:
        from bisect_trt.worker import worker  # noqa: PLC0415 - a fifth of what --help takes

        worker.start_spare(compares="--check" not in words)


def _end(status: int) -> NoReturn:
    spare = sys.modules.get("bisect_trt.worker.worker")
    if spare is not None:
        spare.end_spare()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
