"""``diagnose``, ``reduce``, ``precision`` and the other commands that search, as a command line asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from bisect_trt.cli.jobs import open_target_job
from bisect_trt.cli.main import invocation
from bisect_trt.commands import searching
from bisect_trt.commands.commands import COMMANDS
from bisect_trt.commands.from_options import case_of, check_files, check_settings
from bisect_trt.commands.job import Job
from bisect_trt.commands.settings import CheckSettings
from bisect_trt.onnxlib.save import check_output
from bisect_trt.options.compare import Compare
from bisect_trt.options.metric import Metric
from bisect_trt.options.searches import Releases
from bisect_trt.options.shared import Check, Data, Places, Search
from bisect_trt.options.spec import Params
from bisect_trt.report.console import Console
from bisect_trt.report.result import Result
from bisect_trt.targets.settings import TargetSettings

Group = TypeVar("Group")


class CommandLine:
    """A command line as the :class:`~bisect_trt.commands.searching.Door` of its command."""

    python = False

    def __init__(self, given: Params, console: Console, result: Result) -> None:
        """Nothing is opened yet; ``result`` has the command's name."""
        self._given, self._console, self._result = given, console, result
        self._groups = COMMANDS[result.command]
        self.resumed = invocation.resumed is not None

    @property
    def has_check(self) -> bool:
        """Whether there is a check command."""
        return bool(self[Check].check)

    def __getitem__(self, group: type[Group]) -> Group:
        return self._given[group]

    def checks(self, target: TargetSettings | None, *, used: bool = False) -> CheckSettings:  # noqa: ARG002 - a target of no use is told of later
        """What says good or bad; see :class:`~bisect_trt.commands.searching.Door`."""
        checks = check_settings(self[Check], target, self[Compare], self[Places])
        if checks.candidate is not None:
            check_output(checks.candidate, overwrite=True)  # whether it is somebody else's file is seen later
        return checks

    def finish(
        self, work: Callable[[Job], Result], checks: CheckSettings | None = None, files: Iterable[Path] = ()
    ) -> Result:
        """Open the run, and do the work; see :class:`~bisect_trt.commands.searching.Door`."""
        own: Any = self._given[self._groups[0]]
        job = open_target_job(
            own.model,
            self._given,
            self._console,
            self._result,
            [*([] if checks is None else check_files(self[Check])), *files],
            None if checks is None else checks.fixed_path,
            annotation=getattr(own, "annotate", None),
            confidence=self[Search].confidence if Metric in self._groups else None,
        )
        return work(job)


def _search(given: Params, console: Console, result: Result) -> Result:
    """Do what the command of the result's name does."""
    story: Callable[[searching.Door], Result] = getattr(searching, result.command)
    return story(CommandLine(given, console, result))


cause = diagnose = layerwise = precision = reduce = repeat = samples = sweep = workaround = _search


def releases(given: Params, console: Console, result: Result) -> Result:
    """Find the release in which a failure appeared: of a model, or of a reproducer with its values."""
    model, inputs = case_of(given[Releases].model)
    given[Releases].model = model
    if not (given[Data].load_inputs or given[Data].data_loader_script):
        given[Data].load_inputs = inputs
    return _search(given, console, result)
