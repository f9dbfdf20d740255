"""Between which releases a failure appeared, and between which it went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bisect_trt.search.history import Edge, History
from bisect_trt.search.oracle import Verdict

REASON_LENGTH = 200
"""How much of what a release says is repeated."""


@dataclass(frozen=True)
class Boundaries:
    """What was found of a package's releases.

    Attributes:
        package: Its name.
        releases: Those that could be asked, the oldest first.
        history: What was seen of them, by place.
        reasons: What each of those said that were asked, by release.
    """

    package: str
    releases: tuple[str, ...]
    history: History
    reasons: Mapping[str, str]

    @property
    def first_failing(self) -> str | None:
        """The release in which the failure appeared: the oldest that fails, if the one before it passes."""
        edge = self.history.oldest
        return None if edge is None or edge.passing is None else self.releases[edge.failing]

    @property
    def first_passing(self) -> str | None:
        """The release in which it went: the next after the newest that fails."""
        edge = self.history.newest
        return None if edge is None or edge.passing is None else self.releases[edge.passing]

    @property
    def failing(self) -> str | None:
        """The newest that fails."""
        return None if self.history.newest is None else self.releases[self.history.newest.failing]

    @property
    def passing(self) -> str | None:
        """One that passes, the nearest: where it went, or else the last before it appeared."""
        oldest = self.history.oldest
        return self.first_passing or (
            self.releases[oldest.passing] if oldest is not None and oldest.passing is not None else None
        )

    def describe(self) -> str:
        """In a sentence."""
        oldest, newest = self.history.oldest, self.history.newest
        assert oldest is not None
        assert newest is not None
        name, since, until = self.package, self.releases[oldest.failing], self.releases[newest.failing]
        if oldest.passing is not None:
            begun = f"fails since {name} {since}, right in {self.releases[oldest.passing]}"
        else:
            begun = f"fails in {name} {since} already, {self._end(oldest, 'oldest', range(oldest.failing))}"
        if newest.passing is not None:
            return f"{begun}; gone in {self.releases[newest.passing]}"
        after = range(newest.failing + 1, len(self.releases))
        return f"{begun}; still there in {until}, {self._end(newest, 'newest', after)}"

    def _end(self, edge: Edge, which: str, beyond: Sequence[int]) -> str:
        asked = f"the {which} that was asked"
        untold = [place for place in beyond if self.history.seen.get(place) is Verdict.UNRESOLVED]
        return f"the {which} that says anything" if untold and edge.passing is None else asked

    def doubt(self) -> str | None:
        """Why it is not known exactly, if it is not."""
        for edge, what in ((self.history.oldest, "appeared"), (self.history.newest, "went")):
            if edge is not None and edge.between:
                names = [self.releases[place] for place in edge.between]
                said = f"{self.package} {names[0]}: {self.reasons.get(names[0], '')[:REASON_LENGTH]}"
                return (
                    f"in which release it {what} is not known exactly, because {', '.join(names)} says nothing ({said})"
                )
        return None

    def more(self) -> str | None:
        """What else was seen, where the failure came and went more than once."""
        stretches = self.history.stretches
        if len(stretches) < 2:
            return None
        named = [tuple(dict.fromkeys((self.releases[first], self.releases[last]))) for first, last in stretches]
        return f"it came and went more than once: it fails in {', '.join(' to '.join(each) for each in named)}"

    def to_json(self) -> dict[str, object]:
        """What the result says."""
        seen = {self.releases[place]: verdict.value for place, verdict in sorted(self.history.seen.items())}
        return {
            "package": self.package,
            "releases": seen,
            "first_failing": self.first_failing,
            "first_passing": self.first_passing,
            "failing": [[self.releases[first], self.releases[last]] for first, last in self.history.stretches],
            "reasons": dict(self.reasons),
        }
