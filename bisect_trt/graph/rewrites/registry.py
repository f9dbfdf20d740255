"""The rules, by name, in the order in which they are tried: the cheapest form first."""

from __future__ import annotations

from dataclasses import dataclass

from bisect_trt.graph.nodes import DEFAULT_DOMAINS
from bisect_trt.graph.rewrites.exponentials import (
    log_softmax,
    log_sum_exp,
    mask,
    sigmoid,
    softmax,
    softplus,
    spelled_softmax,
)
from bisect_trt.graph.rewrites.norms import (
    layer_norm,
    mean_of_parts,
    power,
    scaled_square,
    spelled_instance_norm,
    spelled_layer_norm,
)
from bisect_trt.graph.rewrites.plain import batch_norm, gemm, kernel_shape, pad, quotient, redundant
from bisect_trt.graph.rewrites.view import Fragment, Rule, View


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
    "redundant": Rewrite("left out, for it does nothing", redundant),
    "layer-norm": Rewrite("as LayerNormalization", layer_norm, ranges=True),
    "softmax": Rewrite("as Softmax", softmax, ranges=True),
    "log-softmax": Rewrite("as LogSoftmax", log_softmax, ranges=True),
    "log-sum-exp": Rewrite("with its maximum taken out", log_sum_exp, ranges=True),
    "softplus": Rewrite("as Softplus", softplus, ranges=True),
    "sigmoid": Rewrite("as Sigmoid", sigmoid, ranges=True),
    "mask": Rewrite("its constant within fp16's range", mask, ranges=True),
    "mean-of-parts": Rewrite("divided before it is summed", mean_of_parts, ranges=True),
    "scaled-square": Rewrite("scaled by its largest value before it is squared", scaled_square, ranges=True),
    "power": Rewrite("as products or a root", power),
    "quotient": Rewrite("as one Div", quotient),
    "gemm": Rewrite("as MatMul and Add", gemm),
    "pad": Rewrite("as Concat", pad),
    "batch-norm": Rewrite("as Mul and Add", batch_norm),
    "kernel-shape": Rewrite("with the shape of its kernel written out", kernel_shape),
    "spelled-softmax": Rewrite("spelled out, its maximum taken out", spelled_softmax),
    "spelled-layer-norm": Rewrite("spelled out", spelled_layer_norm),
    "spelled-instance-norm": Rewrite("spelled out", spelled_instance_norm),
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
