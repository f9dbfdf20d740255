"""Asks others where the reference and the target may be wrong together, or where a newer release may be right.

The reference is the ONNX Runtime of this environment, so a wrong kernel of that release is in both.
ONNX's reference evaluator shares no code with it; the release of this environment may be newer than
the one in a place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from importlib import metadata

from msgspec import Struct
from packaging.version import Version

from bisect_trt.mixed_precision.search import with_metadata
from bisect_trt.mixed_precision.validation import Fresh
from bisect_trt.onnxlib.nodes import drawing_nodes
from bisect_trt.probe.candidate import Candidate, Probe
from bisect_trt.probe.check import Check, Comparing
from bisect_trt.probe.outcome import Ending
from bisect_trt.probe.prober import write_candidate
from bisect_trt.report.faults import DIFFERS_FIRST
from bisect_trt.report.outcomes import describe_comparison, describe_outcome
from bisect_trt.report.releases import FAILS_FRESH, REFUSES_FRESH, NewerRelease
from bisect_trt.report.reproducer import Since
from bisect_trt.session.session import Session
from bisect_trt.session.subject import Subject
from bisect_trt.steps.layers import Marking, compare_layers
from bisect_trt.steps.standing import objection
from bisect_trt.targets.base import TargetSettings, reference_settings
from bisect_trt.tensors.comparison import ComparisonKind
from bisect_trt.tensors.files import Values
from bisect_trt.tensors.tolerance import Precision, ToleranceOptions
from bisect_trt.worker.pool import WorkerPool
from bisect_trt.worker.protocol import Failed

EVALUATOR = TargetSettings("onnx")
EVALUATOR_SECONDS = 120.0
"""The evaluator is written for clarity, not for speed."""
FRESH_INPUTS = 20
"""The number of fresh inputs on which a fix is confirmed."""


class Disagreement(Struct, frozen=True):
    """A node of which ONNX's evaluator computes other values than the reference.

    Attributes:
        node: Its operator and name.
        difference: The comparison of its output, in words.
        values: The inputs of the model, and the evaluator's outputs.
    """

    node: str
    difference: str
    values: Values

    @property
    def sentence(self) -> str:
        """The finding."""
        runtime = reference_settings().target.title
        return DIFFERS_FIRST.format(runtime, self.node, self.difference)


class Vote(Enum):
    """The opinion of ONNX's evaluator of the reference, where it does not disagree."""

    AGREES = "agrees"
    NONE = "none"


def ask_evaluator(
    subject: Subject, tolerance: ToleranceOptions | None = None
) -> Disagreement | Vote:
    """Compare the reference with ONNX's evaluator, tensor by tensor; in fp32 where no tolerance is given."""
    network = subject.network
    if (
        subject.models.build_only  # there is no reference run
        or subject.truth is not network
        or objection(network.proto)
        or drawing_nodes(network.proto)
        or subject.reference.lost
    ):
        return Vote.NONE
    exact = replace(tolerance or ToleranceOptions(), precision=Precision.FP32, nonfinite_equal=True)
    # It runs one node after the other, whatever is marked.
    layers = compare_layers(Marking(subject, EVALUATOR, exact, EVALUATOR_SECONDS), limit=1)
    if layers.refused or (layers.outputs_fail and not layers.origins):
        return Vote.NONE
    if not layers.outputs_fail:
        return Vote.AGREES
    first = layers.origins[0]
    differing = next(
        layers.tensors[name] for name in network.made(first) if not layers.tensors[name].passed
    )
    if differing.kind is ComparisonKind.MISSING:  # it gives an optional another form
        return Vote.NONE
    fed = subject.values(subject.original, subject.original.inputs)
    outputs = subject.models.run("fault", network.proto, fed, EVALUATOR, EVALUATOR_SECONDS)
    if isinstance(outputs, Failed):
        return Vote.NONE
    return Disagreement(network.describe(first), describe_comparison(differing), {**fed, **outputs})


def right_here(session: Session, check: Comparing, case: Candidate) -> Since | None:
    """Run the minimal case on the newer release of this environment, where the target ran on an older one in a place.

    Returns:
        The upgrade, if the case passes here; ``None`` where the release is not newer, or fails too.
    """
    subject = session.subject
    target = check.runtime
    if not subject.workers.places:
        return None
    failing = {str(runtime.target.get("version", "")) for runtime in subject.seen.values()}
    try:
        installed = max(map(Version, installed_versions(target)))
        if not all(Version(version) < installed for version in failing):
            return None
    except ValueError:
        # Nothing is installed here, or a version is unknown.
        return None
    title = target.target.title
    files = write_candidate(
        Probe(replace(case, title=f"{title} {installed}")),
        subject.workspace,
        subject.reference,
    )
    deadline = subject.workers.deadline
    with WorkerPool(subject.workspace.folder, timeout=check.timeout, deadline=deadline) as pool:
        check = check.under(workers=pool)
        outcome = check.run(files)
        if outcome.ending is not Ending.PASSED:
            return None
        wrong = fails_on_fresh(session, check, {f"{title} {installed}": ""})
    return NewerRelease(title, tuple(sorted(failing)), str(installed), outcome, wrong).since


def fails_on_fresh(
    session: Session, check: Check, releases: Mapping[str, str]
) -> Mapping[str, str]:
    """Run the whole model in some releases on the same fresh inputs, and compare it with the reference.

    Args:
        session: The session.
        check: Runs the model in the releases.
        releases: The environment of each release, by its name in words; ``""`` if the check runs it here.

    Returns:
        How many inputs fail, in words, for each release in which some do; empty too where nothing
        can be compared.
    """
    subject = session.subject
    fresh = Fresh(subject, FRESH_INPUTS)
    tolerance = check.tolerances
    samples = None if fresh.why_none or tolerance is None else fresh.round(0)
    if samples is None or tolerance is None:
        return {}
    on_fresh = check.on_samples(tuple(files for files, _ in samples), tolerance)
    if on_fresh is None:
        return {}
    console = session.console
    sentences = {}
    for release, packages in releases.items():
        console.step(f"Does {release} pass on {len(samples)} other inputs?")
        candidate = replace(subject.original, title=release, packages=packages)
        candidate = with_metadata(candidate, "bisect-trt.samples", release)
        files = write_candidate(Probe(candidate), subject.workspace, subject.reference)
        outcome = on_fresh.run(files)
        console.say(f"  {describe_outcome(outcome)}")
        wrong = sum(error > 1 for error in outcome.errors)
        if not outcome.errors:
            sentences[release] = REFUSES_FRESH.format(release, describe_outcome(outcome))
        elif wrong:
            sentences[release] = FAILS_FRESH.format(release, wrong, len(samples))
    return sentences


def installed_versions(target: TargetSettings) -> Iterator[str]:
    """Yield the versions of the target's packages in this environment."""
    for package in target.target.builds(target):
        with suppress(metadata.PackageNotFoundError):
            yield metadata.version(package.name)
