"""Tactics by the timing cache, where there is no algorithm selector any more: TensorRT 11; goes into ``reproduce.py`` too.

So it needs nothing of bisect-trt and has Python 3.8's syntax. A build whose timing cache may be edited says in its verbose log
which kernels it timed for each layer, under which key. Another build that is given that cache, with another kernel in an entry,
takes that one. Source: NVIDIA's sample ``sampleEditableTimingCache``, whose lines are read here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

_KEY_LINE = re.compile(r"Autotuning op (.+?)\(key: (0x[0-9a-fA-F]+)\)")
_COST_LINE = re.compile(
    r"^\W*\d+, *(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?), *[\d.eE+-]+, *[\d.eE+-]+, *([^,]+), *(0x[0-9a-fA-F]+)"
)
_TAKEN_LINE = re.compile(r"\(tactic hash, cost\(in ms\)\): *(0x[0-9a-fA-F]+)")
_ENTRY = re.compile(r"^(.+)=(0x[0-9a-f]+):(0x[0-9a-f]+)$")


class CannotTake(Exception):  # noqa: N818 - what a layer does not do
    """A layer does not take the tactic that it is to take."""


@dataclass
class Timed:
    """What was timed for a layer.

    Attributes:
        key: Its entry in the timing cache; layers that are alike share one.
        costs: Milliseconds by tactic.
        selected: The tactic that it took.
    """

    key: str
    costs: dict[str, float] = field(default_factory=dict)
    selected: str | None = None


@dataclass
class Timings:
    """What the verbose log says of timings.

    Attributes:
        ops: Of each layer, in the order they were timed.
        open: Whether anybody wants to know.
    """

    ops: dict[str, Timed] = field(default_factory=dict)
    open: bool = False
    _name: str | None = None

    def begin(self) -> None:
        """Forget what was said of another build, which may have ended within a layer."""
        self.ops.clear()
        self._name, self.open = None, True

    def hear(self, line: str) -> None:
        """Take in a message; TensorRT is in the middle of a build, so nothing may be raised."""
        begun = _KEY_LINE.search(line)
        if begun is not None:
            self._name = begun.group(1).strip()
            self.ops[self._name] = Timed(_as_hex(begun.group(2)))
            return
        if self._name is None:
            return
        op, cost, chosen = self.ops[self._name], _COST_LINE.search(line), _TAKEN_LINE.search(line)
        if chosen is not None:
            op.selected, self._name = _as_hex(chosen.group(1)), None
        elif cost is not None:
            op.costs[_as_hex(cost.group(3))] = float(cost.group(1))

    def took(self) -> list[list[Any]]:
        """Of each layer its name, its tactic as ``LAYER=KEY:TACTIC``, and of how many it could choose."""
        return [
            [name, f"{name}={op.key}:{op.selected}", len(op.costs)]
            for name, op in self.ops.items()
            if op.selected is not None
        ]


_TIMINGS = Timings()
"""What is said of the build that is made now, or was made last."""


def listen(line: str, timings: Timings = _TIMINGS) -> None:
    """Take in a verbose message of TensorRT's, which speaks when names of modules are gone, too."""
    if timings.open:
        timings.hear(line)


def timed() -> list[list[Any]]:
    """What each layer took in the last build; see :meth:`Timings.took`."""
    return _TIMINGS.took()


def by_cache(trt: Any, settings: Mapping[str, Any]) -> bool:
    """Whether tactics are asked for, or to be written down, that only an edited timing cache can hold a build to."""
    if hasattr(trt, "IAlgorithmSelector") or not hasattr(trt.BuilderFlag, "EDITABLE_TIMING_CACHE"):
        return False
    words = [*settings["avoid_tactics"], *settings["pin_tactics"]]
    return all(map(_ENTRY.match, words)) and bool(words or settings.get("record"))


def build_edited(trt: Any, builder: Any, network: Any, config: Any, settings: Mapping[str, Any], content: bytes) -> Any:
    """Build a network whose layers take the tactics that they are to take; twice, where there are such.

    The first build times all tactics, so that their keys are known. One that is only to say what it chose is built as ever where
    it cannot be built so.

    Args:
        trt: The package.
        builder: Its builder.
        network: What is built.
        config: The builder configuration.
        settings: The fields of :class:`~bisect_trt.targets.trt.settings.TrtSettings`.
        content: Of the timing cache to start from; what is in there is not timed again, and can only be held.

    Returns:
        The serialised engine; ``None`` where TensorRT refuses the model.

    Raises:
        CannotTake: A layer cannot take a tactic that is pinned.
    """
    config.set_flag(trt.BuilderFlag.EDITABLE_TIMING_CACHE)
    timing_cache = config.create_timing_cache(content)
    config.set_timing_cache(timing_cache, ignore_mismatch=False)
    _TIMINGS.begin()
    try:
        plan = builder.build_serialized_network(network, config)
    finally:
        _TIMINGS.open = False
    if plan is None and not (settings["pin_tactics"] or settings["avoid_tactics"]):
        _TIMINGS.ops.clear()
        config.clear_flag(trt.BuilderFlag.EDITABLE_TIMING_CACHE)
        config.set_timing_cache(config.create_timing_cache(content), ignore_mismatch=False)
        return builder.build_serialized_network(network, config)
    changed = edits(_TIMINGS.ops, settings["pin_tactics"], settings["avoid_tactics"])
    if plan is None or not changed:
        return plan
    for key, tactic in changed.items():
        value = trt.TimingCacheValue(int(tactic, 16), 0.0)
        if not timing_cache.update(trt.TimingCacheKey.parse(padded(key, 32)), value):
            raise CannotTake(f"the timing cache does not take {tactic} for {key}")
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise CannotTake(f"no engine can be built with {', '.join(changed.values())}")
    for name, op in _TIMINGS.ops.items():
        if op.key not in changed:
            continue
        held = timing_cache.query(trt.TimingCacheKey.parse(padded(op.key, 32))).tacticHash
        if held != int(changed[op.key], 16):
            raise CannotTake(f"it takes {name}={op.key}:{hex(held)}")
        op.selected = changed[op.key]
    return plan


def edits(ops: Mapping[str, Timed], pinned: Iterable[str], avoided: Iterable[str]) -> dict[str, str]:
    """Which tactic goes into which entry of the timing cache.

    A layer that is pinned and is not there asks for nothing. One that is to avoid its tactic gets the fastest of the others;
    where there is none, it keeps it.

    Raises:
        CannotTake: A layer that is there does not have the tactic that is pinned; or layers that share an entry are pinned to
            several.
    """
    wanted = _by_layer(pinned)
    found: dict[str, str] = {}
    for name, op in ops.items():
        tactics = wanted.get(name, {}).get(op.key, set()) if len(op.costs) > 1 else set()
        if name in wanted and len(op.costs) > 1 and not tactics & op.costs.keys():
            raise CannotTake(f"it takes {name}={op.key}:{op.selected}")
        for tactic in sorted(tactics & op.costs.keys())[:1]:
            if found.setdefault(op.key, tactic) != tactic:
                raise CannotTake(f"{name} shares its entry {op.key} with a layer that is held to {found[op.key]}")
    for name, unwanted in _by_layer(avoided).items():
        op = ops.get(name, Timed(""))
        banned = unwanted.get(op.key, set())
        left = {tactic: cost for tactic, cost in op.costs.items() if tactic not in banned}
        if found.get(op.key, op.selected) in banned and left and op.key not in found:
            found[op.key] = min(left, key=lambda tactic: (left[tactic], tactic))
    taken = {op.key: op.selected for op in ops.values()}
    return {key: tactic for key, tactic in found.items() if taken[key] != tactic}


def padded(number: str, digits: int) -> str:
    """A hexadecimal number with as many digits as TensorRT reads."""
    return "0x" + number[2:].rjust(digits, "0")


def _by_layer(words: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Sets of tactics by key, by layer."""
    found: dict[str, dict[str, Any]] = {}
    for word in words:
        parts = _ENTRY.match(word)
        assert parts is not None, "others are refused before"
        found.setdefault(parts.group(1), {}).setdefault(parts.group(2), set()).add(parts.group(3))
    return found


def _as_hex(number: str) -> str:
    return hex(int(number, 16))
