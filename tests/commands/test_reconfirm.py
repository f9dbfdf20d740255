"""What passes is recommended, or blamed, only where that is no luck: a failure that comes and goes passes by chance."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from conftest import CommandLine
from fakes import FakeCheck, FakeRun, build, scratch
from resident import unsteady
from support import chain, read_json, script

from bisect_trt.probe.prober import reconfirm
from bisect_trt.search.oracle import Subset, Verdict
from bisect_trt.search.statistics import confirmations

FAILING = build([])


@pytest.mark.any_version
@pytest.mark.parametrize("ways", range(1, 9))
def test_luck_is_as_seldom_as_is_said_at_any_rate(ways: int) -> None:
    """Of what was picked because it passed: the failing one fails each time, and one of these passes each time all the same."""
    failures, passes = confirmations(1, [0] * ways, 0.01)
    chances = [(rate, sum((1 - rate) ** number for number in passes)) for rate in (x / 1000 for x in range(1001))]
    assert all(rate ** (1 + failures) * chance <= 0.0101 for rate, chance in chances)


class Coin(FakeCheck):
    """Fails in a share of its runs, but where unit 99 mends it."""

    def __init__(self, rate: float, seed: int) -> None:
        drawn = random.Random(seed)

        def predicate(units: Subset) -> Verdict:
            return Verdict.FAIL if 99 not in units and drawn.random() < rate else Verdict.PASS

        super().__init__(predicate)


@pytest.mark.any_version
@pytest.mark.parametrize("rate", [0.2, 0.5, 0.8])
def test_the_first_of_many_that_passes_is_not_believed(rate: float) -> None:
    believed = 0
    for seed in range(15):
        with scratch() as folder, FakeRun(Path(folder), Coin(rate, seed)) as run:
            tried = (build([place]) for place in range(90))
            first = next((each for each in tried if run.prober.probe(each).verdict is Verdict.PASS), None)
            known_to_fail = run.prober.probe(FAILING).verdict is Verdict.FAIL
            if known_to_fail and first is not None:
                believed += reconfirm(run.prober, FAILING, first).passes
    assert not believed


@pytest.mark.any_version
def test_what_mends_a_steady_failure_is_believed_and_said_with_its_figures() -> None:
    with scratch() as folder, FakeRun(Path(folder), check := Coin(1.0, 0)) as run:
        run.prober.probe(FAILING)
        mended = reconfirm(run.prober, FAILING, build([99]))
        assert (mended.passes, mended.seen) == (True, "5 of 5 runs pass, 3 of 3 fail without it")
        before = sum(check.ended.values())
        assert reconfirm(run.prober, FAILING, build([99])) == mended
        assert sum(check.ended.values()) == before, "what was asked is remembered, as for a run that goes on"
        assert not reconfirm(run.prober, FAILING, build([1])).passes


@pytest.mark.any_version
@pytest.mark.parametrize("rate", [0.2, 0.5, 0.8])
def test_at_a_measured_rate_what_mends_it_is_believed_and_luck_is_not(rate: float) -> None:
    for seed in range(4):
        with scratch() as folder, FakeRun(Path(folder), Coin(rate, seed)) as run:
            run.prober.probe_original(FAILING, repeat=40, units=50)
            flakiness = run.prober.runner.flakiness
            assert not flakiness.is_steady
            assert reconfirm(run.prober, FAILING, build([99])).passes
            assert not reconfirm(run.prober, FAILING, replace(build([1]), title="luck")).passes


@pytest.mark.parametrize("command", ["workaround", pytest.param("diagnose", marks=pytest.mark.slow)])
def test_ways_that_pass_by_luck_are_none(here: Path, command: str) -> None:
    """It fails in its first run and never again, so whatever is turned, marked or rewritten passes."""
    model = onnx.load(chain(here / "model.onnx", 4))
    model.graph.node[1].name = "bad"
    onnx.save(model, here / "model.onnx")
    words = ["--unsteady", "--fault", f"once:{here / 'seen'}", "--workers", "1", "-o", "answer", "--json", "r.json"]
    ran = unsteady(command, here / "model.onnx", *words)
    assert ran.status == 3
    assert "Workaround: " not in ran.out
    assert "the check is flaky" in ran.error


def test_precision_is_not_blamed_for_a_failure_that_was_seen_once(cli: CommandLine, here: Path) -> None:
    """The model fails when it is lowered for the first time, and passes whatever is in fp32 from then on."""
    lowered = "import sys, onnx; sys.exit(all(n.op_type != 'Cast' for n in onnx.load(sys.argv[1]).graph.node))"
    once = f'{sys.executable} -c "{lowered}" "$1" || exit 0; [ -e seen ] && exit 0; touch seen; exit 1'
    check = script(Path("check"), once)
    ran = cli(
        "precision",
        chain(here / "model.onnx", 4),
        "-o",
        "mixed.onnx",
        "--fp16",
        "--workers",
        "1",
        "--json",
        "r.json",
        "--check",
        f"./{check}",
        "{model}",
    )
    result = read_json(Path("r.json"))
    assert (ran.status, result["minimality"]) == (3, "unproven")
    assert "failed, and did not when asked again, so that a pass may be luck; --repeat 20" in result["why"]
