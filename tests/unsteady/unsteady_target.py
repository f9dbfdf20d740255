"""A target that is wrong now and then: each node named ``bad`` gives a tenth too much where its fault says so.

The truth that the tests of failures that come and go are held to. It is found as an installed
package is, by the metadata beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from bisect_trt.options.spec import option
from bisect_trt.targets.base import OwnSettings, Target, TargetSettings

if TYPE_CHECKING:
    from bisect_trt.targets.choices import Choice


@dataclass(frozen=True)
class UnsteadySettings(OwnSettings):
    """When it is wrong: ``never``, ``second`` (run of a session), ``tactic:P`` (each bad node whose build takes the wrong
    kernel, with a chance of P); by the number of rows: ``batch:K`` (from K on), ``free:K`` (as
    ``batch``, while a dimension is free), ``fused:K`` (that, and a Tanh reads a bad node at once),
    ``only:K`` or ``not_multiple:K``; ``grown:K`` (as ``batch``,
    in a session that has run fewer before); ``once:FILE`` (the run that finds no such file, and leaves
    one), ``unless:FILE`` (while there is none); and ``refuses`` to run any model."""

    fault: Annotated[str, option(metavar="WHEN", help="When it is wrong.")] = "never"
    pins: Annotated[
        tuple[str, ...], option(metavar="NODE=KERNEL", help="Kernels that nodes have to take.")
    ] = ()
    bans: Annotated[
        tuple[str, ...], option(metavar="NODE=KERNEL", help="Kernels that they shall not.")
    ] = ()
    record: str | None = None
    load_engine: str | None = None
    save_engine: str | None = None


class UnsteadyTarget(Target):
    """ONNX Runtime with a fault."""

    name = "unsteady"
    title = "Unsteady"
    own = UnsteadySettings
    help = "ONNX Runtime, wrong now and then."
    precisions = ()
    engines = True
    sent_back = ("record", "save_engine")

    def recording(self, settings: TargetSettings, folder: Path) -> TargetSettings:
        """Leave what a build chose."""
        return settings.with_own(record=str(folder.absolute()))

    def pinned(
        self,
        settings: TargetSettings,
        pins: Sequence[Choice],
        bans: Sequence[Choice] = (),
    ) -> TargetSettings:
        """By names of kernels."""
        own = settings.of(UnsteadySettings)
        wanted, unwanted = (
            tuple(f"{each.layer}={each.value}" for each in some if each.pins)
            for some in (pins, bans)
        )
        return settings.with_own(pins=(*own.pins, *wanted), bans=(*own.bans, *unwanted))

    def make_runner(self, settings: TargetSettings) -> object:
        """Called in a worker process."""
        from unsteady_runtime import UnsteadyRunner

        return UnsteadyRunner(settings.of(UnsteadySettings))
