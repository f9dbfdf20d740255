"""The safe set: the minimal set, grown until it holds on fresh samples, those that the search has not seen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bisect_trt.commands.subject import Subject
from bisect_trt.errors import UsageError
from bisect_trt.mixed_precision.lowering import with_metadata
from bisect_trt.mixed_precision.search import Reason, Task
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import attribute
from bisect_trt.onnxlib.shapes import input_infos
from bisect_trt.options.shared import Data
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.metric_check import MetricCheck
from bisect_trt.probe.oracles import ENGINE, SEVERE, BuiltinCheck, FreshCheck
from bisect_trt.probe.outcome import Ending, Outcome
from bisect_trt.probe.prober import Prober
from bisect_trt.probe.user_checks import PromptCheck
from bisect_trt.search.keep import grow_until_held
from bisect_trt.search.oracle import Minimum, Subset, Verdict
from bisect_trt.search.statistics import rate_interval
from bisect_trt.targets.settings import reference_settings
from bisect_trt.tensors.fresh import FreshSamples
from bisect_trt.tensors.inputs import Sample, make_inputs, validate_sample
from bisect_trt.tensors.npz import load_npz
from bisect_trt.tensors.scripts import is_script
from bisect_trt.tensors.tolerance import Precision, ToleranceOptions
from bisect_trt.worker.protocol import Failed, RunEach
from bisect_trt.worker.protocol import Sample as SampleFiles

CONFIDENCE = 0.95
_ROUNDS = 5
_LEAST_QUESTIONS = 16
"""Growing may ask as many questions as the search for the minimal set asked, and at least so many."""
_MOST_FAILING = 16
"""So many failing samples of a round have to pass from then on."""
_LOOKED_AT = 2
"""The activations of so many failing samples of a round are looked at."""
_MOST_BYTES = 1 << 30
"""Of the values of fresh samples, on the disk at a time."""
_PATIENCE = 3600.0
"""Seconds that the reference may take for all samples of a round."""
_PASSES_ON = ("Cast", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Identity", "Transpose", "Expand")
"""Operators that leave the values of indices as they are."""


@dataclass(frozen=True)
class Validation:
    """The result of a set on samples that the search had not seen.

    Attributes:
        samples: The number of samples.
        passed: The number that match.
        severe: The number that are off by NaN, Inf, or more than ten times the tolerance.
        worst: The largest error over its tolerance.
        drawn: How the samples were made, in words.
        learned: The number that the set has grown for, so that they are fresh no more.
    """

    samples: int
    passed: int
    severe: int
    worst: float
    drawn: str
    learned: int = 0

    @property
    def fails_under(self) -> float:
        """The share of all such samples of which it is 95% sure that fewer fail; 1 where nothing was learned."""
        fresh, failed = self.samples - self.learned, self.samples - self.passed
        # One-sided, so the other half of the error is not needed.
        return 1.0 if failed >= fresh else rate_interval(failed, fresh, 2 * CONFIDENCE - 1)[1]

    def describe(self) -> str:
        """A sentence without its end."""
        held = f"held on {self.passed} of {self.samples} fresh samples"
        if self.learned:
            held += f", {self.learned} of which it was mended on"
        worst = in_tolerances(self.worst) if math.isfinite(self.worst) else "NaN or Inf"
        return f"{held} (95% sure that under {self.fails_under:.1%} fail), worst error {worst}"

    def to_json(self) -> dict[str, Any]:
        """Plain values; the worst error is ``null`` for NaN or Inf."""
        return {
            "samples": self.samples,
            "passed": self.passed,
            "severe": self.severe,
            "worst_error": self.worst if math.isfinite(self.worst) else None,
            "confidence": CONFIDENCE,
            "fails_under": self.fails_under,
            "learned": self.learned,
            "drawn": self.drawn,
            "sentence": self.describe(),
        }


def in_tolerances(error: float) -> str:
    """An error in units of the tolerance, in words."""
    return f"{error:.2g} of the tolerance" if error <= 1 else f"{error:.3g} times the tolerance"


@dataclass(frozen=True)
class Safe:
    """The set that is recommended.

    Attributes:
        units: The units that are kept.
        reasons: The rule and the reason of each unit outside the minimal set.
        validation: The result on fresh samples; ``None`` if there were none.
        why: Why there were none.
    """

    units: Subset
    reasons: Mapping[int, Reason] = field(default_factory=dict)
    validation: Validation | None = None
    why: str | None = None


@dataclass(frozen=True)
class Round:
    """Some samples.

    Attributes:
        files: The files of their inputs and of the reference's outputs.
        samples: The inputs.
    """

    files: tuple[SampleFiles, ...] = ()
    samples: tuple[Sample, ...] = ()

    def only(self, places: Sequence[int]) -> Round:
        """Some of them."""
        return Round(tuple(self.files[p] for p in places), tuple(self.samples[p] for p in places))

    def __add__(self, other: Round) -> Round:
        return Round(self.files + other.files, self.samples + other.samples)


class Fresh:
    """Fresh samples: the user's, or drawn with the distribution of those that the search was given.

    Attributes:
        drawn: How they are made, in words.
        given: Whether they are the user's.
    """

    def __init__(
        self, subject: Subject, count: int, given: Sequence[str] = (), ways: tuple[str, ...] | None = None
    ) -> None:
        """Read the user's samples, or learn the distribution of those of the search.

        Args:
            subject: The model, with the samples of the search.
            count: The number of samples of a round.
            given: The user's files and scripts; see :func:`user_samples`.
            ways: The ways of drawing samples; see :class:`~bisect_trt.tensors.fresh.FreshSamples`.

        Raises:
            UsageError: The user's do not fit the model.
        """
        self._subject = subject
        self._count = count
        self._next = 0
        law = FreshSamples.like(subject.samples, table_sizes(subject.network), subject.settings.data.seed)
        self._law = law if ways is None else replace(law, ways=ways)
        self._given = user_samples(subject, given)
        self.given = bool(given)
        self.drawn = f"from {', '.join(given)}" if given else self._law.describe()

    @classmethod
    def of(cls, task: Task) -> Fresh:
        """Those that the options of a search ask for."""
        options = task.settings.options
        return cls(task.subject, options.fresh_samples, options.validation_data, task.space.ways)

    @property
    def why_none(self) -> str | None:
        """Why there are none, if so."""
        if self._subject.models.build_only:
            return "--build-only compares no values"
        if self.given:
            return None
        if not self._count:
            return "none were asked for"
        return None if self._law.varies else "every value of the inputs may be none but the one given"

    def round(self, number: int) -> Round | None:
        """The samples of a round, others than those of the rounds before unless they are the user's.

        A sample on which the reference is not finite, or does not run, is left out.

        Returns:
            ``None`` where the reference does not run the model.
        """
        if self.given:
            found = self._predicted(f"validation-{number}", self._given)
            return found if found.samples else None
        each = sum(value.nbytes for value in (*self._subject.samples[0].values(), *self._first().values()))
        wanted = max(min(self._count, _MOST_BYTES // max(each, 1)), 1)
        found = Round()
        for attempt in range(3):
            missing = wanted - len(found.samples)
            if missing:
                drawn = [self._law.draw(self._next + place) for place in range(missing)]
                self._next += missing
                found += self._predicted(f"fresh-{number}-{attempt}", drawn)
        return found if found.samples else None

    def _first(self) -> dict[str, Any]:
        """What the reference gives on the first sample of the search."""
        subject = self._subject
        return subject.reference.select(subject.network.outputs)

    def _predicted(self, name: str, samples: Sequence[Sample]) -> Round:
        """Those samples on which the reference is as finite as on the first of the search."""
        subject = self._subject
        models, workspace = subject.models, subject.workspace
        files = tuple(
            SampleFiles(models.feed(f"{name}-{place}", sample), workspace.scratch(f"{name}-{place}.golden.npz"))
            for place, sample in enumerate(samples)
        )
        path, first = models.write(name, subject.truth.proto), self._first()

        def run(some: Sequence[SampleFiles]) -> bool:
            inputs, golden = tuple(each.inputs for each in some), tuple(each.golden for each in some)
            reply = models.workers.ask(RunEach(reference_settings(), path, inputs, golden), timeout=_PATIENCE)
            return not isinstance(reply, Failed)

        def usable(golden: Path) -> bool:
            return golden.exists() and all(
                value.dtype.kind != "f" or np.isfinite(value).all() or not np.isfinite(first.get(made, value)).all()
                for made, value in load_npz(golden).items()
            )

        if not run(files):
            for each in files:  # the model does not run on some: an index past the end of a table
                run([each])
        return Round(files, tuple(samples)).only([place for place, each in enumerate(files) if usable(each.golden)])


def refuse_validation(task: Task) -> None:
    """Check the user's validation data before anything is searched.

    Raises:
        UsageError: It does not fit the model, or there is nothing to compare on it.
    """
    if task.settings.options.validation_data and not isinstance(task.prober.runner.check, BuiltinCheck):
        raise UsageError(
            "--validation-data is for a target that is compared with the reference; with --check or --metric drop it, and "
            "use these samples there."
        )
    user_samples(task.subject, task.settings.options.validation_data)


def user_samples(subject: Subject, given: Sequence[str]) -> list[Sample]:
    """The samples of ``--validation-data``: files as for ``--load-inputs``, or scripts as for ``--data-loader-script``.

    Raises:
        UsageError: A file does not exist or does not fit the model.
    """
    infos = input_infos(subject.network)
    found: list[Sample] = []
    for entry in given:
        data = Data(data_loader_script=entry) if is_script(entry) else Data(load_inputs=[Path(entry)])
        found += [
            validate_sample(infos, sample, f"sample {number} of {entry}")
            for number, sample in enumerate(make_inputs(infos, data))
        ]
    return found


def table_sizes(network: Network) -> dict[str, int]:
    """The number of entries of the smallest table that a graph input indexes, by the input's name."""
    sizes: dict[str, int] = {}
    for given in network.inputs:
        reached, waiting = {given}, [given]
        while waiting:
            name = waiting.pop()
            for reader in network.consumers.get(name, ()):
                node = network.nodes[reader]
                if node.op_type == "Gather" and node.input[1] == name and node.input[0] in network.initializers:
                    size = int(network.initializers[node.input[0]].dims[attribute(node, "axis", 0)])
                    sizes[given] = min(size, sizes.get(given, size))
                if node.op_type in _PASSES_ON and node.input[0] == name:
                    new = [made for made in network.made(reader) if made not in reached]
                    reached.update(new)
                    waiting += new
    return sizes


def find_safe(task: Task, minimum: Minimum, fresh: Fresh) -> Safe:
    """Grow the minimal set until it holds on fresh samples, or the budget for that is spent.

    Raises:
        BudgetSpent: No more probes may be made.
    """
    check = task.prober.runner.check
    if isinstance(check, PromptCheck):
        return Safe(minimum.units, why="you are the check")
    if isinstance(check, MetricCheck):
        return Safe(minimum.units, why="the metric is of a whole set, on which the answer is measured")
    if not isinstance(check, BuiltinCheck):
        return Safe(minimum.units, why="what a check of yours says of other inputs is for it to say")
    return _Growth(task, minimum, fresh).run()


class _Growth:
    """The loop over rounds of fresh samples, with the failing samples seen and the last validation."""

    def __init__(self, task: Task, minimum: Minimum, fresh: Fresh) -> None:
        self._task = task
        self._minimum = minimum
        self._fresh = fresh
        self._round = 0
        self._failing = Round()
        self._learned: set[int] = set()  # of the user's samples, which are the same in each round
        self._worst: list[Sample] = []
        self._good: tuple[Subset, Validation] | None = None
        self._why: str | None = None

    def run(self) -> Safe:
        task, fresh, minimal = self._task, self._fresh, self._minimum.units
        start = minimal | task.space.certain
        if start != minimal and not self._passes_on_given(start):
            start = minimal
        if fresh.why_none is not None:
            return self._safe(start, None, fresh.why_none)
        task.console.step("Does it hold on other inputs?")
        task.console.say(f"  fresh samples: {fresh.drawn}")
        questions = max(len(task.prober.ledger.records), _LEAST_QUESTIONS)
        order = partial(task.space.order, self._worst)
        grow_until_held(start, order, self._holds_on_new, self._clears, rounds=_ROUNDS, most=questions)
        if self._good is None:
            return self._safe(start, None, self._why)
        units, held = self._good
        if held.passed < held.samples and not fresh.given:
            task.console.say(
                f"  {held.samples - held.passed} of {held.samples} still fail: before it is shipped, hold it "
                "against samples of the deployment (precision --validation-data, or --metric over a set)"
            )
        return self._safe(units, held, None)

    def _safe(self, units: Subset, validation: Validation | None, why: str | None) -> Safe:
        known = dict.fromkeys(
            self._task.space.certain, ("safe", "known to break on some input, whatever the samples given")
        )
        grown = ("fresh sample", "without it and others fresh samples fail")
        reasons = {unit: known.get(unit, grown) for unit in units - self._minimum.units}
        return Safe(units, reasons, validation, why)

    def _passes_on_given(self, units: Subset) -> bool:
        """Whether a larger set passes on the samples that were given; its engine is the one to keep from here on."""
        task = self._task
        engine_cache = getattr(task.prober.runner.check, "engine_cache", None)
        if engine_cache is not None:
            engine_cache.clear()
        return task.prober.probe(task.lowering.candidate(units)).verdict is Verdict.PASS

    def _holds_on_new(self, units: Subset) -> bool:
        """Hold a set against a new round; ``True`` ends the loop."""
        task, fresh = self._task, self._fresh
        if self._good is not None and not self._passes_on_given(units):
            return True  # more units did harm, so the set before stays the answer
        samples = fresh.round(self._round)
        self._round += 1
        if samples is None:
            self._why = "the reference does not run on other inputs"
            return True
        outcome = hold_against(task, units, samples, f"{len(samples.files)} fresh samples")
        errors = outcome.errors
        if not errors:
            self._why = f"they cannot be compared: {outcome.reason}"
            return True
        failing = sorted((place for place, error in enumerate(errors) if error > 1), key=lambda place: -errors[place])
        severe, learned = sum(error > SEVERE for error in errors), len(self._learned) if fresh.given else 0
        held = Validation(len(errors), len(errors) - len(failing), severe, max(errors), fresh.drawn, learned)
        self._good = units, held
        if len(failing) <= len(errors) * task.space.allowed and not severe:
            return True
        self._learned.update(failing)
        more = samples.only(failing[:_MOST_FAILING])
        self._failing = samples.only(sorted(self._learned)) if fresh.given else self._failing + more
        self._worst += more.samples[:_LOOKED_AT]
        return False

    def _clears(self, units: Subset) -> Verdict:
        """Whether a set passes on all failing samples seen."""
        count = len(self._failing.files)
        what = f"the {'1 sample' if count == 1 else f'{count} samples'} that failed"
        passed = hold_against(self._task, units, self._failing, what).ending is Ending.PASSED
        return Verdict.PASS if passed else Verdict.FAIL


def hold_against(task: Task, units: Subset, samples: Round, what: str) -> Outcome:
    """Probe a set on some samples.

    Raises:
        BudgetSpent: No more probes may be made.
    """
    check, tolerance = task.prober.runner.check, task.settings.tolerance
    assert isinstance(check, BuiltinCheck)
    if tolerance is None or task.settings.bits:
        tolerance = check.tolerance
    else:
        tolerance = replace(tolerance, precision=Precision(task.settings.precision))
    candidate = task.lowering.candidate(units)
    engine = task.subject.workspace.files(candidate.key).folder / ENGINE
    candidate = replace(candidate, engine=engine if engine.exists() else candidate.engine)
    return probe_on(task.prober, candidate, samples, tolerance, what)


def probe_on(prober: Prober, candidate: Candidate, samples: Round, tolerance: ToleranceOptions, what: str) -> Outcome:
    """Probe a candidate of the whole model on some samples, ``what`` in words; ``Outcome.errors`` has one number for each.

    Raises:
        BudgetSpent: No more probes may be made.
    """
    check = prober.runner.check
    assert isinstance(check, BuiltinCheck)
    candidate = replace(candidate, title=f"{candidate.title}, on {what}")
    names = " ".join(each.inputs.name for each in samples.files)  # the same set is another candidate on other samples
    candidate = with_metadata(candidate, "bisect-trt.samples", f"{what}: {names}")
    record = prober.beside(FreshCheck(check, samples.files, tolerance), 1).probe(candidate)
    outcome = prober.ledger.outcome(record.key)
    assert outcome is not None, "it was probed"
    return outcome
