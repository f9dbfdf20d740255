"""What a run did."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from bisect_trt.commands.binding import CALL_FILE, RUN_FILE, Binding
from bisect_trt.errors import UsageError
from bisect_trt.probe.journal import JOURNAL, read_journal
from bisect_trt.probe.workspace import KEY_LENGTH
from bisect_trt.report.console import Console


def show_run(run: Path, console: Console) -> None:
    """One line a probe, in the order in which the search asked.

    Raises:
        UnavailableError: It is no run's folder.
    """
    called = (run / CALL_FILE).exists()
    binding = Binding.read(run, CALL_FILE if called else RUN_FILE)
    command, *words = binding.argv or ("",)
    console.answer(f"bisect_trt.{command}({', '.join(words)})" if called else f"bisect-trt {shlex.join(binding.argv)}")
    console.answer(f"in {binding.cwd}, version {binding.version}")
    verdicts, unfinished = read_probes(run)
    for entry in verdicts:
        console.answer(
            f"{entry['number']:>4} {entry['verdict']:10} {entry['seconds']:7.2f} s  {entry['title']}: {entry['reason']}"
        )
    for entry in unfinished:
        console.answer(f"   - unfinished             {entry['title']}: was running when the run ended")


def _probes(run: Path, number: int | None) -> list[dict[str, Any]]:
    """The probe of this number, or all of them.

    Raises:
        UnavailableError: It is no run's folder.
        UsageError: It has no such probe.
    """
    Binding.read(run, CALL_FILE if (run / CALL_FILE).exists() else RUN_FILE)
    verdicts, _ = read_probes(run)
    chosen = [entry for entry in verdicts if number in (None, entry["number"])]
    if number is not None and not chosen:
        raise UsageError(f"{run} has no probe {number}; it has {len(verdicts)}.")
    return chosen


def show_probe(run: Path, number: int, console: Console) -> None:
    """One probe: its candidate, how to run it again by hand, what it printed.

    Raises:
        UnavailableError: It is no run's folder.
        UsageError: It has no such probe.
    """
    (entry,) = _probes(run, number)
    folder = run / "candidates" / str(entry["key"])[:KEY_LENGTH]
    model = folder / "model.onnx"
    console.answer(f"probe {number}: {entry['verdict']}, {entry['reason']}")
    console.answer(f"candidate: {model if model.exists() else folder.with_suffix('.onnx')} ({entry['title']})")
    console.answer(f"inputs: {folder / 'inputs.npz'}")
    console.answer(f"golden: {folder / 'golden.npz'}")
    console.answer(f"took: {entry['seconds']} s in {entry['runs']} run(s)")
    by_hand, output = folder / "command.txt", folder / "output.log"
    if by_hand.exists():
        console.answer(f"again by hand: {by_hand.read_text().strip()}")
    if output.exists():
        console.answer("output:")
        for line in output.read_text(errors="replace").rstrip().splitlines():
            console.answer(line.expandtabs())


def read_probes(run: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The decisions, by number, and the probes that never ended."""
    verdicts: dict[int, dict[str, Any]] = {}
    unfinished: dict[str, dict[str, Any]] = {}
    journal = run / JOURNAL
    for entry in read_journal(journal) if journal.exists() else ():
        if entry["event"] == "started":
            unfinished[entry["key"]] = entry
        elif entry["event"] in ("outcome", "moot"):
            unfinished.pop(entry["key"], None)
        elif entry["event"] == "verdict":
            verdicts[entry["number"]] = entry
        elif entry["event"] == "undo":
            verdicts.pop(entry["number"], None)
    return [verdicts[number] for number in sorted(verdicts)], list(unfinished.values())
