"""All that a build can be told beside precisions, profiles and limits; its source goes into ``reproduce.py`` too.

So it needs nothing of bisect-trt and has Python 3.8's syntax. Names are those of TensorRT's own enumerations and attributes:
whatever a version has can be said, and what it has not is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

ENUMS = {
    "default_device_type": "DeviceType",
    "engine_capability": "EngineCapability",
    "hardware_compatibility_level": "HardwareCompatibilityLevel",
    "profiling_verbosity": "ProfilingVerbosity",
    "runtime_platform": "RuntimePlatform",
    "tiling_optimization_level": "TilingOptimizationLevel",
}
"""Attributes of the builder configuration that are members of an enumeration."""
_KEPT: list[Any] = []
"""The last selectors: a configuration need not keep its own alive."""
_PIECES = re.compile(r" \+ |PWN\(|\)|, |\|\|")
"""What stands between the names of layers that became one."""
_METHODS = ("add_", "all_", "can_", "clear_", "create_", "get_", "is_", "num_", "reset", "set_", "_")


class NoSuch(Exception):  # noqa: N818 - what there is not
    """This version has no such name, or takes no such value."""


def turn(trt: Any, config: Any, settings: Mapping[str, Any]) -> None:
    """Set builder flags, attributes and preview features.

    Args:
        trt: The package.
        config: The builder configuration.
        settings: The fields of :class:`~bisect_trt.targets.trt.settings.TrtSettings`.

    Raises:
        NoSuch: This version does not have one of them.
    """
    for name in settings["builder_flags"]:
        config.set_flag(member(trt, "BuilderFlag", name, "--builder-flag"))
    for name, value in settings["builder_settings"]:
        set_attribute(trt, config, name, value)
    wanted = settings["preview_features"]
    if wanted is not None:
        chosen = {member(trt, "PreviewFeature", name, "--preview-features") for name in wanted}
        for feature in getattr(trt, "PreviewFeature").__members__.values():  # noqa: B009 - named as in the API lists
            config.set_preview_feature(feature, feature in chosen)
    recorded = settings.get("record") is not None and hasattr(trt, "IAlgorithmSelector")
    if settings["avoid_tactics"] or settings["pin_tactics"] or recorded:
        _KEPT[:] = [*_KEPT[-8:], selector(trt, settings["avoid_tactics"], settings["pin_tactics"])]
        config.algorithm_selector = _KEPT[-1]


def set_attribute(trt: Any, config: Any, name: str, value: str) -> None:
    """Set an attribute of the builder configuration to what a word says.

    Raises:
        NoSuch: There is no such attribute, or it takes other values.
    """
    if name == "quantization_flags":
        for flag in value.split(","):
            config.set_quantization_flag(member(trt, "QuantizationFlag", flag, "--builder-set quantization_flags"))
        return
    if name.startswith(_METHODS) or not hasattr(config, name):
        known = ", ".join(each for each in dir(config) if not each.startswith(_METHODS))
        raise NoSuch(f"--builder-set: the builder configuration has no attribute '{name}'; it has: {known}")
    if name in ENUMS:
        word = member(trt, ENUMS[name], value, f"--builder-set {name}")
    elif name == "plugins_to_serialize":
        word = value.split(",")
    else:
        word = plain(value)
    try:
        setattr(config, name, word)
    except (TypeError, ValueError, AttributeError) as error:
        raise NoSuch(f"--builder-set: {name} takes no '{value}': {error}") from error


def plain(value: str) -> Any:
    """A word as the number or the bool that it says."""
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    try:
        return int(value, 0)
    except ValueError:
        return value


def set_parser_flags(trt: Any, parser: Any, names: Any) -> None:
    """Set flags of the ONNX parser.

    Raises:
        NoSuch: This version does not have one of them.
    """
    flags = [member(trt, "OnnxParserFlag", name, "--onnx-flags") for name in names]
    for flag in flags:
        parser.set_flag(flag)


def member(trt: Any, enum: str, name: str, option: str) -> Any:
    """A member of one of TensorRT's enumerations, by name in any case.

    Raises:
        NoSuch: This version does not have it.
    """
    known = {key.lower(): value for key, value in getattr(getattr(trt, enum, None), "__members__", {}).items()}
    if name.lower() not in known:
        has = ", ".join(sorted(known)) or "none"
        raise NoSuch(f"{option}: this is TensorRT {trt.__version__}, which has no '{name}'; it has: {has}")
    return known[name.lower()]


def selector(trt: Any, avoided: Any, pinned: Any = ()) -> Any:
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

    class Selector(base):  # type: ignore[misc, valid-type]
        """What layers took.

        Attributes: ``took``, of each its name, tactic, and how many it could choose of; ``missed``, pins not taken; ``lifted``,
        layers that no pin is for any more.
        """

        def __init__(self) -> None:
            base.__init__(self)  # type: ignore[misc]
            self.took: list[list[Any]] = []
            self.missed: list[str] = []
            self.lifted: set[str] = set()
            self._offered: dict[str, int] = {}

        def select_algorithms(self, where: Any, choices: Any) -> list[int]:
            self._offered[where.name] = len(choices)
            offered = [tactic(where.name, choice) for choice in choices]
            if self._holds(where.name) and wanted.intersection(offered):
                return [place for place, each in enumerate(offered) if each in wanted]
            kept = [place for place, each in enumerate(offered) if each not in unwanted]
            return kept or list(range(len(choices)))

        def report_algorithms(self, contexts: Any, choices: Any) -> None:
            for where, choice in zip(contexts, choices):
                count = self._offered.get(where.name, 1)
                self.took.append([where.name, tactic(where.name, choice), count])
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
    return f"a layer cannot be held to the tactic that is pinned: it takes {', '.join(taken)}" if taken else None


PIN_MISSED = "pin"
"""The signature of a build that does not choose what it is held to."""


def tactic(layer: str, choice: Any) -> str:
    """A layer's tactic in words: ``LAYER=IMPLEMENTATION:TACTIC``, both numbers as they are in Polygraphy's replays."""
    variant = choice.algorithm_variant
    return f"{layer}={variant.implementation}:{variant.tactic}"
