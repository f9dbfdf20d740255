"""What commands open with: the folder of a run, new or going on, bound to all files that it depends on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from bisect_trt.cli.main import invocation
from bisect_trt.commands.binding import Binding
from bisect_trt.commands.from_options import (
    compare_files,
    data_files,
    metric_files,
    metric_settings,
    model_settings,
)
from bisect_trt.commands.from_torch import SUFFIX, export_file
from bisect_trt.commands.job import Job
from bisect_trt.commands.places import open_places
from bisect_trt.commands.settings import ModelSettings
from bisect_trt.onnxlib.save import check_annotated
from bisect_trt.options.compare import Compare
from bisect_trt.options.metric import Metric
from bisect_trt.options.shared import Data, Places
from bisect_trt.options.spec import Params
from bisect_trt.probe.claim import claimed_path, claimed_run
from bisect_trt.probe.workspace import Workspace
from bisect_trt.report.console import Console
from bisect_trt.report.result import Result
from bisect_trt.targets.options import Target
from bisect_trt.tensors.npz import save_npz


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
        UsageError: The folder cannot be made, the fixed path is another run's, or the run that is to go on was about something
            else.
    """
    binding = Binding.of(invocation.argv, model, files, weights)
    invocation.kept.enter_context(claimed_path(fixed_path))
    if invocation.resumed is not None:
        Binding.read(invocation.resumed).check(binding, invocation.resumed)
        invocation.folder = invocation.resumed
        return Workspace(invocation.resumed, fixed_path)
    workspace = Workspace(Workspace.new_folder(command, model), fixed_path)
    invocation.kept.enter_context(claimed_run(workspace.folder))
    binding.write(workspace.folder)
    invocation.folder = workspace.folder
    return workspace


def open_job(
    model: Path,
    given: Params,
    console: Console,
    result: Result,
    files: Iterable[Path] = (),
    fixed_path: Path | None = None,
    *,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Job:
    """The job of a command, in a folder of its own; see :func:`~bisect_trt.cli.jobs.open_run`.

    Args:
        model: The model.
        given: The options, with the group of the data.
        console: Who is told.
        result: What is filled in; it has the command's name.
        files: What the run depends on beside the data.
        fixed_path: Where every candidate goes, if the check reads a fixed path.
        input_shapes: Shapes of inputs beside those of the data.

    Raises:
        UsageError: A value is malformed, the folder cannot be made, or the run that is to go on was about something else.
    """
    data = given[Data]
    data.input_shapes |= input_shapes or {}
    settings = model_settings(model, data)
    workspace = open_run(result.command, model, [*data_files(data), *files], fixed_path, weights=data.external_data_dir)
    if model.suffix == SUFFIX:
        settings = exported(settings, workspace.folder, console, result)
    return Job(settings, workspace, console, result)


def exported(settings: ModelSettings, folder: Path, console: Console, result: Result) -> ModelSettings:
    """The same of the ONNX model of a program of PyTorch, fed its example inputs where no others are given.

    Raises:
        UnavailableError: PyTorch is not installed, or the program cannot be read or exported.
        UsageError: The folder cannot be written.
    """
    made = export_file(settings.path, folder)
    console.say(made.describe())
    result.extra["export"] = made.to_json()
    data = settings.data
    if not data.load_inputs and data.data_loader_script is None:
        files = [folder / f"inputs-{number}.npz" for number, _ in enumerate(made.samples, 1)]
        for file, sample in zip(files, made.samples, strict=True):
            save_npz(file, sample)
        data = replace(data, load_inputs=tuple(files))
    return replace(settings, path=made.path, data=data)


def open_target_job(
    model: Path,
    given: Params,
    console: Console,
    result: Result,
    files: Iterable[Path] = (),
    fixed_path: Path | None = None,
    *,
    annotation: Path | None = None,
    shape_inference: bool = False,
    confidence: float | None = None,
    bounded: bool = True,
) -> Job:
    """The job of a command about a target; see :func:`open_job`.

    Args:
        model: The model.
        given: The options, with the groups of the target, the comparison and the data.
        console: Who is told.
        result: What is filled in; it has the command's name.
        files: What the run depends on beside the data and the comparison.
        fixed_path: Where every candidate goes, if the check reads a fixed path.
        annotation: Where the original model goes with its nodes' verdicts, if it was asked for.
        shape_inference: Whether shapes that inference finds are declared in the model.
        confidence: How sure all verdicts by a metric together shall be; ``None`` where none can say good or bad.
        bounded: Whether a metric needs a bound.

    Raises:
        UsageError: As :func:`open_job`, or the annotated model cannot be written, or an option of the metric is wrong.
    """
    if annotation is not None:
        check_annotated(annotation, model)
    where, metric = open_places(given[Places], console), None
    if confidence is not None:
        fed = model_settings(model, given[Data]).data
        metric = metric_settings(given[Metric], fed, given[Compare], confidence=confidence, bounded=bounded)
        files = [*files, *metric_files(given[Metric])]
    job = open_job(model, given, console, result, [*compare_files(given[Compare]), *files], fixed_path)
    return replace(
        job,
        model=replace(job.model, shape_inference=shape_inference),
        fresh_process=given[Target].fresh_process,
        annotation=annotation,
        where=where,
        metric=metric,
    )
