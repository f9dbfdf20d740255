"""What says good or bad."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from bisect_trt.cli.options.compare import Compare
from bisect_trt.cli.options.values import seconds
from bisect_trt.probing.command import CommandCheck
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.workflows.settings import CheckSettings


@dataclass
class Check:
    """What says good or bad."""

    check: Annotated[
        list[str],
        typer.Option(
            metavar="CMD...",
            help="Command that says good (0) or bad; takes all that follows, so it comes last. {model}, {inputs}, {golden} "
            "and {dir} become the candidate's paths.",
        ),
    ] = field(default_factory=list)
    fail_regex: Annotated[
        list[str], typer.Option(metavar="REGEX", help="Only output that matches one of these is the failure.")
    ] = field(default_factory=list)
    fail_code: Annotated[list[int], typer.Option(metavar="N", help="Only these exit statuses are the failure.")] = (
        field(default_factory=list)
    )
    ignore_fail_code: Annotated[list[int], typer.Option(metavar="N", help="These exit statuses are a pass.")] = field(
        default_factory=list
    )
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Time one candidate may take.", callback=seconds)
    ] = None
    candidate: Annotated[Path | None, typer.Option(metavar="PATH", help="Write each candidate to this fixed path.")] = (
        None
    )
    artifacts: Annotated[
        list[Path], typer.Option(metavar="FILE", help="Files a check leaves, sorted into good/ and bad/.")
    ] = field(default_factory=list)
    artifacts_dir: Annotated[
        Path, typer.Option("--artifacts-dir", "--art-dir", metavar="DIR", help="Where --artifacts are sorted to.")
    ] = Path("artifacts")
    show_output: Annotated[
        bool, typer.Option("--show-output", help="Show all that a check prints, after each probe.")
    ] = False
    hide_fail_output: Annotated[
        bool, typer.Option("--hide-fail-output", help="With --show-output: but not what failing candidates print.")
    ] = False

    def files(self) -> list[Path]:
        """The files that the check's words name, its program too if that is given by its path."""
        words = CommandCheck.parse(self.check) if self.check else ()
        return [Path(word) for word in words if Path(word).is_file()]

    def settings(self, target: TargetSettings | None, compare: Compare) -> CheckSettings:
        """As plain data.

        Raises:
            UsageError: The check's program does not exist.
        """
        return CheckSettings(
            argv=CommandCheck.parse(self.check) if self.check else (),
            fail_codes=tuple(self.fail_code),
            ignore_fail_codes=tuple(self.ignore_fail_code),
            fail_regexes=tuple(self.fail_regex),
            timeout=self.timeout,
            candidate=self.candidate,
            target=target,
            tolerance=compare.settings(target),
            artifacts=tuple(self.artifacts),
            artifacts_dir=self.artifacts_dir,
            show_output=self.show_output,
            hide_fail_output=self.hide_fail_output,
        )
