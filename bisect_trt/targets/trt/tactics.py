"""Holds layers to tactics, keeps them from tactics, and records what they took, by an algorithm selector (TensorRT 8.6 to 10)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from bisect_trt.errors import UnknownNameError
from bisect_trt.targets.messages import BuildError
from bisect_trt.targets.trt.config import describe

PIN_MISSED = "pin"
"""The signature of a build that does not take a pinned tactic."""
_FUSED_PARTS = re.compile(r" \+ |PWN\(|\)|, |\|\|")
"""Stands between the names of layers that became one."""


def pin_refused(taken: str) -> BuildError:
    """Return the error of a build that takes another tactic than the pinned one."""
    message = f"a layer does not take the pinned tactic: it takes {taken}"
    return BuildError(message, signature=PIN_MISSED)


def tactic_selector(trt: Any, settings: Mapping[str, Any], *, record: bool = False) -> Any:
    """Return an algorithm selector; ``None`` if no tactics are pinned, avoided or recorded, or this version has none.

    Args:
        trt: The package.
        settings: ``avoid_tactics``, ``pin_tactics``; ``record`` records the tactics.
        record: Whether to record them in any case.

    Raises:
        UsageError: Tactics are pinned or avoided, and this version has no algorithm selector.
    """
    avoided, pinned = settings["avoid_tactics"], settings["pin_tactics"]
    if hasattr(trt, "IAlgorithmSelector"):
        wanted = avoided or pinned or record or settings["record"]
        return make_selector(trt, avoided, pinned) if wanted else None
    if avoided or pinned:
        flag = "--avoid-tactic" if avoided else "--pin-tactic"
        raise UnknownNameError(f"{flag}: {describe(trt)} has no algorithm selector (8.6 to 10 have it); leave it out.")
    return None


def make_selector(trt: Any, avoided: Iterable[str], pinned: Iterable[str]) -> Any:
    """Return an algorithm selector that keeps layers from tactics where they have others.

    A layer for which tactics are ``pinned`` takes one of those. TensorRT may ask about a layer more than once, for each format
    that it may have, so only in the end is it known whether one was offered. Where a pinned layer does not exist, one that
    holds a part of it is fused otherwise, and has no pin that could hold it.
    """
    base = trt.IAlgorithmSelector
    unwanted, wanted = set(avoided), set(pinned)
    held = {each.rpartition("=")[0] for each in wanted}

    class Selector(base):  # type: ignore[misc, valid-type]  # TensorRT ships no types
        """Chooses tactics.

        Attributes:
            took: Of each layer its name, its tactic and the number of choices.
        """

        def __init__(self) -> None:
            base.__init__(self)
            self.took: list[list[Any]] = []
            self._offered: dict[str, int] = {}

        def select_algorithms(self, where: Any, choices: Any) -> list[int]:
            self._offered[where.name] = len(choices)
            offered = [_tactic(where.name, choice) for choice in choices]
            if wanted.intersection(offered):
                return [place for place, each in enumerate(offered) if each in wanted]
            kept = [place for place, each in enumerate(offered) if each not in unwanted]
            return kept or list(range(len(choices)))

        def report_algorithms(self, contexts: Any, choices: Any) -> None:
            for where, choice in zip(contexts, choices, strict=False):
                self.took.append([where.name, _tactic(where.name, choice), self._offered.get(where.name, 1)])

        def missed(self) -> list[str]:
            """Return the tactics that layers took instead of pinned ones."""
            taken = {name: (each, count) for name, each, count in self.took}
            gone = {part for name in held - taken.keys() for part in layer_parts(name)}
            return [
                each
                for name, (each, count) in taken.items()
                if (name in held and each not in wanted)
                or (name not in held and count > 1 and gone & layer_parts(name))
            ]

    return Selector()


def layer_parts(layer: str) -> set[str]:
    """Return the layers of the network that became one of an engine, by its name."""
    return {layer, *(part.strip() for part in _FUSED_PARTS.split(layer) if part.strip())}


def _tactic(layer: str, choice: Any) -> str:
    """Return ``LAYER=IMPLEMENTATION:TACTIC``, both numbers as they are in Polygraphy's replays."""
    variant = choice.algorithm_variant
    return f"{layer}={variant.implementation}:{variant.tactic}"
