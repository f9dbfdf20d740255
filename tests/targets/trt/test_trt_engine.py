"""Layers of an engine, told by their names, traced back to ONNX nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import overflowing
from trt_standin import trt_target

from bisect_trt.targets.trt import TensorRtTarget
from bisect_trt.targets.trt.engine import Origins, layers_in, read_layers

NODES = [
    "/patch/Conv",
    "/a/Sigmoid",
    "/a/Mul",
    "/norm/Sub",
    "/norm/Pow",
    "/norm/Div",
    "/out (last), really",
]


def chain(names: list[str]) -> list[list[Any]]:
    """A chain of nodes of these names, which read the weight ``pos_embed``; what each makes is its place."""
    return [
        [name, [f"t{place + 1}"], [f"t{place}", "pos_embed"], [str(place)]]
        for place, name in enumerate(names)
    ]


def nodes(name: object, origins: Origins) -> tuple[int, ...]:
    """The places of a layer's nodes."""
    (layer,) = read_layers([name], origins)  # type: ignore[list-item]  # as the inspector writes them
    return tuple(map(int, layer["tensors"]))


# As the parser of 8.6 makes them: a weight, a node of two layers, an unnamed layer that comes
# before its node's own.
LAYERS: list[tuple[str, int | None]] = [
    ("pos_embed", 0),
    ("/patch/Conv", 0),
    ("/a/Sigmoid", 1),
    ("/a/Mul", 2),
    ("/norm/Sub", 3),
    ("(Unnamed Layer* 5) [Constant]", 4),
    ("(Unnamed Layer* 6) [Shuffle]", 4),
    ("/norm/Pow", 4),
    ("/norm/Div", 5),
    ("(Unnamed Layer* 9) [ElementWise]", 6),
    ("/out (last), really", 6),
]


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("/patch/Conv", (0,)),
        ("PWN(/a/Sigmoid)", (1,)),
        ("PWN(PWN(/a/Sigmoid), /a/Mul)", (1, 2)),
        ("/patch/Conv + PWN(PWN(/a/Sigmoid), /a/Mul)", (0, 1, 2)),
        ("/norm/Pow + (Unnamed Layer* 9) [ElementWise]", (4, 6)),
        ("/norm/Sub_12 [Shuffle]", (3,)),
        ("/norm/Sub||/norm/Div", (3, 5)),
        ("/out (last), really", (6,)),
        ("{ForeignNode[/norm/Sub.../norm/Div]}", (3, 4, 5)),
        ("{ForeignNode[/norm/Sub]}", (3,)),
        ("{ForeignNode[pos_embed...(Unnamed Layer* 6) [Shuffle]]}", (0, 1, 2, 3, 4)),
        ("{ForeignNode[(Unnamed Layer* 5) [Constant].../norm/Div]}", (4, 5)),
        ("{ForeignNode[/norm/Div...nobody knows]}", (5,)),
        (
            "{ForeignNode[(Unnamed Layer* 5) [Constant]...(Unnamed Layer* 9) [ElementWise]]}",
            (4, 5, 6),
        ),
        ("Reformatting CopyNode for Input Tensor 0 to /patch/Conv", ()),
        ("[HostToDeviceCopy 0]", ()),
        ("__myl_MulAddResTra_myl0_5", ()),
    ],
)
def test_names_that_engines_give(name: str, places: tuple[int, ...]) -> None:
    assert nodes(name, Origins(chain(NODES), LAYERS)) == places


def test_metadata_of_later_versions() -> None:
    entry = {
        "Name": "__myl_MulAddResTra_myl0_5",
        "LayerType": "kgen",
        "Metadata": "[ONNX Layer: /norm/Sub]\x1e[ONNX Layer: /norm/Pow]\x1f[ONNX Layer: elsewhere]",
        "Outputs": [
            {"Name": "a", "Format/Datatype": "Row major linear FP32"},
            {"Name": "b", "Format/Datatype": "Two wide channel vectorized row major FP16 format"},
            {"Name": "c", "Format/Datatype": "Half"},
        ],
    }
    (layer,) = read_layers([entry], Origins(chain(NODES)))
    assert (layer["kind"], layer["tensors"], layer["precisions"]) == (
        "kgen",
        ["3", "4"],
        ["float32", "float16"],
    )


def test_without_the_network_a_region_follows_the_graph() -> None:
    assert nodes("{ForeignNode[pos_embed...t4]}", Origins(chain(NODES))) == (0, 1, 2, 3)


@given(st.integers(1, 30), st.data())
def test_fusing_loses_no_node_and_invents_none(count: int, data: st.DataObject) -> None:
    """Cut a chain into layers, fuse each in one of TensorRT's ways, and read it back."""
    names = [f"/block.{place}/Op_{place}" for place in range(count)]
    cuts = sorted(data.draw(st.sets(st.integers(1, count - 1), max_size=8))) if count > 1 else []
    layers = []
    expected = []
    for first, end in zip([0, *cuts], [*cuts, count], strict=True):
        inside = names[first:end]
        way = data.draw(st.sampled_from(["plus", "pwn", "region"]))
        if way == "plus":
            layers.append(" + ".join(inside))
        elif way == "region":
            layers.append(f"{{ForeignNode[{inside[0]}...{inside[-1]}]}}")
        else:
            fused = f"PWN({inside[0]})"
            for name in inside[1:]:
                fused = f"PWN({fused}, {name})"
            layers.append(fused)
        expected.append(tuple(range(first, end)))
    network: list[tuple[str, int | None]] = [(name, place) for place, name in enumerate(names)]
    for known in (network, []):
        found = read_layers(layers, Origins(chain(names), known))
        assert [tuple(map(int, layer["tensors"])) for layer in found] == expected


def test_tensors_go_by_the_names_of_the_model_before_it_was_lowered(tmp_path: Path) -> None:
    path = overflowing(tmp_path / "m.onnx", 1, 1)
    settings = trt_target("fp16")
    facts = {"lowers_by": "cast"}
    original = onnx.load(str(path))
    target = TensorRtTarget()
    lowered = target.lower(settings, path, facts)
    assert lowered is not None
    hints = target.hints(settings, lowered, path, facts)
    origins = Origins(hints["nodes"])
    made = {node.name: list(node.output) for node in original.graph.node}
    assert len(lowered.graph.node) > len(original.graph.node)
    for place, node in enumerate(lowered.graph.node):
        assert origins.tensors(place) == made.get(node.name, [])


@pytest.mark.parametrize("said", ["", "{", '{"Layers": [{"Kind": 1}]}', "[]", '{"Layers": null}'])
def test_a_report_that_cannot_be_read_is_no_failure(said: str) -> None:
    assert layers_in(said, Origins()) == []
