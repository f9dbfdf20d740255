"""Marks that break a build are found and left out; the search for them knows nothing of models."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from bisect_trt.commands.layerwise import Gathered, gather
from bisect_trt.tensors.comparison import ComparisonKind, TensorComparison
from bisect_trt.worker.protocol import Compared, Failed

NAMES = [f"t{place}" for place in range(24)]
some = st.frozensets(st.sampled_from(NAMES), max_size=5)


class Target:
    """Refuses a model that shows some tensors.

    Attributes:
        asked: The groups that it was given.
    """

    def __init__(self, breaking: frozenset[str]) -> None:
        self.asked: list[list[str]] = []
        self._breaking = breaking

    def __call__(self, names: Sequence[str]) -> Compared | Failed:
        self.asked.append(list(names))
        if not self._breaking.isdisjoint(names):
            return Failed("build", "no", "build: no")
        return Compared(tuple(TensorComparison(name, True, ComparisonKind.MATCH) for name in names))


def shown(found: Gathered) -> set[str]:
    return {comparison.name for seen in found.runs for comparison in seen.comparisons}


@given(some, some, st.integers(1, 40))
def test_every_tensor_is_seen_or_it_is_said_why_not(
    breaking: frozenset[str], fragile: frozenset[str], most: int
) -> None:
    target = Target(breaking)
    found = gather(NAMES, fragile, target, most=most)
    assert found.builds == len(target.asked) <= most
    assert shown(found) | found.unseen.keys() == set(NAMES) or found.builds == 1
    assert shown(found).isdisjoint(breaking)
    assert shown(found).isdisjoint(found.unseen)
    assert all("no" in why for why in found.unseen.values())


@given(some)
def test_with_builds_enough_only_what_breaks_them_is_not_seen(breaking: frozenset[str]) -> None:
    found = gather(NAMES, (), Target(breaking), most=1000)
    assert shown(found) == set(NAMES) - breaking
    assert found.unseen.keys() == breaking


@given(some.filter(bool), some)
def test_what_targets_like_least_is_left_out_first(fragile: frozenset[str], breaking: frozenset[str]) -> None:
    target = Target(fragile)
    found = gather(NAMES, fragile | breaking, target)
    assert found.builds == 2
    assert shown(found) == set(NAMES) - fragile - breaking
