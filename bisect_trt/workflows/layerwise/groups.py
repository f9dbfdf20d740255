"""See as many tensors as a target lets one see: all at once, or else in groups."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from bisect_trt.tensors.comparison import TensorComparison

MOST_BUILDS = 8
"""A build may take a minute; after so many what is left stays unseen."""


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
