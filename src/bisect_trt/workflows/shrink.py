"""After the nodes: make the tensors of the minimal case smaller, for as long as it fails in the same way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bisect_trt.graph.externals import has_external_data
from bisect_trt.graph.shrink import (
    Piece,
    axis_sizes,
    cut_axes,
    input_order,
    keep_outputs,
    plain_weights,
    store_inputs,
    with_output_shapes,
    zero_weights,
)
from bisect_trt.probing.candidate import Candidate
from bisect_trt.probing.prober import Prober
from bisect_trt.reporting.console import Console
from bisect_trt.search.verdict import Verdict
from bisect_trt.workflows.subject import Subject

MOST_PROBES = 40
"""What shrinking may cost; each step that succeeds leaves a model that fails, so it can stop anywhere."""


def shrink(subject: Subject, prober: Prober, answer: Candidate, console: Console) -> Candidate:
    """The smallest form of a candidate that was found that still fails with the same signature.

    In this order: fewer outputs; shorter axes (batch, channels, height, width, sequence); constants for inputs; zeros for
    weights. A model on which the reference itself fails is no candidate and costs no probe.

    Args:
        subject: The model under investigation.
        prober: Who probes.
        answer: A candidate that fails.
        console: Who is told.

    Returns:
        A candidate that was seen to fail: a smaller one, or the same.
    """
    infos = subject.reference.infos
    known = all(name in infos and infos[name].is_static for name in answer.inputs)
    if has_external_data(answer.proto) or not known:
        console.say("  its weights or inputs cannot be changed, so it is left as it is")
        return answer
    shrinker = _Shrinker(subject, prober, answer)
    before = shrinker.elements()
    for step in (shrinker.outputs, shrinker.axes, shrinker.constants, shrinker.weights):
        step()
    after = shrinker.elements()
    console.say(f"  {before} elements of inputs and weights became {after}, in {shrinker.probes} probes")
    return shrinker.best


class _Shrinker:
    def __init__(self, subject: Subject, prober: Prober, answer: Candidate) -> None:
        self.best = answer
        self.probes = 0
        self._subject = subject
        self._prober = prober
        self._signature = prober.probe(answer).signature
        self._piece = Piece(answer.proto, dict(subject.values(answer, answer.inputs)))

    def elements(self) -> int:
        weights = sum(int(np.prod(tensor.dims, dtype=np.int64)) for tensor in self._piece.proto.graph.initializer)
        return weights + sum(value.size for value in self._piece.inputs.values())

    def _try(self, piece: Piece, title: str) -> bool:
        """Take a smaller piece if it fails in the same way."""
        if self.probes >= MOST_PROBES:
            return False
        golden = self._subject.reference.compute(piece.proto, piece.inputs)
        if golden is None or not all(value.size for value in golden.values()):
            return False
        proto = with_output_shapes(piece, golden)
        names = tuple(input_order(piece))
        values = {**piece.inputs, **golden}
        candidate = replace(
            self.best, proto=proto, inputs=names, outputs=tuple(piece.outputs), title=title, values=values
        )
        self.probes += 1
        record = self._prober.probe(candidate)
        if record.verdict is not Verdict.FAIL or record.signature != self._signature:
            return False
        self._piece, self.best = replace(piece, proto=proto), candidate
        return True

    def outputs(self) -> None:
        """One output, if one will do; else leave out what can be."""
        names = self._piece.outputs
        if len(names) > 1 and not any(self._try(keep_outputs(self._piece, [name]), "one output") for name in names):
            for name in names[::-1]:
                rest = [other for other in self._piece.outputs if other != name]
                self._try(keep_outputs(self._piece, rest), "fewer outputs")

    def axes(self) -> None:
        """Each axis to 1 if that will do; else halved for as long as one half will."""
        for size in axis_sizes(self._piece):
            if self._cut(size, 0, 1):
                continue
            left = size
            while left > 1 and (self._cut(left, 0, left // 2) or self._cut(left, left // 2, left)):
                left = next((s for s in (left // 2, left - left // 2) if s in axis_sizes(self._piece)), 0)

    def _cut(self, size: int, start: int, stop: int) -> bool:
        try:
            piece = cut_axes(self._piece, size, start, stop)
        except (ValueError, TypeError):
            return False
        return self._try(piece, f"axes of {size} cut to {stop - start}")

    def constants(self) -> None:
        """All inputs but the first become constants, or as many as can."""
        names = input_order(self._piece)[1:]
        if names and not self._try(store_inputs(self._piece, names), "constants for inputs"):
            for name in names:
                self._try(store_inputs(self._piece, [name]), "a constant for an input")

    def weights(self) -> None:
        """Zeros for all weights, or for as many as can."""
        names = plain_weights(self._piece)
        if names and not self._try(zero_weights(self._piece, names), "zeros for weights") and len(names) > 1:
            for name in names:
                self._try(zero_weights(self._piece, [name]), "zeros for a weight")
