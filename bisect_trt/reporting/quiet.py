"""For whoever uses bisect-trt as a library: nothing is printed."""

from __future__ import annotations

import logging

from bisect_trt.reporting.console import Console

logger = logging.getLogger("bisect_trt")
logger.addHandler(logging.NullHandler())  # else warnings would be printed where nobody has set logging up


class QuietConsole(Console):
    """Says everything to the logger ``bisect_trt``: warnings as warnings, the rest as information."""

    def __init__(self) -> None:
        """It keeps the story for the report all the same."""
        super().__init__(-1)

    def note(self, text: str) -> None:
        """A line of any kind but warnings."""
        if not text.startswith(("warning: ", "error: ")):
            logger.info(text)

    def answer(self, text: str) -> None:
        """The result."""
        self.story.answer(text)
        self.note(text)

    def warn(self, text: str) -> None:
        """Something the user should know."""
        logger.warning(text)

    def error(self, text: str) -> None:
        """Why the run ends."""
        logger.error(text)
