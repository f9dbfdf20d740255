"""Ctrl-C: once ends a run cleanly, twice at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType

from bisect_trt.errors import ExitStatus


class Interrupts:
    """A context manager within which a second Ctrl-C does not wait for what the first one set off.

    The process then ends without a further word of Python; what it has started is ended by the guard
    (``probing/workers/guard.py``), as after ``kill -9``.
    """

    def __init__(self, first: Callable[[], None], second: Callable[[], None]) -> None:
        """Each is called in the signal handler, and so must wait for nobody."""
        self._first = first
        self._second = second
        self._interrupted = False
        self._ours = False

    def __enter__(self) -> Interrupts:
        # A shell that starts a command in the background has it ignore Ctrl-C, which is left so.
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._handle)
            self._ours = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - what signal handlers are given
        if self._interrupted:
            try:
                self._second()
            finally:
                os._exit(ExitStatus.INTERRUPTED)
        self._interrupted = True
        self._first()
        raise KeyboardInterrupt
