"""An oracle of another package: options by which a call decides whether a candidate fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from bisect_trt.options.spec import written

if TYPE_CHECKING:
    # The parser imports this module.
    from bisect_trt.probe.check import Check
    from bisect_trt.session.checks import CheckSettings
    from bisect_trt.worker.pool import WorkerPool


class Oracle:
    """A base for a dataclass of options, the docstring of which is the heading above them in ``--help``.

    Every command that takes ``--check`` takes these options too. A call uses the oracle once one of
    them is given.
    """

    takes_command: ClassVar[bool] = False
    """Whether it uses the command of ``--check`` and its conditions, which are refused beside it otherwise."""
    takes_tolerances: ClassVar[bool] = False
    """Whether it uses the options of the comparison, which are refused beside it otherwise."""

    @property
    def flag(self) -> str:
        """The first of its options that differs from its default."""
        return next(iter(written(self)), type(self).__name__)

    def check(self, settings: CheckSettings, workers: WorkerPool) -> Check:
        """Return the check that decides whether a candidate fails.

        Raises:
            UsageError: The options do not fit.
        """
        raise NotImplementedError
