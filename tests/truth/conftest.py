"""Tables of results: on the terminal, and as ``truth.md`` and ``networks.md`` in the working directory."""

from __future__ import annotations

from pathlib import Path

import pytest

_BUGS = (
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
_NETWORKS = ("network", "command", "bare script", "bisect-trt", "s", "MB")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print and write the tables."""
    for file, columns in (("truth.md", _BUGS), ("networks.md", _NETWORKS)):
        rows = []
        for reports in terminalreporter.stats.values():
            for report in reports:
                properties = dict(getattr(report, "user_properties", ()))
                if columns[0] in properties and report.when == "call":
                    rows.append([str(properties.get(column, "-")) for column in columns])
        if rows:
            lines = [" | ".join(row) for row in [columns, ["---"] * len(columns), *sorted(rows)]]
            table = "\n".join(f"| {line} |" for line in lines)
            Path(file).write_text(table + "\n", encoding="utf-8")
            terminalreporter.write_line(table)
