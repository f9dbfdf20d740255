"""A whole network in few pieces: nothing is lost, nothing goes in a circle, and what is asked for stands alone."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from support import TARGET, overflowing, read_json, save

from bisect_trt.graph.network import Network
from bisect_trt.graph.overview import pieces_of


def network_of(blocks: int, width: int, named: bool) -> onnx.ModelProto:
    """Blocks of a branch that joins again, named as PyTorch's exporter names them."""
    nodes, last = [], "x"
    for block in range(blocks):
        start = last
        for step in range(width):
            out = f"b{block}s{step}"
            op = ("Add", "Mul", "Sub")[step % 3]
            name = f"/blocks.{block}/part{step // 2}/{op}" if named else ""
            nodes.append(helper.make_node(op, [last, start], [out], name=name))
            last = out
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, [2])],
        [helper.make_tensor_value_info(last, 1, [2])],
        [numpy_helper.from_array(np.ones(2, np.float32), "one")],
    )
    return helper.make_model(graph)


@given(st.integers(1, 30), st.integers(1, 9), st.booleans(), st.integers(12, 60), st.data())
def test_pieces_cover_the_network_in_order_and_are_few(
    blocks: int, width: int, named: bool, most: int, data: st.DataObject
) -> None:
    network = Network(network_of(blocks, width, named))
    kept = data.draw(st.sets(st.sampled_from(network.order), max_size=4))
    pieces = pieces_of(network, kept, most)
    assert [node for piece in pieces for node in piece.nodes] == network.order
    assert len(pieces) <= most + 3 * len(kept)
    alone = {piece.nodes for piece in pieces if len(piece.nodes) == 1}
    assert {(node,) for node in kept} <= alone
    for piece in pieces:
        ops = [network.nodes[node].op_type for node in piece.nodes]
        size = len(ops) // piece.alike
        assert ops == ops[:size] * piece.alike


def test_what_repeats_is_drawn_once_in_full() -> None:
    pieces = pieces_of(Network(network_of(48, 6, named=True)), (), 60)
    assert [piece.path for piece in pieces] == ["blocks.0.part0", "blocks.0.part1", "blocks.0.part2", "blocks.1.part0"]
    assert [piece.alike for piece in pieces] == [1, 1, 1, 47]


def texts(path: Path) -> list[str]:
    return [each.text or "" for each in ET.parse(path).iter() if each.tag.endswith("text")]


def test_a_picture_has_the_culprit_in_its_colour(cli: CommandLine, here: Path) -> None:
    overflowing(here / "model.onnx", before=120, after=120)
    assert (
        cli(
            "diagnose",
            "model.onnx",
            *TARGET,
            "-o",
            "bug",
            "--no-shrink",
            "--json",
            "result.json",
            "--annotate",
            "noted.onnx",
        ).status
        == 0
    )
    run = read_json(here / "result.json")["artifacts"]["run"]
    for words in (["model.onnx", "--of", run], ["model.onnx", "--of", "result.json"], ["noted.onnx"]):
        ran = cli("inspect", *words, "--visual", "net.svg", "--json", "seen.json")
        assert ran.status == 0, ran.err
        groups = [
            each
            for each in ET.parse(here / "net.svg").iter()
            if each.attrib.get("class", "").startswith("node culprit")
        ]
        assert [each.text for group in groups for each in group if each.attrib.get("class") == "name"] == ["big"]
        assert "needed to fail" in texts(here / "net.svg")
        assert read_json(here / "seen.json")["model"]["visual"]["drawn"] < 160
    svg = (here / "net.svg").read_text()
    assert not {"<script", "href=", "http://www.w3.org/1999"} & set(svg.split())
    assert svg.count("http") == 1  # the name of SVG itself


def test_a_piece_is_drawn_and_no_name_is_markup(cli: CommandLine, here: Path) -> None:
    odd = '</text><script>"&'
    save(
        here / "model.onnx",
        [helper.make_node("Relu", ["x"], ["a"], name=odd), helper.make_node("Relu", ["a"], ["y"], name="b")],
    )
    assert cli("extract", "model.onnx", "-o", "piece.onnx", "--outputs", "a", "--visual", "piece.svg").status == 0
    assert odd in texts(here / "piece.svg")
    assert "b" not in texts(here / "piece.svg")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["model.onnx", "--visual", "net.png"], "pictures of networks are drawn as SVG; name a .svg file"),
        (["model.onnx", "--of", "run"], "--of says by what a picture is coloured; add --visual FILE.svg"),
        (["data", "values.npz", "--visual", "net.svg"], "--visual is about models"),
        (["data", "values.npz", "--display-as", "onnx"], "--display-as is about models"),
        (["model.onnx", "--display-as", "trt", "--show", "weights"], "leave --show and --visual out"),
        (["model", "missing.onnx", "--display-as", "trt"], "missing.onnx: no such file"),
        (["model.onnx", "--visual", "net.svg", "--of", "missing"], "missing cannot be read"),
    ],
)
def test_usage(cli: CommandLine, here: Path, words: list[str], said: str) -> None:
    overflowing(here / "model.onnx")
    np.savez(here / "values.npz", x=np.ones(2))
    assert said in cli("inspect", *words).error


def test_a_run_about_another_model(cli: CommandLine, here: Path) -> None:
    overflowing(here / "model.onnx")
    (here / "result.json").write_text(
        '{"schema": 1, "command": "reduce", "status": "found", "culprits": [{"name": "z", "op": "Add", "outputs": ["z"]}]}'
    )
    ran = cli("inspect", "model.onnx", "--visual", "net.svg", "--of", "result.json")
    assert "is about another model: this one makes no 'z'" in ran.error
