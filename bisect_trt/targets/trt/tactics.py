"""Holds layers to tactics, keeps them from tactics, and records what they took.

TensorRT 8.6 to 10 ask an algorithm selector. TensorRT 11 has none: its verbose log lists the kernels that were timed for each
layer, under which key of the timing cache, and another build with that cache, an entry changed, takes the other kernel. Source:
NVIDIA's sample ``sampleEditableTimingCache``, whose log lines are read here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from bisect_trt.errors import UnknownNameError
from bisect_trt.targets.messages import BuildError
from bisect_trt.targets.trt.config import APIS, describe

PIN_MISSED = "pin"
"""The signature of a build that does not choose what it is held to."""
_FUSED_PARTS = re.compile(r" \+ |PWN\(|\)|, |\|\|")
"""Stands between the names of layers that became one."""
_KEY_LINE = re.compile(r"Autotuning op (.+?)\(key: (0x[0-9a-fA-F]+)\)")
_COST_LINE = re.compile(
    r"^\W*\d+, *(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?), *[\d.eE+-]+, *[\d.eE+-]+, *([^,]+), *(0x[0-9a-fA-F]+)"
)
_TAKEN_LINE = re.compile(r"\(tactic hash, cost\(in ms\)\): *(0x[0-9a-fA-F]+)")
_ENTRY = re.compile(r"^(.+)=(0x[0-9a-f]+):(0x[0-9a-f]+)$")


def pin_refused(taken: str) -> BuildError:
    """Return the error of a build that takes another tactic than it is held to."""
    message = f"a layer cannot be held to the tactic that is pinned: it takes {taken}"
    return BuildError(message, signature=PIN_MISSED)


def tactic_chooser(trt: Any, settings: Mapping[str, Any], *, record: bool = False) -> Any:
    """Return an algorithm selector or a :class:`TimingEditor`; ``None`` if no tactics are asked for.

    Args:
        trt: The package.
        settings: ``avoid_tactics`` and ``pin_tactics``; ``record`` asks to record.
        record: Whether to record in any case.

    Raises:
        UsageError: This version can hold no layer to a tactic, or a tactic is given in the words of another version.
    """
    avoided, pinned = settings["avoid_tactics"], settings["pin_tactics"]
    if not (avoided or pinned or record or settings["record"]) or not APIS[settings["runtime"]].times_tactics:
        return None
    if hasattr(trt, "IAlgorithmSelector"):
        return make_selector(trt, avoided, pinned)
    if hasattr(trt.BuilderFlag, "EDITABLE_TIMING_CACHE") and all(map(_ENTRY.match, [*avoided, *pinned])):
        return TimingEditor(trt, avoided, pinned)
    if avoided or pinned:
        flag = "--avoid-tactic" if avoided else "--pin-tactic"
        raise UnknownNameError(
            f"{flag}: {describe(trt)} has no algorithm selector, so it takes tactics as LAYER=0xKEY:0xTACTIC "
            "alone, as `bisect-trt repeat` reports them."
        )
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
            lifted: Layers whose pins do not count.
        """

        def __init__(self) -> None:
            base.__init__(self)
            self.took: list[list[Any]] = []
            self.lifted: set[str] = set()
            self._offered: dict[str, int] = {}

        def select_algorithms(self, where: Any, choices: Any) -> list[int]:
            self._offered[where.name] = len(choices)
            offered = [_tactic(where.name, choice) for choice in choices]
            if self._holds(where.name) and wanted.intersection(offered):
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
                if (self._holds(name) and each not in wanted)
                or (name not in held and count > 1 and not self._is_lifted(name) and gone & layer_parts(name))
            ]

        def _holds(self, name: str) -> bool:
            return name in held and not self._is_lifted(name)

        def _is_lifted(self, name: str) -> bool:
            return bool(self.lifted & layer_parts(name))

    return Selector()


def layer_parts(layer: str) -> set[str]:
    """Return the layers of the network that became one of an engine, by its name."""
    return {layer, *(part.strip() for part in _FUSED_PARTS.split(layer) if part.strip())}


def _tactic(layer: str, choice: Any) -> str:
    """Return ``LAYER=IMPLEMENTATION:TACTIC``, both numbers as they are in Polygraphy's replays."""
    variant = choice.algorithm_variant
    return f"{layer}={variant.implementation}:{variant.tactic}"


class TimedLayer:
    """The kernels that were timed for a layer.

    Attributes:
        key: Its entry in the timing cache; layers that are alike share one.
        costs: Milliseconds by tactic.
        taken: The tactic that it took.
    """

    def __init__(self, key: str) -> None:
        """Nothing is timed yet."""
        self.key, self.costs, self.taken = key, dict[str, float](), ""


class TimingEditor:
    """Builds with a timing cache whose entries are changed to the tactics that layers have to take.

    Attributes:
        layers: The timed layers by name.
        lifted: Not used: layers are told no types in TensorRT 11.
    """

    def __init__(self, trt: Any, avoided: Iterable[str], pinned: Iterable[str]) -> None:
        """``avoided`` and ``pinned`` are ``LAYER=KEY:TACTIC``, in hexadecimal."""
        self._trt, self._avoided, self._pinned = trt, _by_layer(avoided), _by_layer(pinned)
        self.layers: dict[str, TimedLayer] = {}
        self.lifted: set[str] = set()
        self._name: str | None = None

    @property
    def took(self) -> list[list[Any]]:
        """The name, the tactic as ``LAYER=KEY:TACTIC`` and the number of choices of each layer."""
        done = [(name, layer) for name, layer in self.layers.items() if layer.taken]
        return [[name, f"{name}={layer.key}:{layer.taken}", len(layer.costs)] for name, layer in done]

    def hear(self, line: str) -> None:
        """Take in a verbose message; TensorRT is in the middle of a build, so nothing may be raised."""
        begun = _KEY_LINE.search(line)
        if begun is not None:
            self._name = begun.group(1).strip()
            self.layers[self._name] = TimedLayer(_as_hex(begun.group(2)))
            return
        if self._name is None:
            return
        layer, cost, taken = self.layers[self._name], _COST_LINE.search(line), _TAKEN_LINE.search(line)
        if taken is not None:
            layer.taken, self._name = _as_hex(taken.group(1)), None
        elif cost is not None:
            layer.costs[_as_hex(cost.group(3))] = float(cost.group(1))

    def build(self, builder: Any, network: Any, config: Any, content: bytes, log: Any) -> Any:
        """Build a network: once to time all tactics, and again if entries have to be changed.

        Args:
            builder: TensorRT's.
            network: The network.
            config: The builder configuration.
            content: A timing cache to start from; what is in there is not timed again, and can only be held.
            log: The :class:`~bisect_trt.targets.trt.log.Log` of this process.

        Returns:
            The serialised engine; ``None`` where TensorRT refuses the model.

        Raises:
            BuildError: A layer cannot take a tactic that is pinned.
        """
        trt = self._trt
        config.set_flag(trt.BuilderFlag.EDITABLE_TIMING_CACHE)
        timing_cache = config.create_timing_cache(content)
        config.set_timing_cache(timing_cache, ignore_mismatch=False)
        log.listener = self.hear
        try:
            plan = builder.build_serialized_network(network, config)
        finally:
            log.listener, self._name = None, None
        if plan is None and not (self._pinned or self._avoided):
            # It only had to say what it chose: it is built as if it had not been asked.
            self.layers.clear()
            config.clear_flag(trt.BuilderFlag.EDITABLE_TIMING_CACHE)
            config.set_timing_cache(config.create_timing_cache(content), ignore_mismatch=False)
            return builder.build_serialized_network(network, config)
        changed = self.edits()
        if plan is None or not changed:
            return plan
        for key, tactic in changed.items():
            value = trt.TimingCacheValue(int(tactic, 16), 0.0)
            if not timing_cache.update(trt.TimingCacheKey.parse(_padded(key)), value):
                raise pin_refused(f"not {tactic}, which the timing cache refuses for {key}")
        plan = builder.build_serialized_network(network, config)
        if plan is None:
            raise pin_refused(f"not {', '.join(changed.values())}, with which no engine can be built")
        for name, layer in self.layers.items():
            if layer.key in changed:
                held = timing_cache.query(trt.TimingCacheKey.parse(_padded(layer.key))).tacticHash
                if held != int(changed[layer.key], 16):
                    raise pin_refused(f"{name}={layer.key}:{hex(held)}")
                layer.taken = changed[layer.key]
        return plan

    def edits(self) -> dict[str, str]:
        """Return the tactic for each entry of the timing cache that has to change.

        A pinned layer that does not exist asks for nothing. One that is to avoid its tactic gets the fastest of the others;
        where there is none, it keeps it.

        Raises:
            BuildError: A layer does not have the tactic that is pinned, or layers that share an entry are pinned to several.
        """
        found: dict[str, str] = {}
        for name, layer in self.layers.items():
            if name not in self._pinned or len(layer.costs) < 2:
                continue
            tactics = sorted(self._pinned[name].get(layer.key, set()) & layer.costs.keys())
            if not tactics or found.setdefault(layer.key, tactics[0]) != tactics[0]:
                raise pin_refused(f"{name}={layer.key}:{found.get(layer.key, layer.taken)}")
        for name, layer in self.layers.items():
            banned = self._avoided.get(name, {}).get(layer.key, set())
            left = {tactic: cost for tactic, cost in layer.costs.items() if tactic not in banned}
            if layer.taken in banned and left and layer.key not in found:
                found[layer.key] = min(left, key=lambda tactic: (left[tactic], tactic))
        taken = {layer.key: layer.taken for layer in self.layers.values()}
        return {key: tactic for key, tactic in found.items() if taken[key] != tactic}


def _by_layer(words: Iterable[str]) -> dict[str, dict[str, set[str]]]:
    """Return the tactics by key, by layer."""
    found: dict[str, dict[str, set[str]]] = {}
    for parts in map(_ENTRY.match, words):
        assert parts is not None, "tactic_chooser refuses others"
        found.setdefault(parts.group(1), {}).setdefault(parts.group(2), set()).add(parts.group(3))
    return found


def _padded(key: str) -> str:
    """Return a key with the 32 digits that TensorRT reads."""
    return "0x" + key[2:].rjust(32, "0")


def _as_hex(number: str) -> str:
    return hex(int(number, 16))
