"""Bisection over nested prefixes.

The prefixes of any order are nested sets, whatever way the graph branches, where the ancestors of one node and of the
next are not. So "the shortest prefix that fails" is well defined and found in about log2 N questions, and its last unit
is needed: without it the rest of that prefix does not fail.
"""

from __future__ import annotations

from collections.abc import Sequence

from bisect_trt.search.oracle import Ask, Subset, Verdict


def shortest_failing_prefix(
    units: Sequence[int], kept: Subset, ask: Ask, *, empty_odds: float = 0.0, guess: int | None = None
) -> int:
    """The least n for which ``kept`` with the first n of ``units`` fails, all of them together being known to fail.

    Each question halves what is possible, by weight: every length from 1 on counts alike, and length 0 ("``kept`` alone
    fails") counts for ``empty_odds`` of the whole. For one culprit among N that is ceil(log2 N) questions.

    The end point has always been seen to fail (or is all of them), also where failures are not monotone; the length one
    below has been seen not to.

    Args:
        units: The order to take prefixes of.
        kept: Units that are in every question.
        ask: The oracle.
        empty_odds: The chance, 0 to under 1, that ``kept`` alone fails; 0 leaves that question out.
        guess: A length that is worth asking first, and the one below it next; they narrow the rest down if it is wrong.

    Returns:
        The length, 0 to ``len(units)``.
    """
    longest = len(units)
    passed = -1 if empty_odds > 0 else 0
    empty_weight = longest * empty_odds / (1 - empty_odds)
    guesses = [] if guess is None else [guess - 1, guess]
    while longest - passed > 1:
        middle = guesses.pop() if guesses else _middle(passed, longest, empty_weight)
        if not passed < middle < longest:
            continue
        if ask(kept.union(units[:middle])) is Verdict.FAIL:
            longest = middle
        else:
            passed = middle
    return longest


def _middle(passed: int, longest: int, empty_weight: float) -> int:
    """The length to ask next, strictly between the two, that splits the weight of what is possible most evenly."""
    if passed >= 0:
        return (passed + longest) // 2
    half = (empty_weight + longest) / 2
    return min(max(round(half - empty_weight), 0), longest - 1)


def shortest_failing_prefix_by_steps(units: Sequence[int], kept: Subset, ask: Ask) -> int:
    """The same by trying each length from the shortest: slow, but it assumes nothing of the lengths it did not try."""
    for length in range(1 if not kept else 0, len(units)):
        if ask(kept.union(units[:length])) is Verdict.FAIL:
            return length
    return len(units)
