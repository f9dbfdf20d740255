"""``python -m bisect_trt``, and what the installed command runs.

The first workers are forks of this process, so that NumPy and ONNX are imported once.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import io
import os
import sys

from bisect_trt.cli.interrupts import interrupts

# See bisect_trt/__init__.py.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from _typeshed import ReadableBuffer

_NEEDS_WORKER = {
    "diagnose",
    "reduce",
    "precision",
    "cause",
    "workaround",
    "layerwise",
    "run",
    "resume",
}
_ONE_AT_A_TIME = {"layerwise", "run"}
"""Commands without a search; the probes of a search run side by side."""
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
_GONE = (errno.EPIPE, errno.EIO, errno.EBADF)
"""The reader has left, the terminal has hung up, or there never was a stream."""


class Output(io.FileIO):
    """Standard output or error.

    When it cannot be written any more, the rest is dropped, and the command goes on.

    Attributes:
        lost: The error, once there was one.
    """

    lost: OSError | None = None

    def write(self, data: ReadableBuffer, /) -> int:
        """Write bytes, or drop them."""
        try:
            return super().write(data)
        except OSError as error:
            self._drop(error)
            return memoryview(data).nbytes

    def _drop(self, error: OSError) -> None:
        self.lost = error
        # What other libraries and child processes write is dropped too.
        with contextlib.suppress(OSError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
        if self.fileno() == 1:
            kind = "warning" if error.errno in _GONE else "error"
            with contextlib.suppress(OSError):
                os.write(2, f"{kind}: the output cannot be written: {error.strerror}.\n".encode())


def main() -> NoReturn:
    """Run the command line."""
    interrupts.install()
    output = _open_streams()
    try:
        # Nothing that is imported is garbage.
        gc.disable()
        from bisect_trt.cli.parser import parse  # noqa: PLC0415 - see above

        argv = tuple(sys.argv[1:])
        name, values = parse(argv)
        # More threads spin for a while, and hinder a fork.
        os.putenv(_BLAS_THREADS, os.environ.get(_BLAS_THREADS, "1"))
        from bisect_trt.cli.app import perform  # noqa: PLC0415 - it imports NumPy and ONNX; --help does without

        if _BLAS_THREADS not in os.environ:
            os.unsetenv(_BLAS_THREADS)
        if name in _NEEDS_WORKER:
            from bisect_trt.commands.table import COMMANDS  # noqa: PLC0415 - as above
            from bisect_trt.worker import worker  # noqa: PLC0415 - as above

            # Too few file descriptors: the command says so.
            with contextlib.suppress(OSError):
                alone = name in _ONE_AT_A_TIME or values.get("workers") == 1
                worker.fork_spare(1 if alone else 2)
                COMMANDS[name].load()
        gc.freeze()
        gc.enable()
        perform(name, values, argv)
    except SystemExit as ending:
        # Everything is written and closed by now; taking NumPy and ONNX apart would only make the
        # user wait.
        _end(ending.code if isinstance(ending.code, int) else 1, output)
    raise AssertionError("the command line ends the process")


def _open_streams() -> Output:
    """Open the standard streams, and return the output; streams that are closed are opened on the null device.

    Names of files and tensors are written with escapes where the terminal's encoding does not have
    them.
    """
    closed = []
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number: a file of the run must not get it.
            os.open(os.devnull, os.O_RDWR)
            closed.append(number)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - a descriptor, for the whole process
    encoding = sys.stdout.encoding if sys.stdout else "utf-8"
    output, error = (Output(number, "w", closefd=False) for number in (1, 2))
    for name, raw in (("stdout", output), ("stderr", error)):
        buffered = io.BufferedWriter(raw)
        text = io.TextIOWrapper(
            buffered,
            encoding,
            errors="backslashreplace",
            line_buffering=name == "stderr" or raw.isatty(),
        )
        setattr(sys, name, text)
    if 1 in closed:
        os.write(2, b"warning: standard output is closed, so nothing is printed.\n")
    return output


def _end(status: int, output: Output) -> NoReturn:
    spare = sys.modules.get("bisect_trt.worker.worker")
    if spare is not None:
        spare.end_spare()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if status == 0 and output.lost is not None and output.lost.errno not in _GONE:
        # The answer was not written.
        status = 3
    os._exit(status)


if __name__ == "__main__":
    main()
