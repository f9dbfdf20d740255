"""An oracle of another package: options by which a call decides whether a candidate fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from bisect_trt.options.spec import written

if TYPE_CHECKING:
    # The parser imports this module.
    from bisect_trt.probe.check import Check


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

    def check(self, builtin: Check) -> Check:
        """Return the check that decides whether a candidate fails.

        Args:
            builtin: The check that decides without the oracle: the comparison with the reference if
                there is a target (``builtin.runtime``), else the command of ``--check``, else a
                prompt. ``builtin.under(timed=True)`` measures the latency too.

        Raises:
            UsageError: The options do not fit.
        """
        raise NotImplementedError
