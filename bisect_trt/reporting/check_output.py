"""What a check command printed, shown after each probe."""

from __future__ import annotations

from bisect_trt.probing.journal import Record
from bisect_trt.probing.workspace import Workspace
from bisect_trt.reporting.console import Console
from bisect_trt.search.verdict import Verdict


class CheckOutput:
    """Shows all that the check printed, below the line of its probe."""

    def __init__(self, workspace: Workspace, console: Console, *, hide_failing: bool) -> None:
        """Nothing is shown yet.

        Args:
            workspace: Where the output of checks lies.
            console: Who is shown it.
            hide_failing: Whether what failing candidates print is left out.
        """
        self._workspace = workspace
        self._console = console
        self._hide_failing = hide_failing

    def probed(self, record: Record) -> None:
        """Show what the check printed in this probe."""
        log = self._workspace.files(record.key).log
        if (record.verdict is Verdict.FAIL and self._hide_failing) or not log.exists():
            return
        for line in log.read_text(errors="replace").splitlines():
            self._console.say(f"    | {line}")
