"""Any node of any real network, and any two, are found exactly; the check runs in this process to afford many."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from light import Light, tag_light
from test_blame import Needs, investigating

from benchmarks.cases import LIGHT_MODELS
from bisect_trt.commands.minimal_case import find_minimum
from bisect_trt.search.oracle import Minimum, Mode

SEEDS = range(2)


def search(model: Path, names: list[str], folder: Path) -> tuple[Minimum, list[str], list[str]]:
    """What is found, the names of its nodes, and those of the model that they are as one of its own."""
    check = Needs(tuple(names))
    with investigating(model, lambda _: check, folder) as session:
        subject = session.subject
        session.prober.probe_original(subject.original)
        minimum = find_minimum(session, Mode.AUTO)
        found = [culprit["name"] for culprit in subject.describe_searched(minimum.units)]
        return minimum, found, [node.name for node in subject.cut(minimum.units).proto.graph.node]


def joins(light: Light) -> list[str]:
    """Where branches meet, and the last nodes of the branches."""
    graph = onnx.load(str(light.path)).graph
    maker = {name: node.name for node in graph.node for name in node.output}
    computing = set(light.computing)
    found = []
    for node in graph.node:
        branches = [maker[name] for name in node.input if maker.get(name) in computing]
        if len(branches) > 1:
            found += [node.name, *branches]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", LIGHT_MODELS)
def test_exactly_the_required_nodes_are_left(name: str, tmp_path: Path) -> None:
    light = tag_light(name, tmp_path)
    cases = [light.choose(count, seed) for count in (1, 2) for seed in SEEDS]
    cases += [[light.computing[0]], [light.computing[-1]], [light.computing[0], light.computing[-1]]]
    met = joins(light)
    if met:
        cases += [[met[0]], [met[1]], [met[-1]], met[:2], [met[1], met[-1]]]
    for number, names in enumerate(cases):
        minimum, found, kept = search(light.path, names, tmp_path / str(number))
        assert minimum.proven
        assert sorted(found) == sorted(names)
        # As a model of its own it is those nodes and makers of weights.
        assert not (set(kept) - set(names)) & set(light.computing)
