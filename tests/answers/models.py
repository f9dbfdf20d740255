"""The tiny models of the corpus; each function writes one, and the same one each time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from support import OVERFLOWS, line, model_of, overflowing_line

_FLOAT = TensorProto.FLOAT
Shape = Sequence[int | str]


def _save(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    weights: dict[str, Any] | None = None,
    inputs: dict[str, Shape] | None = None,
    outputs: dict[str, Shape] | None = None,
    *,
    opset: int = 17,
) -> Path:
    given = inputs or {"x": (2, 4)}
    ends = outputs or {
        nodes[-1].output[0]: ("n", 4) if "n" in next(iter(given.values())) else (2, 4)
    }
    onnx.save(model_of(nodes, weights or {}, inputs=given, outputs=ends, opset=opset), str(path))
    return path


def chain(path: Path, names: str, *, rows: int | str = 2) -> Path:
    """Nodes of these names, one behind the other; each adds 1."""
    nodes = line([("Add", "one", name) for name in names.split()])
    shape = (rows, 4)
    return _save(path, nodes, {"one": 1.0}, {"x": shape}, {nodes[-1].output[0]: shape})


def long(path: Path, length: int, bad: dict[int, str]) -> Path:
    """A chain of so many nodes ``n0``, ``n1``, ..., with other names at some places."""
    return chain(path, " ".join(bad.get(place, f"n{place}") for place in range(length)))


def branches(path: Path, left: str, right: str, tail: str = "end") -> Path:
    """Two chains from one input that a last node adds up."""
    sides = [line([("Add", "one", name) for name in names.split()]) for names in (left, right)]
    nodes = [*sides[0], *sides[1]]
    nodes.append(
        helper.make_node("Add", [side[-1].output[0] for side in sides], ["joined"], name="join")
    )
    nodes.append(helper.make_node("Add", ["joined", "one"], [f"{tail}_out"], name=tail))
    return _save(path, nodes, {"one": 1.0})


def two_outputs(path: Path, names: str = "a wrong.b c d wrong.e f", at: str = "c") -> Path:
    """A chain whose value behind ``at`` is an output too."""
    chain(path, names)
    model = onnx.load(str(path))
    model.graph.output.append(helper.make_tensor_value_info(f"{at}_out", _FLOAT, (2, 4)))
    onnx.save(model, str(path))
    return path


def overflowing(path: Path, before: int = 3, after: int = 3) -> Path:
    """A chain whose ``big`` makes 90000, more than fp16 has, and whose next node makes that 0.9 again."""
    return _save(path, overflowing_line(before, after), OVERFLOWS)


def two_overflows(path: Path) -> Path:
    """Two places past fp16 in one chain, which come back each time."""
    kinds = (
        ("Add", "one", "a"),
        ("Mul", "big", "big"),
        ("Mul", "small", "small"),
        ("Relu", "", "t"),
    )
    steps = [(op, weight, f"{name}{number}") for number in (1, 2) for op, weight, name in kinds]
    return _save(path, line(steps), {"one": 1.0, "big": 3e5, "small": 1e-5})


def cancelling(path: Path, mean: float = 1e4) -> Path:
    """A decomposed LayerNorm of values around ``mean``, which ONNX Runtime fuses to a kernel that cancels."""
    steps = [
        ("Add", "x off", "h"),
        ("ReduceMean", "h", "m"),
        ("Sub", "h m", "d"),
        ("Pow", "d two", "p"),
        ("ReduceMean", "p", "v"),
        ("Add", "v eps", "ve"),
        ("Sqrt", "ve", "s"),
        ("Div", "d s", "n"),
        ("Mul", "n gain", "ng"),
        ("Add", "ng bias", "y"),
        ("Relu", "y", "z"),
    ]
    axes: dict[str, Any] = {"axes": [-1]}
    nodes = [
        helper.make_node(
            op, reads.split(), [makes], name=makes, **(axes if op == "ReduceMean" else {})
        )
        for op, reads, makes in steps
    ]
    weights: dict[str, Any] = {"off": mean, "two": 2.0, "eps": 1e-5}
    weights |= {"gain": np.ones(64, np.float32), "bias": np.zeros(64, np.float32)}
    shape = (4, 64)
    return _save(path, nodes, weights, {"x": shape}, {"z": shape}, opset=13)


def convolutions(path: Path, names: str = "c0 c1 wrong.c2 c3", channels: int = 4) -> Path:
    """Convolutions with a Relu behind each."""
    values = np.random.default_rng(0)
    last = "x"
    nodes = []
    weights = {}
    for name in names.split():
        weights[f"w_{name}"] = values.normal(0, 0.3, (channels, channels, 3, 3)).astype(np.float32)
        nodes.append(
            helper.make_node("Conv", [last, f"w_{name}"], [f"{name}_out"], name=name, pads=[1] * 4)
        )
        nodes.append(
            helper.make_node("Relu", [f"{name}_out"], [f"{name}_relu"], name=f"relu_{name}")
        )
        last = f"{name}_relu"
    shape = (1, channels, 6, 6)
    return _save(path, nodes, weights, {"x": shape}, {last: shape})


def quantized(path: Path, scales: Sequence[float] = (0.02, 0.0005, 0.02), per: int = 1) -> Path:
    """Matrix products with a Q/DQ pair before each; a scale that is much too small cuts values off."""
    values = np.random.default_rng(1)
    last = "x"
    nodes = []
    weights: dict[str, Any] = {"zero": np.array(0, np.int8)}
    for place, scale in enumerate(scales):
        weights[f"s{place}"] = np.array(scale, np.float32)
        weights[f"w{place}"] = values.normal(0, 0.5, (4, 4)).astype(np.float32)
        for step in range(per):
            q = f"q{place}_{step}"
            dq = f"dq{place}_{step}"
            nodes.append(
                helper.make_node(
                    "QuantizeLinear", [last, f"s{place}", "zero"], [f"{q}_out"], name=q
                )
            )
            nodes.append(
                helper.make_node(
                    "DequantizeLinear", [f"{q}_out", f"s{place}", "zero"], [f"{dq}_out"], name=dq
                )
            )
            last = f"{dq}_out"
        nodes.append(
            helper.make_node("MatMul", [last, f"w{place}"], [f"m{place}_out"], name=f"m{place}")
        )
        nodes.append(
            helper.make_node("Tanh", [f"m{place}_out"], [f"t{place}_out"], name=f"t{place}")
        )
        last = f"t{place}_out"
    return _save(path, nodes, weights)


def dynamic(path: Path, names: str = "a b rows4.c d") -> Path:
    """A chain whose first dimension is free."""
    return chain(path, names, rows="n")


def external(path: Path, names: str = "a wrong.b c") -> Path:
    """Matrix products whose weights lie in a file beside the model."""
    values = np.random.default_rng(2)
    weights = {
        f"w_{name}": values.normal(0, 0.5, (4, 4)).astype(np.float32) for name in names.split()
    }
    _save(path, line([("MatMul", f"w_{name}", name) for name in names.split()]), weights)
    model = onnx.load(str(path))
    onnx.save(
        model, str(path), save_as_external_data=True, location=f"{path.stem}.data", size_threshold=0
    )
    return path


def with_if(path: Path) -> Path:
    """A chain with an If in it, whose branches read a tensor from outside."""
    branch = [
        helper.make_graph(
            [helper.make_node(op, ["a_out", "one"], [f"{op}_out"], name=f"in_{op}")],
            op,
            [],
            [helper.make_tensor_value_info(f"{op}_out", _FLOAT, (2, 4))],
        )
        for op in ("Add", "Mul")
    ]
    nodes = [
        helper.make_node("Add", ["x", "one"], ["a_out"], name="a"),
        helper.make_node("ReduceSum", ["a_out"], ["sum"], name="sum", keepdims=0),
        helper.make_node("Greater", ["sum", "one"], ["more"], name="more"),
        helper.make_node(
            "If", ["more"], ["if_out"], name="if", then_branch=branch[0], else_branch=branch[1]
        ),
        helper.make_node("Add", ["if_out", "one"], ["b_out"], name="wrong.b"),
        helper.make_node("Add", ["b_out", "one"], ["c_out"], name="c"),
    ]
    return _save(path, nodes, {"one": 1.0})


def with_loop(path: Path, bad: str = "wrong.loop") -> Path:
    """A Loop that adds 1 three times, between two nodes."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"], name="keep"),
            helper.make_node("Add", ["carried", "one"], ["next"], name="step"),
        ],
        "body",
        [
            helper.make_tensor_value_info("number", TensorProto.INT64, ()),
            helper.make_tensor_value_info("go", TensorProto.BOOL, ()),
            helper.make_tensor_value_info("carried", _FLOAT, (2, 4)),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, ()),
            helper.make_tensor_value_info("next", _FLOAT, (2, 4)),
        ],
    )
    nodes = [
        helper.make_node("Add", ["x", "one"], ["a_out"], name="a"),
        helper.make_node("Loop", ["times", "yes", "a_out"], ["loop_out"], name=bad, body=body),
        helper.make_node("Add", ["loop_out", "one"], ["b_out"], name="b"),
    ]
    return _save(path, nodes, {"one": 1.0, "times": np.array(3, np.int64), "yes": np.array(True)})


def with_scan(path: Path, bad: str = "c") -> Path:
    """A Scan over the rows, behind one node and before another."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["state", "row"], ["sum"], name="step"),
            helper.make_node("Identity", ["sum"], ["seen"], name="show"),
        ],
        "body",
        [helper.make_tensor_value_info(name, _FLOAT, (4,)) for name in ("state", "row")],
        [helper.make_tensor_value_info(name, _FLOAT, (4,)) for name in ("sum", "seen")],
    )
    nodes = [
        helper.make_node("Add", ["x", "one"], ["a_out"], name="a"),
        helper.make_node(
            "Scan",
            ["start", "a_out"],
            ["last", "rows"],
            name="wrong.scan",
            body=body,
            num_scan_inputs=1,
        ),
        helper.make_node("Add", ["rows", "one"], ["c_out"], name=bad),
    ]
    return _save(path, nodes, {"one": 1.0, "start": np.zeros(4, np.float32)})


def tanhs(path: Path) -> Path:
    """Tanhs behind Adds, and one behind a matrix product."""
    weight = np.random.default_rng(3).normal(0, 0.5, (4, 4)).astype(np.float32)
    reads = {"Add": "one", "MatMul": "w", "Tanh": ""}
    operators = enumerate(("Add", "Tanh", "MatMul", "Tanh", "Add", "Tanh"))
    return _save(
        path,
        line([(op, reads[op], f"n{place}") for place, op in operators]),
        {"one": 1.0, "w": weight},
    )


def foldable(path: Path) -> Path:
    """A model with constants to fold, an Identity and a node that nothing reads."""
    nodes = [
        helper.make_node("Add", ["one", "two"], ["three"], name="constants"),
        helper.make_node("Mul", ["x", "three"], ["y"], name="use"),
        helper.make_node("Identity", ["y"], ["same"], name="same"),
        helper.make_node("Sub", ["y", "one"], ["unread"], name="unread"),
        helper.make_node("Relu", ["same"], ["z"], name="end"),
    ]
    return _save(path, nodes, {"one": 1.0, "two": 2.0}, None, {"z": (2, 4)})


def half(path: Path) -> Path:
    """A node that no runtime knows, between two that all do."""
    nodes = [
        helper.make_node("Add", ["x", "one"], ["a_out"], name="a"),
        helper.make_node("Mystery", ["a_out"], ["m_out"], name="m", domain="nobody.knows"),
        helper.make_node("Add", ["m_out", "one"], ["b_out"], name="b"),
    ]
    _save(path, nodes, {"one": 1.0})
    model = onnx.load(str(path))
    model.opset_import.append(helper.make_opsetid("nobody.knows", 1))
    onnx.save(model, str(path))
    return path


def damaged(path: Path) -> Path:
    """Bytes that are no model."""
    path.write_bytes(b"no model \xff\x00" * 20)
    return path


def inputs(path: Path, values: Sequence[float], shape: Sequence[int] = (2, 4)) -> Path:
    """Input values ``x`` that are one number each; with several, one file a sample."""
    for number, value in enumerate(values):
        name = path if len(values) == 1 else path.with_name(f"{path.stem}{number}{path.suffix}")
        np.savez(name, x=np.full(shape, value, np.float32))
    return path
