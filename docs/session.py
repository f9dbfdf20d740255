"""The picture of the README, from a real session, as SVG: ``python docs/session.py`` prints it.

The session is that of ``make demo``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

WIDTH = 88
COMMANDS = (
    "bisect-trt diagnose model.onnx --onnxrt --fp16 --zip",
    "python model-reproducer/reproduce.py",
)
MAKE = Path(__file__).parents[1] / "examples" / "vit_overflow" / "make_model.py"


def session() -> Iterator[str]:
    """What is typed, and the lines that come out, with the terminal's own colours."""
    environment = {
        **os.environ,
        "FORCE_COLOR": "1",
        "COLUMNS": str(WIDTH),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, str(MAKE), "-o", "."], cwd=folder, check=True, capture_output=True
        )
        for command in COMMANDS:
            yield f"\x1b[1;36m$\x1b[0m \x1b[1m{command}\x1b[0m"
            done = subprocess.run(  # the reproducer ends with 1: the failure is there
                command.split(),
                cwd=folder,
                env=environment,
                check=False,
                stdout=subprocess.PIPE,
                text=True,
            )
            yield from done.stdout.splitlines()


def picture(lines: Iterable[str]) -> str:
    """The lines in a terminal's window, as SVG; no line wraps, and no font is fetched."""
    console = Console(record=True, width=WIDTH, file=StringIO(), force_terminal=True)
    for line in lines:
        text = Text.from_ansi(line)
        text.truncate(WIDTH, overflow="ellipsis")
        console.print(text, no_wrap=True, crop=True)
    svg = console.export_svg(title="bisect-trt", theme=MONOKAI, unique_id="session")
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


if __name__ == "__main__":
    sys.stdout.write(picture(session()))
