"""The interface of an oracle that another package adds: options, and the check that they ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bisect_trt.commands.settings import CheckSettings
    from bisect_trt.probe.prober import Check
    from bisect_trt.worker.pool import WorkerPool


class Oracle:
    """A base for a dataclass of options, the docstring of which is the heading above them in ``--help``.

    Every command that takes ``--check`` takes these options too. A call uses the oracle once one of them is given.
    """

    def check(self, settings: CheckSettings, workers: WorkerPool) -> Check:
        """Return the check that decides whether a candidate fails.

        Args:
            settings: The target, the tolerances and the time that one candidate may take.
            workers: The processes in which models run.

        Raises:
            UsageError: The options do not fit.
        """
        raise NotImplementedError
