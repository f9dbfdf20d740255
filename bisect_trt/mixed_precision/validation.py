"""Fresh samples, which the search has not seen: drawn or the user's, and a set of units run on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from msgspec import structs

from bisect_trt.errors import ConflictError
from bisect_trt.mixed_precision.search import Task, with_metadata
from bisect_trt.onnxlib.inputs import input_infos, table_sizes
from bisect_trt.options.shared import Data
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.engine_cache import ENGINE
from bisect_trt.probe.outcome import Outcome
from bisect_trt.probe.prober import Prober
from bisect_trt.report.mixed import NOTHING_VARIES, describe_fresh
from bisect_trt.search.oracle import Subset
from bisect_trt.session.subject import Subject
from bisect_trt.tensors.files import load_npz
from bisect_trt.tensors.fresh import FreshSamples
from bisect_trt.tensors.inputs import Sample, is_script, make_inputs
from bisect_trt.tensors.tolerance import Precision, ToleranceOptions
from bisect_trt.worker.protocol import Collect, Failed
from bisect_trt.worker.protocol import Sample as SampleFiles

_MOST_BYTES = 1 << 30
"""The largest size of the values of fresh samples, on the disk at a time."""
_PATIENCE = 3600.0
"""Seconds that the reference may take for all samples of a round."""
Round = list[tuple[SampleFiles, Sample]]
"""Some samples, each in files and in memory."""


class Fresh:
    """Fresh samples: the user's, or drawn with the distribution of those that the search was given."""

    def __init__(
        self,
        subject: Subject,
        count: int,
        given: Sequence[str] = (),
        ways: tuple[str, ...] | None = None,
    ) -> None:
        """Read the user's samples, or learn the distribution of the search's samples.

        Raises:
            UsageError: The user's do not fit the model.
        """
        self._subject = subject
        self._count = count
        self._next = 0
        samples = subject.samples
        if subject.ranged:
            samples = [*samples, *(subject.in_range(samples[0], share) for share in (0, 1))]
        like = FreshSamples.like(samples, table_sizes(subject.network), subject.settings.data.seed)
        self._like = like if ways is None else structs.replace(like, ways=ways)
        steps = subject.wrong_steps()
        self._given = [*user_samples(subject, given), *steps]
        self.given = bool(given)
        self.drawn = f"from {', '.join(given)}" if given else describe_fresh(self._like)
        self.drawn += f"; {len(steps)} other wrong steps" if steps else ""

    @classmethod
    def of(cls, task: Task) -> Fresh:
        """The samples that the options of a search select.

        Raises:
            UsageError: The user's do not fit the model, or there is nothing to compare on them.
        """
        options = task.settings.options
        if options.validation_data and task.prober.check.tolerances is None:
            raise ConflictError(
                "--validation-data is for a target that is compared with the reference; with --check or --metric drop it, "
                "and use these samples there."
            )
        return cls(task.subject, options.fresh_samples, options.validation_data, task.space.ways)

    @property
    def why_none(self) -> str | None:
        """Why there are none, if so."""
        if self._subject.models.build_only:
            return "--build-only compares no values"
        if self.given:
            return None
        if not self._count:
            return "--fresh-samples is 0"
        varies = self._like.varies or self._given
        return None if varies else NOTHING_VARIES

    def round(self, number: int) -> Round | None:
        """Return the samples of a round, different from earlier rounds unless they are the user's.

        A sample on which the reference is not finite, or does not run, is left out.

        Returns:
            ``None`` where the reference does not run the model.
        """
        # Rounds of the user's samples are one round.
        name = "validation" if self.given else f"validation-{number}"
        samples = self._predicted(name, self._given)
        if self._like.varies and not self.given:
            first = self._subject.reference.select(self._subject.network.outputs)
            sample_bytes = sum(
                value.nbytes for value in (*self._subject.samples[0].values(), *first.values())
            )
            # Samples of large networks are bounded by bytes, so that a round ends.
            wanted = max(min(self._count, _MOST_BYTES // max(sample_bytes, 1)), 1)
            # Samples that the reference cannot judge are replaced.
            for attempt in range(3):
                missing = range(self._next, self._next + wanted - len(samples))
                self._next = missing.stop
                samples += self._predicted(
                    f"fresh-{number}-{attempt}", [self._like.draw(place) for place in missing]
                )
        return samples or None

    def given_round(self) -> Round | None:
        """Return the samples of the search as a round."""
        return self._predicted("given", self._subject.samples) or None

    def _predicted(self, name: str, samples: Sequence[Sample]) -> Round:
        """Those samples on which the reference is as finite as on the first of the search."""
        subject = self._subject
        models = subject.models
        workspace = subject.workspace
        first = subject.reference.select(subject.network.outputs)
        files = [
            SampleFiles(
                models.feed(f"{name}-{place}", sample),
                workspace.scratch(f"{name}-{place}.golden.npz"),
            )
            for place, sample in enumerate(samples)
        ]
        path = models.write(name, subject.truth.proto) if samples else Path()

        def run(batch: Sequence[SampleFiles]) -> bool:
            inputs = tuple(sample.inputs for sample in batch)
            golden = tuple(sample.golden for sample in batch)
            reply = models.ask(Collect(models.reference, path, inputs, golden), _PATIENCE)
            return not isinstance(reply, Failed)

        def usable(golden: Path) -> bool:
            return golden.exists() and all(
                value.dtype.kind != "f"
                or np.isfinite(value).all()
                or not np.isfinite(first.get(name, value)).all()
                for name, value in load_npz(golden).items()
            )

        if files and not run(files):
            # The model does not run on some: an index past the end of a table.
            for file in files:
                run([file])
        return [
            (sample_files, sample)
            for sample_files, sample in zip(files, samples, strict=True)
            if usable(sample_files.golden)
        ]


def user_samples(subject: Subject, paths: Sequence[str]) -> list[Sample]:
    """The samples of ``--validation-data``: files as for ``--load-inputs``, or scripts as for ``--data-loader-script``.

    Raises:
        UsageError: A file does not exist or does not fit the model.
    """
    samples = list[Sample]()
    for entry in paths:
        data = (
            Data(data_loader_script=entry) if is_script(entry) else Data(load_inputs=(Path(entry),))
        )
        samples += make_inputs(input_infos(subject.network), data)
    return samples


def run_on(task: Task, units: Subset, samples: Round, label: str) -> Outcome:
    """Probe a set on some samples.

    Args:
        task: The search.
        units: The units that stay in the wider precision.
        samples: The files of inputs and reference outputs of each sample, with its values.
        label: The samples in words, for the candidate's title.

    Raises:
        BudgetSpent: No more probes may be made.
    """
    check = task.prober.check
    tolerance = task.settings.tolerance
    assert check.tolerances is not None, "values are compared"
    if tolerance is None or task.settings.bits:
        tolerance = check.tolerances
    else:
        tolerance = replace(tolerance, precision=Precision(task.settings.precision))
    candidate = task.lowering.candidate(units)
    engine = task.subject.workspace.files(candidate.key).folder / ENGINE
    candidate = replace(candidate, engine=engine if engine.exists() else candidate.engine)
    return probe_on(task.prober, candidate, samples, tolerance, label)


def probe_on(
    prober: Prober, candidate: Candidate, samples: Round, tolerance: ToleranceOptions, label: str
) -> Outcome:
    """Probe a candidate of the whole model on some samples, ``label`` in words; ``Outcome.errors`` has one number for each.

    Args:
        prober: The prober of the search; the probe is beside its budgeted ones.
        candidate: The whole model, lowered.
        samples: The files of inputs and reference outputs of each sample, with its values.
        tolerance: The tolerance; an error of 1 is just within it.
        label: The samples in words, for the candidate's title.

    Raises:
        BudgetSpent: No more probes may be made.
    """
    files = tuple(inputs for inputs, _ in samples)
    check = prober.check.on_samples(files, tolerance)
    assert check is not None, "values are compared"
    candidate = replace(candidate, title=f"{candidate.title}, on {label}")
    # The same set is another candidate on other samples.
    names = " ".join(sample.inputs.name for sample in files)
    candidate = with_metadata(candidate, "bisect-trt.samples", f"{label}: {names}")
    record = prober.beside(check, 1).probe(candidate)
    outcome = prober.ledger.outcome(record.key)
    assert outcome is not None, "it was probed"
    return outcome
