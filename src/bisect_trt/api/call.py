"""One call of a Python function: its folder, its options, and how it ends."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx

from bisect_trt.api.types import Check, Inputs, Model
from bisect_trt.cli.keywords import Keywords
from bisect_trt.cli.options import Check as CheckOptions
from bisect_trt.cli.options import Compare, Data, Search, Target
from bisect_trt.errors import UsageError
from bisect_trt.graph.annotate import check_annotated
from bisect_trt.probing.ledger import BudgetSpent
from bisect_trt.probing.prober import DoesNotReproduce
from bisect_trt.probing.worker import keep_spare
from bisect_trt.probing.workspace import Workspace
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.quiet import QuietConsole
from bisect_trt.reporting.result import Result
from bisect_trt.runtimes.settings import TargetSettings
from bisect_trt.tensors.npz import save_npz
from bisect_trt.workflows.record import leave_record
from bisect_trt.workflows.sessions import Session
from bisect_trt.workflows.settings import CheckSettings, ModelSettings

_PROTO_LIMIT_BYTES = (1 << 31) - 1


class Call:
    """One call: its folder, its groups of options, and how it ends."""

    def __init__(
        self,
        command: str,
        model: Model,
        inputs: Inputs | None,
        verbose: bool | int,
        given: Keywords,
        **defaults: Any,  # noqa: ANN401 - of many types
    ) -> None:
        """Take what was given apart; make the run's folder.

        Args:
            command: The command of the same name.
            model: The model, or its path.
            inputs: What it is fed; random values if not given.
            verbose: Whether to print, and how much.
            given: All other options.
            **defaults: The command's own options, and what they are if they are not given.

        Raises:
            UsageError: There is no such option, or a value is wrong.
        """
        self.own = given.take(**defaults)
        self.target = given.group(Target)
        self.compare = given.group(Compare)
        self.search = given.group(Search) if command in ("reduce", "diagnose", "precision") else Search()
        self._check = given.group(CheckOptions) if command in ("reduce", "precision") else CheckOptions()
        data = given.group(Data)
        given.finish(command)
        path = Path("model.onnx") if isinstance(model, onnx.ModelProto) else Path(model)
        annotation = self.own.get("annotate")
        self._annotation = None if annotation is None else Path(annotation)
        if self._annotation is not None:
            check_annotated(self._annotation, path)
        self.workspace = Workspace(Workspace.new_folder(command, path))
        self._console = Console(int(verbose) - 1) if verbose else QuietConsole()
        self._result = Result(command)
        if isinstance(model, onnx.ModelProto):
            path = _written(model, self.workspace.folder / path)
        self.model = self._with_inputs(data.settings(path), inputs)

    def _with_inputs(self, settings: ModelSettings, inputs: Inputs | None) -> ModelSettings:
        if inputs is None:
            return settings
        if isinstance(inputs, str | Path):
            files = [Path(inputs)]
        else:
            files = []
            for number, sample in enumerate([inputs] if isinstance(inputs, Mapping) else inputs, 1):
                files.append(self.workspace.folder / f"inputs-{number}.npz")
                save_npz(files[-1], sample)
        return replace(settings, data=replace(settings.data, load_inputs=(*settings.data.load_inputs, *files)))

    def checks(self, check: Check | None, target: TargetSettings | None) -> CheckSettings:
        """What says good or bad.

        Raises:
            UsageError: Nothing does, or the command does not exist.
        """
        if check is None and target is None:
            raise UsageError("there is nothing to say good or bad: give check, a function or a command, or target.")
        if not callable(check) and check is not None:
            self._check.check = [check] if isinstance(check, str) else list(check)
        settings = self._check.settings(target, self.compare)
        return replace(settings, function=check if callable(check) else None)

    def finish(self, work: Callable[[Session], Result]) -> Result:
        """Do the work; leave ``result.json`` and ``report.html`` in the run's folder however it ends."""
        result, console = self._result, self._console
        keep_spare()  # the next call finds TensorRT started, and its timing cache warm
        session = Session(self.model, self.workspace, console, result, self.target.fresh_process, self._annotation)
        began = time.monotonic()
        try:
            work(session)
        except (DoesNotReproduce, BudgetSpent) as ending:
            result.status = "not_reproduced" if isinstance(ending, DoesNotReproduce) else "inconclusive"
            result.why = str(ending)
            console.answer(result.why)
        except BaseException as ending:
            result.status = "interrupted" if isinstance(ending, KeyboardInterrupt) else "error"
            result.why = f"{type(ending).__name__}: {ending}"
            raise
        finally:
            result.wall_s = round(time.monotonic() - began, 3)
            leave_record(result, self.workspace.folder, (), console, None)
            console.close()
        return result


def refuse_target(check: object) -> None:
    """Make sure that a target's name does not stand where a check belongs.

    Raises:
        UsageError: It does, and no program has that name.
    """
    if isinstance(check, str) and check in ("onnxrt", "trt") and shutil.which(check) is None:
        raise UsageError(f"there is no program '{check}' to check with; did you mean target='{check}'?")


def _written(model: onnx.ModelProto, path: Path) -> Path:
    if model.ByteSize() > _PROTO_LIMIT_BYTES:
        raise UsageError("the model is larger than 2 GiB; save it with external data, and give its path.")
    path.write_bytes(model.SerializeToString())
    return path
