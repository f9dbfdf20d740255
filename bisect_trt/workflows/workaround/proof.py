"""A way around a failure is proven before it is recommended: by a probe of the whole model, and on fresh inputs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx

from bisect_trt.errors import BisectError
from bisect_trt.graph.load import load_model
from bisect_trt.graph.shapes import fix_input_shapes, free_inputs, input_infos
from bisect_trt.probing.candidate import Candidate
from bisect_trt.probing.fresh_check import error_of
from bisect_trt.probing.luck import look_again
from bisect_trt.probing.protocol import Compare, Failed, Sample
from bisect_trt.search.oracle import Verdict
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.comparison import to_plain
from bisect_trt.tensors.fresh import FreshSamples
from bisect_trt.tensors.stats import is_finite
from bisect_trt.workflows.investigation import Investigation
from bisect_trt.workflows.precision.rounds import table_sizes
from bisect_trt.workflows.settings import CheckSettings


@dataclass(frozen=True)
class Way:
    """A way around a failure, and what was seen of it.

    Attributes:
        kind: ``switch``, ``barrier``, ``rewrite`` or ``precision``.
        what: What is done, in words.
        passes: Whether it was seen to pass on the whole model and on fresh inputs; ``None`` where it was not tried.
        file: The model to use, where there is one.
        line: A line to paste, where that is all it takes.
        worst_error: The largest error over all inputs in units of the tolerance; ``None`` if it was not measured.
        latency_ms: Milliseconds of one run, copies included; ``None`` if it was not measured.
        fresh: How many fresh samples were tried, and on how many it passed.
        why: What was seen, or why nothing was.
    """

    kind: str
    what: str
    passes: bool | None
    file: str | None = None
    line: str | None = None
    worst_error: float | None = None
    latency_ms: float | None = None
    fresh: tuple[int, int] = (0, 0)
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        tried, passed = self.fresh
        plain: dict[str, Any] = to_plain({**vars(self), "fresh": {"samples": tried, "passed": passed}})
        return plain


@dataclass(frozen=True)
class Measured:
    """How a model does on samples.

    Attributes:
        passed: On how many it passes.
        samples: Of how many.
        worst_error: The largest error, in units of the tolerance.
        latency_ms: Milliseconds of one run.
        why: What it fails by, if so.
    """

    passed: int
    samples: int
    worst_error: float | None
    latency_ms: float | None
    why: str = ""


@dataclass(frozen=True)
class Prover:
    """Proves ways around a failure.

    Attributes:
        investigation: Whose model it is.
        check: How it is compared.
        samples: How many fresh samples to try.
        timed: Whether to measure how long models run.
    """

    investigation: Investigation
    check: CheckSettings
    samples: int
    timed: bool

    @property
    def target(self) -> TargetSettings:
        """Who fails."""
        target = self.check.target
        assert target is not None, "a check of the user's is no target"
        return target

    def probe(self, model: onnx.ModelProto, title: str) -> Verdict:
        """Probe the whole model in another form, on the inputs that were given."""
        return self.investigation.prober.probe(self.candidate(model, title)).verdict

    def candidate(self, model: onnx.ModelProto, title: str) -> Candidate:
        """The whole model in another form; the original's outputs are compared, whatever others it has."""
        original = self.investigation.subject.original
        return replace(original, made=model, title=title)

    def read_back(self, path: Path, title: str) -> Candidate:
        """What was written, with the input shapes of the search."""
        subject, proto = self.investigation.subject, load_model(path)
        subject.workspace.take_in(proto, path.parent)
        shapes = {info.name: info.shape or () for info in input_infos(subject.network)}
        if subject.freed is not None:  # it fails only while its dimensions are free
            return self.candidate(free_inputs(proto, shapes, forget=False), title)
        fix_input_shapes(proto, {name: tuple(int(dim or 1) for dim in shape) for name, shape in shapes.items()})
        return self.candidate(proto, title)

    @cached_property
    def _fresh(self) -> list[Sample]:
        """Files of fresh inputs, and of what the reference makes of them."""
        subject = self.investigation.subject
        made: list[Sample] = []
        law = FreshSamples.like(subject.samples, table_sizes(subject.network), subject.settings.data.seed)
        for number in range(self.samples if law.varies else 0):
            inputs = law.draw(number)
            name = f"fresh-{number}"
            golden = subject.models.run(name, subject.network.proto, inputs)
            if isinstance(golden, Failed) or not all(map(is_finite, golden.values())):
                continue
            known = {each: golden[each] for each in subject.network.outputs if each in golden}
            made.append(Sample(subject.models.feed(f"{name}.in", inputs), subject.models.feed(f"{name}.golden", known)))
        return made

    def measure(self, model: onnx.ModelProto, target: TargetSettings | None = None) -> Measured | None:
        """Run a model on fresh inputs; ``None`` where there are none to be had."""
        subject, samples = self.investigation.subject, tuple(self._fresh)
        outputs = tuple(subject.network.outputs)
        if not samples:
            return None
        file = subject.models.write("way", model)
        request = Compare(
            self.target if target is None else target,
            file,
            samples,
            self.check.tolerance,
            names=outputs,
            every=True,
            warm_up=1 if self.timed else None,
        )
        try:
            reply = subject.models.ask(request, self.check.timeout)
        except BisectError as error:
            return Measured(0, len(samples), None, None, str(error))
        if isinstance(reply, Failed):
            return Measured(0, len(samples), None, None, reply.message)
        failed = [comparison for comparison in reply.comparisons if not comparison.passed]
        off = {comparison.sample for comparison in failed}
        worst = max((error_of(comparison) for comparison in reply.comparisons), default=0.0)
        why = f"'{failed[0].name}': {failed[0].describe()}" if failed else ""
        return Measured(len(samples) - len(off), len(samples), worst, reply.latency_ms, why)

    def prove(self, way: Way, candidate: Candidate, target: TargetSettings | None = None) -> Way:
        """A way that passed once in the search: as it was written, so often that it is no luck, and on fresh inputs."""
        believed = look_again(self.investigation.prober, self.investigation.subject.original, candidate)
        if not believed.passes:
            return replace(way, passes=False, why=believed.record.reason)
        outcome = self.investigation.outcome(believed.record)
        worst = max((error_of(comparison) for comparison in outcome.comparisons), default=None)
        measured = self.measure(candidate.proto, target)
        if measured is None:
            none = "no fresh inputs are to be had of this model"
            return replace(way, passes=True, worst_error=worst, why=_joined(believed.seen, none))
        if measured.worst_error is not None:
            worst = max(worst or 0.0, measured.worst_error)
        held = _joined(believed.seen, f"held on {measured.passed} of {measured.samples} fresh inputs")
        passes = measured.passed == measured.samples
        why = held if passes else f"{held}: {measured.why}"
        return replace(
            way,
            passes=passes,
            worst_error=worst,
            latency_ms=measured.latency_ms,
            fresh=(measured.samples, measured.passed),
            why=why,
        )


def _joined(*said: str) -> str:
    return "; ".join(filter(None, said))
