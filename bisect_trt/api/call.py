"""One call of a Python function: its folder, its groups of options, and how it ends."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import onnx
import onnx_graphsurgeon as gs
from numpy.typing import NDArray
from onnx import helper

from bisect_trt.commands.binding import CALL_FILE, Binding, bind_function
from bisect_trt.commands.commands import COMMANDS
from bisect_trt.commands.from_options import (
    check_files,
    check_settings,
    compare_files,
    data_files,
    metric_files,
    metric_settings,
    model_settings,
)
from bisect_trt.commands.from_torch import SUFFIX, Exported, export_file, export_module, is_torch
from bisect_trt.commands.job import Job
from bisect_trt.commands.places import open_places
from bisect_trt.commands.rebuilt import RebuiltPasses
from bisect_trt.commands.record import leave_record
from bisect_trt.commands.settings import CheckSettings, ModelSettings
from bisect_trt.errors import UsageError
from bisect_trt.onnxlib.cut import IR_WITHOUT_INITIALIZER_INPUTS
from bisect_trt.onnxlib.save import check_annotated
from bisect_trt.options.compare import Compare
from bisect_trt.options.metric import Metric
from bisect_trt.options.run import Run, RunOptions
from bisect_trt.options.shared import Check as CheckOptions
from bisect_trt.options.shared import Data, General, Places, Search
from bisect_trt.options.spec import Params, changed, entries
from bisect_trt.probe.claim import claimed_path, claimed_run
from bisect_trt.probe.ledger import BudgetSpent
from bisect_trt.probe.prober import DoesNotReproduce
from bisect_trt.probe.times import account, whole
from bisect_trt.probe.workspace import Workspace
from bisect_trt.report.console import Console, QuietConsole
from bisect_trt.report.notebook import NotebookConsole, notebook
from bisect_trt.report.result import Result
from bisect_trt.targets.options import Target, selectable
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.npz import save_npz
from bisect_trt.worker.worker import keep_spare

Group = TypeVar("Group")
PLACE = Path("model.onnx")
"""In place of the model's path, and of the output's where it goes into the run's folder, until these are known."""
_PROTO_LIMIT_BYTES = (1 << 31) - 1
_OUTPUTS = {
    "diagnose": "reproducer",
    "reduce": "reduced.onnx",
    "precision": "mixed.onnx",
    "workaround": "patched.onnx",
    "samples": "minimal-input.npz",
}
"""Where what is found goes in the run's folder, by the command."""
_FREE = ("verbose", "overwrite", "annotate", "workers", "max_probes", "max_time")
"""Options that do not change what a verdict is about, so that a run goes on with other ones too."""


class TorchModel(Protocol):
    """A ``torch.nn.Module`` or a ``torch.export.ExportedProgram``; PyTorch need not be installed."""

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        """Its parameters, by which it is told from other things."""


class Tensor(Protocol):
    """A ``torch.Tensor``, or what else is an array."""

    def __array__(self) -> NDArray[Any]:
        """Its values."""


Model: TypeAlias = str | os.PathLike[str] | onnx.ModelProto | gs.Graph | TorchModel
"""Its path, or the model itself, which is not changed."""
Values: TypeAlias = Mapping[str, NDArray[Any]]
Inputs: TypeAlias = Values | Sequence[Values] | str | Path | Tensor | tuple[Any, ...] | Mapping[str, Any] | list[Any]
"""One sample, several, or a file as ``--load-inputs`` takes; of a module one argument, a tuple of them, or a dict by name."""
Check: TypeAlias = Callable[..., object] | str | Sequence[str]
"""A function, or a command as after ``--check``."""


class Call:
    """A call of a Python function as the :class:`~bisect_trt.commands.searching.Door` of its command.

    Attributes:
        resumed: Whether the run goes on with what an earlier call has learned.
    """

    python = True

    def __init__(
        self,
        command: str,
        model: Model,
        options: Mapping[str, Any],
        *,
        inputs: Inputs | None = None,
        check: Check | None = None,
        target: str | None = None,
        output: str | Path | None = None,
        run: str | Path | None = None,
        verbose: bool | int = False,
        **named: Any,  # noqa: ANN401 - of many types
    ) -> None:
        """Sort the options into groups, and make the run's folder.

        Args:
            command: Which command it is.
            model: The model, or its path.
            options: The options that are no parameters of the function.
            inputs: What the model is fed; random values if not given.
            check: What says good or bad, beside a target.
            target: The runtime under suspicion.
            output: Where what is found goes; into the run's folder if not given.
            run: The run's folder, where it was named: a new one, or one that goes on.
            verbose: Whether to print.
            **named: The options that are.

        Raises:
            UsageError: An option does not exist, or the folder cannot be made.
        """
        given = {
            **options,
            **{name: value for name, value in named.items() if value is not None and value is not False},
        }
        _refuse_target(check, target)
        if target is not None:
            given.setdefault(target, True)  # one that has a value says it by a keyword of its name
        fixed = {name: value for name, value in sorted(given.items()) if name not in _FREE}
        words = [f"{name}={json.dumps(value, default=str, sort_keys=True)}" for name, value in fixed.items()]
        home = _OUTPUTS.get(command)
        groups = [kind for kind in COMMANDS[command] if kind not in (Run, General)]
        known = {entry.name for kind in groups for entry in entries(kind)} - {
            "model",
            *([] if home is None else ["output"]),
        }
        for name in given.keys() - known:
            raise UsageError(f"`{command}` has no option '{name}'; `bisect-trt {command} --help-all` lists them.")
        given |= {} if command == "run" else {"model": PLACE}
        given |= {} if home is None else {"output": PLACE if output is None else output}
        self._params = Params(groups, given, words=False)
        own: Any = self._params[groups[0]]
        self._own = own
        self._function = check if callable(check) else None
        if not callable(check) and check is not None:
            if not isinstance(check, Sequence):
                raise UsageError(f"check: give a function, a command or the list of its words, not {check!r:.60}.")
            self[CheckOptions].check = [check] if isinstance(check, str) else list(check)
        said = self[CheckOptions].check
        self._words = (command, *words, *([f"check={said}"] if said else []))
        self._given, self._inputs = model, inputs
        self._proto = as_proto(model)
        path = PLACE if self._proto is not None or is_torch(model) else as_path(model)
        self._annotation: Path | None = getattr(self._own, "annotate", None)
        if self._annotation is not None:
            check_annotated(self._annotation, path)
        self.folder = Workspace.new_folder(command, path) if run is None else Path(run)
        self.resumed = (self.folder / CALL_FILE).exists()
        if not self.resumed and self.folder.exists() and not (self.folder.is_dir() and not any(self.folder.iterdir())):
            raise UsageError(f"run: {self.folder} exists and is no run of a Python function; name another folder.")
        Workspace(self.folder)
        if home is not None and output is None:
            self._own.output = self.folder / home
        self._console = Console(int(verbose) - 1) if verbose else _quiet_console(command)
        self._result = Result(command)

    @property
    def has_check(self) -> bool:
        """Whether a command or a function says good or bad."""
        return bool(self[CheckOptions].check) or self._function is not None

    def __getitem__(self, group: type[Group]) -> Group:
        return self._params[group]

    def _placed(self) -> ModelSettings:
        """The model, and what it is fed; what was given as values is written into the run's folder."""
        model, inputs = self._given, self._inputs
        if self._proto is not None:
            path = _written(self._proto, self.folder / PLACE)
        elif is_torch(model):
            path, inputs = self._exported(export_module(model, inputs, self.folder / PLACE), None)
        elif (path := as_path(model)).suffix == SUFFIX:
            path, inputs = self._exported(export_file(path, self.folder), inputs)
        settings = replace(model_settings(path, self[Data]), shape_inference=self[RunOptions].shape_inference)
        return self._with_inputs(settings, inputs)

    def _exported(self, exported: Exported, inputs: Inputs | None) -> tuple[Path, Inputs | None]:
        """Say how a program of PyTorch was exported; its ONNX model, and what that is fed where nothing else was given."""
        self._console.say(exported.describe())
        self._result.extra["export"] = exported.to_json()
        own = inputs is None and not self[Data].load_inputs and self[Data].data_loader_script is None
        return exported.path, list(exported.samples) or None if own else inputs

    def _with_inputs(self, settings: ModelSettings, inputs: Inputs | None) -> ModelSettings:
        if inputs is None:
            return settings
        if isinstance(inputs, str | Path):
            files = [Path(inputs)]
        else:
            files = []
            samples: object = [inputs] if isinstance(inputs, Mapping) else inputs
            if not isinstance(samples, Sequence) or not all(isinstance(each, Mapping) for each in samples):
                raise UsageError(
                    "inputs: an ONNX model is fed by the names of its inputs; give a dict of arrays, a list of such, or a file."
                )
            for number, sample in enumerate(samples, 1):
                files.append(self.folder / f"inputs-{number}.npz")
                save_npz(files[-1], sample)
        return replace(settings, data=replace(settings.data, load_inputs=(*settings.data.load_inputs, *files)))

    def checks(self, target: TargetSettings | None, *, used: bool = False) -> CheckSettings:
        """What says good or bad; see :class:`~bisect_trt.commands.searching.Door`.

        Raises:
            UsageError: Nothing does, the command does not exist, or something that was given would do nothing.
        """
        given = self.has_check
        if not given and target is None:
            raise UsageError("there is nothing to say good or bad: give check, a function or a command, or target.")
        if given and target is not None and not (used and self._function is None):
            raise UsageError(
                f"the check says good or bad, so target='{target.runtime}' would do nothing; leave one out."
            )
        if given and target is None:
            for name in changed(self[Compare]):
                raise UsageError(
                    f"{name} says how to compare a target, and here the check says good or bad; leave it out."
                )
        if self._function is not None:
            for name in set(changed(self[CheckOptions])).difference(
                ("check", "candidate", "artifacts", "artifacts_dir")
            ):
                raise UsageError(f"{name} is for a check command, and the check is a function; leave it out.")
        return replace(check_settings(self[CheckOptions], target, self[Compare], self[Places]), function=self._function)

    def finish(
        self, work: Callable[[Job], Result], checks: CheckSettings | None = None, files: Iterable[Path] = ()
    ) -> Result:
        """Do the work; leave ``result.json`` and ``report.html`` in the run's folder however it ends.

        Args:
            work: Given the job.
            checks: What says good or bad, if the user chose that.
            files: What the run depends on beside what shared groups of options name.

        Raises:
            UsageError: The run that is to go on was about something else, or it is at work elsewhere; or a file cannot be
                written.
        """
        fixed_path = None if checks is None else checks.fixed_path
        with claimed_run(self.folder), claimed_path(fixed_path):
            return self._worked(work, fixed_path, files)

    def _worked(self, work: Callable[[Job], Result], fixed_path: Path | None, files: Iterable[Path]) -> Result:
        result, console = self._result, self._console
        model = self._placed()
        self._bind(model, files)
        metric = metric_settings(
            self[Metric],
            model.data,
            self[Compare],
            confidence=1.0 if result.command == "run" else self[Search].confidence,
            bounded=result.command != "run",
        )
        keep_spare()  # the next call finds TensorRT started, and its timing cache warm
        workspace = Workspace(self.folder, fixed_path)
        where = open_places(self[Places], console)
        fresh = self[Target].fresh_process
        job = Job(model, workspace, console, result, fresh, self._annotation, where, metric)
        began = time.monotonic()
        try:
            with account() as spent:
                work(job)
        except (DoesNotReproduce, BudgetSpent, RebuiltPasses) as ending:
            result.status = "not_reproduced" if isinstance(ending, DoesNotReproduce) else "inconclusive"
            result.why = str(ending)
            console.answer(result.why)
        except BaseException as ending:
            result.status = "interrupted" if isinstance(ending, KeyboardInterrupt) else "error"
            result.why = f"{type(ending).__name__}: {ending}"
            raise
        finally:
            result.wall_s = round(time.monotonic() - began, 3)
            result.extra["times"] = whole(spent, result.wall_s)
            leave_record(result, self.folder, (), console, None)
            console.close()
        return result

    def _bind(self, settings: ModelSettings, files: Iterable[Path]) -> None:
        """Bind the run to this call, or make sure that it is the one that it is bound to."""
        named = [
            *data_files(self[Data]),
            *settings.data.load_inputs,
            *compare_files(self[Compare]),
            *metric_files(self[Metric]),
            *check_files(self[CheckOptions]),
            *files,
        ]
        binding = Binding.of(self._words, settings.path, [*named, *self[Target].files()], self[Data].external_data_dir)
        if self._function is not None:
            binding.files.update(bind_function(self._function))
        if (self.folder / CALL_FILE).exists():
            Binding.read(self.folder, CALL_FILE).check(binding, self.folder)
        else:
            binding.write(self.folder, CALL_FILE)


def _quiet_console(command: str) -> Console:
    """One that prints nothing; in a notebook it shows how far it is."""
    show = notebook()
    return QuietConsole() if show is None else NotebookConsole(command, show)


def _refuse_target(check: object, target: str | None) -> None:
    """Make sure that there is such a target, and that no target's name stands where a check belongs.

    Raises:
        UsageError: It is not so, and no program has the name of the check.
    """
    known = [plugin.name for plugin in selectable()]
    if target is not None and target not in known:
        raise UsageError(f"there is no target '{target}'; write one of {', '.join(map(repr, known))}.")
    if isinstance(check, str) and check in known and shutil.which(check) is None:
        raise UsageError(f"there is no program '{check}' to check with; did you mean target='{check}'?")


def as_proto(model: object) -> onnx.ModelProto | None:
    """A model in memory; ``None`` for the path of one.

    Raises:
        UsageError: graphsurgeon cannot export the graph.
    """
    if not isinstance(model, gs.Graph):
        return model if isinstance(model, onnx.ModelProto) else None
    try:
        proto: onnx.ModelProto = gs.export_onnx(model)
    except Exception as error:  # whatever a graph of the user's makes it raise
        raise UsageError(
            f"onnx-graphsurgeon cannot export the graph: {str(error) or repr(error)}; mend it, or give an ONNX model."
        ) from error
    if getattr(model, "ir_version", None) is None:  # else it would be the newest, which few runtimes know
        oldest = helper.find_min_ir_version_for(proto.opset_import, ignore_unknown=True)
        proto.ir_version = max(oldest, IR_WITHOUT_INITIALIZER_INPUTS)
    return proto


def as_path(model: object) -> Path:
    """The path of a model.

    Raises:
        UsageError: It is no path.
    """
    if not isinstance(model, str | os.PathLike):
        raise UsageError(
            "model: give a path, an onnx.ModelProto, an onnx_graphsurgeon.Graph or a torch.nn.Module, not "
            f"{type(model).__name__}."
        )
    return Path(model)


def _written(model: onnx.ModelProto, path: Path) -> Path:
    if model.ByteSize() > _PROTO_LIMIT_BYTES:
        raise UsageError("the model is larger than 2 GiB; save it with external data, and give its path.")
    path.write_bytes(model.SerializeToString(deterministic=True))
    return path
