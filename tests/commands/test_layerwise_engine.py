"""Engine layers are traced back to nodes; what an inspector says is made up here, for no GPU is needed to read it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import CommandLine
from hypothesis import given
from hypothesis import strategies as st
from support import chain, overflowing, read_json

from bisect_trt.commands.marking import engine_layers
from bisect_trt.onnxlib.load import load_model
from bisect_trt.onnxlib.network import Network
from bisect_trt.worker.pool import WorkerPool


def layer(name: str, tensors: list[str], precisions: list[str] | None = None) -> dict[str, Any]:
    return {"name": name, "kind": "kgen", "tensors": tensors, "precisions": precisions or []}


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Network:
    """A chain of eight nodes."""
    return Network(load_model(chain(tmp_path_factory.mktemp("engine") / "model.onnx", 8)))


@given(parts=st.lists(st.lists(st.integers(0, 7), unique=True), max_size=5))
def test_every_node_is_found_in_the_last_layer_that_runs_it(network: Network, parts: list[list[int]]) -> None:
    layers = [layer(f"l{place}", [f"t{node}" for node in part]) for place, part in enumerate(parts)]
    found = engine_layers(network, layers)
    assert found.keys() == {network.producer[f"t{node}"] for part in parts for node in part}
    for place, part in enumerate(parts):
        for node in part:
            if not any(node in later for later in parts[place + 1 :]):
                assert found[network.producer[f"t{node}"]].name == f"l{place}"
                assert len(found[network.producer[f"t{node}"]].nodes) == len(part)


def test_tensors_of_a_lowered_model_are_passed_over(network: Network) -> None:
    (found,) = set(engine_layers(network, [layer("l", ["t0_fp16", "t1"])]).values())
    assert found.nodes == (1,)


def test_layerwise_says_what_ran_the_origin(cli: CommandLine, here: Path, monkeypatch: Any) -> None:
    model = overflowing(here / "model.onnx")
    real = WorkerPool.ask

    def ask(pool: WorkerPool, request: Any, *rest: Any, **more: Any) -> Any:
        reply = real(pool, request, *rest, **more)
        region = layer("{ForeignNode[a2...small]}", ["a2_out", "big_out", "small_out"], ["float16"])
        return replace(reply, layers=(region,)) if getattr(request, "layers", False) else reply

    monkeypatch.setattr(WorkerPool, "ask", ask)
    ran = cli("layerwise", model, "--onnxrt", "--fp16", "--json", "r.json")
    assert ran.status == 0
    assert "fused with 2 other nodes into the engine layer '{ForeignNode[a2...small]}', which makes float16" in ran.out
    assert read_json(Path("r.json"))["first_mismatch"]["engine_layer"]["nodes"] == ["a2", "big", "small"]
