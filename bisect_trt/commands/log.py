"""``log``: shows the probes of a run."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from bisect_trt.errors import UnknownNameError
from bisect_trt.options.commands import LogOptions
from bisect_trt.probe.ledger import JOURNAL, Record, read_probes
from bisect_trt.probe.workspace import CANDIDATES, KEY_LENGTH
from bisect_trt.report.result import Result
from bisect_trt.report.sentences import UNFINISHED
from bisect_trt.session.binding import MOST_BYTES, Binding, newest_run
from bisect_trt.tensors.files import open_inside, read_inside

if TYPE_CHECKING:
    from bisect_trt.session.call import Call


def run(call: Call) -> Result:
    """Show every probe of a run with its reason, or one in full."""
    options = call[LogOptions]
    show = call.console.answer
    folder = options.run
    number = options.number
    # `log 3` is probe 3 of the newest run, unless there is a folder of that name.
    if folder is not None and number is None and str(folder).isdecimal() and not folder.exists():
        folder, number = None, int(str(folder))
    folder = newest_run() if folder is None else folder
    binding = Binding.read(folder)
    _, verdicts, unfinished = read_probes(folder / JOURNAL)
    if number is not None and number not in verdicts:
        raise UnknownNameError(f"{folder} has no probe {number}; it has {len(verdicts)}.")
    if number is not None:
        _show_probe(folder, verdicts[number], show)
        return call.result
    command, *words = binding.argv or ("",)
    show(
        f"bisect_trt.{command}({', '.join(words)})"
        if binding.python
        else f"bisect-trt {shlex.join(binding.argv)}"
    )
    show(f"in {binding.cwd}, version {binding.version}")
    for _, record in sorted(verdicts.items()):
        show(
            f"{record.number:>4} {record.verdict.value:10} {record.seconds:7.2f} s  {record.title}: {record.reason}"
        )
    for started in unfinished.values():
        show(f"   - unfinished             {started.title}: {UNFINISHED}")
    return call.result


def _show_probe(run: Path, record: Record, show: Callable[[str], None]) -> None:
    """Print one probe: its candidate, the command that runs it again, its output."""
    folder = run / CANDIDATES / record.key[:KEY_LENGTH]
    inside = folder / "model.onnx"
    # With a shared file of weights the model is beside the folder.
    model = inside if inside.exists() else folder.with_suffix(".onnx")
    show(f"probe {record.number}: {record.verdict.value}, {record.reason}")
    show(f"candidate: {model} ({record.title})")
    show(f"inputs: {folder / 'inputs.npz'}")
    show(f"golden: {folder / 'golden.npz'}")
    show(f"took: {record.seconds} s in {record.runs} run(s)")
    place = folder.relative_to(run)
    with suppress(FileNotFoundError):
        by_hand = read_inside(run, place / "command.txt", MOST_BYTES)
        show(f"again by hand: {by_hand.decode(errors='surrogateescape').strip()}")
    with suppress(FileNotFoundError), open_inside(run, place / "output.log", 1 << 40) as file:
        show("output:")
        for line in file.read(MOST_BYTES).decode(errors="replace").rstrip().splitlines():
            show(line.expandtabs())
