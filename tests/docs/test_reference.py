"""docs/reference.md is what the command line's declarations say now."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bisect_trt.commands.table import COMMANDS
from bisect_trt.options.spec import entries

DOCS = Path(__file__).parents[2] / "docs"


def test_the_reference_is_up_to_date_and_has_every_command_and_option() -> None:
    command = [sys.executable, str(DOCS / "reference.py")]
    page = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert (DOCS / "reference.md").read_text(encoding="utf-8") == page, "run `make docs`"
    for name, known in COMMANDS.items():
        assert f"\n## {name}\n" in page
        for entry in (
            entry for group in known.groups for entry in entries(group) if not entry.positional
        ):
            assert all(flag.removeprefix(" /") in page for flag in entry.flags), (name, entry.name)
