"""Ctrl-C, SIGTERM and SIGHUP: the first stops the work of a command, and a second one does not wait for that.

Imports nothing of the package, because ``__main__`` installs the handlers before it imports
anything else.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STATUS = 130
_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """The signals that ask this process to end.

    A signal that arrives while the command starts is kept until its work begins, which then ends at
    once: a command without its imported modules cannot write its JSON. A signal that arrives when
    the work has ended does not stop the writing of its result. After a second signal the process
    ends without a further word of Python; what it has started is ended by the guard
    (``worker/guard.py``), as after ``kill -9``.
    """

    def __init__(self) -> None:
        """No handler is installed yet."""
        self._seen: int | None = None
        self._working = False
        self._first: Callable[[], None] = lambda: None
        self._second: Callable[[], object] = lambda: os.write(2, b"stopped at once\n")

    def install(self) -> None:
        """Handle the signals from now on to the end of the process."""
        # A shell that starts a command in the background has it ignore Ctrl-C, and nohup a hang-up,
        # which is left so.
        for number in _NUMBERS:
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                signal.signal(number, self._handle)

    @contextmanager
    def stop_work(self, first: Callable[[], None], second: Callable[[], object]) -> Iterator[None]:
        """Raise ``KeyboardInterrupt`` in the body at the first signal.

        Args:
            first: Called at the first signal, in the signal handler, so it must not wait for locks.
            second: Called at a second one, also after the body, before the process ends.

        Raises:
            KeyboardInterrupt: A signal arrived in the body or before it.
        """
        self._first = first
        self._second = second
        try:
            self._working = True
            if self._seen is not None:
                self._first()
                raise KeyboardInterrupt
            yield
        finally:
            self._working = False

    @property
    def reason(self) -> str:
        """Why the work was stopped."""
        by = "the user" if self._seen in (None, signal.SIGINT) else signal.Signals(self._seen).name
        return f"stopped by {by}"

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - what signal handlers are given
        if self._seen is not None:
            try:
                self._second()
            finally:
                # No further word of Python: a lock that the first signal interrupted may be held.
                os._exit(STATUS)
        # Before anything that takes time, so that another signal counts as the second.
        self._seen = number
        if self._working:
            self._first()
            raise KeyboardInterrupt


interrupts = Interrupts()
"""The signals of this process."""
