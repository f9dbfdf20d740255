"""``inspect`` and ``doctor``, and what looks at earlier runs: ``log``, ``report`` and ``resume``."""

from __future__ import annotations

import os
from collections.abc import Set
from contextlib import nullcontext
from pathlib import Path

from bisect_trt.cli.arguments import TOOLS, invocation
from bisect_trt.cli.main import run_command_line
from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.graph.load import load_model
from bisect_trt.graph.network import Network
from bisect_trt.graph.save import check_output
from bisect_trt.options.choices import Depth, Form, Show
from bisect_trt.options.commands import Diff, Inspect, Log, Report, Resume, View
from bisect_trt.options.given import Given
from bisect_trt.options.shared import Places
from bisect_trt.probing.claim import claimed_run
from bisect_trt.probing.workers.guard import scratch
from bisect_trt.probing.workspace import RUNS_FOLDER
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.html.page import REPORT_FILE, write_report
from bisect_trt.reporting.result import RESULT_FILE, Result, read_result
from bisect_trt.reporting.tree import print_tree
from bisect_trt.workflows.binding import RUN_FILE, Binding
from bisect_trt.workflows.builds.diff import diff_builds
from bisect_trt.workflows.builds.replay import choices_tree, describe_choices
from bisect_trt.workflows.doctor import doctor as look
from bisect_trt.workflows.from_torch import SUFFIX, export_file
from bisect_trt.workflows.inspect_files import (
    Kind,
    data_tree,
    describe_data,
    describe_engine,
    describe_parsed,
    engine_tree,
    guess_kind,
    parsed_tree,
)
from bisect_trt.workflows.inspect_model import describe_model, model_tree
from bisect_trt.workflows.log import show_probe, show_run, show_times
from bisect_trt.workflows.picture import check_picture, draw
from bisect_trt.workflows.places import look_there, open_places
from bisect_trt.workflows.rethreshold import Tolerances, show_with
from bisect_trt.workflows.view.view import view as show
from bisect_trt.workflows.view.view import write_once

_FITTING = {
    Kind.MODEL: {Show.LAYERS, Show.ATTRS, Show.WEIGHTS},
    Kind.ENGINE: {Show.LAYERS},  # it is little without them, so they are always shown
    Kind.DATA: {Show.VALUES, Show.HISTOGRAM},
    Kind.TACTICS: {Show.LAYERS},
}
_MODES = {
    Depth.NONE: set[Show](),
    Depth.BASIC: {Show.LAYERS},
    Depth.ATTRS: {Show.LAYERS, Show.ATTRS},
    Depth.FULL: {Show.LAYERS, Show.ATTRS, Show.WEIGHTS},
}


def inspect(given: Given, console: Console, result: Result) -> Result:  # noqa: ARG001 - it prints a tree
    """Show what a file holds."""
    own = given[Inspect]
    kind, file = read_words(own.said, own.path)
    about_models = {
        "--mode": own.mode is not None,
        "--external-data-dir": own.external_data_dir is not None,
        "--ignore-external-data": own.ignore_external_data,
        "--visual": own.visual is not None,
        "--display-as": own.display_as is not None,
    }
    if odd := next((flag for flag, wanted in about_models.items() if wanted and kind is not Kind.MODEL), None):
        raise UsageError(f"{odd} is about models, and this is to be read as {kind.value}; leave it out.")
    wanted = _wanted(own, kind)
    if own.of is not None and own.visual is None:
        raise UsageError("--of says by what a picture is coloured; add --visual FILE.svg.")
    if own.visual is not None:
        check_picture(own.visual)
        check_output(own.visual, overwrite=True)
    if own.display_as is Form.TRT:
        if wanted - {Show.LAYERS} or own.visual is not None:
            raise UsageError(
                "--display-as trt shows the layers that TensorRT's parser makes; leave --show and --visual out."
            )
        with scratch() as folder:
            plain = describe_parsed(file, Path(folder))
        tree = parsed_tree(str(file), plain)
    elif kind is Kind.MODEL:
        words = {word.value for word in wanted}
        # A folder that nobody needs is one that stays behind when the command is killed.
        with scratch() if file.suffix == SUFFIX else nullcontext() as folder:
            model = file if folder is None else export_file(file, Path(folder)).path
            plain = describe_model(model, words, own.external_data_dir, structure=own.ignore_external_data)
            if own.visual is not None:
                network = Network(load_model(model, own.external_data_dir, structure=True))
                plain["visual"] = {"path": str(own.visual), "drawn": draw(network, own.visual, own.of)}
        tree = model_tree(str(file), plain)
    elif kind is Kind.DATA:
        values = own.num_items if Show.VALUES in wanted else None
        plain = describe_data(file, values=values, histogram=Show.HISTOGRAM in wanted)
        tree = data_tree(str(file), plain)
    elif kind is Kind.TACTICS:
        plain = describe_choices(file)
        tree = choices_tree(str(file), plain)
    else:
        with scratch() as folder:
            plain = describe_engine(file, Path(folder))
        tree = engine_tree(str(file), plain)
    print_tree(tree)
    result.extra[kind.value] = plain
    result.status, result.minimality = "found", "1-minimal"
    return result


def _wanted(own: Inspect, kind: Kind) -> Set[Show]:
    """What to say beside the summary.

    Raises:
        UsageError: A file of this kind has none of that.
    """
    wanted = {*own.show, *(_MODES[own.mode] if own.mode is not None else ())}
    wanted |= {Show.VALUES} if own.show_values else set()
    wanted |= {Show.HISTOGRAM} if own.histogram else set()
    if odd := wanted - _FITTING[kind]:
        raise UsageError(
            f"--show {min(word.value for word in odd)} says nothing of {kind.value}; there is: "
            f"{', '.join(sorted(word.value for word in _FITTING[kind]))}."
        )
    return wanted


def read_words(said: str | None, path: Path | None) -> tuple[Kind, Path]:
    """The kind and the file of ``KIND FILE`` or of ``FILE``.

    Raises:
        UnavailableError: The file is not there.
        UsageError: There is no such kind, or no file, or the file does not show its kind.
    """
    kinds = [kind.value for kind in Kind]
    if said is None:
        raise UsageError("there is no file to inspect; name one.")
    if path is not None:
        if said in TOOLS.keys() - kinds:
            raise UsageError(f"there is nothing to inspect as '{said}'; {TOOLS[said]}.")
        if said not in kinds:
            raise UsageError(f"there is nothing to inspect as '{said}'; write {', '.join(kinds)}, or the file alone.")
        return Kind(said), path
    if said in kinds and not Path(said).exists():
        raise UsageError(f"there is no file to inspect as {said}; name one.")
    return guess_kind(Path(said)), Path(said)


def diff(given: Given, console: Console, result: Result) -> Result:
    """Show what bad builds chose and good ones did not."""
    own = given[Diff]
    paths = [*own.paths, *([] if own.folder is None else [own.folder])]
    if not (paths or own.good or own.bad):
        raise UsageError("there are no builds to compare; name a run of `bisect-trt repeat`, or good and bad files.")
    return diff_builds(paths, own.good, own.bad, console, result)


def doctor(given: Given, console: Console, result: Result) -> Result:
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


def log(given: Given) -> None:
    """Show every probe of a run with its reason, or one in full."""
    own = given[Log]
    run, number = own.run, own.number
    if run is not None and number is None and str(run).isdecimal() and not run.exists():
        run, number = None, int(str(run))
    folder = newest_run() if run is None else run
    if own.atol or own.rtol:
        if own.times or number is not None:
            raise UsageError("--atol and --rtol say what would change of a whole run; leave the probe and --times out.")
        show_with(folder, Tolerances(own.atol, own.rtol), Console())
    elif own.times:
        show_times(folder, number, Console())
    elif number is None:
        show_run(folder, Console())
    else:
        show_probe(folder, number, Console())


def report(given: Given) -> None:
    """Make a run's report.html again, from its result.json and nothing else."""
    own = given[Report]
    source = newest_run(RESULT_FILE) if own.run is None else own.run
    result = read_result(source)
    path = own.output or (source if source.is_dir() else source.parent) / REPORT_FILE
    check_output(path, overwrite=True)
    write_report(result, path)
    Console().answer(str(path))


def view(given: Given) -> None:
    """Show runs in a browser, or once in a file."""
    own = given[View]
    folder = newest_run() if own.run is None else own.run
    if own.once is None:
        show(folder, Console(), own.port, browser=not own.no_browser)
        return
    check_output(own.once, overwrite=True)
    write_once(folder, own.once)
    Console().answer(str(own.once))


def resume(given: Given) -> None:
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
