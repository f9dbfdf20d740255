"""The reason why a build is bad is found exactly: on builds that choose by chance, with decoys that go along with it."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx
import pytest
from conftest import CommandLine
from fakes import FakeCheck, FakeRun, build, scratch
from onnx import helper
from resident import unsteady
from support import QUICK_MODEL, chain, model_of, script

from bisect_trt.probe.prober import reconfirm
from bisect_trt.report.proofs import describe_confirmation
from bisect_trt.search.oracle import Subset, Verdict
from bisect_trt.search.statistics import confirmations
from bisect_trt.steps.build_choices import Build, Held, compare_builds, find_reasons
from bisect_trt.targets.choices import FORMAT, Choice
from bisect_trt.targets.messages import BuildError

sys.path.append(str(Path(__file__).parents[1] / "unsteady"))

import unsteady_builds

Failing = Callable[[frozenset[Choice]], bool]


@dataclass
class Stand:
    """Builds of the unsteady target, without its sessions; ``fails`` says which are bad."""

    model: onnx.ModelProto
    chance: float
    fails: Failing
    built: int = 0

    def build(self, held: Held) -> tuple[Verdict, frozenset[Choice]]:
        self.built += 1
        pins, bans = (
            [f"{each.layer}={each.value}" for each in some if each.pins]
            for some in (held.pins, held.bans)
        )
        try:
            chosen = frozenset(unsteady_builds.build(self.model, self.chance, pins, bans))
        except BuildError:
            return Verdict.UNRESOLVED, frozenset()
        return Verdict.FAIL if self.fails(chosen) else Verdict.PASS, chosen

    def until_both(self) -> list[Build]:
        builds: list[Build] = []
        while len({build.good for build in builds}) < 2:
            verdict, chosen = self.build(Held("free"))
            builds.append(Build(f"build {len(builds) + 1}", verdict is Verdict.PASS, chosen))
        return builds


def network(*names: str) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Relu", [f"t{place}"], [f"t{place + 1}"], name=name)
        for place, name in enumerate(names)
    ]
    return model_of(nodes, inputs={"t0": [2]}, outputs={f"t{len(names)}": [2]})


LAYERS = ("a", "b", "bad1", "c", "d", "e", "f", "bad2", "g", "h")


def wrong(*layers: str) -> frozenset[tuple[str, str]]:
    return frozenset((layer, unsteady_builds.WRONG) for layer in layers)


def named(choices: Sequence[Choice] | frozenset[Choice]) -> frozenset[tuple[str, str]]:
    return frozenset((each.layer, each.value) for each in choices)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("chance", [0.05, 0.5, 0.9])
def test_one_wrong_kernel_among_decoys(seed: int, chance: float) -> None:
    random.seed(seed)
    stand = Stand(
        network(*LAYERS[:7]), chance, lambda chosen: bool(unsteady_builds.wrong_nodes(list(chosen)))
    )
    builds = stand.until_both()
    before = stand.built
    (reason,) = find_reasons(stand.build, builds, 10)
    assert (named(reason.choices), reason.proven) == (wrong("bad1"), True)
    assert stand.built - before < 40
    rows = compare_builds(builds, reason.choices)
    assert [(row.layer, row.value) for row in rows if row.proven] == [*wrong("bad1")]
    assert (rows[0].good, rows[0].bad) == (0, sum(not build.good for build in builds))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("chance", "tries"), [(0.4, 10), (0.4, 1), (0.9, 2)])
def test_kernels_that_are_wrong_together(seed: int, chance: float, tries: int) -> None:
    """Also where the only good build has one of them, as it has what is chosen nearly always."""
    random.seed(seed)
    both = {"bad1", "bad2"}
    stand = Stand(
        network(*LAYERS), chance, lambda chosen: unsteady_builds.wrong_nodes(list(chosen)) == both
    )
    builds = stand.until_both()
    (reason,) = find_reasons(stand.build, builds, tries)
    assert (named(reason.choices), reason.proven) == (wrong("bad1", "bad2"), True)
    # The table has both, also one that all builds made so that it tells none from another.
    rows = [row for row in compare_builds(builds, reason.choices) if row.proven]
    assert {(row.layer, row.value) for row in rows} == wrong("bad1", "bad2")
    for row in rows:
        made = [build.good for build in builds if (row.layer, row.value) in named(build.choices)]
        assert (row.good, row.bad) == (sum(made), len(made) - sum(made))


@pytest.mark.parametrize("seed", range(20))
def test_each_of_several_reasons(seed: int) -> None:
    random.seed(seed)
    stand = Stand(
        network(*LAYERS), 0.2, lambda chosen: bool(unsteady_builds.wrong_nodes(list(chosen)))
    )
    builds = stand.until_both()
    while (
        len(
            {
                named([each for each in build.choices if each.value == unsteady_builds.WRONG])
                for build in builds
            }
        )
        < 4
    ):
        verdict, chosen = stand.build(Held("free"))
        builds.append(Build("more", verdict is Verdict.PASS, chosen))
    reasons = find_reasons(stand.build, builds, 10)
    assert {named(reason.choices) for reason in reasons} == {wrong("bad1"), wrong("bad2")}
    assert all(reason.proven for reason in reasons)


def test_a_bad_build_that_left_no_choices_is_said_and_hides_no_other() -> None:
    random.seed(3)
    stand = Stand(
        network(*LAYERS[:7]), 0.5, lambda chosen: bool(unsteady_builds.wrong_nodes(list(chosen)))
    )
    builds = [Build("build 0", good=False, choices=frozenset()), *stand.until_both()]
    found, silent = find_reasons(stand.build, builds, 10)
    assert (named(found.choices), found.proven) == (wrong("bad1"), True)
    assert (silent.choices, silent.proven) == (frozenset(), False)
    why = silent.to_part().why
    assert why is not None
    assert why.startswith("build 0 has no choice that can be pinned")


def test_what_cannot_be_pinned_is_never_a_proven_reason() -> None:
    random.seed(1)

    def fails(chosen: frozenset[Choice]) -> bool:
        return any(
            each.layer == "c" and each.kind == FORMAT and each.value == "channels_last"
            for each in chosen
        )

    for _ in range(20):
        stand = Stand(network(*LAYERS[:5]), 0.0, fails)
        assert not any(
            reason.proven for reason in find_reasons(stand.build, stand.until_both(), 10)
        )


def test_a_coin_is_never_a_proven_reason() -> None:
    random.seed(2)
    for _ in range(20):
        stand = Stand(network(*LAYERS[:5]), 0.0, lambda chosen: random.random() < 0.5)  # noqa: ARG005 - that is the point
        assert not any(
            reason.proven for reason in find_reasons(stand.build, stand.until_both(), 10)
        )


# What passes is recommended, or blamed, only where that is no luck: a failure that comes and goes
# passes by chance.


FAILING = build([])


@pytest.mark.any_version
@pytest.mark.parametrize("ways", range(1, 9))
def test_luck_is_as_seldom_as_is_said_at_any_rate(ways: int) -> None:
    """Of what was picked because it passed: the failing one fails each time, and one of these passes each time all the same."""
    failures, passes = confirmations(1, [0] * ways, 0.01)
    chances = [
        (rate, sum((1 - rate) ** number for number in passes))
        for rate in (x / 1000 for x in range(1001))
    ]
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
            first = next(
                (each for each in tried if run.prober.probe(each).verdict is Verdict.PASS), None
            )
            known_to_fail = run.prober.probe(FAILING).verdict is Verdict.FAIL
            if known_to_fail and first is not None:
                believed += reconfirm(run.prober, FAILING, first).passes
    assert not believed


@pytest.mark.any_version
def test_what_mends_a_steady_failure_is_believed_and_said_with_its_figures() -> None:
    with scratch() as folder, FakeRun(Path(folder), check := Coin(1.0, 0)) as run:
        run.prober.probe(FAILING)
        mended = reconfirm(run.prober, FAILING, build([99]))
        assert (mended.passes, describe_confirmation(mended)) == (
            True,
            "5 of 5 runs pass, 3 of 3 fail without it",
        )
        before = sum(check.ended.values())
        assert reconfirm(run.prober, FAILING, build([99])) == mended
        assert sum(check.ended.values()) == before, (
            "what was asked is remembered, as for a run that goes on"
        )
        assert not reconfirm(run.prober, FAILING, build([1])).passes


@pytest.mark.any_version
@pytest.mark.parametrize("rate", [0.2, 0.5, 0.8])
def test_at_a_measured_rate_what_mends_it_is_believed_and_luck_is_not(rate: float) -> None:
    for seed in range(4):
        with scratch() as folder, FakeRun(Path(folder), Coin(rate, seed)) as run:
            run.prober.probe_original(FAILING, repeat=40, units=50)
            flakiness = run.prober.flakiness
            assert not flakiness.is_steady
            assert reconfirm(run.prober, FAILING, build([99])).passes
            assert not reconfirm(run.prober, FAILING, replace(build([1]), title="luck")).passes


@pytest.mark.parametrize(
    "command", ["workaround", pytest.param("diagnose", marks=pytest.mark.slow)]
)
def test_ways_that_pass_by_luck_are_none(here: Path, command: str) -> None:
    """It fails in its first run and never again, so whatever is turned, marked or rewritten passes."""
    model = onnx.load(chain(here / "model.onnx", 4))
    model.graph.node[1].name = "bad"
    onnx.save(model, here / "model.onnx")
    words = [
        "--unsteady",
        "--fault",
        f"once:{here / 'seen'}",
        "--workers",
        "1",
        "-o",
        "answer",
        "--json",
        "r.json",
    ]
    ran = unsteady(command, here / "model.onnx", *words).ended(3)
    assert "Fix " not in ran.out
    assert "the check is flaky" in ran.error


def test_precision_is_not_blamed_for_a_failure_that_was_seen_once(
    cli: CommandLine, here: Path
) -> None:
    """The model fails when it is lowered for the first time, and passes whatever is in fp32 from then on."""
    lowered = f"{QUICK_MODEL}sys.exit(all(n.op_type != 'Cast' for n in model.graph.node))"
    (here / "lowered.py").write_text(lowered)
    once = f'{sys.executable} lowered.py "$1" || exit 0; [ -e seen ] && exit 0; touch seen; exit 1'
    check = script(Path("check"), once)
    words = [
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
    ]
    result = cli("precision", chain(here / "model.onnx", 4), *words).ended(3).result
    assert result["minimality"] == "unproven"
    assert (
        "failed, and did not when asked again, so that a pass may be luck; --repeat 20"
        in result["why"]
    )
