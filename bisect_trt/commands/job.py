"""Commands from their settings to their result, for the command line and for Python alike.

Each imports its own workflow only: all of them together take a tenth of a second, which a check of that would wait for.
It is long because each command has its method here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bisect_trt.commands.checks import make_prober, tell_unused
from bisect_trt.commands.metric import note_first
from bisect_trt.commands.preflight import lowers_by, require_fit, require_target
from bisect_trt.commands.record import recorded
from bisect_trt.commands.session import Session
from bisect_trt.commands.settings import (
    CheckSettings,
    MetricSettings,
    ModelSettings,
    ReduceSettings,
    RepeatSettings,
    SearchSettings,
)
from bisect_trt.commands.subject import Subject
from bisect_trt.errors import UsageError
from bisect_trt.probe.runner import Check
from bisect_trt.probe.workspace import Workspace
from bisect_trt.report.console import Console
from bisect_trt.report.result import Result
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.worker.place import HERE, Where

if TYPE_CHECKING:
    from bisect_trt.commands.compare import CompareSettings
    from bisect_trt.commands.convert import EngineSettings, ExtractSettings
    from bisect_trt.commands.diagnose import DiagnoseSettings
    from bisect_trt.commands.layerwise import LayerwiseSettings
    from bisect_trt.commands.releases import ReleasesSettings
    from bisect_trt.commands.samples import SamplesSettings
    from bisect_trt.commands.sanitize import SanitizeSettings
    from bisect_trt.commands.sweep import SweepSettings
    from bisect_trt.commands.workarounds import WorkaroundSettings
    from bisect_trt.mixed_precision.parameters import PrecisionSettings


@dataclass(frozen=True)
class Job:
    """What every command has.

    Attributes:
        model: The model and what to feed it.
        workspace: The run's folder.
        console: Who is told.
        result: What is filled in.
        fresh_process: Whether each probe gets a worker process of its own.
        annotation: Where the original model goes with its nodes' verdicts, if it was asked for.
        where: Where targets run.
        metric: The metric that says good or bad, if one does.
    """

    model: ModelSettings
    workspace: Workspace
    console: Console
    result: Result
    fresh_process: bool = False
    annotation: Path | None = None
    where: Where = HERE
    metric: MetricSettings | None = None

    def subject(self, timeout: float | None, target: TargetSettings | None = None, *, older: bool = False) -> Subject:
        """The model, opened for a target, of which ``older`` releases may be asked; to be closed."""
        fresh, model = self.fresh_process, self.model
        if self.metric is not None:  # the search looks inside the first sample; the set is the metric's
            model = replace(model, data=replace(model.data, most=1))
        return Subject(
            replace(model, older=older or bool(self.where.places)),
            self.workspace,
            self.console,
            fresh_process=fresh,
            timeout=timeout,
            target=target,
            where=self.where,
        )

    def diagnose(self, settings: DiagnoseSettings) -> Result:
        """Find why the target differs, and leave a reproducer; see :func:`bisect_trt.commands.diagnose.diagnose`."""
        from bisect_trt.commands.diagnose import diagnose  # noqa: PLC0415 - see above
        from bisect_trt.commands.preflight import keep_worst_samples  # noqa: PLC0415 - see above

        target = settings.check.target
        # How long the original runs is what a fix is held against, which does not build that again.
        timed = target is not None and target.target.capabilities.timed and self.metric is None
        settings = replace(settings, check=replace(self._scaled(settings.check), timed=timed))
        with self.subject(settings.check.timeout, target, older=settings.releases) as subject:
            if self.metric is None:
                keep_worst_samples(subject, settings.check, self.console, self.result)
            with self._investigated(subject, settings.check, settings.search) as investigation:
                if self.metric is not None:
                    from bisect_trt.commands.metric_commands import diagnose_metric  # noqa: PLC0415 - see above

                    return diagnose_metric(investigation, settings)
                return diagnose(investigation, settings)

    def diagnose_itself(self, check: CheckSettings) -> Result:
        """Find where the target contradicts itself; see :func:`bisect_trt.commands.self_consistency.diagnose_itself`."""
        from bisect_trt.commands.self_consistency import diagnose_itself  # noqa: PLC0415 - see above

        assert check.target is not None, "a target was required"
        with self._examined(check.timeout, check.target) as examination:
            return diagnose_itself(examination, check)

    def workaround(self, settings: WorkaroundSettings, search: SearchSettings) -> Result:
        """Find what makes the whole model pass; see :func:`bisect_trt.commands.workaround.find_workaround`."""
        from bisect_trt.commands.workaround import find_workaround  # noqa: PLC0415 - see above

        opened = self.subject(settings.check.timeout, settings.check.target)
        with opened as subject, self._investigated(subject, settings.check, search) as investigation:
            return find_workaround(investigation, settings, search)

    def reduce(self, settings: ReduceSettings, check: CheckSettings, search: SearchSettings) -> Result:
        """Find the smallest model that fails; see :func:`bisect_trt.commands.reduce.reduce_model`."""
        from bisect_trt.commands.reduce import reduce_model  # noqa: PLC0415 - see above

        check = self._deciding(self._scaled(check))
        opened = self.subject(check.timeout, check.target)
        with opened as subject, self._investigated(subject, check, search) as investigation:
            return reduce_model(investigation, settings, search)

    def releases(self, settings: ReleasesSettings, check: CheckSettings, search: SearchSettings) -> Result:
        """Find the release in which a failure appeared; see :func:`bisect_trt.commands.releases.find_releases`."""
        from bisect_trt.commands.releases import find_releases, in_releases  # noqa: PLC0415 - see above

        target = check.target
        check = replace(check, target=None) if check.argv else check
        with self.subject(check.timeout, older=True) as subject:

            def elsewhere(here: Check) -> Check:
                return in_releases(here, subject, target)

            with self._investigated(subject, check, search, target, elsewhere) as investigation:
                return find_releases(investigation, settings)

    def repeat(self, settings: RepeatSettings, check: CheckSettings, search: SearchSettings) -> Result:
        """Build or run it again and again; see :func:`bisect_trt.commands.repeat.repeat`."""
        from bisect_trt.commands.repeat import repeat  # noqa: PLC0415 - see above

        target = check.target
        if check.argv and target is not None and target.target.engines is None:
            tell_unused(target, self.console)
            check = replace(check, target=None)
        elif check.argv and target is not None:  # the command judges what is built
            check = replace(check, by_layer=True)
        alike = target is not None and target.target.capabilities.remembers_builds and not settings.same_engine
        opened = replace(self, fresh_process=self.fresh_process or alike).subject(check.timeout, check.target)
        with opened as subject, self._investigated(subject, check, search) as investigation:
            return repeat(investigation, settings)

    def precision(self, settings: PrecisionSettings, check: CheckSettings, search: SearchSettings) -> Result:
        """Find the fewest nodes to keep in fp32; see :func:`bisect_trt.mixed_precision.precision.find_precision`."""
        check = self._scaled(check)
        if settings.bits:
            return self._bits(settings, check, search)
        with self.subject(check.timeout, settings.target) as subject:
            settings, check = by_whom(subject, settings, check, self.console)
            return self._nodes(subject, settings, check, search)

    def _nodes(
        self, subject: Subject, settings: PrecisionSettings, check: CheckSettings, search: SearchSettings
    ) -> Result:
        """The search among nodes, once it is known who lowers them."""
        from bisect_trt.mixed_precision.nodes import built_in_check, make_nodes  # noqa: PLC0415 - see above
        from bisect_trt.mixed_precision.precision import find_precision  # noqa: PLC0415 - see above
        from bisect_trt.mixed_precision.search import Task  # noqa: PLC0415 - see above

        settings = replace(settings, tolerance=check.tolerance)
        nodes = make_nodes(subject, settings)
        if settings.calibrated:
            check = replace(check, target=settings.target, by_layer=True)
        check = built_in_check(check, subject, settings.precision)
        with self._investigated(subject, check, search, settings.target) as found:
            return find_precision(Task(subject, self.console, self.result, found.prober, nodes, settings), search)

    def _bits(self, settings: PrecisionSettings, check: CheckSettings, search: SearchSettings) -> Result:
        """Find the fewest quantized groups to keep in floats; see :mod:`bisect_trt.mixed_precision.groups`."""
        from bisect_trt.mixed_precision import groups  # noqa: PLC0415 - see above
        from bisect_trt.mixed_precision.nodes import calibrate, is_calibrated  # noqa: PLC0415 - see above
        from bisect_trt.mixed_precision.precision import find_precision  # noqa: PLC0415 - see above
        from bisect_trt.mixed_precision.search import Task  # noqa: PLC0415 - see above

        job = replace(self, model=groups.with_samples(self.model))
        with job.subject(check.timeout, settings.target) as subject:
            if is_calibrated(subject, settings):
                return job._nodes(subject, calibrate(subject, settings), check, search)
            if check.argv and check.target is not None:
                tell_unused(check.target, self.console)
                settings, check = replace(settings, target=None), replace(check, target=None)
            if settings.target is not None:
                target, why = groups.runs_or_emulated(subject, groups.typed_by_graph(subject, settings.target))
                if why is not None:
                    self.console.warn(why)
                self.result.extra["emulated"] = why
                settings, check = replace(settings, target=target), replace(check, target=target)
            settings = replace(settings, tolerance=check.tolerance)
            space = groups.GroupSpace(subject, settings)
            tolerance = groups.tolerance_of(subject, check.tolerance, settings.bits)
            tolerance.check_names(subject.network.outputs)
            timed = settings.target is not None and settings.target.target.capabilities.timed
            check = replace(check, tolerance=tolerance, timed=timed)
            with job._investigated(subject, check, search, settings.target) as found:
                return find_precision(Task(subject, self.console, self.result, found.prober, space, settings), search)

    def cause(self, check: CheckSettings, search: SearchSettings) -> Result:
        """Find which switches make the model pass; see :func:`bisect_trt.commands.cause.find_cause`.

        Raises:
            UsageError: A check says good or bad that cannot be told how the target is set up.
        """
        from bisect_trt.commands.cause import find_cause, told_of_switches  # noqa: PLC0415 - see above

        check = told_of_switches(check)
        with self.subject(check.timeout) as subject, self._investigated(subject, check, search) as investigation:
            return find_cause(investigation, check, search)

    def samples(self, settings: SamplesSettings, search: SearchSettings) -> Result:
        """Find which inputs fail, and the smallest; see :func:`bisect_trt.commands.samples.look_at_samples`."""
        from bisect_trt.commands.samples import look_at_samples  # noqa: PLC0415 - see above

        _refuse_repeat(search, "samples")
        check = self._deciding(settings.check)
        settings = replace(settings, check=check)
        job = replace(self, model=replace(self.model, any_shapes=True))
        with (
            job.subject(check.timeout, check.target) as subject,
            job._investigated(subject, check, search, fed=False) as investigation,
        ):
            return look_at_samples(investigation, settings)

    def sweep(self, settings: SweepSettings, search: SearchSettings) -> Result:
        """Find the sizes at which the target goes wrong; see :func:`bisect_trt.commands.sweep.sweep`."""
        from bisect_trt.commands.sweep import sweep  # noqa: PLC0415 - see above

        _refuse_repeat(search, "sweep")
        settings.check_shapes(self.model.input_shapes)
        check = self._deciding(settings.check)
        settings = replace(settings, check=check)
        shapes = {**self.model.input_shapes, **settings.first_shapes(self.model)}
        job = replace(self, model=replace(self.model, input_shapes=shapes))
        opened = job.subject(check.timeout, check.target)
        with opened as subject, job._investigated(subject, check, search, fed=False) as investigation:
            return sweep(investigation, settings)

    def layerwise(self, settings: LayerwiseSettings) -> Result:
        """Compare every tensor; see :func:`bisect_trt.commands.layerwise.layerwise`."""
        from bisect_trt.report.plots import save_layer_curve  # noqa: PLC0415 - see above

        result = self._layerwise(settings)
        if settings.error_plot is not None:
            save_layer_curve(settings.error_plot, settings.target.describe(), result)
        return result

    def _layerwise(self, settings: LayerwiseSettings) -> Result:
        from bisect_trt.commands.layerwise import layerwise  # noqa: PLC0415 - see above

        if self.metric is not None:
            from bisect_trt.commands.metric_commands import layerwise_scored  # noqa: PLC0415 - see above

            check = self._scaled(CheckSettings(target=settings.target, timeout=settings.timeout))
            opened = self.subject(settings.timeout, settings.target)
            with opened as subject, self._investigated(subject, check, SearchSettings()) as investigation:
                return layerwise_scored(investigation)
        with self._examined(settings.timeout, settings.target) as examination:
            return layerwise(examination, settings)

    def compare(self, settings: CompareSettings) -> Result:
        """Compare the outputs; see :func:`bisect_trt.commands.compare.compare`."""
        from bisect_trt.commands.compare import compare  # noqa: PLC0415 - see above
        from bisect_trt.commands.metric_commands import score  # noqa: PLC0415 - see above

        with self._examined(settings.timeout, settings.target, *settings.also) as examination:
            if self.metric is not None:
                return score(examination, settings, self.metric)
            return compare(examination, settings)

    def extract(self, settings: ExtractSettings) -> Result:
        """Cut a piece out; see :func:`bisect_trt.commands.convert.extract_model`."""
        from bisect_trt.commands.convert import extract_model  # noqa: PLC0415 - see above

        model = replace(self.model, stays_free=not (settings.sized or settings.with_inputs))
        with replace(self, model=model)._examined(settings.timeout) as examination:
            return extract_model(examination, settings)

    def sanitize(self, settings: SanitizeSettings) -> Result:
        """Fold and clean up; see :func:`bisect_trt.commands.sanitize.sanitize`."""
        from bisect_trt.commands.sanitize import sanitize  # noqa: PLC0415 - see above

        with self._examined(settings.timeout) as examination:
            return sanitize(examination, settings)

    def build(self, settings: EngineSettings) -> Result:
        """Write the engine; see :func:`bisect_trt.commands.convert.convert_to_engine`."""
        from bisect_trt.commands.convert import convert_to_engine  # noqa: PLC0415 - see above

        # What is to be quantized is calibrated there.
        with self._examined(settings.timeout, settings.target, require=require_target) as examination:
            return convert_to_engine(examination, settings)

    def _deciding(self, check: CheckSettings) -> CheckSettings:
        """The check without a target that is named beside a command, which decides alone; that is said."""
        if not check.argv or check.target is None:
            return check
        tell_unused(check.target, self.console)
        return replace(check, target=None)

    def _scaled(self, check: CheckSettings) -> CheckSettings:
        """The check, by the metric if one says good or bad.

        Raises:
            UsageError: Something else does too.
        """
        if self.metric is not None and (check.target is None or check.argv or check.function is not None):
            raise UsageError(
                "--metric scores what a target computes, and here is none, or a check says good or bad; name a target alone."
            )
        return replace(check, metric=self.metric)

    @contextmanager
    def _examined(
        self,
        timeout: float | None,
        *targets: TargetSettings,
        require: Callable[[Subject, TargetSettings], None] = require_fit,
    ) -> Iterator[Session]:
        """The model, once its targets are there and fit it; what is found is in the result however it ends."""
        with self.subject(timeout, targets[0] if targets else None) as subject:
            examination = Session(subject, self.console, self.result, None)
            with recorded(examination, targets[0] if targets else None, self.annotation):
                for each in targets:
                    require(subject, each)
                yield examination

    @contextmanager
    def _investigated(
        self,
        subject: Subject,
        check: CheckSettings,
        search: SearchSettings,
        target: TargetSettings | None = None,
        elsewhere: Callable[[Check], Check] | None = None,
        *,
        fed: bool = True,
    ) -> Iterator[Session]:
        """The model with its prober; what is found is in the result however it ends."""
        prober = make_prober(check, search, subject, self.console, elsewhere, fed=fed)
        investigation = Session(subject, self.console, self.result, prober)
        try:
            with recorded(investigation, target or check.target, self.annotation):
                yield investigation
        finally:
            note_first(prober, self.result)
            prober.ledger.close()


def _refuse_repeat(search: SearchSettings, command: str) -> None:
    """A measured failure rate is one model's, with one input.

    Raises:
        UsageError: One is asked for.
    """
    if search.repeat is not None:
        raise UsageError(
            f"--repeat measures how often one model fails on one input, and {command} tries many of them: drop it. What fails "
            "is tried again in any case; `bisect-trt repeat` says how often it does."
        )


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
