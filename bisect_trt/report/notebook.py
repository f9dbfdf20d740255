"""Progress in a notebook: one cell's output that is updated; IPython is asked only where it runs already."""

from __future__ import annotations

import html
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

from bisect_trt.probe.journal import Record
from bisect_trt.report.console import QuietConsole
from bisect_trt.report.text import clean

Show = Callable[[dict[str, str], bool], None]
"""Shows one thing in several forms, by MIME type; the second time and later it takes the place of the first."""
_EVERY_S = 0.2
"""A search makes hundreds of probes a second at times, and each message goes through the kernel to a browser."""


def notebook() -> Show | None:
    """How to show something in the notebook that this runs in; ``None`` where it is none."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None or not hasattr(shell, "kernel"):  # a terminal's shell has none
        return None
    from IPython.display import display, update_display  # noqa: PLC0415 - only where it is there

    name = f"bisect-trt-{uuid.uuid4().hex}"

    def show(bundle: dict[str, str], again: bool) -> None:
        (update_display if again else display)(bundle, raw=True, display_id=name)

    return show


class NotebookConsole(QuietConsole):
    """As a quiet one, and shows the step, the last probe and how many there were."""

    def __init__(self, command: str, show: Show) -> None:
        """Nothing is shown until something happens.

        Args:
            command: What runs.
            show: See :func:`notebook`.
        """
        super().__init__()
        self._command = command
        self._show = show
        self._began = time.monotonic()
        self._last = 0.0
        self._shown = False
        self._step, self._probe, self._count = "", "", 0

    def step(self, text: str) -> None:
        """A step of the flow chart."""
        super().step(text)
        self._step = text
        self._update(at_once=True)

    def probed(self, record: Record) -> None:
        """A probe has ended."""
        super().probed(record)
        self._count = record.number
        self._probe = f"{record.verdict.value} {record.title}"
        self._update()

    def close(self) -> None:
        """The last word: how many probes there were, and how long it took."""
        super().close()
        self._step, self._probe = "", ""
        self._update(at_once=True, over=True)

    def _update(self, *, at_once: bool = False, over: bool = False) -> None:
        now = time.monotonic()
        if not at_once and now - self._last < _EVERY_S:
            return
        self._last = now
        probes = f"{self._count} probe{'' if self._count == 1 else 's'}, " if self._count else ""
        state = "ended" if over else "runs"
        head = f"bisect-trt {self._command} {state}: {probes}{now - self._began:.1f} s"
        lines = [clean(line) for line in (head, self._step, self._probe) if line]
        rows = "".join(f"<div>{html.escape(line)}</div>" for line in lines)
        shown = f'<div style="font-family:monospace;white-space:pre-wrap">{rows}</div>'
        self._show({"text/plain": "\n".join(lines), "text/html": shown}, self._shown)
        self._shown = True
