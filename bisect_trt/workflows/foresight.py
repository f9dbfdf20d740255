"""What `reduce` and `diagnose` begin while the original is built, because they are likely to ask it next.

That is the look at every tensor, the node that the reference's values say goes wrong first, alone and shrunk, and the rest of the
model without it. Each takes minutes where probes are costly, and as long beside each other as alone.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

from bisect_trt.probing.meanwhile import Moot
from bisect_trt.probing.outcome import Outcome
from bisect_trt.probing.rehearsal import Rehearsal
from bisect_trt.probing.times import account, current
from bisect_trt.probing.workers.process import Cancel
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.workflows.investigation import Case, Investigation
from bisect_trt.workflows.layerwise.look import Glance, Look, compare_layers, glance
from bisect_trt.workflows.layerwise.origins import Layerwise
from bisect_trt.workflows.minimal_case import Suspects, extract_suspect, may_choose_precision
from bisect_trt.workflows.others import without

Delivered = Callable[[Investigation, Case], None]
"""Probes what is delivered of a case."""


class Foresight:
    """What has been begun; ended by :meth:`Prober.close` where nobody asks for it."""

    def __init__(self, investigation: Investigation, look: Look, delivered: Delivered) -> None:
        """Begin it, where there is room for builds beside that of the original.

        Args:
            investigation: Who will ask.
            look: How tensors will be looked at.
            delivered: What will be done with a case.
        """
        self._investigation = investigation
        self._look = look
        self._delivered = delivered
        self._node: int | None = None
        self._glance: Future[Glance] | None = None
        if investigation.prober.beside.room and investigation.subject.original:  # what all threads take is made once
            spent = current()
            self._glance = investigation.prober.beside.work(lambda cancel: self._seen(cancel, spent), builds=True)
            self._tell(self._guessed)

    def compare_layers(self, original: Outcome | None) -> Layerwise:
        """Compare every tensor, now that it is known how the model ends as it is."""
        return compare_layers(self._look, original, self._take_glance())

    def _take_glance(self) -> Glance | None:
        """What the look showed, if there was one and the target ran what it was given."""
        if self._glance is None:
            return None
        try:
            seen = self._glance.result()
        except Exception:
            return None
        return None if seen.refused else seen

    def expect(self, suspects: Suspects) -> None:
        """From here on it is known who is suspected, if anybody is: what was begun of another is ended."""
        node = suspects.nodes[0] if suspects.nodes else None
        if self._glance is None or (node is not None and node == self._node):
            return
        self._investigation.prober.close()
        if node is not None:
            self._tell(lambda _: node)

    def _tell(self, whom: Callable[[Cancel], int | None]) -> None:
        """Tell ahead what follows from a suspect."""

        def story(cancel: Cancel) -> None:
            self._node = node = whom(cancel)
            if node is not None:
                self._follow(node, cancel)

        self._investigation.prober.beside.work(story, builds=False)

    def _guessed(self, cancel: Cancel) -> int | None:
        """The first node in topological order that breaks in the low precision, by what the reference computed."""
        target = self._look.target
        if not may_choose_precision(target):
            return None
        from bisect_trt.workflows.suspicion import first_to_break  # noqa: PLC0415 - this thread has time for it

        def go_on() -> None:
            if cancel.is_set:
                raise Moot

        unit = first_to_break(self._look.subject, "fp16" if target.fp16 else "bf16", go_on)
        return None if unit is None else self._look.subject.network.order[unit]

    def _follow(self, node: int, cancel: Cancel) -> None:
        """Begin what is asked of a suspect, one after the other, and the rest of the model beside that."""
        real, target = self._investigation, self._look.target
        subject, beside = real.subject.aside("ahead"), real.prober.beside
        guess = without(subject, frozenset({subject.network.rank[node]}), held=may_choose_precision(target))
        if guess is not None:
            beside.probe(guess, guess.identity, cancel)
        told = Investigation(subject, Console(-1), Result(real.result.command), Rehearsal(real.prober, cancel))
        case = extract_suspect(told, target, Suspects([node]))
        if case is None:
            return
        rest = without(subject, case.minimum.units, held=case.held)
        if guess is not None and (rest is None or rest.key != guess.key):
            beside.drop(guess.key)
        if rest is not None:
            beside.probe(rest, rest.identity, cancel)
        self._delivered(told, case)

    def _seen(self, cancel: Cancel, spent: dict[str, float]) -> Glance:
        with account(spent):
            return glance(replace(self._look, subject=self._look.subject.aside("look"), cancel=cancel))
