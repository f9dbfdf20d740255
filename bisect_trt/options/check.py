"""What says good or bad."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from bisect_trt.options.spec import option, seconds


@dataclass
class Check:
    """What says good or bad."""

    check: Annotated[
        list[str],
        option(
            metavar="CMD...",
            help="Command that says good (0) or bad; takes all that follows, so it comes last. {model}, {inputs}, {golden} "
            "and {dir} become the candidate's paths.",
        ),
    ] = field(default_factory=list)
    fail_regex: Annotated[
        list[str], option(metavar="REGEX", help="Only output that matches one of these is the failure.")
    ] = field(default_factory=list)
    fail_code: Annotated[list[int], option(metavar="N", help="Only these exit statuses are the failure.")] = field(
        default_factory=list
    )
    ignore_fail_code: Annotated[list[int], option(metavar="N", help="These exit statuses are a pass.")] = field(
        default_factory=list
    )
    timeout: Annotated[
        float | None,
        seconds(
            help="Time one candidate may take; default any for a command, else 10 minutes, 2 hours on TensorRT.",
        ),
    ] = None
    candidate: Annotated[Path | None, option(metavar="PATH", help="Write each candidate to this fixed path.")] = None
    artifacts: Annotated[
        list[Path], option(metavar="FILE", help="Files a check leaves, sorted into good/ and bad/.")
    ] = field(default_factory=list)
    artifacts_dir: Annotated[
        Path, option("--artifacts-dir", "--art-dir", metavar="DIR", help="Where --artifacts are sorted to.")
    ] = Path("artifacts")
    show_output: Annotated[bool, option("--show-output", help="Show all that a check prints, after each probe.")] = (
        False
    )
    hide_fail_output: Annotated[
        bool, option("--hide-fail-output", help="With --show-output: but not what failing candidates print.")
    ] = False
