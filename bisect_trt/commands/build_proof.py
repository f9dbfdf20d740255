"""The proof that choices make a build bad: builds that are pinned to them, or kept from them, all else as in a good build.

The choices of a bad build are the units of a search: a candidate is the model, pinned to the bad build's choices that are in the
subset, and to a good build's for the rest. So chance has no part in it, and choices that fail only together are found too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from bisect_trt.commands.build_choices import Build
from bisect_trt.search.oracle import Subset, Verdict
from bisect_trt.search.strategy import minimise
from bisect_trt.targets.choices import Choice

MOST_REASONS = 8
"""Of bad builds that are unlike each other so many are explained."""
Place = tuple[str, str]
"""A layer, and the kind of choice."""
Places = Mapping[Place, Choice]
"""What a build chose, of what can be pinned."""


@dataclass(frozen=True)
class Held:
    """A build that is held to choices.

    Attributes:
        title: What it is, in a few words.
        pins: What it has to choose.
        bans: What it may not choose.
        units: Which of the bad build's choices are in, for a search over those.
        repetition: Which of several that are held alike, from 1; 0 if there is one.
    """

    title: str
    pins: tuple[Choice, ...] = ()
    bans: tuple[Choice, ...] = ()
    units: Subset = frozenset()
    repetition: int = 0


Bench = Callable[[Held], tuple[Verdict, frozenset[Choice]]]
"""Builds; returns the verdict of the build, and what it chose."""


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


def find_reasons(bench: Bench, builds: Sequence[Build], tries: int, known: Sequence[Reason] = ()) -> list[Reason]:
    """Explain each bad build that no reason found before, or ``known``, explains.

    Args:
        bench: Builds.
        builds: Those that were seen; at least one is good.
        tries: How many builds are held to what was found and to nothing else, to see that it is all.
        known: What was found before.

    Returns:
        What is known and what was found; the last one is no reason if one of them cannot be explained.
    """
    reasons = list(known)
    goods = [_pinnable(build.choices) for build in builds if build.good]
    bads = [build for build in builds if not build.good]
    for build in sorted(bads, key=lambda each: (not _pinnable(each.choices), len(_pinnable(each.choices)))):
        if any(reason.choices and reason.choices <= build.choices for reason in reasons):
            continue
        if len(reasons) == MOST_REASONS:
            break
        reasons.append(_explained(bench, build, list(goods), tries))
        if not reasons[-1].choices:
            break
    return reasons


def _pinnable(choices: frozenset[Choice]) -> Places:
    return {(choice.layer, choice.kind): choice for choice in sorted(choices) if choice.pins}


def _explained(bench: Bench, bad: Build, goods: list[Places], tries: int) -> Reason:
    """The fewest choices that make a good build bad, and that they are all: builds held to nothing else are bad too.

    One that is good shows that it takes more, which what it chose helps to find.
    """
    chosen = _pinnable(bad.choices)
    reason = _explain(bench, bad.name, chosen, goods)
    for _ in range(MOST_REASONS):
        good = _passing(bench, reason, chosen, tries) if reason.proven else None
        if good is None:
            return reason
        if good in goods:
            break
        goods.append(good)
        reason = _explain(bench, bad.name, chosen, goods)
    why = "builds that are held to it are good now and then, so it takes something else too"
    return replace(reason, proven=False, why=why)


def _passing(bench: Bench, reason: Reason, chosen: Places, tries: int) -> Places | None:
    """What a build chose that is held to a reason and good all the same; ``None`` if there is none.

    The first is kept from all else that the bad one chose, where that can be, as what is often chosen may be in all the others.
    """
    others = tuple(choice for choice in chosen.values() if choice not in reason.choices)
    for number in range(1, tries + 1):
        title, bans = f"held to what was found alone, build {number}", others if number == 1 else ()
        verdict, chose = bench(Held(title, tuple(sorted(reason.choices)), bans, repetition=number))
        if verdict is Verdict.PASS:
            return _pinnable(chose)
    return None


def _explain(bench: Bench, name: str, bad: Places, goods: Sequence[Places]) -> Reason:
    """The fewest choices of a bad build that make a good one bad."""
    why = f"{name} left no choice that can be pinned, as one that ends before it has chosen"
    for good in _others(bad, goods) if bad else ():
        places = [place for place, choice in bad.items() if good.get(place) != choice]
        why = "it chose what a good build did, of what can be pinned"
        if not places:
            continue

        def held(units: Subset, good: Places = good, places: Sequence[Place] = places) -> Held:
            turned = {places[unit] for unit in units}
            pins = (*(bad[place] for place in places if place in turned), *_rest(good, turned))
            return Held(f"{len(units)} of {len(places)} choices of {name}, the rest of good builds", pins, units=units)

        if bench(held(frozenset(range(len(places)))))[0] is not Verdict.FAIL:
            why = "held to all that the bad build chose, of what can be pinned, the build is not bad: something else decides"
            break
        if bench(held(frozenset()))[0] is not Verdict.PASS:
            why = "held to all that a good build chose, of what can be pinned, the build is not good: something else decides"
            continue
        found = minimise(range(len(places)), lambda units, held=held: bench(held(units))[0])  # type: ignore[misc]
        turned = {places[unit] for unit in found.units}
        choices = frozenset(bad[place] for place in turned)
        _, chose = bench(held(found.units))
        if not choices <= chose:
            missing = ", ".join(f"{each.layer}: {each.said}" for each in sorted(choices - chose))
            return Reason(
                choices, proven=False, why=f"the build that is held to it does not say that it chose {missing}"
            )
        title = f"choices of good builds, kept from {len(choices)} of {name}"
        verdict, chose = bench(Held(title, _rest(good, turned), tuple(sorted(choices))))
        if verdict is Verdict.PASS and not choices & chose:
            return Reason(choices, found.proven, found.why)
        why = "kept from it, the build is bad too" if verdict is Verdict.FAIL else "the build cannot be kept from it"
        return Reason(choices, proven=False, why=why)
    return Reason(frozenset(), proven=False, why=why)


def _rest(good: Places, turned: set[Place]) -> tuple[Choice, ...]:
    return tuple(choice for place, choice in good.items() if place not in turned)


def _others(bad: Places, goods: Sequence[Places]) -> list[Places]:
    """What a build may be held to instead of a bad one's choices: what good builds chose unlike it, then the nearest good build.

    In the first, each place has the most usual choice that is not the bad build's, so that where several choices are bad
    together only, none of them is there already.
    """
    seen: dict[Place, Counter[Choice]] = {}
    for good in goods:
        for place, choice in good.items():
            seen.setdefault(place, Counter())[choice] += 1
    unlike = {
        place: max(counts, key=lambda choice: (choice != bad.get(place), counts[choice], choice))
        for place, counts in seen.items()
    }
    return [unlike, min(goods, key=lambda good: sum(good.get(place) != choice for place, choice in bad.items()))]
