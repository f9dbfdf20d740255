"""``run``: compare the outputs of targets with the reference's, or with saved ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeVar

import onnx

from bisect_trt.commands.compare_saved import check_average, conclude, same_outputs, tell, tell_average
from bisect_trt.commands.self_consistency import self_check
from bisect_trt.commands.session import Session
from bisect_trt.commands.settings import tolerance_options
from bisect_trt.errors import UnavailableError, UsageError, quoted
from bisect_trt.onnxlib.cut import mark_outputs
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.save import save_model
from bisect_trt.onnxlib.shapes import free_inputs
from bisect_trt.options.compare import Compare as CompareOptions
from bisect_trt.options.run import MoreTargets, RunOptions
from bisect_trt.options.shared import Plots
from bisect_trt.report.plots import check_plots, draw_plots
from bisect_trt.report.result import Result
from bisect_trt.targets.options import Target
from bisect_trt.targets.settings import TargetSettings, reference_settings
from bisect_trt.targets.trt.options import LoweringChoice
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.tensors.npz import NpzFile, save_npz
from bisect_trt.tensors.saved import SavedRun, load_runs, same_samples, save_samples
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.worker.protocol import Compare, Failed, Sample
from bisect_trt.worker.sessions import TIMED_RUNS

T = TypeVar("T")

OPERATOR = "op:"
"""Stands before a type of operators, as for ``--keep``."""
MARK_ALL = ("mark", "all")
MARK_UNFUSED = ("mark", "unfused")


@dataclass(frozen=True)
class CompareSettings:
    """What to compare, and what to save.

    Attributes:
        target: The runtime under suspicion.
        tolerance: How far it may be off.
        onnx_outputs: Tensors to compare instead of the model's outputs; ``MARK_ALL`` for every one, ``MARK_UNFUSED``
            for every one that the target does not fuse away.
        fail_fast: Whether to stop at the first output that does not match.
        timeout: Seconds the target may take.
        save_inputs: Where the inputs are written to.
        save_outputs: Where the target's outputs are written to.
        load_outputs: Saved outputs to compare with instead of the reference's.
        plots: Which plots to draw.
        exclude_outputs: Tensors to leave out, of those.
        also: More targets, compared in turn with the same; without plots and saved outputs.
        warm_up: How often a target runs before it is timed; ``None`` if it is not.
        save_onnx: Where the model goes that the first target runs.
        self_check: Whether to compare each target with itself.
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
    plots: Plots = field(default_factory=Plots)
    exclude_outputs: tuple[str, ...] = ()
    also: tuple[TargetSettings, ...] = ()
    warm_up: int | None = None
    save_onnx: Path | None = None
    self_check: bool = False
    average: bool = False

    def each(self) -> list[CompareSettings]:
        """The settings for one target after the other."""
        rest = replace(self, save_outputs=None, plots=Plots(), save_onnx=None)
        return [self, *(replace(rest, target=target) for target in self.also)]


def targets_to_run(more: MoreTargets, target: Target) -> list[TargetSettings]:
    """All targets of a ``run``, the one under suspicion first; empty if none was given.

    Raises:
        UsageError: An option of a target without the target, or one that conflicts with others.
    """
    if more.fp_to_fp16:
        by_cast = any(each.capabilities.lowers_layers for each in target.named())
        target = target.but(fp16=True, **({"lowering": LoweringChoice.CAST} if by_cast else {}))
    rest = [reference_settings()] if more.onnxrt_reference else []
    named = target.named()
    if more.onnx and not named:
        target.but(fp16=False, bf16=False, keep_fp32=[]).settings()  # raises if there is another option
        first = TargetSettings("onnx", fp16=target.fp16, bf16=target.bf16, keep=tuple(target.keep_fp32))
        return [first, *rest]
    if not named and rest and not target.given():
        return rest
    runtime = target.settings(engines=True)
    return [] if runtime is None else [runtime, *([TargetSettings("onnx")] if more.onnx else []), *rest]


def compare_settings(
    options: RunOptions, target: Target, more: MoreTargets, compare: CompareOptions, plots: Plots
) -> CompareSettings:
    """What a ``run`` compares, from its options.

    Raises:
        UsageError: No target was given, or an option conflicts with others.
        UnavailableError: Plots are requested, and matplotlib is not installed.
    """
    check_plots(plots)
    first, *also = targets_to_run(more, target) or [target.required(engines=True)]
    if options.self_check:
        _refuse_beside_self_check(options)
    tolerance = tolerance_options(compare, first, nonfinite_equal=False)
    if options.check_average:
        check_average(tolerance, fail_fast=options.fail_fast)
    marked, unfused = (options.onnx_outputs == [words] for words in ("mark all", "mark unfused"))
    outputs = tuple(options.onnx_outputs)
    outputs = MARK_ALL if marked or options.mark_all else MARK_UNFUSED if unfused else outputs
    return CompareSettings(
        target=first,
        tolerance=tolerance,
        onnx_outputs=outputs,
        exclude_outputs=tuple(options.onnx_exclude_outputs),
        also=tuple(also),
        warm_up=options.warm_up,
        save_onnx=options.save_onnx,
        fail_fast=options.fail_fast,
        timeout=options.timeout,
        save_inputs=options.save_inputs,
        save_outputs=options.save_outputs,
        load_outputs=tuple(options.load_outputs),
        plots=plots,
        self_check=options.self_check,
        average=options.check_average,
    )


def _refuse_beside_self_check(options: RunOptions) -> None:
    """Refuse options that are about the reference or about saved results.

    Raises:
        UsageError: One was given.
    """
    given = {
        "--load-outputs": options.load_outputs,
        "--save-outputs": options.save_outputs,
        "--onnx-outputs": options.onnx_outputs or options.mark_all,
        "--onnx-exclude-outputs": options.onnx_exclude_outputs,
        "--warm-up": options.warm_up is not None,
        "--save-onnx": options.save_onnx,
        "--check-average": options.check_average,
    }
    if beside := next((name for name, wanted in given.items() if wanted), None):
        raise UsageError(
            f"--self-check compares the outputs of the target with its own; {beside} has no part in that: drop it."
        )


def compare(session: Session, settings: CompareSettings) -> Result:
    """Compare every output on every input sample.

    Raises:
        UsageError: An output or a tolerance names no tensor, or saved outputs do not fit.
        UnavailableError: The reference or the target cannot run the model.
    """
    if settings.self_check:
        return self_check(session, [each.target for each in settings.each()], settings.tolerance, settings.timeout)
    subject, console, result = session.subject, session.console, session.result
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
        samples = _Samples(session, each, names)
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
        name, latency = each.target.describe(), samples.latency_ms
        targets.append({"name": name, "compared": len(found), "failed": failed, "latency_ms": latency})
        comparisons += found
        if failed and settings.fail_fast:
            break
    if len(targets) > 1:
        for target in targets:
            console.answer(f"{target['name']}: {target['failed']} of {target['compared']} do not match.")
    return conclude(comparisons, console, result, averages)


class _Samples:
    """Compares the outputs of one target on every sample."""

    def __init__(self, session: Session, settings: CompareSettings, names: Sequence[str]) -> None:
        self._result, self._console = session.result, session.console
        self._subject = subject = session.subject
        self._settings = settings
        self._names = names
        self._numbers = range(1, len(subject.samples) + 1)
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
        subject = self._subject
        for number in self._numbers:
            subject.models.feed(f"inputs-{number}", subject.samples[number - 1])
        for run in runs:
            same_samples(run, len(self._numbers), "the target runs")
            for sample in run.samples:
                same_outputs(run.name, sample, self._names, self._console)
        comparisons: list[TensorComparison] = []
        for run in runs:
            for number, sample in enumerate(run.samples, 1):
                wanted = {name: value for name, value in sample.items() if name in self._names}
                save_npz(self._scratch("golden", number), wanted)
            comparisons += self._compare_with(f"{run.name}: " if len(runs) > 1 else "")
        if not runs:
            for number in self._numbers:
                inputs, golden = (self._scratch(name, number) for name in ("inputs", "golden"))
                if not golden.exists():  # else an earlier target was compared with it
                    self._made(subject.models.collect(self._marked, inputs, golden), "reference")
            comparisons = self._compare_with("")
        if self._settings.save_outputs is not None:
            saved = [path for number in self._numbers if (path := self._scratch("outputs", number)).exists()]
            save_samples(self._settings.save_outputs, list(map(NpzFile, saved)), self._settings.target.describe())
        return comparisons

    def compare_free(self) -> list[TensorComparison]:
        """Compare with the dimensions free that the file leaves so; empty if all matches, or the target takes none."""
        subject, settings = self._subject, self._settings
        free = any(not isinstance(dim, int) for shape in subject.declared.values() for dim in shape)
        if self._unfused or not free or settings.target.target.capabilities.compiles_shapes:
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

    def _compare_with(self, prefix: str) -> list[TensorComparison]:
        """Compare the target's outputs on every sample with the golden files."""
        settings, console = self._settings, self._console
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
            console.warn(f"'{name}' is not compared: {why}")
        if left_out and not comparisons:
            raise UnavailableError("No output is left to compare; mark tensors before them: --onnx-outputs NAME.")
        if self._unfused:
            shown = {comparison.name for comparison in comparisons}
            console.say(f"  {len(shown)} of {len(self._names)} tensors are there; the rest is fused away")
        tell(comparisons, prefix, console)
        if settings.average:
            self.averages += tell_average(comparisons, prefix, console)
        files = [[self._scratch(name, number) for name in ("outputs", "golden")] for number in self._numbers]
        seen = [(NpzFile(target), NpzFile(golden)) for target, golden in files if target.exists()]
        draw_plots(settings.plots, comparisons, seen, console, self._result)
        return comparisons

    def _request(self, model: Path) -> Compare:
        settings = self._settings
        return Compare(
            settings.target,
            model,
            tuple(Sample(self._scratch("inputs", number), self._scratch("golden", number)) for number in self._numbers),
            settings.tolerance,
            tuple(self._names),
            every=not settings.fail_fast,
            unfused=self._unfused,
            fail_fast=settings.fail_fast,
            details=True,
            warm_up=settings.warm_up,
            save_outputs=tuple(self._scratch("outputs", number) for number in self._numbers),
        )

    def _scratch(self, name: str, number: int) -> Path:
        return self._subject.workspace.scratch(f"{name}-{number}.npz")

    def _made(self, reply: T | Failed, role: str) -> T:
        if isinstance(reply, Failed):
            path, fix = self._subject.settings.path, self._subject.renaming
            raise UnavailableError(f"the {role} cannot run {path}: {reply.message}.{fix}")
        return reply


def choose_outputs(network: Network, wanted: Sequence[str], excluded: Sequence[str] = ()) -> list[str]:
    """The tensors to compare, each once.

    Args:
        network: The model.
        wanted: Names and globs of tensors, or ``op:TYPE`` for what operators of a type make; ``MARK_ALL`` or
            ``MARK_UNFUSED`` for every one; without any, the graph's outputs.
        excluded: The same of those to leave out.

    Raises:
        UsageError: A name or glob matches no tensor, or none is left.
    """
    every = list(dict.fromkeys([*network.computed, *network.outputs]))
    chosen = network.outputs
    if tuple(wanted) in (MARK_ALL, MARK_UNFUSED):
        chosen = every
    elif wanted:
        # A weight that a node makes can be asked for by its name.
        known = [*every, *(name for name in network.producer if name not in every)]
        chosen = _matching("--onnx-outputs", wanted, known, network)
    gone = set(_matching("--onnx-exclude-outputs", excluded, chosen, network))
    left = [name for name in chosen if name not in gone]
    if not left:
        raise UsageError("--onnx-exclude-outputs leaves no tensor to compare; name fewer.")
    return left


def _matching(option: str, patterns: Sequence[str], known: Iterable[str], network: Network) -> list[str]:
    """The tensors that names, globs and types match; a tensor whose name looks like a glob is found by its name."""

    def fits(name: str, pattern: str) -> bool:
        if not pattern.startswith(OPERATOR):
            return fnmatchcase(name, pattern)
        maker = network.producer.get(name)
        return maker is not None and fnmatchcase(network.nodes[maker].op_type, pattern.removeprefix(OPERATOR))

    known = list(known)
    found: dict[str, None] = {}
    for pattern in patterns:
        names = [pattern] if pattern in known else [name for name in known if fits(name, pattern)]
        if not names:
            raise UsageError(
                f"{option}: the model makes no tensor '{pattern}', or it is not among those to compare (all of them: "
                f"--onnx-outputs mark all).{_instead(pattern, known, network)}"
            )
        found.update(dict.fromkeys(names))
    return list(found)


def _instead(pattern: str, known: Sequence[str], network: Network) -> str:
    """A hint at what was meant: the outputs of a node with that name, or similar names."""
    made = [name for name in known if name in network.producer]
    made = [name for name in made if network.nodes[network.producer[name]].name == pattern]
    if made:
        return f" A node is called so, and makes {quoted(made)}."
    operators = sorted({f"{OPERATOR}{node.op_type}" for node in network.nodes})
    close = get_close_matches(pattern, operators if pattern.startswith(OPERATOR) else known)
    return f" Close to it: {quoted(close)}." if close else ""
