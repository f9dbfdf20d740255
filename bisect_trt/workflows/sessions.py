"""Commands from their settings to their result, for the command line and for Python alike.

Each imports its own workflow only: all of them together take a tenth of a second, which a check of that would wait for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bisect_trt.probing.prober import Prober
from bisect_trt.probing.workspace import Workspace
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.workflows.checks import make_prober
from bisect_trt.workflows.record import recorded
from bisect_trt.workflows.settings import CheckSettings, ModelSettings, ReduceSettings, SearchSettings
from bisect_trt.workflows.subject import Subject
from bisect_trt.workflows.target import lowers_by, require_target, tell_unused

if TYPE_CHECKING:
    from bisect_trt.workflows.compare.compare import CompareSettings
    from bisect_trt.workflows.diagnose import DiagnoseSettings
    from bisect_trt.workflows.precision.settings import PrecisionSettings


@dataclass(frozen=True)
class Session:
    """What every command has.

    Attributes:
        model: The model and what to feed it.
        workspace: The run's folder.
        console: Who is told.
        result: What is filled in.
        fresh_process: Whether each probe gets a worker process of its own.
        annotation: Where the original model goes with its nodes' verdicts, if it was asked for.
    """

    model: ModelSettings
    workspace: Workspace
    console: Console
    result: Result
    fresh_process: bool = False
    annotation: Path | None = None

    def subject(self) -> Subject:
        """The model, opened; to be closed."""
        return Subject(self.model, self.workspace, self.console, fresh_process=self.fresh_process)

    def diagnose(self, settings: DiagnoseSettings) -> Result:
        """Find why the target differs, and leave a reproducer; see :func:`bisect_trt.workflows.diagnose.diagnose`."""
        from bisect_trt.workflows.diagnose import diagnose  # noqa: PLC0415 - see above

        with self.subject() as subject, self._prober(subject, settings.check, settings.search) as prober:
            return diagnose(subject, prober, settings, self.console, self.result)

    def reduce(self, settings: ReduceSettings, check: CheckSettings, search: SearchSettings) -> Result:
        """Find the smallest model that fails; see :func:`bisect_trt.workflows.reduce.reduce_model`."""
        from bisect_trt.workflows.reduce import reduce_model  # noqa: PLC0415 - see above

        if check.argv and check.target is not None:
            tell_unused(check.target, self.console)
            check = replace(check, target=None)
        with self.subject() as subject, self._prober(subject, check, search) as prober:
            return reduce_model(subject, prober, settings, search, self.console, self.result)

    def precision(self, settings: PrecisionSettings, check: CheckSettings, search: SearchSettings) -> Result:
        """Find the fewest nodes to keep in fp32; see :func:`bisect_trt.workflows.precision.precision.find_precision`."""
        from bisect_trt.workflows.precision.precision import built_in_check, find_precision, make_lowering  # noqa: PLC0415 - see above
        from bisect_trt.workflows.precision.task import Task  # noqa: PLC0415 - see above

        with self.subject() as subject:
            settings, check = by_whom(subject, settings, check, self.console)
            target = settings.target
            lowering = make_lowering(subject, settings)
            check = built_in_check(check, subject, settings.precision)
            with self._prober(subject, check, search, target) as prober:
                return find_precision(Task(subject, prober, lowering, settings, self.console, self.result), search)

    def layerwise(
        self, target: TargetSettings, tolerance: ToleranceOptions, timeout: float | None, *, isolated: bool = False
    ) -> Result:
        """Compare every tensor; see :func:`bisect_trt.workflows.layerwise.layerwise.layerwise`."""
        from bisect_trt.workflows.layerwise.layerwise import layerwise  # noqa: PLC0415 - see above

        with self._looked_at(target) as subject:
            return layerwise(subject, target, tolerance, timeout, self.console, self.result, isolated=isolated)

    def compare(self, settings: CompareSettings) -> Result:
        """Compare the outputs; see :func:`bisect_trt.workflows.compare.compare.compare`."""
        from bisect_trt.workflows.compare.compare import compare  # noqa: PLC0415 - see above

        with self._looked_at(settings.target, *settings.also) as subject:
            return compare(subject, settings, self.console, self.result)

    @contextmanager
    def _looked_at(self, target: TargetSettings, *more: TargetSettings) -> Iterator[Subject]:
        """The model, once its targets are there; without any probes what is found is in the result however it ends."""
        with self.subject() as subject, self._recorded(subject, target):
            for each in (target, *more):
                require_target(subject, each)
            yield subject

    @contextmanager
    def _prober(
        self, subject: Subject, check: CheckSettings, search: SearchSettings, target: TargetSettings | None = None
    ) -> Iterator[Prober]:
        """A prober whose findings are in the result however it ends; ``target`` is what is said if not the check's."""
        prober = make_prober(check, search, subject, self.console)
        try:
            with self._recorded(subject, target or check.target, prober):
                yield prober
        finally:
            prober.ledger.close()

    @contextmanager
    def _recorded(
        self, subject: Subject, target: TargetSettings | None, prober: Prober | None = None
    ) -> Iterator[None]:
        known = recorded(subject, self.result, self.console, prober=prober, target=target, annotation=self.annotation)
        with known:
            yield


def by_whom(
    subject: Subject, settings: PrecisionSettings, checks: CheckSettings, console: Console
) -> tuple[PrecisionSettings, CheckSettings]:
    """Settle who lowers: the target layer by layer, where it does; else candidates are models with Casts."""
    target = settings.target
    if target is None:
        return settings, checks
    by_layer = target.target.capabilities.lowers_layers and lowers_by(subject, target) == "layer"
    if checks.argv and not by_layer:  # the command says good or bad of models
        tell_unused(replace(target, fp16=False, bf16=False), console)  # the search lowers them to what these say
        return replace(settings, target=None), replace(checks, target=None)
    return replace(settings, by_layer=by_layer), replace(checks, by_layer=by_layer)
