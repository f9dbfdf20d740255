"""What is said of the precision that an engine really runs in; the engines themselves need a GPU (tests/gpu)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from support import chain

from bisect_trt.commands.layer_report import describe_fp32, fp32_layers
from bisect_trt.onnxlib.network import Network


@pytest.fixture
def network(tmp_path: Path) -> Network:
    return Network(onnx.load(str(chain(tmp_path / "m.onnx", 5))))


def layer(name: str, kind: str, precision: str, *tensors: str) -> dict[str, Any]:
    return {"name": name, "kind": kind, "precisions": [precision], "tensors": list(tensors)}


def test_what_is_fused_with_a_kept_node_is_dragged_along(network: Network) -> None:
    layers = [layer("one", "PointWise", "float32", "t0", "t1"), layer("two", "PointWise", "float16", "t2", "t3", "t4")]
    ran = fp32_layers(network, layers, frozenset({0}))
    assert ran is not None
    assert [entry["name"] for entry in ran["layers"]] == ["one"]
    assert ran["dragged"] == [network.describe(1)]
    assert describe_fp32(ran) == [f"fused with kept nodes, and so in fp32 too: {network.describe(1)}"]


def test_a_layer_of_kept_nodes_alone_drags_nothing(network: Network) -> None:
    layers = [layer("one", "PointWise", "float32", "t0"), layer("rest", "PointWise", "float32", "t1", "t2")]
    ran = fp32_layers(network, layers, frozenset({0}))
    assert ran is not None
    assert ran["dragged"] == []
    assert describe_fp32(ran) == ["2 engine layers make fp32, none of them fused with nodes that need not"]


def test_the_inside_of_a_compiled_region_is_not_known(network: Network) -> None:
    ran = fp32_layers(network, [layer("region", "Myelin", "float32", "t0", "t1", "t2")], frozenset({1}))
    assert ran is not None
    assert (ran["layers"], ran["dragged"], ran["inside"]) == ([], [], 3)
    assert "does not tell" in describe_fp32(ran)[0]


def test_a_target_without_layers_says_nothing(network: Network) -> None:
    assert fp32_layers(network, [], frozenset({1})) is None
