"""The contract of a check, which decides whether a candidate fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypedDict, cast, runtime_checkable

from bisect_trt.errors import MissingOptionError
from bisect_trt.probe.engine_cache import EngineCache
from bisect_trt.probe.outcome import Outcome
from bisect_trt.probe.scale import Scale
from bisect_trt.probe.workspace import CandidateFiles
from bisect_trt.targets.base import TargetSettings
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.worker.pool import WorkerPool
from bisect_trt.worker.process import Cancel
from bisect_trt.worker.protocol import Sample

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Conditions(TypedDict, total=False):
    """The conditions under which a check runs candidates.

    :class:`~bisect_trt.probe.oracles.BuiltinCheck` and
    :class:`~bisect_trt.probe.limit_check.LimitCheck` describe them.
    """

    workers: WorkerPool
    target: TargetSettings
    tolerance: ToleranceOptions
    engine_cache: EngineCache | None
    confirm: bool
    fresh: bool
    same: bool
    layers: bool
    timed: bool
    records: bool
    yardstick: Path


@runtime_checkable
class Check(Protocol):
    """Decides whether a candidate fails: the built-in comparison, a command, a function, a prompt, a metric, a plug-in.

    Every capability has a default, which fits code that knows nothing about this program. A check
    that can do more says so by its properties; no caller asks for the type of a check.
    """

    def run(self, files: CandidateFiles, cancel: Cancel | None = None) -> Outcome:
        """Check one candidate once."""
        ...

    @property
    def parallel(self) -> bool:
        """Whether several candidates may be checked at a time."""
        return False

    @property
    def asks_user(self) -> bool:
        """Whether a person decides, so that no question is asked twice."""
        return False

    @property
    def other_stream(self) -> Callable[[int], Check] | None:
        """Returns the same check on other random steps, of a number from 1 up; ``None`` where none are drawn."""
        return None

    @property
    def runs_user_code(self) -> bool:
        """Whether code of the user decides, which may fail for reasons of its own."""
        return True

    @property
    def runtime(self) -> TargetSettings | None:
        """The runtime that it runs candidates on; ``None`` where that is not known."""
        return None

    @property
    def judges_runtime(self) -> bool:
        """Whether it runs candidates on :attr:`runtime` and decides without code of the user."""
        return self.runtime is not None and not self.runs_user_code

    @property
    def follows_places(self) -> bool:
        """Whether it runs candidates by the pool of workers, and so in the places of ``--on``."""
        return self.judges_runtime

    @property
    def tolerances(self) -> ToleranceOptions | None:
        """The tolerances of a comparison with the reference; ``None`` where nothing is compared."""
        return None

    @property
    def compares(self) -> bool:
        """Whether an outcome holds the comparison of each output with the reference, and follows from it."""
        return False

    @property
    def timeout(self) -> float | None:
        """Seconds a candidate may take, if there is a limit."""
        return None

    @property
    def bounds_whole(self) -> bool:
        """Whether a bound of the whole model decides: a score, a time, a size."""
        return False

    @property
    def metric(self) -> Scale | None:
        """The metric that decides, if one does."""
        return None

    @property
    def engines(self) -> EngineCache | None:
        """The cache of the engines of passing candidates, if they are kept."""
        return None

    @property
    def finds_weights(self) -> bool:
        """Whether it reads weights in files of their own where they are, without a copy."""
        return False

    def under(self, **conditions: Unpack[Conditions]) -> Check:  # noqa: ARG002 - it has none
        """Return the same check under other conditions, as far as it has these."""
        return self

    def on_samples(
        self,
        samples: Sequence[Sample],  # noqa: ARG002 - of checks that can
        tolerance: ToleranceOptions,  # noqa: ARG002 - of checks that can
    ) -> Check | None:
        """Return a check of the same candidates on other samples, if it can judge them."""
        return None

    def require_portable(self) -> None:
        """Check that it can run candidates in the environment of another release.

        Raises:
            MissingOptionError: It cannot.
        """
        raise MissingOptionError(
            "releases runs checks in other interpreters, and this one runs here; give a target such as --onnxrt alone, or a "
            "--check command."
        )


class Comparing(Check, Protocol):
    """A check that compares a target with the reference: it has a runtime and tolerances."""

    @property
    def runtime(self) -> TargetSettings:
        """The runtime that is compared."""
        ...

    @property
    def tolerances(self) -> ToleranceOptions:
        """The tolerances of the comparison."""
        ...

    def under(self, **conditions: Unpack[Conditions]) -> Comparing:
        """Return the same comparison under other conditions."""
        ...


def comparing(check: Check) -> Comparing | None:
    """Return a check as a comparison, if it is one."""
    return cast("Comparing", check) if check.compares else None
