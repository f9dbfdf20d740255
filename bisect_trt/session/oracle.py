"""An oracle of another package: options by which a call decides whether a candidate fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the parser imports this module
    from bisect_trt.probe.prober import Check
    from bisect_trt.session.checks import CheckSettings
    from bisect_trt.worker.pool import WorkerPool


class Oracle:
    """A base for a dataclass of options, the docstring of which is the heading above them in ``--help``.

    Every command that takes ``--check`` takes these options too. A call uses the oracle once one of
    them is given.
    """

    def check(self, settings: CheckSettings, workers: WorkerPool) -> Check:
        """Return the check that decides whether a candidate fails.

        Raises:
            UsageError: The options do not fit.
        """
        raise NotImplementedError
