"""The switches of a target for one model: what a search for a cause turns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from msgspec import Struct

from bisect_trt.probe.candidate import Candidate
from bisect_trt.report.parts import LayersChanged, SetElsewhere, Switches
from bisect_trt.search.oracle import Subset
from bisect_trt.targets.base import Switch, TargetSettings, Tier

_FEW_NAMES = 2


class Panel(Struct, frozen=True):
    """The switches of a target for one model, which fails on it; the units of a search are their indices."""

    switches: Sequence[Switch]
    base: Candidate
    target: TargetSettings
    trace: Mapping[str, Any] = {}
    place_words: Sequence[str] = ()

    def of(self, tier: Tier) -> list[int]:
        """Return the units of a tier."""
        return [unit for unit, switch in enumerate(self.switches) if switch.tier is tier]

    def names(self, units: Iterable[int]) -> list[str]:
        """Return the names of some units."""
        return [self.switches[unit].name for unit in sorted(units)]

    def units(self, answer: Switches) -> Subset:
        """Return the units of an answer."""
        return frozenset(
            unit for unit, switch in enumerate(self.switches) if switch.name in answer.switches
        )

    def changes(self, units: Subset) -> str:
        """Return the changes of some units: ``disabled, set to 0``."""
        return ", ".join(dict.fromkeys(self.switches[unit].said for unit in sorted(units)))

    def turned(self, units: Subset) -> TargetSettings:
        """Return the target with some switches changed."""
        settings = self.target
        for unit in sorted(units):
            settings = self.switches[unit].turn(settings)
        return settings

    def candidate(self, units: Subset) -> Candidate:
        """Return the model on the target with some switches changed."""
        settings = self.turned(units)
        names = self.names(units)
        switches = (
            f"{len(names)} of {len(self.switches)} switches"
            if len(names) > _FEW_NAMES
            else " and ".join(names)
        )
        # Without its low precision there is nothing to hold.
        keeps_low = self.base.held and (settings.fp16 or settings.bf16)
        keep = self.base.keep if keeps_low or not self.base.held else None
        title = f"{self.base.title}, with {switches} changed" if names else self.base.title
        return replace(self.base, title=title, target=settings, held=keeps_low, keep=keep)

    def entry(
        self,
        units: Subset,
        seen: str,
        layers: LayersChanged | None = None,
        *,
        whole: bool = True,
        case: bool | None = None,
    ) -> Switches:
        """Return some switches as an answer.

        Args:
            units: The switches.
            seen: How often it passed with them and failed without, in words.
            layers: The layers that they change.
            whole: Whether the whole model passes.
            case: Whether the minimal case passes; ``None`` if it was not probed.
        """
        settings = self.turned(units)
        elsewhere = settings.target.elsewhere(settings, self.trace)
        return Switches(
            switches=tuple(self.names(units)),
            turned=self.changes(units),
            whole=whole,
            case=case,
            seen=seen,
            options=(*settings.flags(), *self.place_words),
            layers=layers,
            elsewhere=elsewhere and SetElsewhere(*elsewhere),
        )
