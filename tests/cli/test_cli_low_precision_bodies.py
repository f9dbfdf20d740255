"""``--fp16`` and ``convert`` on models that compute in bodies and functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from building import save_text, text_model
from conftest import CommandLine
from support import Ran, arrays, rest_slow

from bisect_trt.onnxlib.nodes import all_nodes

ENDS = "(float[2, 3] x) => (float[2, 3] y)"
WEIGHTS = {"hundred": 100.0, "flag": np.array(True), "two": np.array(2)}


def squared(reads: str, makes: str) -> str:
    """(900 * 100)**2 is past the largest fp16 number, and so is its root."""
    return f"big = Mul({reads}, hundred) square = Mul(big, big) {makes} = Sqrt(square)"


BODIES = {
    "If": (
        f"y = If(flag)<then_branch = a () => (float[2, 3] r) {{ {squared('x', 'r')} }}, "
        "else_branch = b () => (float[2, 3] e) { e = Neg(x) }>"
    ),
    "Loop": (
        "y = Loop(two, flag, x)<body = a (int64 i, bool c, float[2, 3] v) => (bool d, float[2, 3] n) "
        f"{{ d = Identity(c) {squared('v', 'r')} n = Div(r, hundred) }}>"
    ),
    "Scan": f"y = Scan<num_scan_inputs = 1, body = a (float[3] v) => (float[3] r) {{ {squared('v', 'r')} }}>(x)",
}
FUNCTION = (
    f'<domain: "own", opset_import: ["" : 13]> Root (v, hundred) => (r) {{ {squared("v", "r")} }}'
)


def written(kind: str, here: Path) -> Path:
    np.savez(here / "x.npz", x=np.full((2, 3), 900, np.float32))
    if kind == "function":
        return save_text(
            here / "m.onnx", ENDS, "y = own.Root(x, hundred)", WEIGHTS, functions=FUNCTION
        )
    return save_text(here / "m.onnx", ENDS, BODIES[kind], WEIGHTS)


@pytest.mark.parametrize("kind", [*BODIES, "function"])
def test_an_overflow_inside_is_seen(cli: CommandLine, here: Path, kind: str) -> None:
    words = ("run", written(kind, here), "--onnxrt", "--fp16", "--load-inputs", "x.npz")
    cli("run", "m.onnx", "--onnxrt", "--load-inputs", "x.npz").ended(0)
    comparison = cli(*words, "--json", "r.json").ended(1).result["comparisons"][0]
    assert not comparison["passed"]
    # 90000 itself is past fp16's range; in fp32 with all that reads it, no node overflows.
    inside = (
        ["y"]
        if kind == "function"
        else [f"y/{name}" for name in ("big", "square", "r", "n")[: 4 if kind == "Loop" else 3]]
    )
    cli(*words, "--keep-fp32", *inside, "--rtol", "2e-3").ended(0)


@pytest.mark.parametrize("kind", [*BODIES, "function"])
def test_convert_writes_what_is_inside(cli: CommandLine, here: Path, kind: str) -> None:
    ran = cli("convert", written(kind, here), "-o", "half.onnx", "--fp16").ended(0)
    model = onnx.load("half.onnx")
    casts = sum(node.op_type == "Cast" for node in all_nodes(model))
    assert f"{casts} of them Casts" in ran.out
    weights = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    assert onnx.TensorProto.FLOAT16 in weights.values()
    cli("run", "half.onnx", "--onnxrt", "--load-inputs", "x.npz", "--save-outputs", "o.npz")
    assert arrays("o.npz")["y"].shape == (2, 3)
    # With narrow inputs and outputs it is the same model, and is fed and compared as one.
    model_path = written(kind, here)
    cli("convert", model_path, "--fp16", "--io-fp16", "-o", "narrow.onnx").ended(0)
    narrow = onnx.load("narrow.onnx").graph
    types = {value.type.tensor_type.elem_type for value in (*narrow.input, *narrow.output)}
    assert onnx.TensorProto.FLOAT not in types
    np.savez("h.npz", x=arrays("x.npz")["x"].astype(np.float16))
    cli("run", "narrow.onnx", "--onnxrt", "--load-inputs", "h.npz", "--save-outputs", "n.npz")
    assert arrays("n.npz")["y"].dtype == np.float16
    for words in (("-o", "a.engine", "--fp16"), ("-o", "a.onnx", "--bf16")):
        cli("convert", model_path, *words, "--io-fp16").refused("BT1004", "--io-fp16")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (
            "y = com.microsoft.Gelu(x)",
            "1 node cannot be lowered to fp16: 1 of other domains than ONNX's (com.microsoft.Gelu)",
        ),
        ("i = Cast<to = 7>(x) j = Neg(i) y = Cast<to = 1>(j)", "no node computes in fp32"),
    ],
)
def test_a_conversion_that_changes_nothing_is_refused(
    cli: CommandLine, here: Path, body: str, why: str
) -> None:
    model = save_text(here / "m.onnx", ENDS, body)
    proto = onnx.load(str(model))
    proto.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    onnx.save(proto, str(model))
    cli("convert", model, "-o", "half.onnx", "--fp16").refused("BT1009", why)
    assert not Path("half.onnx").exists()
    if why == "no node computes in fp32":  # then no node is wrong in fp16
        ran = cli("run", model, "--onnxrt", "--fp16").ended(0)
        assert f"--fp16 changes nothing: {why}" in " ".join(ran.err.split())
    else:
        cli("run", model, "--onnxrt", "--fp16").refused("BT1009", f"m.onnx: {why}; drop the option")


def test_what_stays_in_fp32_is_said_with_its_number_of_nodes(cli: CommandLine, here: Path) -> None:
    model = save_text(
        here / "m.onnx",
        ENDS,
        "a = Exp(x) b = com.microsoft.Gelu(a) c = com.microsoft.Gelu(b) y = Neg(c)",
    )
    proto = onnx.load(str(model))
    proto.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    onnx.save(proto, str(model))
    left = "2 nodes cannot be lowered to fp16: 2 of other domains than ONNX's (com.microsoft.Gelu)"
    assert f"{left}; 2 nodes can" in " ".join(
        cli("run", model, "--onnxrt", "--fp16").ended(0).err.split()
    )
    cli("convert", model, "-o", "half.onnx", "--fp16").ended(0)


def settled(ran: Ran) -> dict[str, Any]:
    """Return the result of a search that came to its end; a set that lowers nothing is no fix."""
    assert ran.status == (0 if ran.result["lowered"] else 3), ran.out
    return ran.result


@pytest.mark.parametrize("kind", [*BODIES, "function"])
def test_precision_keeps_the_nodes_inside_that_need_fp32(
    cli: CommandLine, here: Path, kind: str
) -> None:
    words = ("precision", written(kind, here), "--onnxrt", "--fp16", "--load-inputs", "x.npz")
    result = settled(cli(*words, "-o", "mixed.onnx", "--json", "r.json"))
    kept = [node["outputs"][0] for node in result["keep_fp32"]]
    within = "" if kind == "function" else "y/"
    assert [name.removeprefix(within).split("__")[0] for name in kept][:2] == ["big", "square"]
    assert result["not_lowered"] >= 0
    run = ("run", "m.onnx", "--onnxrt", "--fp16", "--load-inputs", "x.npz", "--rtol", "2e-2")
    cli(*run, "--keep-fp32", *(["y"] if kind == "function" else kept)).ended(0)
    cli("run", "mixed.onnx", "--onnxrt", "--load-inputs", "x.npz").ended(0)


def test_include_and_exclude_match_nodes_inside(cli: CommandLine, here: Path) -> None:
    body = BODIES["If"].replace("y =", "t =") + " y = Div(t, hundred)"
    model = save_text(here / "m.onnx", ENDS, body, WEIGHTS)
    np.savez("x.npz", x=np.full((2, 3), 900, np.float32))
    words = ("precision", model, "--onnxrt", "--fp16", "--load-inputs", "x.npz", "-o", "h.onnx")

    def searched(*options: str) -> int:
        result = settled(cli(*words, "--overwrite", "--json", "r.json", *options))
        return int(result["lowered"]) + len(result["keep_fp32"])

    assert searched() == 5
    assert searched("--exclude", "op:Mul") == 3
    assert searched("--exclude", "op:If") == 1
    assert searched("--exclude", "op:Div", "t/r") == 3


def local(name: str, nodes: str, opset: int = 13) -> str:
    """A function of ``v`` that makes ``r``."""
    return (
        f'<domain: "own", opset_import: ["" : {opset}, "own" : 1]> {name} (v) => (r) {{ {nodes} }} '
    )


HALF = local("Half", "e = Exp(v) r = Sqrt(e)")
OLD = local("Old", "e = Neg(v) r = Abs(e)", 12)
UNUSUAL: dict[str, tuple[str, str, dict[int, str]]] = {
    "another operator set beside": ("a = own.Old(x) y = own.Half(a)", OLD + HALF, {}),
    "another operator set inside": ("y = own.Out(x)", OLD + local("Out", "r = own.Old(v)"), {}),
    "an undefined function": ("y = own.Out(x)", local("Out", "r = own.Undefined(v)"), {}),
    "itself": ("y = own.Out(x)", local("Out", "r = own.Out(v)"), {}),
    "overloads": (
        "a = own.Half(x) y = own.Half(a)",
        HALF + OLD.replace("Old", "Half"),
        {1: "second"},
    ),
    "an undefined overload": ("y = own.Half(x)", HALF, {0: "second"}),
    "no operator set": ("y = own.Half(x)", HALF.replace('"" : 13, ', ""), {}),
    "a domain without an operator set": ("y = new.Half(x)", HALF.replace('"own",', '"new",'), {}),
    "too many arguments": ("y = own.Half(x, x)", HALF, {}),
    "a version past 32 bits": ("y = own.Half(x)", local("Half", "r = Exp(v)", 2**40), {}),
}
"""Main graph, functions, and the overloads of nodes; the last function has the second overload."""


@pytest.mark.parametrize("command", rest_slow(["convert", "run", "diagnose"], now=1))
@pytest.mark.parametrize("calls", UNUSUAL)
def test_a_call_that_cannot_be_inlined_ends_in_an_answer(
    cli: CommandLine, calls: str, command: str
) -> None:
    body, functions, overloads = UNUSUAL[calls]
    proto = text_model(ENDS, body, functions=functions)
    proto.ir_version = 10  # the first with overloads
    for place, name in overloads.items():
        proto.graph.node[place].overload = name
    if len(proto.graph.node) == 2 and overloads:
        proto.functions[-1].overload = "second"
    onnx.save(proto, "m.onnx")
    np.savez("x.npz", x=np.full((2, 3), 12, np.float32))  # exp(12) is past fp16's range
    words = {
        "convert": ("-o", "half.onnx"),
        "run": ("--onnxrt", "--load-inputs", "x.npz"),
        "diagnose": ("--onnxrt", "--load-inputs", "x.npz", "-o", "out", "--max-probes", "60"),
    }[command]
    ran = cli(command, "m.onnx", "--fp16", *words)
    assert ran.status in (0, 1, 2, 4)
    assert "error[BT9" not in ran.err


@pytest.mark.parametrize("called", [0, 1])
def test_the_overload_that_overflows_is_named_and_written(cli: CommandLine, called: int) -> None:
    """Two functions have one domain and name; a reproducer needs the one that is called."""
    proto = text_model(ENDS, "y = own.Half(x)", functions=HALF + HALF.replace("Exp", "Tanh"))
    proto.ir_version = 10  # the first with overloads
    proto.functions[1 - called].overload = "second"
    proto.functions[0].node[0].op_type = "Exp"
    proto.graph.node[0].overload = proto.functions[0].overload
    onnx.save(proto, "m.onnx")
    np.savez("x.npz", x=np.full((2, 3), 12, np.float32))
    words = ("--onnxrt", "--fp16", "--load-inputs", "x.npz", "-o", "out", "--no-other-release")
    answer = cli("diagnose", "m.onnx", *words, "--json", "r.json").ended(0).result
    (level,) = answer["inside"]
    assert [node["op"] for node in level["nodes"]] == ["Exp"]
    (kept,) = onnx.load("out/model.onnx").functions
    assert kept.overload == proto.functions[0].overload


def test_diagnose_names_a_call_of_another_operator_set(cli: CommandLine) -> None:
    """The calls beside it are inlined, and it stays in fp32."""
    nodes = "big = Mul(v, hundred) square = Mul(big, big) e = Sqrt(square) r = Div(e, hundred)"
    functions = OLD + local("Far", nodes).replace("(v)", "(v, hundred)")
    body = "a = own.Far(x, hundred) y = own.Old(a)"
    save_text("m.onnx", ENDS, body, WEIGHTS, functions=functions)
    np.savez("x.npz", x=np.full((2, 3), 900, np.float32))
    words = ("--onnxrt", "--fp16", "--load-inputs", "x.npz", "-o", "out", "--no-shrink")
    answer = cli("diagnose", "m.onnx", *words, "--json", "r.json").ended(0).result
    assert [node["op"] for node in answer["culprits"]] == ["Far"]
