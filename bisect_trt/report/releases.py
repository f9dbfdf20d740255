"""The releases of a package in which a case fails and passes, in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile

from msgspec import Struct

from bisect_trt.aliases import Names
from bisect_trt.probe.outcome import Ending, Outcome
from bisect_trt.report.reproducer import Since
from bisect_trt.report.result import Result
from bisect_trt.report.summary import describe_releases
from bisect_trt.search.oracle import Verdict
from bisect_trt.search.ordered import Edge, History

_REASON_LENGTH = 200
"""The length to which the reason of a release is cut."""
NOT_SEARCHED = "The first failing release was not searched, because that installs releases: {}"
NONE_ALONE = "No release of {} fails in an environment of its own."
NO_INDEX = "The newest release of {} was not tried, because no package index answers."
REFUSES_FRESH = "{} does not run on other inputs ({})"
FAILS_FRESH = "{} fails on {} of {} other inputs"
BY_EVALUATOR = "{} Releases are compared with the evaluator."
NONE_PASSES = "the check passes in no release, so it may fail whatever it is given"


class Boundaries(Struct, frozen=True):
    """The boundaries of a failure among the releases of a package.

    Attributes:
        package: The name of the package.
        releases: The releases of the range, the oldest first.
        history: The verdicts by index of the release, and the edges between them.
        reasons: The reason of each verdict, by release.
        wrong: How the whole model fails on fresh inputs in releases that pass, in words, by name.
    """

    package: str
    releases: Sequence[str]
    history: History
    reasons: Mapping[str, str]
    wrong: Mapping[str, str] = {}

    def passing(self, edge: Edge | None) -> str | None:
        """The release that passes at an edge; ``None`` if no release does."""
        return None if edge is None or edge.passing is None else self.releases[edge.passing]

    @property
    def any_passes(self) -> bool:
        """Whether a release that was probed passes."""
        return Verdict.PASS in self.history.seen.values()

    def doubt(self) -> str | None:
        """Why a boundary is not known exactly, if so."""
        if self.wrong:
            return f"{'; '.join(self.wrong.values())}: that it was fixed there is unproven"
        for edge, event in ((self.history.oldest, "appeared"), (self.history.newest, "was fixed")):
            if edge is not None and edge.between:
                names = [self.releases[place] for place in edge.between]
                silent = f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} no verdict"
                return f"the release in which it {event} is uncertain: {silent} ({names[0]}: {self._reason(names[0])})"
        return None

    @property
    def unresolved(self) -> list[tuple[str, str, str]]:
        """The rows without a verdict."""
        return [row for row in self.rows() if row[1] == Verdict.UNRESOLVED.value]

    def describe_none(self) -> str:
        """Return that none fails; where the oldest cannot run it, with the beginning of the last one's reason."""
        unresolved = self.unresolved
        reason = f" ({unresolved[0][0]}: {unresolved[0][2]})" if unresolved else ""
        # Without a verdict, 'none fails' would be no finding.
        if len(unresolved) == len(self.releases):
            return f"no release of {self.package} has a verdict{reason}."
        unknown = (
            f"; {len(unresolved)} of {len(self.releases)} have no verdict" if unresolved else ""
        )
        oldest = [*takewhile(unresolved.__contains__, self.rows())]
        if oldest:
            newest, _, message = oldest[-1]
            names = f"{newest} and older" if len(oldest) > 1 else newest
            end = f"{unknown}. {self.package} {names} cannot run it ({message.partition('. ')[0]}). Try "
        else:
            end = f"{unknown}{reason}. Try older releases (--from), or "
        return (
            f"no release of {self.package} from {self.releases[0]} to {self.releases[-1]} fails{end}"
            "the options and inputs with which it failed."
        )

    @property
    def upgrade(self) -> str | None:
        """The upgrade that fixes the failure, as a request, if there is one; the newest release must run the whole model."""
        releases = self.upgrades
        if not releases or f"{self.package} {releases[-1]}" in self.wrong:
            return None
        # The first that passes may have a bug of its own, in another part of the model.
        return f"upgrade to {self.package} {releases[-1 if self.wrong else 0]} or later"

    @property
    def upgrades(self) -> Names:
        """The first release that passes again and the newest that passes, which may be one; empty where none does."""
        first = self.passing(self.history.newest)
        if first is None:
            return ()
        seen = self.history.seen
        newest = max(place for place in seen if seen[place] is Verdict.PASS)
        return tuple(dict.fromkeys((first, self.releases[newest])))

    def since(self, result: Result) -> Since:
        """Return the boundaries that a result has, their doubt and the fix, for ``ISSUE.md``."""
        sentence = f"{self.package} {describe_releases(result)}."
        if doubt := self.doubt():
            sentence += f" {doubt[0].upper()}{doubt[1:]}."
        return Since(sentence, self.upgrade)

    def _reason(self, release: str) -> str:
        return self.reasons.get(release, "")[:_REASON_LENGTH]

    def rows(self) -> list[tuple[str, str, str]]:
        """Release, verdict and reason of each probed release."""
        verdicts = sorted(self.history.seen.items())
        return [
            (self.releases[place], verdict.value, self._reason(self.releases[place]))
            for place, verdict in verdicts
        ]

    def fill_in(self, result: Result) -> None:
        """Put the boundaries into a result."""
        oldest = self.history.oldest
        appeared = oldest is not None and oldest.passing is not None
        result.package = self.package
        result.releases = {release: verdict for release, verdict, _ in self.rows()}
        result.first_failing = self.releases[oldest.failing] if oldest and appeared else None
        result.first_passing = self.passing(self.history.newest)
        if self.history.newest is not None:
            result.upgrade = self.upgrade
        result.failing = [
            (self.releases[first], self.releases[last]) for first, last in self.history.stretches
        ]
        result.reasons = dict(self.reasons)


class NewerRelease(Struct, frozen=True):
    """A case in a release that is newer than those in which it fails, or in the newest on the index.

    Attributes:
        package: The package.
        failing: The releases in which the case fails.
        release: The newer release.
        outcome: The outcome there; ``None`` where none of the failing releases is older.
        wrong: How it fails on fresh inputs, in words.
    """

    package: str
    failing: Names
    release: str
    outcome: Outcome | None = None
    wrong: Mapping[str, str] = {}

    @property
    def since(self) -> Since | None:
        """The sentence about the release, with the upgrade if the case passes there; ``None`` without a verdict."""
        if self.outcome is None:
            return Since(f"{self.package} {self.release}, the newest release, fails.")
        failing = f"{self.package} {', '.join(self.failing)} fails"
        if self.outcome.ending in (Ending.FAILED, Ending.MISMATCHED):
            return Since(f"{failing}, and {self.release}, the newest release, fails too.")
        if self.outcome.ending is not Ending.PASSED:
            return None
        if self.wrong:
            inputs = "; ".join(self.wrong.values())
            return Since(f"{failing}, {self.release} passes on the same inputs, but {inputs}.")
        return Since(
            f"{failing}, {self.release} passes.",
            f"upgrade to {self.package} {self.release}, which passes (releases finds the first that does)",
        )
