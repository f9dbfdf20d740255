"""docs/reference.md is what the command line's declarations say now."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bisect_trt.cli.parser import make_command
from bisect_trt.cli.reference import reference
from bisect_trt.workflows.commands import COMMANDS

PAGE = Path(__file__).parents[2] / "docs" / "reference.md"


def test_the_reference_is_up_to_date() -> None:
    command = [sys.executable, "-m", "bisect_trt.cli.reference"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert PAGE.read_text(encoding="utf-8") == done.stdout, "run `make docs`"


def test_the_reference_has_every_command_and_long_option() -> None:
    page = reference()
    for name in COMMANDS:
        section = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        for parameter in make_command(name).params:
            for flag in (*parameter.opts, *parameter.secondary_opts):
                if flag.startswith("--") and flag != "--help":
                    assert flag in section, (name, flag)
