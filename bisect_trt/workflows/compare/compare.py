"""Run a model on the target and on the reference, and compare; or on the target alone, with what was saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import onnx

from bisect_trt.errors import UnavailableError
from bisect_trt.graph.cut import mark_outputs
from bisect_trt.graph.network import Network
from bisect_trt.graph.save import save_model
from bisect_trt.graph.shapes import free_inputs
from bisect_trt.probing.protocol import Compare, Failed, Sample
from bisect_trt.probing.workers.sessions import TIMED_RUNS
from bisect_trt.reporting.result import Result
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.tensors.npz import NpzFile, save_npz
from bisect_trt.tensors.saved import SavedRun, load_runs, save_samples
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.workflows.compare.chosen import MARK_UNFUSED, choose_outputs
from bisect_trt.workflows.compare.saved import conclude, same_outputs, same_samples, tell, tell_average
from bisect_trt.workflows.compare.self_check import self_check
from bisect_trt.workflows.freed import free_symbols
from bisect_trt.workflows.investigation import Examination
from bisect_trt.workflows.pictures import Pictures

T = TypeVar("T")


@dataclass(frozen=True)
class CompareSettings:
    """What to compare, and what to keep.

    Attributes:
        target: The runtime under suspicion.
        tolerance: How far it may be off.
        onnx_outputs: Tensors to compare instead of the model's outputs; ``MARK_ALL`` for every one, ``MARK_UNFUSED``
            for every one that the target has without being asked for it, as :mod:`bisect_trt.targets.trt.debug` sees it.
        fail_fast: Whether to stop at the first output that does not match.
        timeout: Seconds the target may take.
        save_inputs: Where the inputs are written to.
        save_outputs: Where the target's outputs are written to.
        load_outputs: Saved outputs to compare with instead of the reference's.
        pictures: Which pictures to draw.
        exclude_outputs: Tensors to leave out, of those.
        also: More targets, compared in turn with the same; neither pictures nor saved outputs are of them.
        warm_up: How often a target runs before it is timed; ``None`` if it is not.
        save_onnx: Where the model goes that the first target runs.
        self_check: Whether to compare each target with itself, see :mod:`bisect_trt.workflows.compare.self_check`.
        average: Whether the averages over samples decide.
    """

    target: TargetSettings
    tolerance: ToleranceOptions
    onnx_outputs: tuple[str, ...] = ()
    fail_fast: bool = False
    timeout: float | None = None
    save_inputs: Path | None = None
    save_outputs: Path | None = None
    load_outputs: tuple[Path, ...] = ()
    pictures: Pictures = field(default_factory=Pictures)
    exclude_outputs: tuple[str, ...] = ()
    also: tuple[TargetSettings, ...] = ()
    warm_up: int | None = None
    save_onnx: Path | None = None
    self_check: bool = False
    average: bool = False

    def each(self) -> list[CompareSettings]:
        """The settings for one target after the other."""
        rest = replace(self, save_outputs=None, pictures=Pictures(), save_onnx=None)
        return [self, *(replace(rest, target=target) for target in self.also)]


def compare(examination: Examination, settings: CompareSettings) -> Result:
    """Compare every output on every input sample.

    Raises:
        UsageError: An output or a tolerance names no tensor, or saved outputs do not fit.
        UnavailableError: The reference or the target cannot run the model.
    """
    if settings.self_check:
        return self_check(examination, [each.target for each in settings.each()], settings.tolerance, settings.timeout)
    subject, console, result = examination.subject, examination.console, examination.result
    names = choose_outputs(subject.network, settings.onnx_outputs, settings.exclude_outputs)
    settings.tolerance.check_names(names)
    if settings.save_inputs is not None:
        save_samples(settings.save_inputs, subject.samples)
    runs = [run for path in settings.load_outputs for run in load_runs(path)]
    against = ", ".join(run.name for run in runs) or "the reference"
    comparisons: list[TensorComparison] = []
    averages: list[TensorComparison] | None = [] if settings.average else None
    targets = result.extra["targets"] = []
    for each in settings.each():
        console.step(f"{each.target.describe()} against {against}, {len(names)} output(s)")
        samples = _Samples(examination, each, names)
        found = samples.compare(runs)
        if not runs and not settings.average and all(comparison.passed for comparison in found):
            found = samples.compare_free() or found
        if samples.latency_ms is not None:
            console.say(
                f"  {samples.latency_ms:.3f} ms a run, the median of {TIMED_RUNS} after {each.warm_up} to warm up"
            )
        if averages is not None:
            averages += samples.averages
        failed = sum(not comparison.passed for comparison in (samples.averages if settings.average else found))
        targets.append(
            {
                "name": each.target.describe(),
                "compared": len(found),
                "failed": failed,
                "latency_ms": samples.latency_ms,
            }
        )
        comparisons += found
        if failed and settings.fail_fast:
            break
    if len(targets) > 1:
        for target in targets:
            console.answer(f"{target['name']}: {target['failed']} of {target['compared']} do not match.")
    return conclude(comparisons, console, result, averages)


class _Samples:
    """Compares a model's outputs, sample by sample."""

    def __init__(self, examination: Examination, settings: CompareSettings, names: Sequence[str]) -> None:
        self._result = examination.result
        self._subject = subject = examination.subject
        self._settings = settings
        self._names = names
        self._console = examination.console
        self.latency_ms: float | None = None
        self.averages: list[TensorComparison] = []
        self._unfused = settings.onnx_outputs == MARK_UNFUSED
        self._marked = self._model = subject.models.write("compared", mark_outputs(subject.network, names, {}))
        if self._unfused:
            self._model = subject.models.write("unmarked", mark_outputs(subject.network, subject.network.outputs, {}))
        if settings.save_onnx is not None:
            self._save_model(settings.save_onnx)

    def _save_model(self, path: Path) -> None:
        """Write the model that the target runs: with the compared outputs, and lowered where Casts lower it."""
        lowered = self._made(self._subject.models.lowered(self._model, self._settings.target), "target")
        model = onnx.load(str(self._model), load_external_data=False) if lowered is None else lowered
        save_model(model, self._subject.workspace.weights.folder_of(model), path)
        self._result.artifacts["onnx"] = str(path)

    def compare(self, runs: Sequence[SavedRun]) -> list[TensorComparison]:
        """Compare the target with saved runs, or with the reference if there is none."""
        numbers = range(len(self._subject.samples))
        for number in numbers:
            self._subject.models.feed(f"inputs-{number + 1}", self._subject.samples[number])
        for run in runs:
            same_samples(run, len(numbers), "the target runs")
            for sample in run.samples:
                same_outputs(run.name, sample, self._names, self._console)
        comparisons: list[TensorComparison] = []
        for run in runs:
            for number in numbers:
                wanted = {name: v for name, v in run.samples[number].items() if name in self._names}
                save_npz(self._scratch("golden", number), wanted)
            comparisons += self._compare_with(f"{run.name}: " if len(runs) > 1 else "")
        if not runs:
            for number in numbers:
                if not self._scratch("golden", number).exists():  # else an earlier target was compared with it
                    self._run_reference(number)
            comparisons = self._compare_with("")
        if self._settings.save_outputs is not None:
            saved = [
                NpzFile(path) for path in (self._scratch("outputs", number) for number in numbers) if path.exists()
            ]
            save_samples(self._settings.save_outputs, saved, self._settings.target.describe())
        return comparisons

    def compare_free(self) -> list[TensorComparison]:
        """The same with the dimensions free that the file leaves so; empty if all matches, or the target takes none."""
        subject, settings = self._subject, self._settings
        if self._unfused or not free_symbols(subject, None) or settings.target.target.capabilities.compiles_shapes:
            return []
        freed = Network(free_inputs(subject.network.proto, subject.declared, forget=False))
        model = subject.models.write("compared-free", mark_outputs(freed, self._names, {}))
        reply = subject.models.ask(self._request(model), settings.timeout)
        if isinstance(reply, Failed) or all(comparison.passed for comparison in reply.comparisons):
            return []
        self._console.say("  that is with its shapes fixed; with its dimensions free, as in its file:")
        tell(reply.comparisons, "", self._console)
        self._result.extra["free_dimensions"] = True
        return list(reply.comparisons)

    def _run_reference(self, number: int) -> None:
        inputs, golden = (self._scratch(name, number) for name in ("inputs", "golden"))
        self._made(self._subject.models.collect(self._marked, inputs, golden), "reference")

    def _compare_with(self, prefix: str) -> list[TensorComparison]:
        """Compare the target's outputs on every sample with what lies there as golden."""
        numbers, settings = range(len(self._subject.samples)), self._settings
        reply = self._made(self._subject.models.ask(self._request(self._model), settings.timeout), "target")
        if reply.unsupported:
            raise UnavailableError(
                f"{settings.target.describe()} cannot show what it leaves unfused (TensorRT can, from 10.12 on, "
                "unless it loads an engine); mark every tensor as an output: --onnx-outputs mark all."
            )
        self.latency_ms = reply.latency_ms
        comparisons = list(reply.comparisons)
        left_out = {name: why for name, why in reply.skipped.items() if name in self._names}
        for name, why in left_out.items():
            self._console.warn(f"'{name}' is not compared: {why}")
        if left_out and not comparisons:
            raise UnavailableError("No output is left to compare; mark tensors before them: --onnx-outputs NAME.")
        if self._unfused:
            shown = {comparison.name for comparison in comparisons}
            self._console.say(f"  {len(shown)} of {len(self._names)} tensors are there; the rest is fused away")
        tell(comparisons, prefix, self._console)
        if settings.average:
            self.averages += tell_average(comparisons, prefix, self._console)
        files = [[self._scratch(name, number) for name in ("outputs", "golden")] for number in numbers]
        seen = [(NpzFile(target), NpzFile(golden)) for target, golden in files if target.exists()]
        settings.pictures.draw(comparisons, seen, self._console, self._result)
        return comparisons

    def _request(self, model: Path) -> Compare:
        """To compare the target's outputs on every sample with what lies there as golden."""
        numbers, settings = range(len(self._subject.samples)), self._settings
        return Compare(
            settings.target,
            model,
            tuple(Sample(self._scratch("inputs", number), self._scratch("golden", number)) for number in numbers),
            settings.tolerance,
            tuple(self._names),
            every=not settings.fail_fast,
            unfused=self._unfused,
            fail_fast=settings.fail_fast,
            details=True,
            warm_up=settings.warm_up,
            save_outputs=tuple(self._scratch("outputs", number) for number in numbers),
        )

    def _scratch(self, name: str, number: int) -> Path:
        return self._subject.workspace.scratch(f"{name}-{number + 1}.npz")

    def _made(self, reply: T | Failed, who: str) -> T:
        if isinstance(reply, Failed):
            path, mend = self._subject.settings.path, self._subject.renaming
            raise UnavailableError(f"the {who} cannot run {path}: {reply.message}.{mend}")
        return reply
