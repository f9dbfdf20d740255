"""A failure that rebuilding the model takes away is said to be that, and never searched for to the end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper
from support import chain, read_json, script

from bisect_trt.commands.session import unless_lost
from bisect_trt.search.oracle import Subset, Verdict
from bisect_trt.search.strategy import minimise

LENGTH = 40


@pytest.mark.parametrize("workers", ["1", "3"])
@pytest.mark.parametrize("otherwise", [0, 125])
def test_a_failure_that_is_lost_at_once_is_not_searched_for(
    cli: CommandLine, here: Path, workers: str, otherwise: int
) -> None:
    """The check fails for a weight that no node reads, which no piece has."""
    model = onnx.load(str(chain(Path("model.onnx"), LENGTH)))
    model.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "poison"))
    onnx.save(model, "model.onnx")
    # Pieces pass, or break in other ways; all units together pass.
    whole = f'[ "$(grep -oaE "<[0-9]+>" "$1" | wc -l)" -ge {LENGTH} ]'
    script(here / "check", f'grep -qa poison "$1" && exit 1\n{whole} && exit 0\nexit {otherwise}')
    line = ["reduce", "model.onnx", "-o", "out.onnx", "--workers", workers, "--json", "r.json"]
    ran = cli(*line, "--check", "./check", "{model}")
    assert ran.status == 3
    assert "so it cannot be cut" in ran.error
    result = read_json(Path("r.json"))
    assert result["status"] == "inconclusive"
    assert result["probes"]["run"] <= 2 + LENGTH.bit_length() + 1
    assert not Path("out.onnx").exists()


@given(st.integers(1, 200), st.data())
def test_a_failure_that_survives_is_found_as_before(count: int, data: st.DataObject) -> None:
    """With one question more at most, where nothing fails until the end."""
    units = range(count)
    needed = frozenset(data.draw(st.sets(st.sampled_from(units), min_size=1, max_size=4)))
    asked: list[Subset] = []

    def ask(chosen: Subset) -> Verdict:
        asked.append(chosen)
        return Verdict.FAIL if needed <= chosen else Verdict.PASS

    plain = minimise(units, ask)
    before, asked[:] = list(asked), []
    watched = unless_lost(lambda oracle: minimise(units, oracle), ask, frozenset(units))
    assert (watched.units, watched.proven) == (plain.units, plain.proven)
    extra = [chosen for chosen in asked if chosen not in before]
    assert len(extra) <= 1
    assert extra in ([], [frozenset(units)])
