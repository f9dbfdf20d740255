"""Open the folder of a new run, or of one that goes on."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from bisect_trt.cli.invocation import invocation
from bisect_trt.errors import UnavailableError
from bisect_trt.probing.workspace import RUNS_FOLDER, Workspace
from bisect_trt.reporting.console import Console
from bisect_trt.workflows.binding import RUN_FILE, Binding


def newest_run(file: str = RUN_FILE) -> Path:
    """The folder of the run that was started last from the working directory; says which it is.

    Args:
        file: What the folder has to hold.

    Raises:
        UnavailableError: There is none.
    """
    folders = [path.parent for path in Path(RUNS_FOLDER).glob(f"*/{file}")]
    if not folders:
        raise UnavailableError(f"no run lies under {RUNS_FOLDER} here; name the folder of the run that you mean.")
    newest = max(folders, key=lambda folder: ((folder / file).stat().st_mtime_ns, folder.name))
    Console().say(f"the newest run: {newest}")
    return newest


def open_run(
    command: str,
    model: Path,
    files: Iterable[Path],
    fixed_path: Path | None = None,
    *,
    weights: Path | None = None,
) -> Workspace:
    """The folder of this run, bound to what was typed and to the files that it names.

    Args:
        command: Names the folder.
        model: The same; the run depends on it and on the files of its weights.
        files: What else it depends on.
        fixed_path: Where every candidate goes, if the check reads a fixed path.
        weights: The folder with the model's weights, if that is not its own.

    Raises:
        UsageError: The folder cannot be made, or the run that is to go on was about something else.
    """
    binding = Binding.of(invocation.argv, model, files, weights)
    if invocation.resumed is not None:
        Binding.read(invocation.resumed).check(binding, invocation.resumed)
        invocation.folder = invocation.resumed
        return Workspace(invocation.resumed, fixed_path)
    workspace = Workspace(Workspace.new_folder(command, model), fixed_path)
    binding.write(workspace.folder)
    invocation.folder = workspace.folder
    return workspace
