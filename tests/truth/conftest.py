"""The table of what the corpus showed: on the terminal, and as ``truth.md`` in the working directory."""

from __future__ import annotations

from pathlib import Path

import pytest

_COLUMNS = (
    "bug",
    "shown by",
    "in",
    "release",
    "exact",
    "minimal",
    "probes",
    "script, failing",
    "script, fixed",
    "boundaries",
)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print and write the table."""
    rows = []
    for reports in terminalreporter.stats.values():
        for report in reports:
            properties = dict(getattr(report, "user_properties", ()))
            if "bug" in properties and report.when == "call":
                rows.append([str(properties.get(column, "-")) for column in _COLUMNS])
    if rows:
        lines = [" | ".join(row) for row in [_COLUMNS, ["---"] * len(_COLUMNS), *sorted(rows)]]
        table = "\n".join(f"| {line} |" for line in lines)
        Path("truth.md").write_text(table + "\n", encoding="utf-8")
        terminalreporter.write_line(table)
