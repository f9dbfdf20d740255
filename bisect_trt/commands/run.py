"""``run``: compare the outputs of a target with the reference's or with saved ones, or saved ones with each other.

With ``--metric`` or limits the whole model is measured instead.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

import onnx
from msgspec import Struct, structs

from bisect_trt.aliases import Fields
from bisect_trt.errors import (
    ConflictError,
    InputValuesError,
    MissingOptionError,
    ModelRefusedError,
    UnknownNameError,
    quoted,
)
from bisect_trt.onnxlib.cut import mark_outputs
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.save import check_output, data_file, save_model
from bisect_trt.options.compare import CompareOptions, MetricOptions
from bisect_trt.options.searches import Run, RunOptions
from bisect_trt.options.shared import CheckOptions, Data, Loop, Plots
from bisect_trt.options.spec import changed
from bisect_trt.probe.outcome import Ending
from bisect_trt.report.console import Console
from bisect_trt.report.outcomes import (
    describe_comparison,
    describe_details,
    describe_outcome,
    describe_score,
)
from bisect_trt.report.parts import Comparison, MetricValues, PrecisionAudit, Status
from bisect_trt.report.plots import check_plots, draw_plots
from bisect_trt.report.result import Result
from bisect_trt.report.sentences import (
    EXPORT_RIGHT,
    FUSED,
    NOISY,
    NOT_LOWERED,
    SIZES_REFUSED,
    describe_partition,
)
from bisect_trt.report.text import Json
from bisect_trt.search.oracle import Verdict
from bisect_trt.session.advice import advice, refused_sizes
from bisect_trt.session.call import Call
from bisect_trt.session.checks import CheckSettings, make_scale, tolerance_options
from bisect_trt.session.session import Session
from bisect_trt.session.subject import Subject
from bisect_trt.steps.placement import record_placement
from bisect_trt.steps.rounding import rounding_alone
from bisect_trt.targets.base import Looked, TargetSettings, Tier
from bisect_trt.targets.options import Target
from bisect_trt.tensors.compare import compare_all
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.tensors.files import (
    NpzFile,
    SavedRun,
    Values,
    load_runs,
    same_samples,
    sample_files,
    save_samples,
)
from bisect_trt.tensors.info import TensorInfo
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.worker.protocol import Compare, Failed, Sample, Score, Trace

OPERATOR = "op:"
"""The prefix of a type of operators among names of tensors, as for ``--keep``."""
MARK_ALL = "mark all"
_COMPARED_OUTPUTS = {"load_outputs", "save_outputs", "reference"}
_SINGLE_OUTPUTS = {
    "load_outputs",
    "save_outputs",
    "save_inputs",
    "onnx_outputs",
    "onnx_exclude_outputs",
    "save_onnx",
    "explain_fusions",
    "reference",
}
"""Options about single outputs."""
_NEED_A_MODEL = _SINGLE_OUTPUTS - {"load_outputs", "onnx_outputs"}
"""Options that do not apply to saved outputs."""
_TYPES = {
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8",
    "uint8": "int8",
}
"""The precisions of types in the layers of engines, where a type has another name."""
_PRECISIONS = {"fp32", "fp16", "bf16", "fp8", "int8", "int4", "fp4"}
"""Layers of other types (integers, masks) are not counted."""
_LITTLE = 0.5
"""Below this share of layers in a requested precision, the difference is printed."""


def run(call: Call) -> Result:
    """Compare a target with the reference or with saved results, or saved results with each other."""
    options = call[RunOptions]
    check_plots(call[Plots])
    if call.source is None and (Run not in call.options or call[Run].model is None):
        return _compare_saved(call)
    target = call[Target].required(engines=True)
    tolerance = tolerance_options(call[CompareOptions], target, nonfinite_equal=False)
    if options.save_onnx is not None:
        call.paths.write(data_file(options.save_onnx), "the weights of --save-onnx")
        check_output(options.save_onnx, overwrite=True)
    metric, limits = call.deciding(bounded=False)
    if call[Loop].steps is not None and metric is None:
        raise MissingOptionError(
            "run --steps scores all steps; add a --metric, or `diagnose` the step that is wrong."
        )
    opened = call.open(None, options.load_outputs)
    # A measurement is a probe, with a verdict in the journal; a comparison needs neither.
    if limits is not None:
        refuse_options(
            options,
            _SINGLE_OUTPUTS,
            "does not apply to limits, which measure the whole model; drop it.",
        )
        check = CheckSettings(CheckOptions(timeout=options.timeout), target=target, limits=limits)
        with opened.searching(check) as session:
            return measure(session, target)
    with opened.examined(options.timeout, target) as session:
        # The number of files is the number of samples, which are known only now.
        for path in filter(None, (options.save_inputs, options.save_outputs)):
            for file in sample_files(path, len(session.subject.samples)):
                if file != path:
                    call.paths.write(file, f"{file.name} of the saved samples")
        explain_fusions(session, target, options)
        if target.build_only:
            return build(session, target, tolerance, options)
        if metric is not None:
            refuse_options(
                options,
                _SINGLE_OUTPUTS,
                "does not apply to --metric, which scores all outputs; drop it.",
            )
            return score(session, target, metric, options.timeout)
        return _compare(call, session, target, tolerance)


def _compare(
    call: Call, session: Session, target: TargetSettings, tolerance: ToleranceOptions
) -> Result:
    """Compare a target with saved runs and a PyTorch module or another model, or with the reference if there are none."""
    options = call[RunOptions]
    subject = session.subject
    runs = [run for path in options.load_outputs for run in load_runs(path)]
    eager = call.eager(subject)
    if eager is not None:
        outputs = [eager.run(sample, subject.network.outputs) for sample in subject.samples]
        runs.append(SavedRun(eager.title, outputs))
    table = Table(session.console, session.result, call[Plots])
    result = _compare_target(session, target, tolerance, options, table, runs)
    wrong = result.status != "found"
    # Saved outputs may come from anywhere, so rounding of this machine explains nothing about
    # them.
    if wrong and not (runs or options.onnx_outputs):
        check = CheckSettings(target=target, tolerance=tolerance)
        worst = max(table.comparisons, key=lambda comparison: comparison.severity)
        of_sample = [
            comparison for comparison in table.comparisons if comparison.sample == worst.sample
        ]
        if amplified := rounding_alone(subject, check, of_sample):
            result.amplified = amplified
    elif wrong and eager:
        from bisect_trt.steps.export import judge_export  # noqa: PLC0415 - of such references alone

        if judge_export(session, eager, tolerance) is None:
            session.console.answer(EXPORT_RIGHT)
    return result


def score(
    session: Session, target: TargetSettings, metric: MetricOptions, timeout: float | None
) -> Result:
    """Score the target on the whole set.

    Args:
        session: The model, opened with its reference.
        target: The runtime that is scored.
        metric: The metric, the samples of its set and their labels.
        timeout: Seconds for a request, the whole set; ``None`` without a limit.

    Raises:
        UsageError: A sample does not fit the model, or the metric does not fit the outputs or
            labels.
        UnavailableError: The reference or a target cannot run the model.
    """
    subject = session.subject
    console = session.console
    result = session.result
    model = subject.models.write("measured", subject.as_in_file(subject.network.proto))
    scale = make_scale(subject, metric)
    console.step(f"{target.describe()}, on all {scale.data.count} samples")
    measured = session.answered(subject.workers.ask(Score(target, model, scale.scoring()), timeout))
    # NaN where both are infinite.
    lost = measured.value - scale.reference
    change = "" if math.isnan(lost) else f" ({lost:+.4g}{scale.metric.unit} against the reference)"
    equal = measured.value == scale.reference
    score = scale.score(measured)
    console.answer(
        f"{describe_score(score, scale.metric.unit)}{' (equal to the reference)' if equal else change}"
    )
    result.metric = MetricValues(**structs.asdict(score))
    result.comparisons = []
    return result.end("not_reproduced" if result.metric.passed is False else "found")


def measure(session: Session, target: TargetSettings) -> Result:
    """Measure the target beside its limits.

    Raises:
        UnavailableError: The target cannot run the model.
    """
    session.console.step(f"{target.describe()}, measured beside its limits")
    record = session.prober.probe(session.subject.original)
    outcome = session.outcome(record)
    if outcome.ending is Ending.BROKEN:
        raise ModelRefusedError(
            f"the target cannot run {session.subject.settings.path}: {describe_outcome(outcome)}."
        )
    session.result.comparisons = []
    endings: dict[Verdict, tuple[Status, str]] = {
        Verdict.PASS: ("found", "Within the limits"),
        Verdict.FAIL: ("not_reproduced", "Past a limit"),
        Verdict.UNRESOLVED: ("inconclusive", NOISY),
    }
    status, ending = endings[record.verdict]
    session.console.answer(f"{ending}: {record.reason}.")
    return session.result.end(
        status, record.reason if record.verdict is Verdict.UNRESOLVED else None
    )


def build(
    session: Session, target: TargetSettings, tolerance: ToleranceOptions, options: RunOptions
) -> Result:
    """Parse and build the model, and report the precisions of its layers; nothing is run.

    Args:
        session: The model and the result.
        target: The target.
        tolerance: The tolerances for the worker.
        options: The tensors that are outputs, the file for that model, and the time that a build
            may take.
    """
    subject = session.subject
    console = session.console
    result = session.result
    timeout = options.timeout
    refuse_options(
        options, _COMPARED_OUTPUTS, "has no effect with --build-only, which runs nothing; drop it."
    )
    console.step(f"{target.describe()}: parse and build")
    # One engine for all samples: where dimensions are free, its profile covers the shapes of each.
    feeds = subject.feeds()
    samples = tuple(Sample(feed, feed) for feed in feeds)
    names = choose_outputs(subject.network, options.onnx_outputs, options.onnx_exclude_outputs)
    model = subject.models.write("built", subject.as_in_file(marked(subject, names)))
    _save_lowered(session, model, target, options.save_onnx)
    reply = subject.workers.ask(Compare(target, model, samples, tolerance, layers=True), timeout)
    if isinstance(reply, Failed):
        trace = (
            subject.workers.ask(Trace(target, model, feeds[0]), timeout)
            if reply.kind == "build"
            else reply
        )
        parts = None if isinstance(trace, Failed) else trace.get("partition")
        result.partition = parts
        partition = f" {describe_partition(parts)}" if parts else ""
        console.answer(f"It does not build: {reply.message}.{partition}")
        if refused := refused_sizes(subject):
            reason = f"{refused.message}.{advice(subject, refused)}"
            console.answer(f"{SIZES_REFUSED}: {reason}")
        return result.end("not_reproduced", reply.message)
    audit = audit_precision(target, reply.layers)
    result.layers = result.layers or list(reply.layers)
    record_placement(session, target)
    result.precision_audit = audit
    console.answer(f"It builds: {audit.sentence}")
    return result.end()


def explain_fusions(session: Session, target: TargetSettings, options: RunOptions) -> None:
    """Print the layers that the compiler makes of several nodes, in order, each with the options that turn it off.

    The result has all layers. Each known option of the compiler is set in one more build.

    Args:
        session: The model and the result.
        target: The target.
        options: Whether they are asked for, and the seconds that the build may take.

    Raises:
        UsageError: The target does not report any.
        UnavailableError: It does not build the model.
    """
    if not options.explain_fusions:
        return
    subject = session.subject
    feed = subject.models.feed("fusions.in", subject.samples[0])
    model = subject.models.write("fusions", subject.as_in_file(subject.network.proto))

    def ask(
        settings: TargetSettings, what: Literal["trace", "fusions"] = "fusions"
    ) -> Fields | Failed:
        return subject.workers.ask(Trace(settings, model, feed, what), options.timeout)

    trace = session.answered(ask(target))
    title = target.target.title
    if not trace:
        raise ConflictError(f"--explain-fusions: {title} does not report its fusions; drop it.")
    session.result.layers = trace["layers"]
    fused = [layer for layer in trace["layers"] if len(layer["nodes"]) > 1]
    looked = ask(target, "trace")
    switches = target.target.switches(
        target, Looked(None if isinstance(looked, Failed) else looked)
    )
    # Each option alone: with two off, neither could be named for a layer.
    engines = {
        switch.name.removeprefix("pass:"): ask(switch.turn(target))
        for switch in switches
        if switch.tier is Tier.COMPILER
    }
    for layer in fused:
        nodes = {*layer["nodes"]}
        layer["off"] = [
            name
            for name, engine in engines.items()
            if not isinstance(engine, Failed)
            and not any(nodes <= {*layer["nodes"]} for layer in engine["layers"])
        ]
    rows = [
        (n, layer["kind"], ", ".join(layer["off"]) or "no known option", " + ".join(layer["nodes"]))
        for n, layer in enumerate(fused, 1)
    ]
    session.console.answer(FUSED.format(title, len(rows)))
    session.console.table(("", "layer", "turned off by", "nodes"), rows, len(rows))


def audit_precision(target: TargetSettings, layers: Sequence[Json]) -> PrecisionAudit:
    """Compare the requested precisions with the precisions of the layers in ``RuntimeSession.layers``."""
    types = ({_TYPES.get(name, name) for name in layer.get("precisions") or ()} for layer in layers)
    kinds = [precisions & _PRECISIONS for precisions in types]
    counts = Counter(name for kind in kinds for name in kind)
    total = sum(map(bool, kinds))
    precisions = "".join(f", {number} in {name}" for name, number in counts.most_common())
    sentence = f"{len(layers)} layers{precisions}."
    requested = [name for name in target.low_precisions if name != "tf32"]
    missed = [name for name in requested if counts[name] < _LITTLE * total]
    # Without a precision in the inspector's layers nothing is known.
    if missed and total:
        precision, number = counts.most_common(1)[0]
        asked = f"{' and '.join(missed)} {'was' if len(missed) == 1 else 'were'}"
        sentence = NOT_LOWERED.format(asked, number, total, precision)
    return PrecisionAudit(
        asked=tuple(requested), counts=dict(counts), total=total, sentence=sentence
    )


def refuse_options(options: RunOptions, names: Iterable[str], reason: str) -> None:
    """Check that none of some options was given.

    Args:
        options: The options of the command.
        names: The fields that may not be given.
        reason: The end of the message, after the flag.

    Raises:
        UsageError: One was given; the message is the option and ``reason``.
    """
    if refused := [name for name in changed(options) if name in names]:
        raise ConflictError(f"--{refused[0].replace('_', '-')} {reason}")


class Table(Struct):
    """All comparisons of a ``run``, printed and drawn as they are added."""

    console: Console
    result: Result
    plots: Plots
    comparisons: list[TensorComparison] = []

    def add(
        self,
        comparisons: Sequence[TensorComparison],
        samples: Sequence[tuple[Values, Values]],
        prefix: str = "",
    ) -> None:
        """Print a line for each output, with details if it does not match or with ``-v``; draw the plots.

        Args:
            comparisons: One for each output and sample.
            samples: The outputs of the target and of the reference for each sample, to draw; empty
                if nothing is drawn.
            prefix: Begins each line.
        """
        self.comparisons += comparisons
        for comparison in comparisons:
            sample = "" if comparison.sample is None else f"sample {comparison.sample}: "
            word = "match   " if comparison.passed else "MISMATCH"
            self.console.say(
                f"  {prefix}{sample}{word} '{comparison.name}': {describe_comparison(comparison)}"
            )
            if comparison.details is not None and (
                not comparison.passed or self.console.verbosity > 0
            ):
                self.console.say(f"    {describe_details(comparison.details)}")
            if comparison.reference_nonfinite:
                self.console.warn(
                    f"{prefix}{sample}'{comparison.name}' is NaN or Inf in {comparison.reference_nonfinite} of "
                    f"{comparison.total} elements of the reference; with --infinities-compare-equal equal infinities match, "
                    "NaN never does"
                )
            types = comparison.target_dtype, comparison.reference_dtype
            if None not in types and types[0] != types[1]:
                self.console.say(f"    {types[0]} is compared with {types[1]}, by value")
        if samples:
            draw_plots(self.plots, comparisons, samples, self.console, self.result)

    def conclude(self) -> Result:
        """Print how many match, and return the result."""
        self.result.comparisons = list(map(Comparison.of, self.comparisons))
        count = len(self.comparisons)
        failed = sum(not comparison.passed for comparison in self.comparisons)
        self.console.say(f"{failed} of {count} do not match." if failed else f"All {count} match.")
        return self.result.end("not_reproduced" if failed else "found")


def _compare_saved(call: Call) -> Result:
    """Compare each saved run with the last one, as the reference.

    Raises:
        UsageError: There are not two runs to compare, they do not fit each other, or an option
            needs a model.
    """
    options = call[RunOptions]
    console = call.console
    if call[Target].settings(engines=True) is not None or not options.load_outputs:
        raise MissingOptionError(
            "no model to run; give one, or two saved results with --load-outputs and no target."
        )
    reason = "needs a model; give one, or drop the option."
    refuse_options(options, _NEED_A_MODEL, reason)
    if call[MetricOptions].metric is not None or call[Data].external_data_dir is not None:
        raise ConflictError(
            f"--{'metric' if call[MetricOptions].metric is not None else 'external-data-dir'} {reason}"
        )
    call[MetricOptions].check(bounded=False)
    tolerance = tolerance_options(call[CompareOptions], None, nonfinite_equal=False)
    # The last file is the reference, as the order of words says.
    *runs, right = [run for path in options.load_outputs for run in load_runs(path)]
    if not runs:
        raise MissingOptionError(
            f"{right.name} is the only saved result; give another after --load-outputs, or a model and a target."
        )
    table = Table(console, call.result, call[Plots])
    for run in runs:
        same_samples(run, len(right.samples), f"{right.name} holds")
        names = options.onnx_outputs or list(right.samples[0])
        console.step(f"{run.name} against {right.name}, {len(names)} output(s)")
        samples = list(zip(run.samples, right.samples, strict=True))
        for number, (target, reference) in enumerate(samples, 1):
            shared = _shared(
                run.name, target, _shared(right.name, reference, names, console), console
            )
            tolerance.check_names(shared)
            comparisons = compare_all(reference, target, tolerance, shared, details=True)
            if len(samples) > 1:
                comparisons = [
                    structs.replace(comparison, sample=number) for comparison in comparisons
                ]
            table.add(comparisons, samples, f"{run.name}: " if len(runs) > 1 else "")
    return table.conclude()


def _shared(name: str, sample: Json, wanted: Sequence[str], console: Console) -> list[str]:
    """Return the wanted outputs that a saved sample has; warn about the others.

    Raises:
        UsageError: It has none of them.
    """
    shared = [output for output in wanted if output in sample]
    if not shared:
        raise InputValuesError(
            f"{name} has none of the outputs to compare, {quoted(wanted)}; it has {quoted(sample)}."
        )
    if missing := [output for output in wanted if output not in sample]:
        console.warn(f"{name} has no {quoted(missing)}, so that is not compared")
    return shared


def _compare_target(
    session: Session,
    target: TargetSettings,
    tolerance: ToleranceOptions,
    options: RunOptions,
    table: Table,
    runs: Sequence[SavedRun],
) -> Result:
    """Compare outputs of a target with other runs, or with the reference if there are none; write the requested files."""
    subject, console, models = session.subject, session.console, session.subject.models
    names = choose_outputs(subject.network, options.onnx_outputs, options.onnx_exclude_outputs)
    tolerance.check_names(names)
    # Written before the target runs: the inputs are needed most where it crashes.
    if options.save_inputs is not None:
        save_samples(options.save_inputs, subject.samples)
    against = ", ".join(run.name for run in runs) or "the reference"
    console.step(f"{target.describe()} against {against}, {len(names)} output(s)")
    typed = marked(subject, names)
    model = models.write("compared", subject.as_in_file(typed))
    inputs = subject.feeds()
    outputs = tuple(
        subject.workspace.scratch(f"outputs-{number}.npz") for number in range(1, len(inputs) + 1)
    )
    golden = [
        (f"{run.name}: " * (len(runs) > 1), _golden(session, run, place, names))
        for place, run in enumerate(runs)
    ] or [("", _reference_outputs(session, typed, inputs))]
    _save_lowered(session, model, target, options.save_onnx)

    for prefix, files in golden:
        request = Compare(
            target,
            model,
            tuple(map(Sample, inputs, files)),
            tolerance,
            tuple(names),
            every=True,
            details=True,
            save_outputs=outputs,
        )
        reply = session.answered(subject.workers.ask(request, options.timeout))
        for name in (skipped := [name for name in names if name in reply.skipped]):
            console.warn(f"'{name}' is not compared: {reply.skipped[name]}")
        if skipped and not reply.comparisons:
            raise ModelRefusedError(
                "No output is left to compare; mark tensors before them: --onnx-outputs NAME."
            )
        # A target that ended early has written the first samples only.
        pairs = [
            (NpzFile(a), NpzFile(b)) for a, b in zip(outputs, files, strict=True) if a.exists()
        ]
        table.add(reply.comparisons, pairs, prefix)
    record_placement(session, target)
    if options.save_outputs is not None:
        save_samples(
            options.save_outputs,
            [NpzFile(path) for path in outputs if path.exists()],
            target.describe(),
        )
    return table.conclude()


def marked(subject: Subject, names: Sequence[str]) -> onnx.ModelProto:
    """Return the model with these outputs, each with its type, without which TensorRT reads none.

    Args:
        subject: The model.
        names: The tensors, in order.
    """
    network = subject.network
    new = [name for name in names if name not in network.outputs]
    infos: Mapping[str, TensorInfo] = network.infos
    if any(name not in infos for name in new):
        # Types that inference does not find are those of the reference run.
        infos = subject.infos
    return mark_outputs(
        network,
        names,
        {name: replace(infos[name], shape=None) for name in new if name in infos},
    )


def _reference_outputs(
    session: Session, model: onnx.ModelProto, inputs: Sequence[Path]
) -> list[Path]:
    """Write the outputs of the reference, a file for each sample."""
    subject = session.subject
    expected = subject.models.write("expected", model)
    files = [subject.workspace.scratch(f"golden-{place}.npz") for place in range(len(inputs))]
    for fed, file in zip(inputs, files, strict=True):
        session.answered(
            subject.models.collect(expected, fed, file), "the reference", reference=True
        )
    return files


def _golden(session: Session, run: SavedRun, place: int, names: Sequence[str]) -> list[Path]:
    """Write the outputs of a saved run for the worker, a file for each sample."""
    same_samples(run, len(session.subject.samples), "the target runs")
    outputs = (
        {name: sample[name] for name in _shared(run.name, sample, names, session.console)}
        for sample in run.samples
    )
    return [
        session.subject.models.feed(f"golden-{place}-{number}", values)
        for number, values in enumerate(outputs, 1)
    ]


def _save_lowered(session: Session, model: Path, target: TargetSettings, path: Path | None) -> None:
    """Write the model that the target runs, if asked for: with the compared outputs, and lowered if Casts lower it."""
    if path is None:
        return
    lowered = session.answered(session.subject.models.lowered(model, target))
    written = onnx.load(str(model), load_external_data=False) if lowered is None else lowered
    save_model(written, session.subject.workspace.weights.folder_of(written), path)
    session.result.artifacts["onnx"] = str(path)


def choose_outputs(
    network: Network, wanted: Sequence[str], excluded: Sequence[str] = ()
) -> list[str]:
    """Return the tensors to compare, each once.

    Args:
        network: The model.
        wanted: Names and globs of tensors, or ``op:TYPE`` for the outputs of operators of a type;
            ``mark all`` for all tensors; by default the graph's outputs.
        excluded: Tensors to exclude, in the same form.

    Raises:
        UsageError: A name or glob matches no tensor, or none is left.
    """
    every = [*dict.fromkeys([*network.computed, *network.outputs])]
    chosen = network.outputs
    if " ".join(dict.fromkeys(wanted)) == MARK_ALL:
        chosen = every
    elif wanted:
        # A weight that a node computes can be named too.
        chosen = _matching("--onnx-outputs", wanted, [*every, *network.producer], network)
    hidden = _matching("--onnx-exclude-outputs", excluded, chosen, network)
    remaining = [name for name in chosen if name not in hidden]
    if not remaining:
        raise MissingOptionError("--onnx-exclude-outputs leaves no tensor to compare; name fewer.")
    return remaining


def _matching(
    option: str, patterns: Sequence[str], known: Sequence[str], network: Network
) -> list[str]:
    """Return the tensors that names, globs and types match; a name with glob characters matches itself."""
    operators = {
        name: f"{OPERATOR}{network.nodes[maker].op_type}"
        for name, maker in network.producer.items()
    }
    tensors: list[str] = []
    for pattern in patterns:
        labels = operators if pattern.startswith(OPERATOR) else dict(zip(known, known, strict=True))
        matching = (name for name in known if fnmatchcase(labels.get(name, ""), pattern))
        # Exporters write names with brackets, which a glob would read as a set.
        names = [pattern] if pattern in known else [*matching]
        if not names:
            raise UnknownNameError(
                f"{option}: the model makes no tensor '{pattern}', or it is not compared (to compare all tensors: "
                "--onnx-outputs mark all).",
                pattern,
                sorted({*labels.values()}),
            )
        tensors += names
    return [*dict.fromkeys(tensors)]
