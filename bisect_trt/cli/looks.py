"""``inspect`` and ``doctor``, and what looks at earlier runs: ``log``, ``report`` and ``resume``."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path

from bisect_trt.cli.main import invocation, run_command_line
from bisect_trt.commands.binding import RUN_FILE, Binding
from bisect_trt.commands.build_choices import choices_tree, describe_choices, diff_builds
from bisect_trt.commands.doctor import doctor as look
from bisect_trt.commands.from_torch import SUFFIX, export_file
from bisect_trt.commands.inspection import (
    FileKind,
    data_tree,
    describe_data,
    describe_engine,
    describe_model,
    engine_tree,
    guess_kind,
    model_tree,
)
from bisect_trt.commands.log import show_probe, show_run, show_times
from bisect_trt.commands.places import look_there, open_places
from bisect_trt.commands.view import view as show
from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.onnxlib.save import check_output
from bisect_trt.options.choices import Show
from bisect_trt.options.commands import Diff, Inspect, Log, Report, Resume, View
from bisect_trt.options.shared import Places
from bisect_trt.options.spec import Params
from bisect_trt.probe.claim import claimed_run
from bisect_trt.probe.workspace import RUNS_FOLDER
from bisect_trt.report.console import Console
from bisect_trt.report.page import REPORT_FILE, write_report
from bisect_trt.report.result import RESULT_FILE, Result, read_result
from bisect_trt.report.tree import print_tree
from bisect_trt.worker.guard import scratch

_FITTING = {
    FileKind.MODEL: {Show.LAYERS, Show.ATTRS, Show.WEIGHTS},
    FileKind.ENGINE: {Show.LAYERS},  # they are always shown
    FileKind.DATA: {Show.VALUES},
    FileKind.TACTICS: {Show.LAYERS},
}


def inspect(given: Params, console: Console, result: Result) -> Result:  # noqa: ARG001 - it prints a tree
    """Show the contents of a file.

    Raises:
        UnavailableError: The file cannot be read, or is an engine and there is no TensorRT.
        UsageError: An option does not apply to a file of this kind.
    """
    own = given[Inspect]
    kind, file = read_words(own.said, own.path)
    if kind is not FileKind.MODEL and (own.external_data_dir or own.ignore_external_data):
        flag = "--external-data-dir" if own.external_data_dir else "--ignore-external-data"
        raise UsageError(f"{flag} is about models, and this is to be read as {kind.value}; leave it out.")
    if odd := set(own.show) - _FITTING[kind]:
        raise UsageError(
            f"--show {min(word.value for word in odd)} does not apply to {kind.value}; choose from: "
            f"{', '.join(sorted(word.value for word in _FITTING[kind]))}."
        )
    # A scratch folder stays behind when the command is killed, so there is one only where it is needed.
    needs_folder = kind is FileKind.ENGINE or file.suffix == SUFFIX
    with scratch() if needs_folder else nullcontext("") as folder:
        if kind is FileKind.MODEL:
            words = {word.value for word in own.show}
            model = export_file(file, Path(folder)).path if file.suffix == SUFFIX else file
            plain = describe_model(model, words, own.external_data_dir, structure=own.ignore_external_data)
            tree = model_tree(str(file), plain)
        elif kind is FileKind.DATA:
            plain = describe_data(file, own.num_items if own.show else None)
            tree = data_tree(str(file), plain)
        elif kind is FileKind.TACTICS:
            plain = describe_choices(file)
            tree = choices_tree(str(file), plain)
        else:
            plain = describe_engine(file, Path(folder))
            tree = engine_tree(str(file), plain)
    print_tree(tree)
    result.extra[kind.value] = plain
    result.status, result.minimality = "found", "1-minimal"
    return result


def read_words(said: str | None, path: Path | None) -> tuple[FileKind, Path]:
    """The kind and the file of ``KIND FILE`` or of ``FILE``.

    Raises:
        UnavailableError: The file is not there.
        UsageError: There is no such kind, or no file, or the file does not show its kind.
    """
    kinds = [kind.value for kind in FileKind]
    if said is None:
        raise UsageError("there is no file to inspect; name one.")
    if path is not None:
        if said not in kinds:
            raise UsageError(f"there is nothing to inspect as '{said}'; write {', '.join(kinds)}, or the file alone.")
        return FileKind(said), path
    if said in kinds and not Path(said).exists():
        raise UsageError(f"there is no file to inspect as {said}; name one.")
    return guess_kind(Path(said)), Path(said)


def diff(given: Params, console: Console, result: Result) -> Result:
    """Show what bad builds chose and good ones did not."""
    own = given[Diff]
    if not (own.paths or own.good or own.bad):
        raise UsageError("there are no builds to compare; name a run of `bisect-trt repeat`, or good and bad files.")
    return diff_builds(own.paths, own.good, own.bad, console, result)


def doctor(given: Params, console: Console, result: Result) -> Result:
    """Print what is here or in some places, and what is missing for which target."""
    where = open_places(given[Places], console)
    with scratch() as folder:
        if where.places:
            return look_there(Path(folder), where, console, result)
        return look(Path(folder), console, result)


def newest_run(file: str = RUN_FILE) -> Path:
    """The folder of the run that was started last from the working directory; says which it is.

    Raises:
        UnavailableError: There is none.
    """
    folders = [path.parent for path in Path(RUNS_FOLDER).glob(f"*/{file}")]
    if not folders:
        raise UnavailableError(f"no run lies under {RUNS_FOLDER} here; name the folder of the run that you mean.")
    newest = max(folders, key=lambda folder: ((folder / file).stat().st_mtime_ns, folder.name))
    Console().say(f"the newest run: {newest}")
    return newest


def log(given: Params) -> None:
    """Show every probe of a run with its reason, or one in full."""
    own = given[Log]
    run, number = own.run, own.number
    if run is not None and number is None and str(run).isdecimal() and not run.exists():
        run, number = None, int(str(run))
    folder = newest_run() if run is None else run
    if own.times:
        show_times(folder, number, Console())
    elif number is None:
        show_run(folder, Console())
    else:
        show_probe(folder, number, Console())


def report(given: Params) -> None:
    """Make a run's report.html again, from its result.json and nothing else."""
    own = given[Report]
    source = newest_run(RESULT_FILE) if own.run is None else own.run
    result = read_result(source)
    path = own.output or (source if source.is_dir() else source.parent) / REPORT_FILE
    check_output(path, overwrite=True)
    write_report(result, path)
    Console().answer(str(path))


def view(given: Params) -> None:
    """Show runs in a browser."""
    own = given[View]
    folder = newest_run() if own.run is None else own.run
    show(folder, Console(), own.port, browser=not own.no_browser)


def resume(given: Params) -> None:
    """Go on with a run that was interrupted."""
    folder = given[Resume].run or newest_run()
    binding = Binding.read(folder)
    invocation.resumed = folder.absolute()
    try:
        os.chdir(binding.cwd)
    except OSError as error:
        raise UnavailableError(f"the run was started in {binding.cwd}, which is gone: {error.strerror}.") from error
    invocation.argv = binding.argv
    with claimed_run(invocation.resumed):  # before any file of it is opened: who is refused changes nothing
        run_command_line(binding.argv)
