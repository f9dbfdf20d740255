"""From groups of options to settings, and to the files that a run depends on.

It is long because each group has its function here, beside the files that its options name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from bisect_trt.commands.settings import (
    CheckSettings,
    MetricSettings,
    ModelSettings,
    RepeatSettings,
    SearchSettings,
    Until,
)
from bisect_trt.errors import UsageError
from bisect_trt.options.choices import Algorithm, ErrorStat, Measure
from bisect_trt.options.compare import Compare
from bisect_trt.options.metric import Metric
from bisect_trt.options.searches import Layerwise, Releases, Repeat
from bisect_trt.options.shared import Check, Data, Places, Search
from bisect_trt.probe.ledger import Budget
from bisect_trt.probe.user_checks import CommandCheck
from bisect_trt.report.plots import check_plot
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.compare import check_script
from bisect_trt.tensors.inputs import DataOptions
from bisect_trt.tensors.metrics import find_metric, script_file
from bisect_trt.tensors.saved import files_of
from bisect_trt.tensors.scripts import split_script
from bisect_trt.tensors.tolerance import THRESHOLDS, Method, Precision, ToleranceOptions
from bisect_trt.worker.place import is_away

if TYPE_CHECKING:
    from bisect_trt.commands.layerwise import LayerwiseSettings
    from bisect_trt.commands.releases import ReleasesSettings


def data_files(data: Data) -> list[Path]:
    """The files that the values come from.

    Raises:
        UsageError: There is no such script.
    """
    script = [] if data.data_loader_script is None else [split_script(data.data_loader_script, "", "data-loader")[0]]
    return [*(file for path in data.load_inputs for file in files_of(path)), *script]


def layerwise_settings(own: Layerwise, compare: Compare, target: TargetSettings) -> LayerwiseSettings:
    """How to look at every tensor.

    Raises:
        UnavailableError: A plot is requested, and matplotlib is not installed.
        UsageError: As :func:`tolerance_options`, or the plot cannot be written.
    """
    from bisect_trt.commands.layerwise import LayerwiseSettings  # noqa: PLC0415 - no other command needs it

    if own.save_error_plot is not None:
        check_plot(own.save_error_plot, "--save-error-plot")
    tolerance = tolerance_options(compare, target)
    return LayerwiseSettings(target, tolerance, own.timeout, own.isolate, own.save_error_plot)


def model_settings(model: Path, data: Data) -> ModelSettings:
    """The model and what to feed it.

    Raises:
        UsageError: A function of the data-loader script is named without it, or two are.
    """
    return ModelSettings(
        model,
        data.input_shapes,
        data_options(data),
        data.array_swap_mb,
        data.external_data_dir,
        memory_limit=data.memory_limit,
    )


def data_options(data: Data) -> DataOptions:
    """What to feed a model.

    Raises:
        UsageError: A function of the data-loader script is named without it, or two are.
    """
    script = _loader_script(data)
    return DataOptions(data.seed, data.val_range, tuple(data.load_inputs), script, data.iterations)


def _loader_script(data: Data) -> str | None:
    """The data-loader script with its function, as ``FILE:FUNCTION`` if one is named."""
    script, function = data.data_loader_script, data.data_loader_func_name
    if function is None:
        return script
    if script is None:
        raise UsageError("--data-loader-func-name names a function of a script, and there is none; add one.")
    if not os.path.isfile(script):  # noqa: PTH113 - as for the words of a check
        split_script(script, "", "data-loader")
        raise UsageError("--data-loader-script names a function and so does --data-loader-func-name; name one.")
    return f"{script}:{function}"


def compare_files(compare: Compare) -> list[Path]:
    """The files that the comparison depends on.

    Raises:
        UsageError: There is no such script.
    """
    return [] if compare.compare_func_script is None else [check_script(compare.compare_func_script)]


def target_check(compare: Compare, target: TargetSettings, timeout: float | None) -> CheckSettings:
    """The comparison of a target with the reference, as the check.

    Raises:
        UsageError: As :func:`tolerance_options`, or what is compared is no number.
    """
    compare.require_numbers()
    return CheckSettings(target=target, tolerance=tolerance_options(compare, target), timeout=timeout)


def tolerance_options(
    compare: Compare, target: TargetSettings | None, *, nonfinite_equal: bool = True
) -> ToleranceOptions:
    """How far a target may be off.

    Raises:
        UsageError: An option does not fit the others, or there is no such script.
    """
    if compare.index_tolerance and compare.compare_as is not Algorithm.INDICES:
        raise UsageError("--index-tolerance says how to compare indices; add --compare indices.")
    compare_files(compare)
    asked = compare.check_error_stat
    stats = {name: stat for name, stat in asked.items() if isinstance(stat, ErrorStat)}
    measures = {name: measure for name, measure in asked.items() if isinstance(measure, Measure)}
    return ToleranceOptions(
        compare.atol,
        compare.rtol,
        stats,
        _coarsest(target),
        nonfinite_equal,
        compare.error_quantile,
        compare.infinities_compare_equal,
        Method(
            compare.compare_as,
            compare.index_tolerance,
            compare.postprocess,
            not compare.no_shape_check,
            compare.validate,
            compare.compare_func_script,
        ),
        measures,
        _thresholds(compare, measures),
    )


def _thresholds(compare: Compare, measures: Mapping[str, Measure]) -> dict[str, dict[str, float]]:
    """What outputs have to reach, by the statistics that are one number.

    Raises:
        UsageError: A threshold is of a statistic that is not asked for, or one is missing.
    """
    algorithm = compare.compare_as
    if algorithm.measures and compare.check_error_stat:
        raise UsageError(
            f"--compare {algorithm.value} is a statistic of its own; drop --check-error-stat, or --compare."
        )
    asked = set(algorithm.measures) | set(measures.values())
    given = {
        Measure.L2: compare.l2_threshold,
        Measure.COSINE: compare.cosine_similarity_threshold,
        Measure.PSNR: compare.psnr_threshold,
        Measure.SNR: compare.snr_threshold,
    }
    for stat, values in given.items():
        if values and stat not in asked:
            raise UsageError(
                f"{THRESHOLDS[stat.value]} is of a statistic that is not asked for; add --check-error-stat {stat.value}."
            )
    return {stat.value: dict(values) for stat, values in given.items() if values}


def _coarsest(target: TargetSettings | None) -> Precision:
    """What rounds most of what a target may compute in; 8-bit types are held to bfloat16, which has as few digits."""
    low = frozenset(target.low_precisions if target is not None else ())
    if low & {"bf16", "fp8", "int8"}:
        return Precision.BF16
    return Precision.FP16 if "fp16" in low else Precision.TF32 if "tf32" in low else Precision.FP32


def metric_settings(
    metric: Metric, data: DataOptions, compare: Compare, *, confidence: float = 1.0, bounded: bool = True
) -> MetricSettings | None:
    """The metric that says good or bad; ``None`` without one.

    Args:
        metric: What was said of it.
        data: Where the set comes from.
        compare: How outputs would be compared without it.
        confidence: How sure all verdicts of a search together shall be; 1 for those of the whole set.
        bounded: Whether a bound is needed.

    Raises:
        UsageError: The options do not fit, or there is no such metric.
    """
    metric.check(bounded=bounded)
    if metric.metric is None:
        return None
    if compare != Compare():
        raise UsageError(
            "--metric says how good the outputs are, so how far each may be off (--atol, --check-error-stat, --compare and the "
            "like) has no part in that; drop one of both."
        )
    find_metric(metric.metric, lower_is_better=metric.lower_is_better)  # raises before anything is computed
    return MetricSettings(metric, data, confidence)


def metric_files(metric: Metric) -> list[Path]:
    """The files that a metric depends on.

    Raises:
        UsageError: There is no such script.
    """
    return [] if metric.metric is None else script_file(metric.metric)


def check_words(check: Check, *, away: bool = False) -> tuple[str, ...]:
    """The check command; empty without one. ``away`` if it runs elsewhere, where other programs are.

    Raises:
        UsageError: It is none; see :meth:`~bisect_trt.probe.user_checks.CommandCheck.parse`.
    """
    return CommandCheck.parse(check.check, away=away) if check.check else ()


def check_files(check: Check) -> list[Path]:
    """The files that the check's words name, its program too if that is given by its path.

    Raises:
        UsageError: As :func:`check_words`.
    """
    # Not Path.is_file: it raises where a word is longer than any file's name.
    return [Path(word) for word in check_words(check, away=True) if os.path.isfile(word)]  # noqa: PTH113 - see above


def check_settings(
    check: Check, target: TargetSettings | None, compare: Compare, places: Places | None = None
) -> CheckSettings:
    """What says good or bad, in ``places`` if any are named.

    Raises:
        UsageError: As :func:`check_words` or :func:`tolerance_options`.
    """
    return CheckSettings(
        argv=check_words(check, away=places is not None and is_away(places.on)),
        fail_codes=tuple(check.fail_code),
        ignore_fail_codes=tuple(check.ignore_fail_code),
        fail_regexes=tuple(check.fail_regex),
        timeout=check.timeout,
        candidate=check.candidate,
        target=target,
        tolerance=tolerance_options(compare, target),
        artifacts=tuple(check.artifacts),
        artifacts_dir=check.artifacts_dir,
        show_output=check.show_output,
        hide_fail_output=check.hide_fail_output,
    )


def search_settings(search: Search) -> SearchSettings:
    """How a search is run."""
    budget = Budget(search.max_probes, search.max_time)
    return SearchSettings(search.workers, search.repeat, search.confidence, search.shrink, budget, search.pin)


def releases_settings(
    own: Releases, target: TargetSettings | None, search: Search, *, has_check: bool
) -> ReleasesSettings:
    """Which releases are asked.

    Raises:
        UsageError: Of what is not said, or they are none.
    """
    from bisect_trt.commands.releases import ReleasesSettings, package_of  # noqa: PLC0415 - of this command alone

    if own.package is not None and not has_check:
        raise UsageError(
            "--package says whose releases a --check command asks, and there is none; add one, or name a target instead."
        )
    package = package_of(target, own.package)
    settings = ReleasesSettings(package, own.from_, own.to, own.find_all, tuple(own.beside), search.repeat or 1)
    settings.check()
    return settings


def repeat_settings(own: Repeat, search: Search, check: Check) -> RepeatSettings:
    """How often a model is built or run, and where what that leaves goes.

    Raises:
        UsageError: How often is said twice.
    """
    if search.repeat is not None:
        raise UsageError("--repeat measures how often a search's original fails; here say how often with -n.")
    if search.pin:
        raise UsageError("--pin holds builds to one that failed, and repeat is about builds that differ; drop it.")
    most, wanted = own.limits()
    sorts = bool(check.artifacts) or check.artifacts_dir != Check().artifacts_dir
    folder = check.artifacts_dir if sorts else None
    return RepeatSettings(most, cast("Until | None", wanted), own.same_engine, folder, search.confidence)


def case_of(model: Path) -> tuple[Path, list[Path]]:
    """A model, and the values that it is fed: those beside it, where it is the folder of a reproducer."""
    from bisect_trt.report.reproducer import MODEL  # noqa: PLC0415 - of one command alone

    if not (model.is_dir() and (model / MODEL).is_file()):
        return model, []
    values = model / "inputs.npz"
    return model / MODEL, [values] if values.is_file() else []
