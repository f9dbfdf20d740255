"""The entry point: reads the words, and only then imports what does the work."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from bisect_trt.cli.arguments import invocation, refuse_foreign, respell, rewrite
from bisect_trt.cli.parser import parse, several
from bisect_trt.errors import BisectError
from bisect_trt.workflows.commands import COMMANDS


def main(began: float | None = None) -> NoReturn:
    """Run the command line; ``began`` is when the process did, on the monotonic clock."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names of files and tensors need not be text that the terminal has
            stream.reconfigure(errors="backslashreplace")
    invocation.argv, invocation.resumed, invocation.folder, invocation.began = tuple(sys.argv[1:]), None, None, began
    run_command_line(invocation.argv)


def run_command_line(argv: Sequence[str]) -> NoReturn:
    """Run a command line, the words after the program's name, and end the process."""
    named = next((word for word in argv if word in COMMANDS), None)
    words = respell(argv)
    try:
        refuse_foreign(words)
        parse(words if named is None else rewrite(words, several(named)), _perform)
    except BisectError as error:
        from bisect_trt.cli.app import fail  # noqa: PLC0415 - it takes NumPy and ONNX, and a command line is read without

        fail(error)


def _perform(name: str, values: dict[str, Any]) -> NoReturn:
    from bisect_trt.cli.app import perform  # noqa: PLC0415 - as above

    perform(name, values)
