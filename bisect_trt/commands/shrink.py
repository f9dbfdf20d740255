"""After the nodes: make the tensors of the minimal case smaller, for as long as it fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bisect_trt.commands.session import Session
from bisect_trt.onnxlib.external_data import has_external_data
from bisect_trt.onnxlib.nodes import Draws
from bisect_trt.onnxlib.shrink import (
    Axis,
    Piece,
    axis_groups,
    axis_sizes,
    cut_axes,
    input_order,
    is_sound,
    keep_outputs,
    plain_weights,
    store_inputs,
    with_output_shapes,
    zero_weights,
)
from bisect_trt.probe.candidate import Candidate
from bisect_trt.search.oracle import Verdict
from bisect_trt.tensors.stats import is_finite

MOST_PROBES = 40
"""What shrinking may cost; each step that succeeds leaves a model that fails, so it can stop anywhere."""


def shrink(session: Session, answer: Candidate) -> Candidate:
    """The smallest form of a candidate that was found that still fails with the same signature.

    In this order: fewer outputs; shorter axes (batch, channels, height, width, sequence); constants for inputs; zeros for
    weights. What ONNX's checker refuses is no candidate and costs no probe, nor is a model on which the reference fails or
    gives NaN or Inf where it gave none.

    Returns:
        A candidate that was seen to fail: a smaller one, or the same.
    """
    infos, console = session.subject.reference.infos, session.console
    known = all(name in infos and infos[name].is_static for name in answer.inputs)
    if has_external_data(answer.proto) or not known:
        console.say("  its weights or inputs cannot be changed, so it is left as it is")
        return answer
    draws = Draws(answer.proto, {}, unsure=True)
    if any(map(draws.by, answer.proto.graph.node)):
        console.say(
            "  it draws random numbers, of which a few may come out the same on both sides, so it is left as it is"
        )
        return answer
    shrinker = _Shrinker(session, answer)
    before = shrinker.elements()
    for step in (shrinker.outputs, shrinker.axes, shrinker.constants, shrinker.weights):
        step()
    after = shrinker.elements()
    console.say(f"  {before} elements of inputs and weights became {after}, in {shrinker.probes} probes")
    return shrinker.best


class _Shrinker:
    def __init__(self, session: Session, answer: Candidate) -> None:
        self.best = answer
        self.probes = 0
        self._session = session
        record = session.prober.probe(answer)
        self._signature = record.signature
        self._seen = session.outcome(record).comparisons
        values = session.subject.values(answer, (*answer.inputs, *answer.outputs))
        self._piece = Piece(answer.proto, {name: values[name] for name in answer.inputs})
        self._sound = is_sound(answer.proto)
        self._finite = {name for name in answer.outputs if name in values and is_finite(values[name])}

    def elements(self) -> int:
        weights = sum(int(np.prod(tensor.dims, dtype=np.int64)) for tensor in self._piece.proto.graph.initializer)
        return weights + sum(value.size for value in self._piece.inputs.values())

    def _try(self, piece: Piece, title: str) -> bool:
        """Take a smaller piece if it fails in the same way."""
        if self.probes >= MOST_PROBES:
            return False
        golden = self._golden(piece)
        if golden is None:
            return False
        proto = with_output_shapes(piece, golden)
        names = tuple(input_order(piece))
        values = {**piece.inputs, **golden}
        candidate = replace(
            self.best, made=proto, inputs=names, outputs=tuple(piece.outputs), title=title, values=values
        )
        freed = self._session.subject.freed
        candidate = candidate if freed is None else freed.dress(candidate)
        self.probes += 1
        record = self._session.prober.probe(candidate)
        if record.verdict is not Verdict.FAIL or record.signature != self._signature:
            return False
        self._piece, self.best = replace(piece, proto=proto), candidate
        self._seen = self._session.outcome(record).comparisons
        return True

    def _golden(self, piece: Piece) -> Mapping[str, NDArray[Any]] | None:
        """What a sound piece gives; ``None`` for another, which a runtime may read past the ends of tensors of."""
        if self._sound and not is_sound(piece.proto):
            return None
        golden = self._session.subject.reference.compute(piece.proto, piece.inputs)
        if golden is None or not all(value.size for value in golden.values()):
            return None
        if not all(is_finite(golden[name]) for name in self._finite.intersection(golden)):
            return None
        return golden if not self._sound or is_sound(with_output_shapes(piece, golden)) else None

    def outputs(self) -> None:
        """One output, if one will do; else leave out what can be."""
        names = self._piece.outputs
        if len(names) > 1 and not any(self._try(keep_outputs(self._piece, [name]), "one output") for name in names):
            for name in names[::-1]:
                rest = [other for other in self._piece.outputs if other != name]
                self._try(keep_outputs(self._piece, rest), "fewer outputs")

    def axes(self) -> None:
        """All axes of one size at once; where that ends early, each that the graph does not link to the others."""
        for size in axis_sizes(self._piece):
            groups = axis_groups(self._piece, size)
            left = self._shorten(groups, size)
            if left > 1 and len(groups) > 1:
                for group in groups:
                    self._shorten([group], left)

    def _shorten(self, groups: Sequence[Sequence[Axis]], size: int) -> int:
        """Cut axes to 1, where the worst element is, if that will do; else halve them for as long as one half will.

        Returns:
            How long they are then.
        """
        if self._cut(groups, size, 1):
            return 1
        left = size
        while left > 1:
            half = (left + 1) // 2  # of an odd size the halves overlap, so that all axes stay of one size
            near = (half, left) != (1, size) and self._cut(groups, left, half)
            if not near and (self._all_seen(groups) or not self._cut(groups, left, half, far=True)):
                break
            left = half
        return left

    def _cut(self, groups: Sequence[Sequence[Axis]], size: int, to: int, *, far: bool = False) -> bool:
        """Cut each group of axes to a window of one length: the one with the worst element, or the other half."""
        windows: dict[Axis, slice] = {}
        for group in groups:
            worst = min(self._worst(group) or 0, size - 1)
            start = worst if to == 1 and not far else 0 if (worst < to) != far else size - to
            windows |= dict.fromkeys(group, slice(start, start + to))
        return self._try(cut_axes(self._piece, windows), f"axes of {size} cut to {to}")

    def _all_seen(self, groups: Sequence[Sequence[Axis]]) -> bool:
        """Whether it is known of each group where the worst element was: the other half is not worth a probe then."""
        return all(self._worst(group) is not None for group in groups)

    def _worst(self, group: Sequence[Axis]) -> int | None:
        """Where along its axes the worst element of a wrong output was, if somebody has seen."""
        wrong = ((seen.name, seen.worst.index) for seen in self._seen if not seen.passed and seen.worst is not None)
        found = (place for name, index in wrong for axis, place in enumerate(index) if (name, axis) in group)
        return next(found, None)

    def constants(self) -> None:
        """All inputs but the first become constants, or as many as can."""
        self._all_or_each(store_inputs, input_order(self._piece)[1:], "constants for inputs")

    def weights(self) -> None:
        """Zeros for all weights, or for as many as can."""
        self._all_or_each(zero_weights, plain_weights(self._piece), "zeros for weights")

    def _all_or_each(self, change: Callable[[Piece, Sequence[str]], Piece], names: Sequence[str], title: str) -> None:
        if names and not self._try(change(self._piece, names), title) and len(names) > 1:
            for name in names:
                self._try(change(self._piece, [name]), title)
