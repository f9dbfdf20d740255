"""Spaces: the units that a command searches, and the candidate of a subset of them.

A command declares its space and passes a strategy of :mod:`bisect_trt.search` to it. Probing,
caching, speculation and budgets are the same for all spaces.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import onnx
from msgspec import Struct

from bisect_trt.onnxlib.shapes import Shape, fix_input_shapes, free_inputs
from bisect_trt.probe.candidate import Candidate, Probe
from bisect_trt.probe.ledger import Record
from bisect_trt.probe.prober import Prober
from bisect_trt.report.sentences import VALUES_REFUSED, Changed
from bisect_trt.search.oracle import Ask, Result, Subset, Verdict, over_units
from bisect_trt.session.session import Session
from bisect_trt.targets.base import TargetSettings
from bisect_trt.tensors.files import Values, load_npz, save_npz, shapes_of
from bisect_trt.worker.protocol import Failed

Unit = TypeVar("Unit", bound=Hashable)


class Space(Struct, frozen=True):
    """Numbered units, and the candidate of a subset of them.

    Attributes:
        build: Returns the candidate of a subset.
    """

    build: Callable[[Subset], Candidate]

    def search(self, prober: Prober, strategy: Callable[[Ask], Result]) -> Result:
        """Run a strategy over subsets.

        Raises:
            BudgetSpent: No more probes may be made.
        """
        return prober.search(over_units(strategy), self.build)


class Series(Struct, Generic[Unit], frozen=True):
    """Units that are probed one at a time, each a candidate of its own: sizes, samples, releases, runs.

    Attributes:
        build: Returns the candidate of a unit, or a question about it.
        refuse: Returns why a unit cannot be probed; such a unit is ``UNRESOLVED`` and costs no
            probe.
        apart: Whether each unit may fail in its own way, rather than like the first failure.
    """

    build: Callable[[Unit], Candidate | Probe]
    refuse: Callable[[Unit], str | None] = lambda _: None
    apart: bool = False
    _numbers: dict[Unit, int] = {}
    _keys: dict[Unit, str] = {}
    _refused: dict[Unit, str | None] = {}

    def search(
        self, prober: Prober, strategy: Callable[[Callable[[Unit], Verdict]], Result]
    ) -> Result:
        """Run a strategy that asks about one unit at a time.

        Raises:
            BudgetSpent: No more probes may be made; :meth:`seen` has the verdicts so far.
        """

        def built(subset: Subset) -> Candidate | Probe:
            return self._built([*self._numbers][next(iter(subset))])

        def asking(ask: Ask) -> Result:
            def about(unit: Unit) -> Verdict:
                self._refused[unit] = self.refuse(unit)
                number = self._numbers.setdefault(unit, len(self._numbers))
                return (
                    Verdict.UNRESOLVED
                    if self._refused[unit] is not None
                    else ask(frozenset({number}))
                )

            return strategy(about)

        with prober.ledger.judging_apart(apart=self.apart):
            return prober.search(over_units(asking), built)

    def probe(self, prober: Prober, unit: Unit) -> Verdict:
        """Probe one unit.

        Raises:
            BudgetSpent: No more probes may be made.
        """
        return prober.probe(self._built(unit)).verdict

    def seen(self, prober: Prober) -> dict[Unit, Record]:
        """Return the last record of each probed unit, in the order of the probes."""
        records = {record.key: record for record in prober.ledger.records}
        return {unit: records[key] for unit, key in self._keys.items() if key in records}

    def verdicts(self, prober: Prober) -> dict[Unit, dict[str, Any]]:
        """Return ``verdict``, ``reason`` and ``signature`` of each unit as plain values; refused units have no signature."""
        refused = {
            unit: (Verdict.UNRESOLVED, reason, None)
            for unit, reason in self._refused.items()
            if reason is not None
        }
        outcomes = {
            unit: (outcome.verdict, outcome.reason, outcome.signature)
            for unit, outcome in self.seen(prober).items()
        }
        return {
            unit: {"verdict": verdict.value, "reason": reason, "signature": signature}
            for unit, (verdict, reason, signature) in {**refused, **outcomes}.items()
        }

    def _built(self, unit: Unit) -> Candidate | Probe:
        candidate = self.build(unit)
        self._keys[unit] = candidate.key
        return candidate


class Fed:
    """Makes candidates of the whole model and given input values; the reference's outputs for them are the expected ones.

    Attributes:
        proto: The model with its dimensions free.
    """

    def __init__(
        self,
        session: Session,
        declared: Mapping[str, Shape],
        likely: Callable[[], Iterable[Values]],
        *,
        forget: bool = False,
    ) -> None:
        """Free the ``declared`` dimensions, with ``forget`` inner shapes too; the reference should run the ``likely`` values."""
        self._session = session
        self._likely = likely
        self.proto = free_inputs(session.subject.network.proto, declared, forget=forget)
        self._golden: dict[str, Path | str] = {}
        self._engines: dict[str, Path | None] = {}

    def refused(self, values: Values) -> str | None:
        """Return why the reference does not run some values, if so; nothing where models are only built."""
        if self._session.subject.models.build_only:
            return None
        golden = self._expected(values)
        return golden if isinstance(golden, str) else None

    def candidate(
        self,
        values: Values,
        title: str,
        *,
        fixed: bool,
        engine: Path | None = None,
        target: TargetSettings | None = None,
    ) -> Candidate:
        """Return the model with values that were not refused, its shapes ``fixed`` to theirs or free.

        Args:
            values: The arrays of the inputs by name.
            title: The candidate in words.
            fixed: Whether the inputs get the shapes of these values.
            engine: An engine that was built for them.
            target: The target, if it is not the check's.
        """
        proto = self.proto
        inputs = dict(values)
        outputs = tuple[str, ...]()
        if not self._session.subject.models.build_only:
            golden = self._expected(values)
            assert isinstance(golden, Path), "it was not refused"
            inputs = {**values, **load_npz(golden)}
            outputs = tuple(self._session.subject.network.outputs)
        if fixed:
            proto = free_inputs(proto, {}, forget=True)
            fix_input_shapes(proto, shapes_of(values))
        return Candidate(
            proto, tuple(values), outputs, title, values=inputs, engine=engine, target=target
        )

    def engine(
        self,
        name: str,
        proto: onnx.ModelProto,
        values: Values,
        target: TargetSettings | None,
        timeout: float | None = None,
    ) -> Path | None:
        """Return the engine of this name, built once; ``None`` if the target makes no engines, or does not build it.

        Args:
            name: The key of the engine.
            proto: The model.
            values: The arrays of the inputs by name; the engine is built for their shapes.
            target: The target that builds it; ``None`` has none.
            timeout: Seconds; ``None`` without a limit.
        """
        if target is None or not target.target.engines:
            return None
        if name not in self._engines:
            subject = self._session.subject
            to = subject.workspace.folder / f"fed-{name}.engine"
            failed = subject.models.build("fed", proto, values, to, target, timeout)
            # A probe then shows the error.
            self._engines[name] = to if failed is None else None
        return self._engines[name]

    def _expected(self, values: Values) -> Path | str:
        """Return a file with the reference's outputs, or why there are none."""
        digest = hashlib.sha256()
        for name, value in values.items():
            digest.update(f"{name} {value.shape}".encode() + value.tobytes())
        key = digest.hexdigest()[:16]
        if key not in self._golden:
            golden = self._session.subject.workspace.scratch(f"fed-{key}.golden.npz")
            failed = self._run(values, golden)
            self._golden[key] = golden if failed is None else f"{VALUES_REFUSED}: {failed.message}"
            # A model that the reference cannot load at all is judged by the user's check alone.
            if (
                failed
                and self._session.unreferenced
                and (failed.kind == "build" or not self._runs_any)
            ):
                save_npz(golden, {})
                self._golden[key] = golden
        return self._golden[key]

    def _run(self, values: Values, to: Path) -> Failed | None:
        models = self._session.subject.models
        return models.collect(models.write("fed", self.proto), models.feed("fed.in", values), to)

    @cached_property
    def _runs_any(self) -> bool:
        to = self._session.subject.workspace.scratch("fed-any.golden.npz")
        return any(self._run(values, to) is None for values in self._likely())


def contradicted(prober: Prober, answers: Iterable[tuple[Candidate, Verdict]]) -> Changed | None:
    """Probe candidates once more; return the first verdict that differs from the known one.

    Raises:
        BudgetSpent: No more probes may be made.
    """
    for candidate, verdict in answers:
        now = prober.probe(candidate, again=True).verdict
        if now is not verdict:
            return Changed(candidate.title, verdict, now)
    return None
