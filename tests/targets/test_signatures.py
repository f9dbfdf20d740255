"""The same failure of a smaller or a renamed model has the same signature; another failure has another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from building import save_proto, save_text
from hypothesis import example, given
from hypothesis import strategies as st
from onnx import NodeProto, TensorProto, helper, numpy_helper

from bisect_trt.targets.base import TargetSettings
from bisect_trt.targets.messages import (
    BuildError,
    RunError,
    RuntimeFailure,
    clean_message,
    error_class,
    mask_message,
    names_of,
)
from bisect_trt.targets.runtime import Runtime

Build = Callable[[Callable[[str], str], int], list[NodeProto]]
"""Nodes from ``a`` and ``b`` to ``y``, their names given by a function, their sizes by a number."""
make = helper.make_node


def unknown(name: Callable[[str], str], size: int) -> list[NodeProto]:
    return [
        make("Relu", ["a"], [name("r")], name("relu")),
        make("Mystery", [name("r")] * size, ["y"], name("n")),
    ]


def unknown_of_a_domain(name: Callable[[str], str], size: int) -> list[NodeProto]:  # noqa: ARG001 - as the others
    return [make("Mystery", ["a"], ["y"], name("n"), domain="com.microsoft")]


def too_wide(name: Callable[[str], str], size: int) -> list[NodeProto]:
    shape = make("Constant", [], [name("s")], name("k"), value_ints=[size, size + 1])
    return [shape, make("Reshape", ["a", name("s")], ["y"], name("n"))]


def of_no_shape(name: Callable[[str], str], size: int) -> list[NodeProto]:
    slices = [name(f"p{i}") for i in range(size)]
    return [make("Split", ["a"], slices, name("n"), axis=1), make("Sum", slices, ["y"], name("m"))]


def fused(name: Callable[[str], str], size: int) -> list[NodeProto]:  # noqa: ARG001 - as the others
    return [
        make("Gemm", ["a", "b"], [name("g")], name("n")),
        make("Relu", [name("g")], ["y"], name("m")),
    ]


def quantized(name: Callable[[str], str], size: int) -> list[NodeProto]:  # noqa: ARG001 - as the others
    """Refused by 1.28 to 1.31.1, which add a node of their own of another type."""
    nodes = [
        make("Constant", [], [name("one")], name("k"), value_float=0.5),
        make(
            "Constant",
            [],
            [name("zero")],
            name("l"),
            value=numpy_helper.from_array(np.array(3, np.int8)),
        ),
        make("QuantizeLinear", ["a", name("one"), name("zero")], [name("q")], name("n")),
        make("Identity", [name("q")], [name("i")], name("i")),
        make("DequantizeLinear", [name("i"), name("one"), name("zero")], [name("d")], name("m")),
    ]
    return [*nodes, make("Transpose", [name("d")], ["y"], name("t"), perm=[1, 0])]


def no_kernel(name: Callable[[str], str], size: int) -> list[NodeProto]:  # noqa: ARG001 - as the others
    return [
        make("Cast", ["a"], [name("c")], name("k"), to=16),
        make("Erf", [name("c")], ["y"], name("n")),
    ]


def twice(name: Callable[[str], str], size: int) -> list[NodeProto]:  # noqa: ARG001 - as the others
    return [
        make("Relu", ["a"], [name("r")], name("n")),
        make("Relu", ["b"], [name("r")], name("m")),
    ]


FAILING: list[Build] = [
    unknown,
    unknown_of_a_domain,
    too_wide,
    of_no_shape,
    fused,
    quantized,
    no_kernel,
    twice,
]
NAMINGS: dict[str, Callable[[str], str]] = {
    "plain": lambda name: name,
    "exported": lambda name: f"/blocks.{len(name)}/attn/{name.upper()}_{len(name)}",
    "generated": lambda name: f"SkipLayerNormalization_token_{sum(map(ord, name))}",
    "words": lambda name: f"node input {name}'s (name) tensor",
    "numbers": lambda name: str(200 + sum(map(ord, name))),
    "operator": lambda name: f"Add_{name}",
}


def failure(nodes: Sequence[NodeProto], folder: Path) -> RuntimeFailure | None:
    """How ONNX Runtime fails on a model, and the model's names; None where this version does not."""
    sides = [(name, TensorProto.FLOAT, (f"{name}0", f"{name}1")) for name in "ab"]
    path = save_proto(
        folder / "m.onnx", nodes, sides, ["y"], opset=21, ir_version=10, domains=["com.microsoft"]
    )
    try:
        session = Runtime(TargetSettings()).load(path)
        session.run({name: np.ones((5, 7), np.float32) for name in "ab"})
    except (BuildError, RunError) as error:
        return error
    return None


@pytest.mark.parametrize("build", FAILING, ids=lambda build: build.__name__)
def test_the_same_refusal_whatever_the_names_and_sizes(build: Build, tmp_path: Path) -> None:
    signed: dict[str, str] = {}
    for naming, name in NAMINGS.items():
        for size in (2, 3) if build is not of_no_shape else (4, 3):
            nodes = build(name, size)
            if (error := failure(nodes, tmp_path)) is None:
                pytest.skip("this version of ONNX Runtime runs it")
            signed[f"{naming} {size}"] = error.sign(names_of(helper.make_graph(nodes, "g", [], [])))
    assert len(set(signed.values())) == 1, signed


def test_other_refusals_have_other_signatures(tmp_path: Path) -> None:
    errors = [failure(build(NAMINGS["plain"], 3), tmp_path) for build in FAILING]
    seen = [error.sign(["n", "m", "r", "c", "g"]) for error in errors if error is not None]
    assert len(seen) >= len(FAILING) - 3  # some of them are mended in some versions
    assert len(set(seen)) == len(seen)


INSIDE = {
    "itself": "y = {}",
    "If": "y = If(c) <then_branch = g () => (float[N] t) {{ t = {} }}, else_branch = h () => (float[N] e) {{ e = Neg(x) }}>",
    "Loop": """y = Loop(one, c, x) <body = g (int64 i, bool go, float[N] s) => (bool on, float[N] t) {{
        on = Identity(go) t = {} }}>""",
    "If in a Loop": """y = Loop(one, c, x) <body = g (int64 i, bool go, float[N] s) => (bool on, float[N] t) {{
        on = Identity(go)
        t = If(go) <then_branch = f () => (float[N] u) {{ u = {} }}, else_branch = h () => (float[N] e) {{ e = Neg(s) }}> }}>""",
}


def test_a_node_fails_the_same_itself_and_in_a_body(tmp_path: Path) -> None:
    weights = {"one": np.int64(1), "c": np.array(True), "size": np.array([5], np.int64)}
    signed = {}
    for where, body in INSIDE.items():
        path = save_text(
            tmp_path / "m.onnx",
            "(float[N] x) => (float[N] y)",
            body.format("Reshape(x, size)"),
            weights,
        )
        with pytest.raises(RunError) as caught:
            Runtime(TargetSettings()).load(path).run({"x": np.ones(7, np.float32)})
        signed[where] = caught.value.sign(names_of(onnx.load(path).graph))
    assert len(set(signed.values())) == 1, signed


RUNNING = "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running {} node. Name:'{}' Status Message: {}"
MADE = [
    "SkipLayerNormalization_token_220",
    "fused /a/Add",
    "/a/Add_output_0_nchwc",
    "y_q",
    "InsertedCast_/a/Add_output_0",
]


@pytest.mark.parametrize("generated", MADE)
def test_a_name_that_the_runtime_made_is_none_of_the_models_and_is_masked(generated: str) -> None:
    def sign(name: str) -> str:
        said = clean_message(
            RUNNING.format("SkipLayerNormalization", name, "skip should have the shape of input")
        )
        return mask_message(said, ["/a/Add", "/a/Add_output_0", "y"])

    said = "SkipLayerNormalization node #: skip should have the shape of input"
    assert sign(generated) == sign("SkipLayerNormalization") == said
    assert (
        mask_message(f"Duplicate definition of name ({generated}).")
        == "Duplicate definition of name #."
    )


def test_what_is_no_name_stays() -> None:
    axis, perm = (
        mask_message(f"unknown attribute '{name}' of Split", ["n"]) for name in ("axis", "perm")
    )
    assert axis != perm
    assert "tensor(float#)" in mask_message(
        "Type 'tensor(float16)' of input parameter (n) is invalid", ["n"]
    )
    assert "Conv" in mask_message(
        "Could not find an implementation for Conv(22) node with name 'Conv'", ["Conv"]
    )


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Add node 'a': axis was false", "Mul node 'b': axis was false", True),
        (
            "bound to types (tensor(float) and tensor(int64))",
            "bound to types (tensor(double))",
            True,
        ),
        ("Conv node 'a': no kernel", "Conv node 'a': dimension mismatch", False),
    ],
)
def test_the_class_of_an_error_has_no_operands(one: str, other: str, *, same: bool) -> None:
    first = mask_message(one, "ab")
    second = mask_message(other, "ab")
    assert first != second
    assert (error_class(first) == error_class(second)) is same


@given(st.text(max_size=200), st.lists(st.text(max_size=20), max_size=5))
@example("node 'a', 'b' name: c: d input (e), (f)", ["b"])
def test_masking_again_changes_nothing(text: str, names: list[str]) -> None:
    masked = mask_message(text, names)
    assert mask_message(masked) == masked
    assert error_class(error_class(masked)) == error_class(masked)
