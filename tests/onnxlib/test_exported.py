"""Where a node was written, of what PyTorch's exporters leave in a file; see also tests/truth/from_torch.py."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from conftest import CommandLine
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper
from support import TARGET, overflowing, read_json

from bisect_trt.onnxlib.nodes import Module, module_of

NAMES = st.from_regex(r"[a-z_][a-z_0-9]{0,6}|[0-9]{1,2}", fullmatch=True)
PATHS = st.lists(NAMES, max_size=4)


def described(node: onnx.NodeProto, **said: str) -> onnx.NodeProto:
    """The node with metadata of PyTorch's exporter."""
    for key, value in said.items():
        node.metadata_props.add(key=key if key == "namespace" else f"pkg.torch.onnx.{key}", value=value)
    return node


def scopes_of(path: list[str]) -> tuple[list[str], list[str]]:
    """Scopes and classes as the exporter prints them: every prefix, then the operator."""
    scopes = [".".join(path[:end]) for end in range(len(path) + 1)]
    return [*scopes, "pow_1"], [*(f"net.C{place}" for place in range(len(scopes))), "aten.pow.Tensor_Scalar"]


TRACE = (
    'File "/src/net.py", line 23, in forward\n    x = block(x)\n  File "/src/torch/norm.py", line 7, in forward\n'
    '    v = x.pow(2)\n  File "/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 134, in forward\n    return'
)


@given(PATHS)
def test_what_the_exporter_says_is_read_in_either_of_its_forms(path: list[str]) -> None:
    scopes, kinds = scopes_of(path)
    wanted = Module(".".join(path), f"net.C{len(path)}", "/src/torch/norm.py:7")
    node = helper.make_node("Pow", ["x", "two"], ["y"])
    assert (
        module_of(described(node, name_scopes=repr(scopes), class_hierarchy=repr(kinds), stack_trace=TRACE)) == wanted
    )
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
    assert module_of(node) == Module(".".join(path))


@pytest.mark.parametrize("name", ["", "Conv_12", "model/dense/MatMul", "/MatMul", "<3>"])
def test_of_other_names_nothing_is_made_up(name: str) -> None:
    assert module_of(helper.make_node("Conv", ["x"], ["y"], name=name)) is None


@pytest.mark.parametrize("said", ["[", "__import__('os')", "7", "['a'] * 9**9", "(" * 5000, "\0", "[1, None]" * 99999])
def test_a_strangers_text_is_neither_run_nor_an_accident(said: str) -> None:
    module = module_of(described(helper.make_node("Pow", ["x"], ["y"]), name_scopes=said, stack_trace=said))
    assert module is None or module.kind is None


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


def test_a_diagnosis_names_the_module_wherever_it_names_the_node(cli: CommandLine, here: Path) -> None:
    model = onnx.load(str(overflowing(here / "model.onnx")))
    for node in model.graph.node:
        scopes, kinds = scopes_of(["blocks", "0", node.name])
        described(node, name_scopes=repr(scopes), class_hierarchy=repr(kinds), stack_trace=TRACE)
    onnx.save(model, str(here / "model.onnx"))
    ran = cli("diagnose", "model.onnx", *TARGET, "-o", "bug", "--json", "result.json")
    assert ran.status == 0, ran.err
    result = read_json(here / "result.json")
    for entry in (*result["culprits"], *result["keep_fp32"], result["first_mismatch"]["node"]):
        path = f"blocks.0.{entry['name']}"
        assert entry["module"] == {"path": path, "class": "net.C3", "source": "/src/torch/norm.py:7"}
        assert f"in module {path} (C3), /src/torch/norm.py:7" in ran.out
    (culprit,) = result["culprits"]
    assert b"/src/" not in (here / "bug/model.onnx").read_bytes()
    report = Path(result["artifacts"]["report"]).read_text()
    assert report.count("/src/torch/norm.py:7") >= 2
    inspected = cli("inspect", "model.onnx", "--show", "layers")
    assert f"path blocks.0.{culprit['name']}, class" in inspected.out
