"""Inputs and outputs that are no plain numbers: strings, sequences, maps and optionals; bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from conftest import CommandLine
from onnx import TensorProto, helper, numpy_helper
from support import onnx_tool

OVERFLOW = [
    helper.make_node("Mul", ["x", "k"], ["big"]),
    helper.make_node("Div", ["big", "k"], ["h"]),
]
"""In fp16 the product is Inf."""
X = np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4)


def typed(name: str, kind: onnx.TypeProto) -> onnx.ValueInfoProto:
    return onnx.ValueInfoProto(name=name, type=kind)


def tensor(elements: int, *shape: str | int | None) -> onnx.TypeProto:
    return helper.make_tensor_type_proto(elements, shape)


def probabilities(keys: int) -> onnx.TypeProto:
    kind = onnx.TypeProto()
    kind.sequence_type.elem_type.map_type.key_type = keys
    kind.sequence_type.elem_type.map_type.value_type.CopyFrom(tensor(TensorProto.FLOAT))
    return kind


def write(
    path: Path,
    nodes: list[onnx.NodeProto],
    outputs: dict[str, onnx.TypeProto],
    source: onnx.TypeProto | None = None,
) -> Path:
    graph = helper.make_graph(
        nodes,
        "m",
        [typed("x", source or tensor(TensorProto.FLOAT, "N", 4))],
        [typed(name, kind) for name, kind in outputs.items()],
        [numpy_helper.from_array(np.array(1e5, np.float32), "k")],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(path))
    return path


def classifier(path: Path, *, strings: bool) -> Path:
    """A classifier as skl2onnx exports it: a label, and a sequence of maps."""
    labels = (
        {"classlabels_strings": ["ant", "bee", "cat"]}
        if strings
        else {"classlabels_ints": [0, 1, 2]}
    )
    keys = labels if strings else {"classlabels_int64s": [0, 1, 2]}
    weights = np.random.default_rng(3).standard_normal(12).tolist()
    nodes = [
        helper.make_node(
            "LinearClassifier",
            ["h"],
            ["label", "scores"],
            domain="ai.onnx.ml",
            coefficients=weights,
            intercepts=[0.0, 0.1, 0.2],
            post_transform="SOFTMAX",
            **labels,
        ),
        helper.make_node("ZipMap", ["scores"], ["probability"], domain="ai.onnx.ml", **keys),
    ]
    key_type = TensorProto.STRING if strings else TensorProto.INT64
    outputs = {"label": tensor(key_type, "N"), "probability": probabilities(key_type)}
    return write(path, [*OVERFLOW, *nodes], outputs)


def sequence(path: Path) -> Path:
    kind = helper.make_sequence_type_proto(tensor(TensorProto.FLOAT, None, 4))
    node = helper.make_node("SplitToSequence", ["h"], ["parts"], axis=0)
    return write(path, [*OVERFLOW, node], {"parts": kind})


def optional(path: Path) -> Path:
    kind = helper.make_optional_type_proto(tensor(TensorProto.FLOAT, None, 4))
    return write(path, [*OVERFLOW, helper.make_node("Optional", ["h"], ["maybe"])], {"maybe": kind})


MODELS: dict[str, tuple[Callable[[Path], Path], list[str]]] = {
    "labels of integers": (
        lambda path: classifier(path, strings=False),
        ["label", "probability[0]", "probability[1]", "probability[2]"],
    ),
    "labels of strings": (
        lambda path: classifier(path, strings=True),
        ["label", "probability[ant]", "probability[bee]", "probability[cat]"],
    ),
    "a sequence": (sequence, [f"parts[{place}]" for place in range(5)]),
    "an optional": (optional, ["maybe[value]"]),
}


@pytest.mark.parametrize("kind", MODELS)
def test_every_member_is_compared(cli: CommandLine, here: Path, kind: str) -> None:
    """No output is left out of the verdict, and the search goes on from a wrong one."""
    make, names = MODELS[kind]
    model = make(here / "m.onnx")
    np.savez("x.npz", x=X)
    words = ("m.onnx", "--onnxrt", "--load-inputs", "x.npz", "--json", "r.json")
    right = cli("run", *words).ended(0).result
    assert [entry["name"] for entry in right["comparisons"]] == names
    wrong = cli("run", *words, "--fp16").ended(1).result
    assert not any(entry["passed"] for entry in wrong["comparisons"])
    reduced = cli("reduce", *words, "-o", "small.onnx", "--fp16").ended(0).result
    assert [entry["op"] for entry in reduced["culprits"]] == ["Mul"]
    assert model.exists()


TOOLS = {
    "another class": ("LinearClassifier", "label"),
    "another key": ("ZipMap", "probability"),
}


@pytest.mark.parametrize("change", TOOLS)
def test_a_wrong_string_is_seen(cli: CommandLine, here: Path, change: str) -> None:
    """A tool that only renames a class leaves all numbers as they are."""
    op, wrong = TOOLS[change]
    classifier(here / "m.onnx", strings=True)
    np.savez("x.npz", x=X)
    tool = onnx_tool(
        "for node in model.graph.node:\n"
        f"    if node.op_type == {op!r}:\n"
        "        for each in node.attribute:\n"
        "            if each.name == 'classlabels_strings':\n"
        "                each.strings[:] = [word + b's' for word in each.strings]\n"
    )
    words = ("m.onnx", "--through", tool, "--load-inputs", "x.npz", "--json", "r.json")
    ran = cli("run", *words).ended(1).result
    failed = [entry["name"] for entry in ran["comparisons"] if not entry["passed"]]
    assert failed
    assert all(name.partition("[")[0] == wrong for name in failed)


def test_strings_are_fed(cli: CommandLine, here: Path) -> None:
    encoder = helper.make_node(
        "LabelEncoder",
        ["x"],
        ["id"],
        domain="ai.onnx.ml",
        keys_strings=["ant", "bee"],
        values_floats=[1.0, 2.0],
    )
    nodes = [
        encoder,
        helper.make_node("Mul", ["id", "k"], ["big"]),
        helper.make_node("Div", ["big", "k"], ["y"]),
    ]
    write(
        here / "m.onnx",
        nodes,
        {"y": tensor(TensorProto.FLOAT, "N")},
        tensor(TensorProto.STRING, "N"),
    )
    np.savez("x.npz", x=np.array(["bee", "ant", "bee"]))
    words = ("m.onnx", "--onnxrt", "--json", "r.json")
    cli("run", *words, "--load-inputs", "x.npz").ended(0)
    found = cli("reduce", *words, "--fp16", "-o", "s.onnx", "--load-inputs", "x.npz").ended(0)
    assert [entry["op"] for entry in found.result["culprits"]] == ["Mul"]
    cli("run", *words).refused("BT1007", "--load-inputs")


def test_bfloat16_is_read_from_its_bits(cli: CommandLine, here: Path) -> None:
    """NumPy has no bfloat16, so files hold its bits as unsigned integers."""
    kind = tensor(TensorProto.BFLOAT16, 2, 4)
    nodes = [
        helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["f"], ["y"], to=TensorProto.BFLOAT16),
    ]
    write(here / "m.onnx", nodes, {"y": kind}, kind)
    values = np.arange(8).reshape(2, 4).astype(ml_dtypes.bfloat16)
    np.savez("x.npz", x=values.view(np.uint16))
    words = ("--load-inputs", "x.npz", "--save-outputs", "y.npz")
    cli("run", "m.onnx", "--onnxrt", *words).ended(0)
    assert np.array_equal(np.load("y.npz")["y"], values.view(np.uint16))
