"""The tactics that layers are held to, kept from, and took, by an algorithm selector; goes into ``reproduce.py`` too.

So it needs nothing of bisect-trt that does not go there as well, and has Python 3.8's syntax. TensorRT 8.6 to 10 have selectors;
for later ones see :mod:`~bisect_trt.targets.trt.tuned`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from bisect_trt.targets.trt.knobs import NoSuch
from bisect_trt.targets.trt.tuned import by_cache

PIN_REFUSED = "a layer cannot be held to the tactic that is pinned"
PIN_MISSED = "pin"
"""The signature of a build that does not choose what it is held to."""
_KEPT: list[Any] = []
"""The last selectors: a configuration need not keep its own alive."""
_PIECES = re.compile(r" \+ |PWN\(|\)|, |\|\|")
"""What stands between the names of layers that became one."""


def select(trt: Any, config: Any, settings: Mapping[str, Any]) -> None:
    """Give a build the selector that its settings ask for, if they do.

    Args:
        trt: The package.
        config: The builder configuration.
        settings: The fields of :class:`~bisect_trt.targets.trt.settings.TrtSettings`.

    Raises:
        NoSuch: This version has none.
    """
    formats = (settings.get("record") or settings.get("save_tactics")) is not None
    recorded = formats and hasattr(trt, "IAlgorithmSelector")
    if (settings["avoid_tactics"] or settings["pin_tactics"] or recorded) and not by_cache(trt, settings):
        chooser = selector(trt, settings["avoid_tactics"], settings["pin_tactics"], formats)
        _KEPT[:] = [*_KEPT[-8:], chooser]
        config.algorithm_selector = chooser


def selector(trt: Any, avoided: Any, pinned: Any = (), formats: bool = False) -> Any:
    """An algorithm selector that keeps layers from tactics where they have others, and records what they took.

    A layer for which tactics are ``pinned`` takes one of those. TensorRT may ask about a layer more than once, for each format
    that it may have, so only in the end is it known whether one was offered. Where a layer that is pinned is not there, one that
    holds a part of it is it in other company, and has no pin that could hold it.

    Raises:
        NoSuch: This version has none: TensorRT 11.
    """
    base = getattr(trt, "IAlgorithmSelector", None)
    if base is None:
        raise NoSuch(
            f"--{'avoid' if avoided or not pinned else 'pin'}-tactic: this is TensorRT {trt.__version__}, which has no "
            "algorithm selector; 8.6 to 10 have"
        )
    unwanted, wanted = set(avoided), set(pinned)
    held = {each.rpartition("=")[0] for each in wanted}

    class Selector(base):  # type: ignore[misc, valid-type]  # TensorRT ships no types
        """What layers took.

        Attributes: ``took``, of each its name, tactic, and how many it could choose of; ``missed``, pins not taken; ``lifted``,
        layers that no pin is for any more; ``replay``, what layers took as Polygraphy has it, where ``formats`` are asked for.
        """

        def __init__(self) -> None:
            base.__init__(self)  # type: ignore[misc]  # as above
            self.took: list[list[Any]] = []
            self.missed: list[str] = []
            self.lifted: set[str] = set()
            self.replay: dict[str, Any] = {}
            self._offered: dict[str, int] = {}

        def select_algorithms(self, where: Any, choices: Any) -> list[int]:
            self._offered[where.name] = len(choices)
            offered = [tactic(where.name, choice) for choice in choices]
            if self._holds(where.name) and wanted.intersection(offered):
                return [place for place, each in enumerate(offered) if each in wanted]
            kept = [place for place, each in enumerate(offered) if each not in unwanted]
            return kept or list(range(len(choices)))

        def report_algorithms(self, contexts: Any, choices: Any) -> None:
            for where, choice in zip(contexts, choices, strict=False):
                count = self._offered.get(where.name, 1)
                self.took.append([where.name, tactic(where.name, choice), count])
                if formats:
                    self.replay[where.name] = replayed(where, choice)
            taken = {name: (each, count) for name, each, count in self.took}
            gone = {part for name in held - taken.keys() for part in pieces(name)}
            self.missed = [
                each
                for name, (each, count) in taken.items()
                if (self._holds(name) and each not in wanted)
                or (
                    name not in held
                    and count > 1
                    and not self.lifted.intersection(pieces(name))
                    and gone.intersection(pieces(name))
                )
            ]

        def _holds(self, name: str) -> bool:
            return name in held and not self.lifted.intersection(pieces(name))

    return Selector()


def pieces(layer: str) -> list[str]:
    """The layers of the network that became one of an engine, by its name."""
    return [layer, *(part.strip() for part in _PIECES.split(layer) if part.strip())]


def lift(names: Any) -> None:
    """No pin is for these layers in the build of the last configuration: they are told to run in another type."""
    if _KEPT:
        _KEPT[-1].lifted.update(names)


def took() -> list[list[Any]]:
    """What each layer took in the build of the last configuration that got a selector; see :func:`selector`."""
    return _KEPT[-1].took if _KEPT else []


def missed(settings: Mapping[str, Any]) -> str | None:
    """Which layers were held to a tactic and took another one in the last build, in words; ``None`` if none did."""
    taken = _KEPT[-1].missed if settings["pin_tactics"] and _KEPT else []
    return f"{PIN_REFUSED}: it takes {', '.join(taken)}" if taken else None


def replayed(where: Any, choice: Any) -> dict[str, Any]:
    """What a layer took, as Polygraphy's ``--load-tactics`` reads it: its kernel, and how its tensors lie in memory."""
    count, more = where.num_inputs, where.num_outputs
    given = [choice.get_algorithm_io_info(index) for index in range(count + more)]
    plain = [
        {
            "dtype": str(end.dtype),
            "strides": list(end.strides),
            "vectorized_dim": end.vectorized_dim,
            "components_per_element": end.components_per_element,
            "polygraphy_class": "TensorInfo",
        }
        for end in given
    ]
    variant = choice.algorithm_variant
    return {
        "implementation": variant.implementation,
        "tactic": variant.tactic,
        "inputs": plain[:count],
        "outputs": plain[count:],
        "polygraphy_class": "Algorithm",
    }


def replay() -> str:
    """What layers took in the build of the last configuration, as a file of Polygraphy's."""
    layers = _KEPT[-1].replay if _KEPT else {}
    return json.dumps({"replay": layers, "polygraphy_class": "TacticReplayData"}, indent=1) + "\n"


def tactic(layer: str, choice: Any) -> str:
    """A layer's tactic in words: ``LAYER=IMPLEMENTATION:TACTIC``, both numbers as they are in Polygraphy's replays."""
    variant = choice.algorithm_variant
    return f"{layer}={variant.implementation}:{variant.tactic}"
