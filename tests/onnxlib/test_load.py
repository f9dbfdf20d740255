"""Reading a model, or one sentence on why it cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from building import proto_of, tensor_info
from cutting import models
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import FunctionProto, ModelProto, TensorProto, helper, numpy_helper
from support import examples

from bisect_trt.errors import BisectError, UnavailableError, UsageError
from bisect_trt.onnxlib.cut import cut
from bisect_trt.onnxlib.inputs import input_infos
from bisect_trt.onnxlib.load import check_model, load_model, needed_ir_version
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.save import refer_to
from bisect_trt.probe.workspace import Workspace
from bisect_trt.report.console import QuietConsole
from bisect_trt.session.subject import ModelSettings, Subject

X, Y = (tensor_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy")
node = helper.make_node


def small() -> ModelProto:
    return proto_of(
        [node("Add", ["x", "w"], ["y"], name="add")], [X], [Y], {"w": np.ones(3, np.float32)}
    )


def refusal(path: Path) -> str:
    with pytest.raises(UnavailableError) as error:
        load_model(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_it_reads_what_onnx_writes(tmp_path: Path) -> None:
    # By its suffix ONNX also writes JSON and protobuf's text format.
    for name in ("model.onnx", "model", "model.pb", "model.json", "model.textproto"):
        onnx.save(small(), str(tmp_path / name))
        assert load_model(tmp_path / name) == small()


IN_A_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@IN_A_FOLDER
@given(end=st.integers(0, len(small().SerializeToString()) - 1))
def test_a_model_cut_short(tmp_path: Path, end: int) -> None:
    path = tmp_path / "short.onnx"
    path.write_bytes(small().SerializeToString()[:end])
    refusal(path)


@IN_A_FOLDER
@given(
    content=st.binary() | st.text().map(str.encode),
    suffix=st.sampled_from([".onnx", ".json", ".textproto", ".txt"]),
)
def test_another_kind_of_file(tmp_path: Path, content: bytes, suffix: str) -> None:
    path = tmp_path / f"other{suffix}"
    path.write_bytes(content)
    refusal(path)


def test_no_model(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "none.onnx")
    assert "directory" in refusal(tmp_path)
    (tmp_path / "empty.onnx").touch()
    assert "no ONNX graph" in refusal(tmp_path / "empty.onnx")
    empty = small()
    del empty.graph.node[:]
    onnx.save(empty, str(tmp_path / "nothing.onnx"))
    assert "no nodes" in refusal(tmp_path / "nothing.onnx")


def external(path: Path, location: str = "w.bin", offset: str = "0", length: str = "12") -> Path:
    model = small()
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    refer_to(weight, location, 0, 0)
    for entry, value in zip(weight.external_data[1:], (offset, length), strict=True):
        entry.value = value
    path.write_bytes(model.SerializeToString())
    return path


def test_weights_that_are_not_there(tmp_path: Path) -> None:
    path = external(tmp_path / "model.onnx")
    assert "w.bin, which does not exist" in refusal(path)
    (tmp_path / "w.bin").write_bytes(bytes(11))
    assert "11 bytes where 12 are needed" in refusal(path)
    (tmp_path / "w.bin").write_bytes(bytes(12))
    assert load_model(path).graph.initializer[0].external_data[0].value == "w.bin"
    assert "15 bytes" not in refusal(external(path, offset="4"))


@pytest.mark.parametrize("location", ["/etc/hostname", "../w.bin", "sub/../../w.bin"])
def test_weights_outside_the_folder(tmp_path: Path, location: str) -> None:
    with pytest.raises(UsageError, match="outside its own folder"):
        load_model(external(tmp_path / "model.onnx", location))


@pytest.mark.parametrize("location", ["file", "folder/w.bin", "link"])
def test_weights_behind_a_link_out_of_the_folder(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "folder"
    secret = tmp_path / "elsewhere" / "w.bin"
    folder.mkdir()
    secret.parent.mkdir()
    secret.write_bytes(bytes(12))
    for link, to in (
        (folder / "file", secret),
        (folder / "folder", secret.parent),
        (tmp_path / "outside", secret),
    ):
        link.symlink_to(to)
    (folder / "link").symlink_to("../outside")
    path = external(folder / "model.onnx", location)
    with pytest.raises(UsageError, match=r"outside its own folder \(.*/elsewhere/w\.bin\)"):
        load_model(path)
    # The user may name another folder; it is that which counts then.
    with pytest.raises(UsageError, match="outside its own folder"):
        load_model(path, folder)
    assert load_model(external(folder / "model.onnx"), secret.parent)


def test_a_model_that_is_a_link_itself_has_its_weights_where_it_leads(tmp_path: Path) -> None:
    """As a cache of downloads keeps both."""
    for name in ("blobs", "snapshot"):
        (tmp_path / name).mkdir()
    (tmp_path / "blobs" / "1234").write_bytes(bytes(12))
    external(tmp_path / "blobs" / "5678")
    (tmp_path / "snapshot" / "model.onnx").symlink_to("../blobs/5678")
    (tmp_path / "snapshot" / "w.bin").symlink_to("../blobs/1234")
    assert load_model(tmp_path / "snapshot" / "model.onnx")


@pytest.mark.parametrize("location", ["w" * 300, "circle", "w.bin\0", "."])
def test_weights_at_no_file_that_can_be(tmp_path: Path, location: str) -> None:
    (tmp_path / "circle").symlink_to("circle")
    assert refusal(external(tmp_path / "model.onnx", location)).endswith(".")


# Models that are broken in ways that protobuf does not see: one sentence each, and whatever is read
# can be taken apart.


OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
ELEMENTS = [
    kind
    for name, kind in TensorProto.DataType.items()
    if name != "UNDEFINED" and not name.startswith(("FLOAT6", "STRING"))
]


def function(name: str, calls: list[str]) -> FunctionProto:
    """A function that passes its input through others, one after the other; without any, through one operator."""
    nodes = [node(call, [f"t{i}"], [f"t{i + 1}"], domain="mine") for i, call in enumerate(calls)]
    nodes = nodes or [node("Relu", ["t0"], ["t1"])]
    return helper.make_function("mine", name, ["t0"], [f"t{len(nodes)}"], nodes, OPSETS)


def calling(functions: list[FunctionProto]) -> ModelProto:
    """A model of one node, which calls the last of the functions."""
    calls = [node(functions[-1].name, ["x"], ["y"], domain="mine")]
    return proto_of(calls, [X], ["y"], domains=["mine"], functions=functions)


def doubling(levels: int) -> ModelProto:
    names = [f"F{level}" for level in range(levels + 1)]
    return calling(
        [function(name, names[place - 1 : place] * 2) for place, name in enumerate(names)]
    )


def nested(depth: int) -> ModelProto:
    names = [f"F{level}" for level in range(depth)]
    return calling([function(name, names[place - 1 : place]) for place, name in enumerate(names)])


def with_bytes(old: bytes, new: bytes) -> ModelProto:
    model = ModelProto()
    model.ParseFromString(small().SerializeToString().replace(old, new))
    return model


def changed(change: Callable[[ModelProto], object]) -> ModelProto:
    model = small()
    change(model)
    return model


DEEP = tensor_info("deep", TensorProto.FLOAT, [1] * 65)


def no_name(field: str) -> ModelProto:
    return changed(lambda model: getattr(model.graph, field)[0].ClearField("name"))


def weight(change: Callable[[TensorProto], object]) -> ModelProto:
    return changed(lambda model: change(model.graph.initializer[0]))


def of_dimensions(field: str) -> ModelProto:
    return changed(lambda model: getattr(model.graph, field).add().CopyFrom(DEEP))


CONSTANT = node(
    "Constant", [], ["k"], value=TensorProto(name="k", data_type=1, dims=[2], raw_data=b"")
)
BROKEN = {
    "a node's name is no text": (
        with_bytes(b"\x1a\x03add", b"\x1a\x03\xffdd"),
        r"b'\\xffdd' is not UTF-8",
    ),
    "an output is no text": (with_bytes(b"\x01y", b"\x01\xff"), r"b'\\xff' is not UTF-8"),
    "an operator is no text": (with_bytes(b"Add", b"\xffdd"), r"b'\\xffdd' is not UTF-8"),
    "an input without a name": (no_name("input"), "a graph input has no name"),
    "an output without a name": (no_name("output"), "a graph output has no name"),
    "a weight without a name": (no_name("initializer"), "a weight has no name"),
    "a function twice": (
        calling([function("F", []), function("F", [])]),
        "there are two functions 'F'",
    ),
    "a function calls itself": (calling([function("F", ["F"])]), "the function 'F' calls itself"),
    "functions that double": (
        doubling(30),
        "makes 1,073,741,824 nodes, more than the limit of 250,000",
    ),
    "functions that double often": (doubling(400), "makes about 1e120 nodes"),
    "functions in a circle": (
        calling([function("F", ["G"]), function("G", ["F"])]),
        "the function '[FG]' calls itself",
    ),
    "a weight without a type": (
        weight(lambda w: w.ClearField("data_type")),
        "the weight 'w' has no element type",
    ),
    "a weight of an unknown type": (
        weight(lambda w: setattr(w, "data_type", 2**31 - 1)),
        "the weight 'w' has the element type 2147483647, which is unknown to ONNX",
    ),
    "a weight in segments": (
        weight(lambda w: setattr(w.segment, "begin", 1)),
        "the weight 'w' is stored in segments",
    ),
    "a weight of too many dimensions": (
        weight(lambda w: w.dims.extend([1] * 64)),
        "the weight 'w' has 65 dimensions",
    ),
    **{
        f"too many dimensions in {field}": (
            of_dimensions(field),
            "the tensor 'deep' has 65 dimensions",
        )
        for field in ("input", "output", "value_info")
    },
    "a weight of negative size": (
        weight(lambda w: w.dims.append(-1)),
        r"the weight 'w' has the shape \[3, -1\]",
    ),
    "a weight past memory": (
        weight(lambda w: w.dims.append(2**60)),
        r"the weight 'w' has 12 bytes, and its shape \[3, 1152921504606846976\] needs 13835058055282163712",
    ),
    "a weight cut short": (
        weight(lambda w: setattr(w, "raw_data", b"12345")),
        r"the weight 'w' has 5 bytes, and its shape \[3\] needs 12",
    ),
    "too few values": (
        weight(lambda w: w.CopyFrom(TensorProto(name="w", data_type=1, dims=[2], float_data=[1]))),
        r"the weight 'w' has 1 values, and its shape \[2\] needs 2",
    ),
    "a constant cut short": (
        changed(lambda model: model.graph.node.append(CONSTANT)),
        r"the weight 'k' has 0 bytes, and its shape \[2\] needs 8",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_sentence_says_what_is_broken(what: str, tmp_path: Path) -> None:
    model, words = BROKEN[what]
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(UnavailableError, match=words) as error:
        load_model(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)
    assert str(error.value).endswith(".")


def test_functions_that_end_are_read(tmp_path: Path) -> None:
    onnx.save(nested(3000), str(tmp_path / "model.onnx"))
    assert Network(load_model(tmp_path / "model.onnx")).constant == [False]


@settings(deadline=None)
@given(st.sampled_from(ELEMENTS), st.lists(st.integers(0, 3), max_size=2), st.booleans())
def test_every_type_of_weight_that_onnx_makes_is_read(
    element: int, shape: list[int], raw: bool
) -> None:
    values = np.zeros(shape, helper.tensor_dtype_to_np_dtype(element))
    typed = helper.make_tensor("w", element, shape, values.ravel().tolist())
    model = small()
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(values, "w") if raw else typed)
    check_model(model)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A random model with a few of its bytes changed."""
    content = bytearray(draw(models()).SerializeToString())
    for _ in range(draw(st.integers(1, 3))):
        content[draw(st.integers(0, len(content) - 1))] = draw(st.integers(0, 255))
    return bytes(content)


@settings(
    max_examples=examples(300),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(content=mutated())
def test_whatever_is_read_can_be_taken_apart(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    try:
        network = Network(load_model(path))
        input_infos(network)
    except BisectError:
        return
    infos = network.infos
    for index in network.order:
        piece = cut(network, [index], infos, lambda name: TensorProto(name=name))
        assert [each.name for each in piece.proto.graph.node] == [network.nodes[index].name]


# The IR version that a model needs: lowered where nothing in it is newer, never below what brought
# one of its parts.


def within(model: ModelProto) -> onnx.GraphProto:
    """The body of a node that is itself in a body."""
    inner = helper.make_node("If", ["c"], [], then_branch=onnx.GraphProto())
    model.graph.node.append(
        helper.make_node("If", ["c"], [], then_branch=onnx.GraphProto(node=[inner]))
    )
    body: onnx.GraphProto = model.graph.node[-1].attribute[0].g.node[0].attribute[0].g
    return body


def of_opsets(**opsets: int) -> ModelProto:
    model = proto_of([node("Relu", ["x"], ["y"])], [X], [Y], ir_version=10)
    del model.opset_import[:]
    model.opset_import.extend(
        helper.make_opsetid(domain.replace("_", "."), v) for domain, v in opsets.items()
    )
    return model


TOMORROW = onnx.IR_VERSION + 1


@pytest.mark.parametrize(
    ("change", "needed"),
    [
        (lambda model: model.graph.quantization_annotation.add(tensor_name="x"), 10),
        (lambda model: model.training_info.add(), 10),
        (lambda model: model.functions.add(name="f", domain="mine"), 10),
        (lambda model: within(model).initializer.add(data_type=TensorProto.FLOAT8E5M2), 10),
        (lambda model: model.graph.initializer.add(data_type=TensorProto.INT4), 10),
        # Runtimes pass over notes, which say nothing of what is computed.
        (
            lambda model: model.graph.node[0].metadata_props.add(
                key="namespace", value="net.layer"
            ),
            7,
        ),
        (lambda model: setattr(model, "ir_version", TOMORROW), TOMORROW),
        (
            lambda model: setattr(model, "ir_version", 3),
            3,
        ),  # before 4 an initializer means something else
    ],
)
def test_what_a_version_brought_keeps_the_models_own(
    change: Callable[[ModelProto], object], needed: int
) -> None:
    model = of_opsets(**{"": 8 if needed == 3 else 13})
    change(model)
    assert needed_ir_version(model) == needed


@pytest.mark.parametrize(
    ("opsets", "needed"),
    [
        ({"": 13}, 7),
        ({"": 8}, 4),
        ({"": 18}, 8),
        ({"": 13, "com_microsoft": 1}, 7),
        ({"": 13, "ai_onnx_ml": 4}, 9),
        ({"": 13, "ai_onnx_ml": 99}, 10),
        ({"": 999}, 10),
        ({"": 21}, 10),
    ],
)
def test_an_operator_set_needs_what_it_came_with(opsets: dict[str, int], needed: int) -> None:
    """Of a set of ONNX's that is not known, nothing is; others say nothing."""
    assert needed_ir_version(of_opsets(**opsets)) == needed


@pytest.mark.skipif(onnx.IR_VERSION <= 10, reason="every ONNX Runtime takes what this onnx writes")
def test_a_version_that_the_reference_may_refuse_is_lowered(tmp_path: Path) -> None:
    model = of_opsets(**{"": 13})
    model.ir_version = onnx.IR_VERSION
    onnx.save(model, tmp_path / "model.onnx")
    with Subject(
        ModelSettings(tmp_path / "model.onnx"), Workspace(tmp_path / "run"), QuietConsole()
    ) as subject:
        assert subject.reference.refused is None
        assert (
            subject.original.proto.ir_version == onnx.IR_VERSION
        )  # the first probe is about the file
        assert subject.network.proto.ir_version == subject.settings.load().ir_version == 7
        assert subject.network.proto.graph == model.graph
        assert subject.ir_version == {"file": onnx.IR_VERSION, "written": 7}
    older = ModelSettings(tmp_path / "model.onnx", older=True)
    with Subject(older, Workspace(tmp_path / "older"), QuietConsole()) as subject:
        assert subject.ir_version == {"file": onnx.IR_VERSION, "written": 7}


def test_sparse_weights_are_refused(tmp_path: Path) -> None:
    model = proto_of([node("Add", ["x", "w"], ["y"])], [X], [Y])
    values = numpy_helper.from_array(np.array([5, 7], np.float32), "w")
    places = numpy_helper.from_array(np.array([1, 3]))
    model.graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, places, [2, 2]))
    path = tmp_path / "m.onnx"
    onnx.save(model, str(path))
    with pytest.raises(UnavailableError, match="'w' is sparse"):
        load_model(path)
