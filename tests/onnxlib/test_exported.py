"""What leaves in a bug report: the same model without its prose; with other names and weights, one of the same kind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from building import evaluate, proto_of, text_model
from conftest import CommandLine
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from support import TARGET, overflowing

from bisect_trt.onnxlib.cleanup import anonymise, strip
from bisect_trt.onnxlib.nodes import Module, module_of
from bisect_trt.onnxlib.roundings import find_roundings, lows_of
from bisect_trt.tensors.tolerance import Precision

WAYS = (("then", "Neg"), ("else", "Identity"))
SECRET = "Secret (a) => (b) { b = Neg(a) }"


def model_with(weight: TensorProto, op: str = "Add") -> onnx.ModelProto:
    """``op`` of an input and a weight, inside a function and inside a branch too."""
    kind = (
        f"{TensorProto.DataType.Name(weight.data_type).lower()}[{', '.join(map(str, weight.dims))}]"
    )
    branches = [
        f"{way}_branch = {way} () => ({kind} {way}_out) {{ {way}_out = {made}(half) }}"
        for way, made in WAYS
    ]
    twice = f"Twice (a, b) => (c) {{ mid = {op}(a, b) c = Identity(mid) }}"
    functions = " ".join(
        f'<domain: "own", opset_import: ["" : 17]> {each}' for each in (twice, SECRET)
    )
    body = f"half = own.Twice(first, weight) yes = Constant<value = bool {{1}}>() last = If(yes) <{', '.join(branches)}>"
    model = text_model(f"({kind} first) => ({kind} last)", body, opset=17, functions=functions)
    model.functions[0].node[0].name = "inside"
    model.graph.node[0].name = "outside"
    model.graph.initializer.append(weight)
    onnx.checker.check_model(model)
    return model


@given(st.lists(st.floats(-(2.0**90), 2.0**90, width=32), min_size=2, max_size=20))
def test_weights_are_replaced_in_their_own_range(values: list[float]) -> None:
    old = np.array(values, np.float32)
    anonymous = anonymise(model_with(numpy_helper.from_array(old, "weight")))
    onnx.checker.check_model(anonymous.proto)
    (weight,) = anonymous.proto.graph.initializer
    new = numpy_helper.to_array(weight)
    assert (new.shape, new.dtype) == (old.shape, old.dtype)
    assert new.min() == pytest.approx(old.min(), rel=1e-6)
    assert new.max() == pytest.approx(old.max(), rel=1e-6)
    assert anonymous.kept == ()


def test_it_computes_the_same_with_the_same_weights() -> None:
    old = np.linspace(1, 2, 6, dtype=np.float32).reshape(2, 3)
    model = model_with(numpy_helper.from_array(old, "weight"))
    anonymous = anonymise(strip(model))
    names = anonymous.names
    anonymous.proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(old, names["weight"]))
    fed = np.ones((2, 3), np.float32)
    got = evaluate(anonymous.proto, anonymous.rename({"first": fed}))[names["last"]]
    np.testing.assert_array_equal(got, evaluate(model, {"first": fed})["last"])


def test_no_name_is_left() -> None:
    model = strip(model_with(numpy_helper.from_array(np.ones(3, np.float32), "weight")))
    assert [function.name for function in model.functions] == ["Twice"]
    content = anonymise(model).proto.SerializeToString()
    for name in ("first", "last", "half", "weight", "inside", "outside", "mid"):
        assert name.encode() not in content


@pytest.mark.parametrize(
    "dtype", [TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE, TensorProto.INT8]
)
def test_other_types_of_weights(dtype: int) -> None:
    weight = helper.make_tensor("weight", dtype, [64], [n % 7 - 3 for n in range(64)])
    anonymous = anonymise(model_with(weight))
    (new,) = anonymous.proto.graph.initializer
    assert (new.data_type, list(new.dims)) == (dtype, [64])
    values = numpy_helper.to_array(new).astype(np.float64)
    assert (values.min(), values.max()) == (-3, 3)
    assert not np.array_equal(values, numpy_helper.to_array(weight).astype(np.float64))


def test_what_may_be_an_index_and_what_is_not_finite_stays() -> None:
    indices = np.array([0, 1, 2], np.int64)
    anonymous = anonymise(model_with(numpy_helper.from_array(indices, "weight")))
    np.testing.assert_array_equal(
        numpy_helper.to_array(anonymous.proto.graph.initializer[0]), indices
    )
    mask = np.array([0, -np.inf, 1, np.nan], np.float32)
    anonymous = anonymise(model_with(numpy_helper.from_array(mask, "weight")))
    new = numpy_helper.to_array(anonymous.proto.graph.initializer[0])
    np.testing.assert_array_equal(np.isfinite(new), np.isfinite(mask))
    assert new[1] == -np.inf


def test_weights_that_cannot_be_replaced_are_named() -> None:
    weight = helper.make_tensor("weight", TensorProto.FLOAT8E4M3FN, [4], [1.0, 2.0, 3.0, 4.0])
    anonymous = anonymise(
        proto_of([helper.make_node("Cast", ["weight"], ["y"], to=1)], [], [], {"weight": weight})
    )
    assert anonymous.kept == (anonymous.names["weight"],)


# Where a node was written, of what PyTorch's exporters leave in a file; see also
# tests/truth/from_torch.py.


NAMES = st.from_regex(r"[a-z_][a-z_0-9]{0,6}|[0-9]{1,2}", fullmatch=True)
PATHS = st.lists(NAMES, max_size=4)


def described(node: onnx.NodeProto, **said: str) -> onnx.NodeProto:
    """The node with metadata of PyTorch's exporter."""
    for key, value in said.items():
        node.metadata_props.add(
            key=key if key == "namespace" else f"pkg.torch.onnx.{key}", value=value
        )
    return node


def scopes_of(path: list[str]) -> tuple[list[str], list[str]]:
    """Scopes and classes as the exporter prints them: every prefix, then the operator."""
    scopes = [".".join(path[:end]) for end in range(len(path) + 1)]
    return [*scopes, "pow_1"], [
        *(f"net.C{place}" for place in range(len(scopes))),
        "aten.pow.Tensor_Scalar",
    ]


TRACE = (
    'File "/src/net.py", line 23, in forward\n    x = block(x)\n  File "/src/torch/norm.py", line 7, in forward\n'
    '    v = x.pow(2)\n  File "/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 134, in forward\n    return'
)


@given(PATHS)
def test_what_the_exporter_says_is_read_in_either_of_its_forms(path: list[str]) -> None:
    scopes, kinds = scopes_of(path)
    wanted = Module(path=".".join(path), cls=f"net.C{len(path)}", source="/src/torch/norm.py:7")
    node = helper.make_node("Pow", ["x", "two"], ["y"])
    said = {"name_scopes": repr(scopes), "class_hierarchy": repr(kinds), "stack_trace": TRACE}
    assert module_of(described(node, **said)) == wanted
    older = helper.make_node("Pow", ["x", "two"], ["y"])
    pairs = "/".join(f"{scope}: {kind}" for scope, kind in zip(scopes, kinds, strict=True))
    assert module_of(described(older, namespace=pairs, stack_trace=TRACE)) == wanted


@given(st.lists(NAMES, min_size=1, max_size=4), st.sets(st.integers(0, 3)))
def test_torch_script_names_what_a_sequential_calls_with_the_sequential_before_it(
    path: list[str], called: set[int]
) -> None:
    scopes: list[str] = []
    for place, name in enumerate(path):
        inside = place > 0 and place in called  # of a Sequential, which is a scope of its own
        scopes.append(f"{scopes[-1]}.{name}" if inside else name)
    node = helper.make_node("Conv", ["x"], ["y"], name=f"/{'/'.join(scopes)}/Conv")
    assert module_of(node) == Module(path=".".join(path))


@pytest.mark.parametrize("name", ["", "Conv_12", "model/dense/MatMul", "/MatMul", "<3>"])
def test_of_other_names_nothing_is_made_up(name: str) -> None:
    assert module_of(helper.make_node("Conv", ["x"], ["y"], name=name)) is None


@pytest.mark.parametrize(
    "said", ["[", "__import__('os')", "7", "['a'] * 9**9", "(" * 5000, "\0", "[1, None]" * 99999]
)
def test_a_strangers_text_is_neither_run_nor_an_accident(said: str) -> None:
    module = module_of(
        described(helper.make_node("Pow", ["x"], ["y"]), name_scopes=said, stack_trace=said)
    )
    assert module is None or module.cls is None


@pytest.mark.parametrize(
    ("scope", "path"),
    [
        ("L['self'].blocks[0].norm", "blocks.0.norm"),
        ("L['self']._modules['blocks']._modules['0']", "blocks.0"),
        ("blocks.0.norm@1", "blocks.0.norm"),
    ],
)
def test_scopes_of_strict_export_are_paths(scope: str, path: str) -> None:
    node = described(helper.make_node("Pow", ["x"], ["y"]), name_scopes=repr(["", scope, "pow_1"]))
    module = module_of(node)
    assert module is not None
    assert module.path == path


def test_a_diagnosis_names_the_module_wherever_it_names_the_node(
    cli: CommandLine, here: Path
) -> None:
    model = onnx.load(str(overflowing(here / "model.onnx")))
    for node in model.graph.node:
        scopes, kinds = scopes_of(["blocks", "0", node.name])
        described(node, name_scopes=repr(scopes), class_hierarchy=repr(kinds), stack_trace=TRACE)
    onnx.save(model, str(here / "model.onnx"))
    ran = cli("diagnose", "model.onnx", *TARGET, "-o", "bug", "--json", "result.json").ended(0)
    result = ran.result
    for entry in (*result["culprits"], *result["keep_fp32"], result["first_mismatch"]["node"]):
        path = f"blocks.0.{entry['name']}"
        assert entry["module"] == {
            "path": path,
            "class": "net.C3",
            "source": "/src/torch/norm.py:7",
        }
        assert f"in module {path} (C3), /src/torch/norm.py:7" in ran.out
    (culprit,) = result["culprits"]
    assert b"/src/" not in (here / "bug/model.onnx").read_bytes()
    report = Path(result["artifacts"]["report"]).read_text()
    assert report.count("/src/torch/norm.py:7") >= 2
    inspected = cli("inspect", "model.onnx", "--show", "layers")
    assert f"path blocks.0.{culprit['name']}, class" in inspected.out


# What a model computes in fp16 of itself is not held to fp32's digits, and what it computes in fp32
# is.


FP16 = Precision.FP16
BF16 = Precision.BF16


@pytest.mark.parametrize(
    ("kind", "low"), [(TensorProto.FLOAT16, FP16), (TensorProto.BFLOAT16, BF16)]
)
def test_what_is_computed_in_16_bits_and_of_that(kind: int, low: Precision) -> None:
    body = f"""single = Tanh(x) half = Cast<to = {kind}>(single) moved = Transpose(half) back = Cast<to = 1>(moved)
        sum = Add(back, x) size = Shape(sum) beside = Exp(x)"""
    graph = text_model("(float[4] x) => (float[4] beside)", body).graph
    assert lows_of(graph) == dict.fromkeys(("half", "moved", "back", "sum"), low)


def test_what_is_fed_or_stored_in_16_bits_is_exact() -> None:
    body = """moved = Reshape(x, to) wide = Cast<to = 1>(moved) weight = Cast<to = 1>(w) exact = Mul(wide, weight)
        rounded = Mul(moved, w)"""
    model = text_model(
        "(float16[4] x) => (float16[4] rounded)", body, {"w": np.ones(4, np.float16)}
    )
    assert lows_of(model.graph) == {"rounded": FP16}


def test_only_a_model_that_has_such_a_type_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(
        text_model("(float[4] x) => (float[4] y)", "h = Cast<to = 10>(x) y = Cast<to = 1>(h)"),
        str(path),
    )
    assert find_roundings(path, {"x": np.ones(4, np.float32)}, lambda _: None)[1] == {
        "h": FP16,
        "y": FP16,
    }
    path.write_bytes(b"no model")
    assert find_roundings(path, {"x": np.ones(4, np.float32)}, lambda _: None)[1] == {}
    assert find_roundings(path, {"x": np.ones(4, np.float16)}, lambda _: None)[1] == {}
