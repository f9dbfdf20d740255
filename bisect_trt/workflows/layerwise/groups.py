"""See as many tensors as a target lets one see: all at once, or else in groups."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from bisect_trt.tensors.comparison import TensorComparison

MOST_BUILDS = 8
"""A build may take a minute; after so many what is left stays unseen."""


AT_A_TIME = 8
MOST_NARROWING = 12
"""Builds past those: with one tensor at a time they tell a thousand apart."""


@dataclass(frozen=True)
class Seen:
    """What one run of a model showed.

    Attributes:
        comparisons: Of each tensor that it gave back, on every input sample.
        unseen: Tensors that the target did not hand out, with the reason.
        layers: Layers of the target's engine, as the worker gives them.
        refused: Why the target did not run it, if so.
        signature: The kind of that refusal.
        seconds: How long it took.
    """

    comparisons: tuple[TensorComparison, ...] = ()
    unseen: dict[str, str] = field(default_factory=dict)
    layers: tuple[dict[str, Any], ...] = ()
    refused: str | None = None
    signature: str | None = None
    seconds: float = 0.0


@dataclass
class Gathered:
    """What several runs showed.

    Attributes:
        groups: The runs that worked.
        unseen: Tensors that no run shows, with the reason.
        builds: How many runs were tried.
        refused: Why the first did not work, if it did not.
    """

    groups: list[Seen] = field(default_factory=list)
    unseen: dict[str, str] = field(default_factory=dict)
    builds: int = 0
    refused: str | None = None


def gather(
    names: Sequence[str],
    fragile: Collection[str],
    attempt: Callable[[Sequence[str]], Seen],
    hopeless: str | None = None,
    most: int = MOST_BUILDS,
) -> Gathered:
    """Run a model that shows tensors; where the target refuses it, show fewer.

    First those are left out that targets like least, then the rest is split into halves, and halves of halves.

    Args:
        names: The tensors, in topological order.
        fragile: Those of them to leave out first.
        attempt: Runs the model that shows some of them.
        hopeless: The signature of a refusal that showing fewer does not mend, if there is one.
        most: How many runs may be tried.
    """
    found = Gathered(builds=1)
    first = attempt(names)
    if _take(found, first, names):
        return found
    found.refused = first.refused
    if first.signature == hopeless:
        return found
    firm = [name for name in names if name not in fragile]
    pending = deque([firm] if 0 < len(firm) < len(names) else _halves(names))
    if len(firm) < len(names) and firm:
        _leave_out(found, [name for name in names if name in fragile], first, "every tensor")
    while pending and found.builds < most:
        group = pending.popleft()
        seen = attempt(group)
        found.builds += 1
        if not _take(found, seen, group):
            if len(group) == 1:
                _leave_out(found, group, seen, "it")
            pending.extend(_halves(group))
    for group in pending:
        why = f"{found.builds} builds were spent, and the target does not run the model with it and others shown"
        found.unseen |= dict.fromkeys(group, f"{why}: {first.refused}")
    return found


def narrow(
    found: Gathered,
    names: Sequence[str],
    leads_to: Callable[[str], Collection[str]],
    attempt: Callable[[Sequence[str]], Seen],
    tells: Callable[[Seen], bool],
) -> None:
    """Where a target refuses to show many tensors, bisect for the first wrong one: show a few at a time, evenly spaced.

    What leads to the first that is wrong, and not to one that is right, is what is left to look at.

    Args:
        found: What was seen before; gets what is seen now.
        names: The tensors, in topological order.
        leads_to: The tensors that one is computed from.
        attempt: Runs the model that shows some of them.
        tells: Whether what a run shows is of the failure that is looked for.
    """
    known: dict[str, bool] = {}
    for comparison in (each for seen in found.groups for each in seen.comparisons):
        known[comparison.name] = known.get(comparison.name, True) and comparison.passed
    left, width = set(names), AT_A_TIME
    for _ in range(MOST_NARROWING):
        # The model's own outputs, which every run gives back, come last.
        wrong = next((name for name in (*names, *known) if not known.get(name, True)), None)
        if wrong is not None:
            before = set(leads_to(wrong))
            left &= before.difference(*(leads_to(name) for name in before if known.get(name, False)))
        region = [name for name in names if name in left and name not in known]
        if not region:
            return
        width = min(width, len(region))
        group = [region[(2 * place + 1) * len(region) // (2 * width)] for place in range(width)]
        seen = attempt(group)
        found.builds += 1
        if seen.refused is not None or not tells(seen):
            left -= set(group) if width == 1 else set()
            width = max(1, width // 2)
            continue
        _take(found, seen, group)
        for comparison in seen.comparisons:
            known[comparison.name] = known.get(comparison.name, True) and comparison.passed
            found.unseen.pop(comparison.name, None)


def _take(found: Gathered, seen: Seen, names: Sequence[str]) -> bool:
    """Keep what a run showed; whether it showed anything."""
    if seen.refused is not None:
        return False
    found.groups.append(seen)
    found.unseen |= {name: why for name, why in seen.unseen.items() if name in names}
    return True


def _leave_out(found: Gathered, names: Sequence[str], seen: Seen, what: str) -> None:
    found.unseen |= dict.fromkeys(names, f"the target does not run the model with {what} shown: {seen.refused}")


def _halves(names: Sequence[str]) -> list[Sequence[str]]:
    """In two; nothing of a single one."""
    middle = (len(names) + 1) // 2
    return [names[:middle], names[middle:]] if len(names) > 1 else []
