"""The proof that choices make a build bad: builds that are pinned to them, or kept from them, all else as in a good build.

The choices of a bad build are the units of a search: a candidate is the model, pinned to the bad build's choices that are in the
subset, and to a good build's for the rest. So chance has no part in it, and choices that fail only together are found too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

from bisect_trt.commands.build_choices import Build
from bisect_trt.search.oracle import Ask, Minimum, Subset, Verdict
from bisect_trt.search.strategy import minimise
from bisect_trt.targets.choices import Choice

T = TypeVar("T")
MOST_REASONS = 8
"""Of bad builds that are unlike each other so many are explained."""
_NOT_GOOD = "held to all that a good build chose, of what can be pinned, the build is not good: something else decides"
Place = tuple[str, str]
"""A layer, and the kind of choice."""


@dataclass(frozen=True)
class Held:
    """A build that is held to choices.

    Attributes:
        title: What it is, in a few words.
        pins: What it has to choose.
        bans: What it shall not.
        units: Which of the bad build's choices are in, for a search over those.
        repetition: Which of several that are held alike, from 1; 0 if there is one.
    """

    title: str
    pins: tuple[Choice, ...] = ()
    bans: tuple[Choice, ...] = ()
    units: Subset = frozenset()
    repetition: int = 0


class Bench(Protocol):
    """Builds, and judges builds."""

    def build(self, held: Held) -> tuple[Verdict, frozenset[Choice]]:
        """Returns the verdict of a build, and what it chose."""

    def search(self, algorithm: Callable[[Ask], T], held: Callable[[Subset], Held]) -> T:
        """Run a search whose candidates are builds."""


@dataclass(frozen=True)
class Reason:
    """Choices that make a build bad.

    Attributes:
        choices: Together they do; empty where it was not found.
        proven: Whether the build that is held to them, all else as in a good one, is bad; the one that is kept from them is
            good; and each of several is needed.
        why: What stands in the way of that, or of an answer.
    """

    choices: frozenset[Choice]
    proven: bool
    why: str | None = None


@dataclass(frozen=True)
class Pair:
    """A bad build, and what good ones chose.

    Attributes:
        bad: What the bad one chose, of what can be pinned, by place.
        good: What is chosen instead.
        name: What the bad one is called.
    """

    bad: Mapping[Place, Choice]
    good: Mapping[Place, Choice]
    name: str

    @property
    def places(self) -> list[Place]:
        """Where they differ, in the order in which the bad one chose."""
        return [place for place, choice in self.bad.items() if self.good.get(place) != choice]

    def held(self, units: Subset) -> Held:
        """A build held to the bad one's choices at some of those places, and to the good ones' everywhere else."""
        turned = {place for unit, place in enumerate(self.places) if unit in units}
        rest = [choice for place, choice in self.good.items() if place not in turned]
        pins = (*(self.bad[place] for place in self.places if place in turned), *rest)
        title = f"{len(units)} of {len(self.places)} choices of {self.name}, the rest of good builds"
        return Held(title, pins, units=units)

    def kept_from(self, choices: frozenset[Choice]) -> Held:
        """A build kept from some of the bad one's choices, and held to the good ones' everywhere else."""
        kept = {(each.layer, each.kind) for each in choices}
        pins = tuple(choice for place, choice in self.good.items() if place not in kept)
        return Held(f"choices of good builds, kept from {len(choices)} of {self.name}", pins, tuple(sorted(choices)))


def find_reasons(bench: Bench, builds: Sequence[Build], tries: int, known: Sequence[Reason] = ()) -> list[Reason]:
    """Explain each bad build that no reason found before, or ``known``, explains.

    Args:
        bench: Who builds.
        builds: Those that were seen; at least one is good.
        tries: How many builds are held to what was found and to nothing else, to see that it is all.
        known: What was found before.

    Returns:
        What is known and what was found; the last one is no reason if one of them cannot be explained.
    """
    reasons = list(known)
    goods = [_pinnable(build) for build in builds if build.good]
    bads = [build for build in builds if not build.good]
    for build in sorted(bads, key=lambda each: (not _pinnable(each), len(_pinnable(each)))):
        if any(reason.choices and reason.choices <= build.choices for reason in reasons):
            continue
        if len(reasons) == MOST_REASONS:
            break
        reasons.append(_explained(bench, build, list(goods), tries))
        if not reasons[-1].choices:
            break
    return reasons


def _pinnable(build: Build) -> dict[Place, Choice]:
    return {(choice.layer, choice.kind): choice for choice in sorted(build.choices) if choice.pins}


def _nearest(bad: Mapping[Place, Choice], goods: Sequence[Mapping[Place, Choice]]) -> Mapping[Place, Choice]:
    """The good build that is most like the bad one."""
    return min(goods, key=lambda good: sum(good.get(place) != choice for place, choice in bad.items()))


def _unlike(bad: Mapping[Place, Choice], goods: Sequence[Mapping[Place, Choice]]) -> Mapping[Place, Choice]:
    """The good builds' choices, at each place the most usual one that is not the bad build's.

    So that where several choices are bad together only, none of them is there already.
    """
    seen: dict[Place, Counter[Choice]] = {}
    for good in goods:
        for place, choice in good.items():
            seen.setdefault(place, Counter())[choice] += 1
    return {
        place: max(counts, key=lambda choice: (choice != bad.get(place), counts[choice], choice))
        for place, counts in seen.items()
    }


def _explained(bench: Bench, bad: Build, goods: list[Mapping[Place, Choice]], tries: int) -> Reason:
    """The same as :func:`_explain`, and that it is all: builds that are held to that alone are bad, whatever else they choose.

    One that is good shows that it takes more, which what it chose helps to find.
    """
    reason = _explain(bench, bad, goods)
    for _ in range(MOST_REASONS):
        good = _passing(bench, reason, bad, tries) if reason.proven else None
        if good is None:
            return reason
        if good in goods:
            break
        goods.append(good)
        reason = _explain(bench, bad, goods)
    why = "builds that are held to it are good now and then, so it takes something else too"
    return replace(reason, proven=False, why=why)


def _passing(bench: Bench, reason: Reason, bad: Build, tries: int) -> Mapping[Place, Choice] | None:
    """What a build chose that is held to a reason and good all the same; ``None`` if there is none.

    The first is kept from all else that the bad one chose, where that can be, as what is often chosen may be in all the others.
    """
    others = tuple(choice for choice in _pinnable(bad).values() if choice not in reason.choices)
    for number in range(1, tries + 1):
        title = f"held to what was found alone, build {number}"
        bans = others if number == 1 else ()
        verdict, chose = bench.build(Held(title, tuple(sorted(reason.choices)), bans, repetition=number))
        if verdict is Verdict.PASS:
            return _pinnable(Build(title, good=True, choices=chose))
    return None


def _explain(bench: Bench, bad: Build, goods: Sequence[Mapping[Place, Choice]]) -> Reason:
    """The fewest choices of a bad build that make a good one bad."""
    chosen = _pinnable(bad)
    if not chosen:
        why = f"{bad.name} left no choice that can be pinned, as one that ends before it has chosen"
        return Reason(frozenset(), proven=False, why=why)
    found: Minimum | str = "it chose what a good build did, of what can be pinned"
    for good in (_unlike(chosen, goods), _nearest(chosen, goods)):
        pair = Pair(chosen, good, bad.name)
        if not pair.places:
            continue
        found = bench.search(partial(_search, len(pair.places)), pair.held)
        if found != _NOT_GOOD:
            break
    if isinstance(found, str):
        return Reason(frozenset(), proven=False, why=found)
    choices = frozenset(pair.bad[pair.places[unit]] for unit in found.units)
    _, chose = bench.build(pair.held(found.units))
    if not choices <= chose:
        missing = ", ".join(f"{each.layer}: {each.said}" for each in sorted(choices - chose))
        return Reason(choices, proven=False, why=f"the build that is held to it does not say that it chose {missing}")
    verdict, chose = bench.build(pair.kept_from(choices))
    if verdict is not Verdict.PASS:
        why = "kept from it, the build is bad too" if verdict is Verdict.FAIL else "the build cannot be kept from it"
        return Reason(choices, proven=False, why=why)
    if choices & chose:
        return Reason(choices, proven=False, why="the build that is kept from it says that it chose it all the same")
    return Reason(choices, found.proven, found.why)


def _search(count: int, ask: Ask) -> Minimum | str:
    """The fewest units, if all of them together decide; else why there is no such thing."""
    if ask(frozenset(range(count))) is not Verdict.FAIL:
        return (
            "held to all that the bad build chose, of what can be pinned, the build is not bad: something else decides"
        )
    if ask(frozenset()) is not Verdict.PASS:
        return _NOT_GOOD
    return minimise(range(count), ask)
