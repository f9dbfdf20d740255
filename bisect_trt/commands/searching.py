"""The commands about a target, from their options to their job: the same for a command line and for Python.

Each imports its own workflow only: all of them together take a tenth of a second, which a quick search would wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol, TypeVar

from bisect_trt.commands.from_options import (
    layerwise_settings,
    releases_settings,
    repeat_settings,
    search_settings,
    target_check,
)
from bisect_trt.commands.job import Job
from bisect_trt.commands.settings import CheckSettings, ReduceSettings
from bisect_trt.errors import UsageError
from bisect_trt.options.compare import Compare
from bisect_trt.options.run import MoreTargets, RunOptions
from bisect_trt.options.searches import (
    Cause,
    Diagnose,
    Layerwise,
    Precision,
    Reduce,
    Releases,
    Repeat,
    Samples,
    Sweep,
    Workaround,
)
from bisect_trt.options.shared import Check, Plots, Search
from bisect_trt.report.result import Result
from bisect_trt.targets.options import Target
from bisect_trt.targets.settings import TargetSettings

Group = TypeVar("Group")


class Door(Protocol):
    """Where a command comes in, with the options that it was given.

    Attributes:
        python: Whether it is called from Python, where options are keywords.
    """

    python: bool

    @property
    def resumed(self) -> bool:
        """Whether it goes on with a run, whose files may be there."""

    @property
    def has_check(self) -> bool:
        """Whether a command or a function says good or bad."""

    def __getitem__(self, group: type[Group]) -> Group:
        """A group of its options; those of a command that has no such group are as by default."""

    def checks(self, target: TargetSettings | None, *, used: bool = False) -> CheckSettings:
        """What says good or bad.

        Args:
            target: The runtime under suspicion, if there is one.
            used: Whether it is of use beside a check command too.

        Raises:
            UsageError: An option of the check is wrong, or would do nothing.
        """

    def finish(
        self, work: Callable[[Job], Result], checks: CheckSettings | None = None, files: Iterable[Path] = ()
    ) -> Result:
        """Open the run, and do the work.

        Args:
            work: Given the job.
            checks: What says good or bad, if the user chose that.
            files: What the run depends on beside what shared groups of options name.

        Raises:
            UsageError: The run's folder cannot be made, or the run that is to go on was about something else.
        """


def diagnose(door: Door) -> Result:
    """Find out why the target is wrong."""
    from bisect_trt.commands.diagnose import DiagnoseSettings  # noqa: PLC0415 - see above

    own = door[Diagnose]
    checks = target_check(door[Compare], door[Target].required(), own.timeout)
    folder = own.output or Path(f"{own.model.stem.lstrip('-')}-reproducer".lstrip("-"))
    overwrite = own.overwrite or door.resumed
    settings = DiagnoseSettings.of(own, checks, search_settings(door[Search]), folder, overwrite=overwrite)
    return door.finish(lambda job: job.diagnose_itself(checks) if own.self_check else job.diagnose(settings))


def workaround(door: Door) -> Result:
    """Find what makes the whole model pass."""
    from bisect_trt.commands.workarounds import WorkaroundSettings  # noqa: PLC0415 - see above

    own, search = door[Workaround], search_settings(door[Search])
    checks = target_check(door[Compare], door[Target].required(), own.timeout)
    settings = WorkaroundSettings(checks, own.output, own.fresh_samples)
    if not door.resumed:
        settings.check_output(overwrite=own.overwrite)
    return door.finish(lambda job: job.workaround(settings, search))


def reduce(door: Door) -> Result:
    """Find the smallest model that still fails."""
    from bisect_trt.commands.reduce import check_outputs  # noqa: PLC0415 - see above

    own, search = door[Reduce], search_settings(door[Search])
    settings = ReduceSettings.of(own, own.output)
    _refuse_ends(settings, python=door.python)
    if not door.resumed:
        check_outputs(settings)
    checks = door.checks(door[Target].settings())
    return door.finish(lambda job: job.reduce(settings, checks, search), checks)


def _refuse_ends(settings: ReduceSettings, *, python: bool) -> None:
    """Make sure that the ends of the model are free to move as far as the search needs; said in the words of the door.

    Raises:
        UsageError: They are not.
    """
    if not (settings.reduce_inputs or settings.reduce_outputs):
        if python:
            raise UsageError(
                "reduce_inputs and reduce_outputs are both off, which leaves nothing to reduce; turn one on."
            )
        raise UsageError("--no-reduce-inputs and --no-reduce-outputs together leave nothing to reduce; drop one.")
    if settings.find_all and not settings.both_ends:
        if python:
            raise UsageError(
                "find_all takes what failed out of the model, so both its ends must be free to move; drop one."
            )
        raise UsageError(
            "--all takes what failed out of the model, so both its ends must be free to move; drop one option."
        )


def precision(door: Door) -> Result:
    """Find the fewest nodes that have to stay in fp32."""
    from bisect_trt.mixed_precision.parameters import BITS, PrecisionSettings, low_precision, precision_files  # noqa: PLC0415 - see above

    own, search = door[Precision], search_settings(door[Search])
    low, runtime = low_precision(door[Target], own)
    settings = PrecisionSettings(own, low[0], runtime, tuple(each for each in low if each in BITS))
    if not door.resumed:
        settings.check_output()
    # A check command may judge TensorRT's engines; whether it does is seen when TensorRT is asked.
    checks = door.checks(runtime, used=runtime is not None and runtime.target.capabilities.lowers_layers)
    return door.finish(lambda job: job.precision(settings, checks, search), checks, precision_files(own))


def cause(door: Door) -> Result:
    """Find which switches of the target make it pass."""
    _, search = door[Cause], search_settings(door[Search])
    checks = door.checks(door[Target].required(), used=True)
    return door.finish(lambda job: job.cause(checks, search), checks)


def releases(door: Door) -> Result:
    """Find the release in which a failure appeared."""
    runtime, search = door[Target].settings(), search_settings(door[Search])
    settings = releases_settings(door[Releases], runtime, door[Search], has_check=door.has_check)
    checks = door.checks(runtime, used=True)
    return door.finish(lambda job: job.releases(settings, checks, search), checks)


def repeat(door: Door) -> Result:
    """Build or run a model again and again."""
    search = search_settings(door[Search])
    settings = repeat_settings(door[Repeat], door[Search], door[Check])
    checks = door.checks(door[Target].settings(), used=True)
    return door.finish(lambda job: job.repeat(settings, checks, search), checks)


def samples(door: Door) -> Result:
    """Find which of many inputs fail, and the smallest of them."""
    from bisect_trt.commands.samples import SamplesSettings  # noqa: PLC0415 - see above

    own, search = door[Samples], search_settings(door[Search])
    settings = SamplesSettings(door.checks(door[Target].settings()), own.output)
    if not door.resumed:
        settings.check_output(overwrite=own.overwrite)
    return door.finish(lambda job: job.samples(settings, search), settings.check)


def sweep(door: Door) -> Result:
    """Find the sizes at which the target goes wrong."""
    from bisect_trt.commands.sweep import SweepSettings  # noqa: PLC0415 - see above

    own, search = door[Sweep], search_settings(door[Search])
    settings = SweepSettings(door.checks(door[Target].settings()), tuple(own.shapes), own.tries)
    return door.finish(lambda job: job.sweep(settings, search), settings.check)


def layerwise(door: Door) -> Result:
    """Compare every tensor on the target with the reference's."""
    settings = layerwise_settings(door[Layerwise], door[Compare], door[Target].required())
    return door.finish(lambda job: job.layerwise(settings))


def run(door: Door) -> Result:
    """Compare the outputs of a target with the reference's."""
    from bisect_trt.commands.compare import compare_settings  # noqa: PLC0415 - see above

    settings = compare_settings(door[RunOptions], door[Target], door[MoreTargets], door[Compare], door[Plots])
    return door.finish(lambda job: job.compare(settings))
