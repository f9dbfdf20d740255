"""The end of a call: its exit status, and errors of the operating system with a sentence."""

from __future__ import annotations

import errno
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from bisect_trt.errors import (
    ExitStatus,
    ModelFileError,
    ResourceError,
    RunFolderError,
    UnavailableError,
)
from bisect_trt.onnxlib.save import require_directory
from bisect_trt.options.shared import Search
from bisect_trt.probe.ledger import JOURNAL, read_probes
from bisect_trt.report.result import read_result, says_less
from bisect_trt.report.sentences import NO_NEW_PROBE
from bisect_trt.session.binding import RUN_FILE
from bisect_trt.worker.deadline import BudgetSpent

if TYPE_CHECKING:
    from bisect_trt.session.call import Call


def attempt(call: Call, work: Callable[[], object]) -> tuple[ExitStatus, BaseException | None]:
    """Run a command, and put the way it ended into its result.

    Returns:
        The exit status, and the exception that ended it before it had an answer.
    """
    result = call.result
    began = time.monotonic()
    earlier, known = 0.0, 0
    if call.resumed and call.folder:
        earlier, known = _earlier_seconds(call.folder), _probes_in(call.folder)
    try:
        with system_errors(call):
            require_directory()
            work()
    except BaseException as ending:
        status = result.end_early(ending)
        if isinstance(ending, BudgetSpent):
            _suggest_more_time(call, known)
        call.console.keep(str(result.why))
        return status, ending
    finally:
        result.wall_s = round(earlier + time.monotonic() - began, 3)
    return result.exit_status, None


def _earlier_seconds(folder: Path) -> float:
    """Return the seconds of the earlier sessions of a run; of one that was killed, until its last line in the journal."""
    try:
        return read_result(folder).wall_s
    except RunFolderError:
        begun, *last = (
            file.stat().st_mtime for file in (folder / RUN_FILE, folder / JOURNAL) if file.exists()
        )
        return max([0.0, *(end - begun for end in last)])


def _probes_in(folder: Path) -> int:
    """Return the number of probes that ended in the sessions of a run so far; 0 where its journal cannot be read."""
    with suppress(UnavailableError):
        return len(read_probes(folder / JOURNAL)[0])
    return 0


def _suggest_more_time(call: Call, known: int) -> None:
    """Say that a run needs more time if no new probe ended in a session: the same time again leads no further.

    Args:
        call: The call.
        known: The number of probes that had ended before.
    """
    limit = call[Search].max_time
    if limit is None or call.folder is None or _probes_in(call.folder) > known:
        return
    call.result.why = f"{call.result.why} {NO_NEW_PROBE}"
    if call.words:
        words = ("bisect-trt", "resume", str(call.folder), "--max-time", f"{2 * limit:g}")
        call.result.suggest(shlex.join(words))


def keeps_earlier(call: Call) -> bool:
    """Return whether a resumed run ended with less than an earlier session did, so that its files stay as they are."""
    return call.resumed and call.folder is not None and says_less(call.result.status, call.folder)


@contextmanager
def system_errors(call: Call | None = None) -> Iterator[None]:
    """Turn errors of the operating system into errors with a sentence.

    Raises:
        ResourceError: A file cannot be used, or there is not enough memory.
        ModelFileError: A model is nested too deeply.
    """
    try:
        yield
    except OSError as error:
        fix = "check its path, permissions and disk"
        # Each worker holds pipes and files.
        if error.errno == errno.EMFILE:
            fix = "raise the limit (ulimit -n), or give a smaller --workers"
        run = (
            "a file" if call is None or call.folder is None else f"a file of the run {call.folder}"
        )
        raise ResourceError(
            f"{error.filename or run} cannot be used: {error.strerror or error}; {fix}."
        ) from error
    except MemoryError as error:
        raise ResourceError(
            "not enough memory; free some, or feed less at a time (--input-shapes)."
        ) from error
    except RecursionError as error:
        raise ModelFileError(
            "the model is nested too deeply; export it in a simpler form."
        ) from error
