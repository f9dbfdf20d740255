"""Passes of the target's compiler: the ones that change this model's engine, and the fusion by a counter of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

from msgspec import Struct

from bisect_trt.aliases import Plain
from bisect_trt.probe.candidate import Probe
from bisect_trt.report.parts import EngineLayer, LayersChanged, Switches
from bisect_trt.report.sentences import FAILS_UNFUSED, PASSES_AT_LARGEST
from bisect_trt.search.oracle import Subset, Verdict
from bisect_trt.search.ordered import Edge, find_edges
from bisect_trt.session.session import Session
from bisect_trt.steps.panel import Panel
from bisect_trt.targets.base import Tier
from bisect_trt.worker.protocol import Failed, Trace

_MOST_BUILT = 32
"""The largest number of switches that are built one by one to see which act."""
_SAME_BITS = 10
"""Sizes are equal without so many of their bits: one engine differs by 8 bytes from build to build."""
_PROOFS = 3
"""The least number of builds on either side of a fusion."""


class Engines(Struct):
    """The engines of a model with switches of the compiler turned, each built once.

    Attributes:
        session: The model's session.
        panel: The switches.
        asked: Whether the user named the switches.
        sized: Whether only the size of the engine is limited.
        runs: The number of builds with a value of a counter of which one fails, if some do; ``None``
            where each does.
        ignored: The options that the compiler ignores, with its reasons.
        notes: Why counters name no fusion.
    """

    session: Session
    panel: Panel
    asked: bool = False
    sized: bool = False
    runs: int | None = None
    ignored: dict[str, str] = {}
    notes: list[str] = []
    _built: dict[Subset, Plain | None] = {}

    def of(self, units: Subset) -> Plain | None:
        """Return what the compiler makes with some switches turned; ``None`` where it makes no engine, crashes or hangs."""
        if units not in self._built:
            base = self.panel.base
            models = self.session.subject.models
            feed = models.feed("trace.in", self.session.subject.values(base, base.inputs))
            settings = self.panel.candidate(units).settings(self.panel.target)
            request = Trace(settings, models.write("trace", base.proto), feed, "fusions")
            reply = models.workers.ask(request, self.session.prober.check.timeout)
            self._built[units] = None if isinstance(reply, Failed) or not reply else reply
            self.ignored |= (self._built[units] or {}).get("ignored", {})
        return self._built[units]

    def acting(self, *, singly: bool) -> list[int]:
        """Return the passes that the compiler takes and with which the engine changes, or shrinks where only its size counts.

        Of passes that change the layers to the same ones, in an engine of the same size, only the
        first is returned.

        ``singly``: whether each is built; else the ones that the compiler takes are returned.
        """
        units = self.panel.of(Tier.COMPILER)
        if units:
            self.of(frozenset(units))
        plain = self.of(frozenset()) if units else None
        if plain is None or not singly or len(units) > _MOST_BUILT:
            return [unit for unit in units if not self._ignores(unit)]
        first = dict[str, int]()
        for unit in units:
            engine = self._acts(unit, plain)
            if engine is not None:
                moves = engine["layers"] != plain["layers"]
                size = engine["size"] >> _SAME_BITS
                first.setdefault(str((size, engine["layers"]) if moves else unit), unit)
        return [*first.values()]

    def _acts(self, unit: int, plain: Plain) -> Plain | None:
        """Return the engine with a pass, if that is another one."""
        engine = self.of(frozenset({unit}))
        if engine is None or self._ignores(unit):
            return None
        acts = engine["size"] < plain["size"] if self.sized else engine != plain
        return engine if acts else None

    def _ignores(self, unit: int) -> bool:
        return self.panel.switches[unit].name.partition(":")[2] in self.ignored

    def changed(
        self, failing: Subset, passing: Subset, fusion: int | None = None, *, steady: bool = True
    ) -> LayersChanged | None:
        """Return the layers that only one of two engines has; ``None`` where one of them is not built.

        Args:
            failing: The switches that are changed in the engine that fails.
            passing: The switches that are changed in the engine that passes.
            fusion: The step of a counter that makes the difference, if there is one.
            steady: Whether each engine has the same layers in every build.
        """
        counts = [
            Counter((layer["kind"], tuple(layer["nodes"])) for layer in engine["layers"])
            for engine in (self.of(failing), self.of(passing))
            if engine is not None
        ]
        if len(counts) < 2:
            return None
        bad, good = (
            tuple(EngineLayer(*layer) for layer in sorted((one - opposite).elements()))
            for one, opposite in (counts, reversed(counts))
        )
        return LayersChanged(fusion, bad, good, steady)

    def doubts(self) -> list[str]:
        """Return why switches that the user named are no answer."""
        ignored = self.ignored.items() if self.asked else ()
        return [
            *self.notes,
            *(f"the compiler ignores {name}: {reason}" for name, reason in ignored),
        ]

    def fusions(self) -> list[Switches]:
        """Return, for each counter, the value before the fusion that makes the model fail, proven by builds with and without it.

        Raises:
            BudgetSpent: No more probes may be made.
        """
        counters = dict[str, list[int]]()
        for unit in self.panel.of(Tier.STEP):
            counters.setdefault(str(self.panel.switches[unit].within), []).append(unit)
        fusions = list[Switches]()
        for name, units in counters.items():
            verdict = partial(self._verdict, units)
            if verdict(len(units) - 1) is not Verdict.FAIL:
                self.notes.append(PASSES_AT_LARGEST.format(name))
                continue
            edge = find_edges(len(units), verdict, len(units) - 1).oldest
            if edge is None or edge.passing is None:
                self.notes.append(FAILS_UNFUSED.format(name))
                continue
            fusions.append(self._proven(units, edge))
        return fusions

    def _verdict(self, units: Sequence[int], place: int) -> Verdict:
        candidate = self.panel.candidate(frozenset({units[place]}))
        return self.session.prober.probe(Probe(candidate, runs=self.runs)).verdict

    def _proven(self, units: Sequence[int], edge: Edge) -> Switches:
        """Build both sides of an edge often enough; the first value that fails is the number of the fusion."""
        assert edge.passing is not None, "the caller has looked"
        failing, passing = frozenset({units[edge.failing]}), frozenset({units[edge.passing]})
        runs = max(_PROOFS, self.runs or 0)
        steady, holds = (
            self.session.prober.probe(
                Probe(self.panel.candidate(side), again=True, runs=runs, until=verdict.opposite)
            ).verdict
            is verdict
            for side, verdict in ((failing, Verdict.FAIL), (passing, Verdict.PASS))
        )
        fusion = int(self.panel.switches[units[edge.failing]].name.rpartition("=")[2])
        fail = f"{runs} of {runs}" if steady else "some"
        evidence = f"{runs} of {runs} builds pass, {fail} with {fusion} fail"
        proven = holds and not edge.between and (steady or self.runs is not None)
        layers = self.changed(failing, passing, fusion, steady=steady)
        return self.panel.entry(passing, evidence if proven else "unproven", layers)
