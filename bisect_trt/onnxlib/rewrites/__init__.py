"""Equivalent forms of what runtimes get wrong: rules by name, each a pattern and its replacement; the cheapest form first."""

from __future__ import annotations

from dataclasses import dataclass

from bisect_trt.onnxlib.nodes import DEFAULT_DOMAINS
from bisect_trt.onnxlib.rewrites import plain, ranges
from bisect_trt.onnxlib.rewrites.view import Fragment, Rule, View, splice_in

__all__ = ["RULES", "Fragment", "View", "matches", "splice_in"]


@dataclass(frozen=True)
class Rewrite:
    """A rule.

    Attributes:
        what: What it does, in words.
        rule: The rule.
        ranges: Whether it mends what is past a range, and not only what a runtime gets wrong.
    """

    what: str
    rule: Rule
    ranges: bool = False


_SINCE = 7
"""Before opset 7 shapes are not broadcast as they are in what the rules write."""
RULES: dict[str, Rewrite] = {
    "redundant": Rewrite("left out, for it does nothing", plain.redundant),
    "layer-norm": Rewrite("as LayerNormalization", ranges.layer_norm, ranges=True),
    "softmax": Rewrite("as Softmax", ranges.softmax, ranges=True),
    "log-softmax": Rewrite("as LogSoftmax", ranges.log_softmax, ranges=True),
    "log-sum-exp": Rewrite("with its maximum taken out", ranges.log_sum_exp, ranges=True),
    "softplus": Rewrite("as Softplus", ranges.softplus, ranges=True),
    "sigmoid": Rewrite("as Sigmoid", ranges.sigmoid, ranges=True),
    "mask": Rewrite("its constant within fp16's range", ranges.mask, ranges=True),
    "mean-of-parts": Rewrite("divided before it is summed", ranges.mean_of_parts, ranges=True),
    "scaled-square": Rewrite("scaled by its largest value before it is squared", ranges.scaled_square, ranges=True),
    "power": Rewrite("as products or a root", plain.power),
    "quotient": Rewrite("as one Div", plain.quotient),
    "gemm": Rewrite("as MatMul and Add", plain.gemm),
    "pad": Rewrite("as Concat", plain.pad),
    "batch-norm": Rewrite("as Mul and Add", plain.batch_norm),
    "kernel-shape": Rewrite("with the shape of its kernel written out", plain.kernel_shape),
    "spelled-softmax": Rewrite("spelled out, its maximum taken out", plain.spelled_softmax),
    "spelled-layer-norm": Rewrite("spelled out", plain.spelled_layer_norm),
    "spelled-instance-norm": Rewrite("spelled out", plain.spelled_instance_norm),
}


def matches(view: View, name: str) -> list[Fragment]:
    """Where a rule's pattern is found, in topological order; no two that overlap in what they redefine."""
    if view.opset < _SINCE:
        return []
    found = []
    for index in view.network.order:
        if view.node(index).domain in DEFAULT_DOMAINS and not view.network.constant[index]:
            fragment = RULES[name].rule(view, index)
            if fragment is not None:
                found.append(fragment)
    return found
