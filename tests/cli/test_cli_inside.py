"""An fp16 overflow in a body or function is named there, wherever it is planted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from building import save_text
from conftest import CommandLine
from support import rest_slow

from bisect_trt.tensors.info import FP16_MAX

ROWS = 6
WEIGHTS = {
    "one": 1.0,
    "ten": 10.0,
    "hundred": 100.0,
    "kilo": 1000.0,
    "flag": np.array(True),
    "off": np.array(False),
    "count": np.array(ROWS),
    "rows": np.ones((ROWS, 2, 3), np.float32),
}
FLOAT = "float[2, 3]"


@dataclass(frozen=True)
class Plant:
    """A main graph that makes ``t`` of ``s``, and the expected answer.

    ``path`` is of the node that overflows, with the ``iterations`` of the bodies around it;
    ``outputs`` are of the outermost node.
    """

    text: str
    path: str
    iterations: tuple[int | None, ...] = (None,)
    functions: str = ""
    outputs: tuple[str, ...] = ("t",)


def overflow(read: str, made: str, prefix: str = "", *, captured: str = "kilo") -> str:
    """Nodes of which ``huge`` alone exceeds fp16: about 4 times 1000 times 1000, and back."""
    return (
        f"{prefix}big = Mul({read}, {captured}) {prefix}huge = Mul({prefix}big, kilo) "
        f"{prefix}less = Div({prefix}huge, kilo) {made} = Div({prefix}less, {captured})"
    )


def chosen(made: str, nodes: str, result: str, other: str, condition: str = "flag") -> str:
    """An If with these nodes in the branch that is taken."""
    taken = f"{made}_taken () => ({FLOAT} {result}) {{ {nodes} }}"
    left = f"{made}_left () => ({FLOAT} {made}_o) {{ {made}_o = Neg({other}) }}"
    branches = (taken, left) if condition == "flag" else (left, taken)
    return f"{made} = If({condition})<then_branch = {branches[0]}, else_branch = {branches[1]}>"


def looped(made: str, nodes: str, read: str = "s") -> str:
    """A Loop of six iterations that carries ``v`` to ``n``."""
    ends = f"(int64 i, bool c, {FLOAT} v) => (bool d, {FLOAT} n)"
    return (
        f"{made} = Loop(count, , {read})<body = {made}_body {ends} {{ d = Identity(c) {nodes} }}>"
    )


def local(name: str, nodes: str, imports: str = "") -> str:
    return (
        f'<domain: "own", opset_import: ["" : 13{imports}]> {name} (v, kilo) => (r) {{ {nodes} }} '
    )


GROWING = "w = Mul(v, hundred) n = Div(w, ten)"
"""Ten times as much each iteration: w is 400, 4000, 40,000, 400,000."""


def scanned(nodes: str) -> str:
    """A Scan of six rows that carries ``v`` to ``n``."""
    body = f"b ({FLOAT} v, {FLOAT} row) => ({FLOAT} n) {{ {nodes} }}"
    return f"t = Scan<num_scan_inputs = 1, body = {body}>(s, rows)"


PLANTS = {
    "the middle of an If": Plant(chosen("t", overflow("s", "r"), "r", "s"), "t/huge"),
    "the first iteration of a Loop": Plant(looped("t", overflow("v", "n")), "t/huge", (1,)),
    "a function": Plant(
        "t = own.Deep(s, kilo)", "t/huge", (None,), local("Deep", overflow("v", "r"))
    ),
    "the else branch, where a node has a captured value": Plant(
        "wide = Mul(e, kilo) " + chosen("t", overflow("s", "r", captured="wide"), "r", "s", "off"),
        "t/huge",
    ),
    "an If in an If": Plant(
        chosen("t", chosen("u", overflow("s", "r"), "r", "s") + " q = Neg(u)", "q", "s"),
        "t/u/huge",
        (None, None),
    ),
    "the fourth iteration of a Loop": Plant(looped("t", GROWING), "t/w", (4,)),
    "a Loop that captures a tensor": Plant(
        looped("t", overflow("s", "z") + " n = Add(v, z)"), "t/huge", (1,)
    ),
    "an If in the fourth iteration of a Loop": Plant(
        looped("t", chosen("u", "w = Mul(v, hundred) r = Div(w, ten)", "r", "v") + " n = Abs(u)"),
        "t/u/w",
        (4, None),
    ),
    "a function in an If": Plant(
        chosen("t", "f = own.Deep(s, kilo) r = Abs(f)", "r", "s"),
        "t/f/huge",
        (None, None),
        local("Deep", overflow("v", "r")),
    ),
    "an If in a function": Plant(
        "t = own.Gate(s, kilo)",
        "t/r/huge",
        (None, None),
        local(
            "Gate",
            "flag = Constant<value = bool {1}>() p = Abs(v) "
            + chosen("r", overflow("p", "q"), "q", "p"),
        ),
    ),
    "a function in a function": Plant(
        "t = own.Outer(s, kilo)",
        "t/f/huge",
        (None, None),
        local("Outer", "p = Abs(v) f = own.Deep(p, kilo) r = Neg(f)", ', "own" : 1')
        + local("Deep", overflow("v", "r")),
    ),
    "the fourth row of a Scan": Plant(
        scanned("g = Mul(v, row) w = Mul(g, hundred) n = Div(w, ten)"), "t/w", (4,)
    ),
    "the fourth row of a Scan, whose state is read by the fifth": Plant(
        f"u, p = Scan<num_scan_inputs = 1, body = b ({FLOAT} v, {FLOAT} row) => ({FLOAT} n, {FLOAT} z) "
        "{ z = Mul(v, row) w = Mul(z, hundred) n = Div(w, ten) }>(s, rows) "
        "t = ReduceMax<axes = [0], keepdims = 0>(p)",
        "u/w",
        (4,),
        outputs=("u", "p"),
    ),
    "an If in a Scan": Plant(
        scanned(chosen("u", overflow("v", "r"), "r", "v") + " n = Mul(u, row)"),
        "t/u/huge",
        (1, None),
    ),
}


@pytest.mark.parametrize("name", rest_slow(list(PLANTS), now=3))
def test_an_fp16_overflow_is_named_in_the_body(cli: CommandLine, here: Path, name: str) -> None:
    plant = PLANTS[name]
    body = f"e = Abs(x) s = Add(e, one) {plant.text} m = Neg(t) y = Add(m, one)"
    ends = f"({FLOAT} x) => ({FLOAT} y)"
    model = save_text(here / "m.onnx", ends, body, WEIGHTS, functions=plant.functions)
    np.savez(here / "x.npz", x=np.linspace(3, 3.5, 6, dtype=np.float32).reshape(2, 3))
    words = ("diagnose", model, "--onnxrt", "--fp16", "--load-inputs", "x.npz", "-o", "out")
    ran = cli(*words, "--no-shrink", "--json", "r.json").ended(0)
    answer = ran.result
    assert [node["outputs"] for node in answer["culprits"]] == [list(plant.outputs)]
    assert [node["name"] for node in answer["inside"][-1]["nodes"]] == [plant.path]
    around = [plant.path.rsplit("/", depth)[0] for depth in range(len(plant.iterations), 0, -1)]
    assert [level["name"] for level in answer["inside"]] == around
    assert tuple(level["iteration"] for level in answer["inside"]) == plant.iterations
    value = answer["inside"][-1]["fault"]["value"]
    assert value > FP16_MAX
    assert f"as fp16 cannot represent {value:.5g}" in " ".join(ran.out.split())
    # The nodes inside stay in fp32, so nothing is passed without them.
    assert "It passes without" not in ran.out
