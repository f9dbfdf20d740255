"""Nodes that ONNX Runtime cannot run: a reduction goes on around them, and cuts nothing that would need their values."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from building import proto_of, tensor_info
from conftest import CommandLine
from onnx import ModelProto, NodeProto, TensorProto, helper
from support import has, read_json, script

from bisect_trt.onnxlib.network import Network
from bisect_trt.probe.reference import Models, Reference
from bisect_trt.probe.workspace import Workspace
from bisect_trt.worker.pool import WorkerPool

FLOAT = TensorProto.FLOAT
INT64 = TensorProto.INT64
X = tensor_info("x", FLOAT, [2, 3])
WEIGHTS = {
    "most negative": np.array(-(2**63)),
    "minus one": np.array(-1),
    "hundred": np.array([100]),
}


def node(op: str, reads: str, makes: str, **attributes: Any) -> NodeProto:
    """A node that is named by what it makes."""
    return helper.make_node(
        op, reads.split(), makes.split(), name=f"<{makes.split(maxsplit=1)[0]}>", **attributes
    )


def custom(reads: str, makes: str) -> list[NodeProto]:
    return [node("Plugin", reads, makes, domain="my.plugins")]


def unknown(reads: str, makes: str) -> list[NodeProto]:
    """As TensorRT's plugins are exported: in ONNX's own domain."""
    return [node("EfficientNMS_TRT", reads, makes, plugin_version="1")]


def failing(reads: str, makes: str) -> list[NodeProto]:
    """It loads, and fails when it runs."""
    return [helper.make_node("Gather", [reads, "hundred"], [makes], name=f"<{makes}>")]


def crashing(reads: str, makes: str) -> list[NodeProto]:
    """The most negative integer divided by -1 is larger than any: x86 raises a signal, which ends the process."""
    return [
        node("Shape", reads, f"{makes}.s"),
        node("ReduceProd", f"{makes}.s", f"{makes}.p", keepdims=0),
        node("Sub", f"{makes}.p {makes}.p", f"{makes}.zero"),
        helper.make_node(
            "Add", [f"{makes}.zero", "minus one"], [f"{makes}.minus"], name=f"<{makes}.minus>"
        ),
        helper.make_node(
            "Add", [f"{makes}.zero", "most negative"], [f"{makes}.most"], name=f"<{makes}.most>"
        ),
        node("Div", f"{makes}.most {makes}.minus", f"{makes}.div"),
        node("Cast", f"{makes}.div", makes, to=FLOAT),
    ]


x86 = pytest.mark.skipif(
    platform.machine() not in {"x86_64", "AMD64"}, reason="only x86 raises a signal"
)
KINDS = [custom, unknown, failing, pytest.param(crashing, marks=x86)]


def saved(path: Path, nodes: Sequence[NodeProto], outputs: Sequence[str], **fields: Any) -> Path:
    read = {name for each in nodes for name in each.input}
    weights = {name: value for name, value in WEIGHTS.items() if name in read}
    ends = [tensor_info(name, FLOAT, [2, 3]) for name in outputs]
    onnx.save(proto_of(nodes, [X], ends, weights, domains=["my.plugins"], **fields), str(path))
    return path


def reduced(
    cli: CommandLine, model: Path, *tags: str, shrink: bool = False
) -> tuple[list[str], str]:
    """The names of the nodes left by a check that fails while the model has all of these, and the warnings."""
    check = "./" + script(Path("check"), f"{has(*(f'<{tag}>' for tag in tags))} && exit 1; exit 0")
    options = [
        "-o",
        "out.onnx",
        "--overwrite",
        "--json",
        "r.json",
        *([] if shrink else ["--no-shrink"]),
    ]
    ran = cli("reduce", model, *options, "--check", check, "{model}").ended(0)
    result = read_json(Path("r.json"))
    assert result["minimality"] == "1-minimal"
    proto = onnx.load("out.onnx")
    names = [each.name.strip("<>") for each in proto.graph.node]
    # Whatever it is fed is either an input or a tensor whose value is known.
    assert all(value.type.tensor_type.elem_type for value in proto.graph.input)
    return sorted(names), ran.err


@pytest.mark.parametrize("broken", KINDS)
def test_one_in_the_middle(cli: CommandLine, broken: Any) -> None:
    # x -> a -> P -> c -> d, and a -> e -> f beside it; d and f meet in y.
    nodes = [
        node("Relu", "x", "a"),
        *broken("a", "P"),
        node("Neg", "P", "c"),
        node("Abs", "c", "d"),
        node("Exp", "a", "e"),
        node("Neg", "e", "f"),
        node("Add", "d f", "y"),
    ]
    model = saved(Path("model.onnx"), nodes, ["y"])
    core = ["P.div", "P"] if broken is crashing else ["P"]
    expected = {
        "a": ["a"],
        "e": ["e"],
        "P": core,
        "c": [*core, "c"],
        # What is known beside the plugin's branch is fed.
        "y": [*core, "c", "d", "y"],
        # What is needed from both sides: both, and what lies between them and the plugin.
        "f c": ["f", *core, "c"],
    }
    for tags in expected if broken is custom else ["f c"]:
        names, warnings = reduced(cli, model, *tags.split())
        assert names == sorted(expected[tags]), tags
        assert warnings.count("ONNX Runtime cannot run") == 1
        assert f"<{core[0]}>" in warnings


def test_what_makes_a_weight_ends_as_an_initializer_unless_its_value_is_unknown(
    cli: CommandLine,
) -> None:
    nodes = [
        node("Exp", "half", "e"),
        node("Add", "e half", "w"),
        *custom("half", "p"),
        node("Add", "x w", "a"),
    ]
    nodes += [node("Add", "a p", "b"), node("Neg", "b", "y")]
    model = proto_of(
        nodes,
        [X],
        [tensor_info("y", FLOAT, [2, 3])],
        {"half": np.full(3, 0.5, np.float32)},
        domains=["my.plugins"],
    )
    model.graph.value_info.append(
        tensor_info("p", FLOAT, [3])
    )  # small enough to be stored, were its value known
    left, _ = reduce(cli, model, "a", "--no-shrink")
    assert (tags(left), [tensor.name for tensor in left.graph.initializer]) == (["a"], ["w"])
    assert tags(reduce(cli, model, "e", "--no-shrink")[0]) == [
        "e"
    ]  # where the failure needs one of them
    onnx.save(model, "model.onnx")
    assert reduced(cli, Path("model.onnx"), "b")[0] == ["b", "p"]


def test_onnx_runtime_does_not_know_models_of_this_kind(cli: CommandLine) -> None:
    nodes = [
        node("Relu", "x", "a"),
        node("Neg", "a", "b"),
        node("Exp", "b", "c"),
        node("Abs", "a", "d"),
    ]
    model = saved(Path("model.onnx"), nodes, ["c", "d"], ir_version=99)
    names, warnings = reduced(cli, model, "b")
    assert names == ["a", "b"]
    assert warnings.count("ONNX Runtime cannot run") == 1
    assert "ONNX Runtime cannot run this model" in warnings
    assert reduced(cli, model, "d")[0] == ["a", "d"]


class CountingPool(WorkerPool):
    """Counts what is asked of its workers."""

    asked = 0

    def ask(self, *arguments: Any, **more: Any) -> Any:
        self.asked += 1
        return super().ask(*arguments, **more)


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[CountingPool]:
    workers = CountingPool(tmp_path)
    yield workers
    workers.close()


def reference(model: ModelProto, folder: Path, pool: WorkerPool) -> Reference:
    workspace = Workspace(folder / "run")
    values = {"x": np.ones((2, 3), np.float32)}
    return Reference(Network(model), values, workspace, Models(workspace, pool), 1, 1 << 30)


def test_the_first_plugin_of_a_kind_tells_of_all(tmp_path: Path, pool: CountingPool) -> None:
    nodes = []
    tensor = "x"
    for number in range(40):
        nodes += [*custom("x", f"P{number}"), node("Neg", f"P{number}", f"n{number}")]
        nodes.append(node("Relu", tensor, f"r{number}"))
        tensor = f"r{number}"
    model = onnx.load(str(saved(tmp_path / "model.onnx", nodes, [tensor])))
    known = reference(model, tmp_path, pool)
    assert len(known.missing) == 40
    assert known.infos.keys() == {"x", *(f"r{number}" for number in range(40))}
    assert known.lost == {index for index, each in enumerate(nodes) if each.op_type != "Relu"}
    assert pool.asked < 12


@pytest.mark.parametrize("kind", [TensorProto.BFLOAT16, TensorProto.FLOAT8E4M3FN])
def test_nothing_is_cut_at_a_tensor_that_cannot_be_fed(cli: CommandLine, kind: int) -> None:
    nodes = [
        node("Relu", "x", "a"),
        node("Cast", "a", "b", to=kind),
        node("Identity", "b", "c"),
        node("Cast", "c", "d", to=FLOAT),
        node("Neg", "d", "y"),
    ]
    model = saved(Path("model.onnx"), nodes, ["y"], opset=19, ir_version=9)
    above_d = (
        ["d"]
        if hasattr(onnxruntime.OrtValue, "ortvalue_from_numpy_with_onnx_type")
        else ["b", "c", "d"]
    )
    for tag, left in {"d": above_d, "y": ["y"], "a": ["a"], "b": ["b"]}.items():
        names, warnings = reduced(cli, model, tag, shrink=True)
        assert (names, warnings) == (left, "")
        onnx.checker.check_model("out.onnx", full_check=True)


# The same through the command line, where models meet the reference and real checks.


def reduce(cli: CommandLine, model: ModelProto, tag: str, *options: str) -> tuple[ModelProto, str]:
    """What a check leaves that fails while a node is there, and the warnings."""
    onnx.save(model, "model.onnx")
    check = "./" + script(Path("check"), f"{has(f'<{tag}>')} && exit 1; exit 0")
    ran = cli(
        "reduce",
        "model.onnx",
        "-o",
        "out.onnx",
        "--overwrite",
        *options,
        "--check",
        check,
        "{model}",
    ).ended(0)
    onnx.checker.check_model("out.onnx", full_check=True)
    return onnx.load("out.onnx"), ran.err


def tags(model: ModelProto) -> list[str]:
    return [each.name.strip("<>") for each in model.graph.node]
