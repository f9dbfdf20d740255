"""After the nodes: make the tensors of the minimal case smaller, for as long as it fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from bisect_trt.commands.session import Session
from bisect_trt.onnxlib.load import has_external_data
from bisect_trt.onnxlib.nodes import drawing_nodes
from bisect_trt.onnxlib.shrink import (
    Axis,
    Piece,
    axes_by_size,
    cut_axes,
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
    if drawing_nodes(answer.proto, {}, unsure=True):
        console.say(
            "  it draws random numbers, of which a few may come out the same on both sides, so it is left as it is"
        )
        return answer
    shrinker = _Shrinker(session, answer)
    before = shrinker.piece.elements
    shrinker.drop_outputs()
    shrinker.cut_all_axes()
    shrinker.change_all_or_each(store_inputs, list(shrinker.piece.inputs)[1:], "constants for inputs")
    shrinker.change_all_or_each(zero_weights, plain_weights(shrinker.piece), "zeros for weights")
    after = shrinker.piece.elements
    console.say(f"  {before} elements of inputs and weights became {after}, in {shrinker.probes} probes")
    return shrinker.best


class _Shrinker:
    """Tries smaller pieces one after the other; each that fails in the same way is the next to start from."""

    def __init__(self, session: Session, answer: Candidate) -> None:
        self.best = answer
        self.probes = 0
        self._session = session
        record = session.prober.probe(answer)
        self._signature = record.signature
        values = session.subject.values(answer, (*answer.inputs, *answer.outputs))
        order = [value.name for value in answer.proto.graph.input if value.name in answer.inputs]
        self.piece = Piece(answer.proto, {name: values[name] for name in order})
        self._sound = is_sound(answer.proto)
        self._golden: Mapping[str, NDArray[Any]] = {name: values[name] for name in answer.outputs if name in values}
        self._finite = {name for name, value in self._golden.items() if is_finite(value)}
        self._seen = session.outcome(record).comparisons

    def _try(self, piece: Piece, title: str) -> bool:
        """Take a smaller piece if it fails in the same way."""
        golden = self._expected(piece) if self.probes < MOST_PROBES else None
        if golden is None:
            return False
        proto = with_output_shapes(piece, golden)
        values, outputs = {**piece.inputs, **golden}, tuple(piece.outputs)
        candidate = replace(
            self.best, made=proto, inputs=tuple(piece.inputs), outputs=outputs, title=title, values=values
        )
        freed = self._session.subject.freed
        candidate = candidate if freed is None else freed.dress(candidate)
        self.probes += 1
        record = self._session.prober.probe(candidate)
        if record.verdict is not Verdict.FAIL or record.signature != self._signature:
            return False
        self.piece, self.best, self._golden = replace(piece, proto=proto), candidate, golden
        self._seen = self._session.outcome(record).comparisons
        return True

    def _expected(self, piece: Piece) -> Mapping[str, NDArray[Any]] | None:
        """What a sound piece gives; ``None`` for another, which a runtime may read past the ends of tensors of."""
        if self._sound and not is_sound(piece.proto):
            return None
        golden = self._session.subject.reference.compute(piece.proto, piece.inputs)
        if golden is None or not all(value.size for value in golden.values()):
            return None
        if not all(is_finite(golden[name]) for name in self._finite.intersection(golden)):
            return None
        return golden if not self._sound or is_sound(with_output_shapes(piece, golden)) else None

    def drop_outputs(self) -> None:
        """One output, if one will do; else leave out what can be."""
        names = self.piece.outputs
        if len(names) > 1 and not any(self._try(keep_outputs(self.piece, [name]), "one output") for name in names):
            for name in names[::-1]:
                rest = [other for other in self.piece.outputs if other != name]
                self._try(keep_outputs(self.piece, rest), "fewer outputs")

    def cut_all_axes(self) -> None:
        """All axes of one size at once; where that ends early, each by itself."""
        for size, axes in axes_by_size(self.piece).items():
            left = self._shorten(axes, size)
            for axis in axes if left > 1 and len(axes) > 1 else ():
                self._shorten([axis], left)

    def _shorten(self, axes: Sequence[Axis], size: int) -> int:
        """Cut axes to 1, where the worst element is, if that will do; else halve them for as long as one half will.

        Returns:
            How long they are then.
        """
        if self._cut(axes, size, 1):
            return 1
        left = size
        while left > 1:
            half = (left + 1) // 2  # of an odd size the halves overlap, so that all axes stay of one size
            near = (half, left) != (1, size) and self._cut(axes, left, half)
            known = self._worst(axes[0][1], left) is not None  # then the other half is not worth a probe
            if not near and (known or not self._cut(axes, left, half, far=True)):
                break
            left = half
        return left

    def _cut(self, axes: Sequence[Axis], size: int, to: int, *, far: bool = False) -> bool:
        """Cut axes to windows of one length: those with the worst element, or the other halves."""
        windows: dict[Axis, slice] = {}
        for name, place in axes:
            worst = self._worst(place, size) or 0
            start = worst if to == 1 and not far else 0 if (worst < to) != far else size - to
            windows[name, place] = slice(start, start + to)
        return self._try(cut_axes(self.piece, windows), f"axes of {size} cut to {to}")

    def _worst(self, place: int, size: int) -> int | None:
        """Where the worst element is along an output's axis of a size: the axis at the same place, else the first."""
        wrong = [
            seen for seen in self._seen if not seen.passed and seen.worst is not None and seen.name in self._golden
        ]
        found: dict[int, int] = {}
        for seen in wrong:
            assert seen.worst is not None
            for axis, index in enumerate(seen.worst.index):
                if self._golden[seen.name].shape[axis] == size:
                    found.setdefault(axis, index)
        return found.get(place, next(iter(found.values()), None))

    def change_all_or_each(
        self, change: Callable[[Piece, Sequence[str]], Piece], names: Sequence[str], title: str
    ) -> None:
        """Change all tensors of these names, or as many as can be."""
        if names and not self._try(change(self.piece, names), title) and len(names) > 1:
            for name in names:
                self._try(change(self.piece, [name]), title)
