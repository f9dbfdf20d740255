"""The reason why a build is bad is found exactly: on builds that choose by chance, with decoys that go along with it."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from bisect_trt.commands.build_choices import Build, Held, compare_builds, find_reasons
from bisect_trt.search.oracle import Verdict
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
        pins, bans = ([f"{each.layer}={each.value}" for each in some if each.pins] for some in (held.pins, held.bans))
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
    nodes = [helper.make_node("Relu", [f"t{place}"], [f"t{place + 1}"], name=name) for place, name in enumerate(names)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("t0", f"t{len(names)}")]
    return helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:]))


LAYERS = ("a", "b", "bad1", "c", "d", "e", "f", "bad2", "g", "h")


def wrong(*layers: str) -> frozenset[tuple[str, str]]:
    return frozenset((layer, unsteady_builds.WRONG) for layer in layers)


def named(choices: Sequence[Choice] | frozenset[Choice]) -> frozenset[tuple[str, str]]:
    return frozenset((each.layer, each.value) for each in choices)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("chance", [0.05, 0.5, 0.9])
def test_one_wrong_kernel_among_decoys(seed: int, chance: float) -> None:
    random.seed(seed)
    stand = Stand(network(*LAYERS[:7]), chance, lambda chosen: bool(unsteady_builds.wrong_nodes(list(chosen))))
    builds = stand.until_both()
    before = stand.built
    (reason,) = find_reasons(stand.build, builds, 10)
    assert (named(reason.choices), reason.proven) == (wrong("bad1"), True)
    assert stand.built - before < 40
    rows = compare_builds(builds, reason.choices)
    assert [(row["layer"], row["value"]) for row in rows if row["proven"]] == [*wrong("bad1")]
    assert (rows[0]["good"], rows[0]["bad"]) == (0, sum(not build.good for build in builds))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("chance", "tries"), [(0.4, 10), (0.4, 1), (0.9, 2)])
def test_kernels_that_are_wrong_together(seed: int, chance: float, tries: int) -> None:
    """Also where the only good build has one of them, as it has what is chosen nearly always."""
    random.seed(seed)
    both = {"bad1", "bad2"}
    stand = Stand(network(*LAYERS), chance, lambda chosen: unsteady_builds.wrong_nodes(list(chosen)) == both)
    builds = stand.until_both()
    (reason,) = find_reasons(stand.build, builds, tries)
    assert (named(reason.choices), reason.proven) == (wrong("bad1", "bad2"), True)
    # The table has both, also one that all builds made so that it tells none from another.
    rows = [row for row in compare_builds(builds, reason.choices) if row["proven"]]
    assert {(row["layer"], row["value"]) for row in rows} == wrong("bad1", "bad2")
    for row in rows:
        made = [build.good for build in builds if (row["layer"], row["value"]) in named(build.choices)]
        assert (row["good"], row["bad"]) == (sum(made), len(made) - sum(made))


@pytest.mark.parametrize("seed", range(20))
def test_each_of_several_reasons(seed: int) -> None:
    random.seed(seed)
    stand = Stand(network(*LAYERS), 0.2, lambda chosen: bool(unsteady_builds.wrong_nodes(list(chosen))))
    builds = stand.until_both()
    while len({named([each for each in build.choices if each.value == unsteady_builds.WRONG]) for build in builds}) < 4:
        verdict, chosen = stand.build(Held("free"))
        builds.append(Build("more", verdict is Verdict.PASS, chosen))
    reasons = find_reasons(stand.build, builds, 10)
    assert {named(reason.choices) for reason in reasons} == {wrong("bad1"), wrong("bad2")}
    assert all(reason.proven for reason in reasons)


def test_a_bad_build_that_left_no_choices_is_said_and_hides_no_other() -> None:
    random.seed(3)
    stand = Stand(network(*LAYERS[:7]), 0.5, lambda chosen: bool(unsteady_builds.wrong_nodes(list(chosen))))
    builds = [Build("build 0", good=False, choices=frozenset()), *stand.until_both()]
    found, silent = find_reasons(stand.build, builds, 10)
    assert (named(found.choices), found.proven) == (wrong("bad1"), True)
    assert (silent.choices, silent.proven) == (frozenset(), False)
    assert silent.why is not None
    assert silent.why.startswith("build 0 has no choice that can be pinned")


def test_what_cannot_be_pinned_is_never_a_proven_reason() -> None:
    random.seed(1)

    def fails(chosen: frozenset[Choice]) -> bool:
        return any(each.layer == "c" and each.kind == FORMAT and each.value == "channels_last" for each in chosen)

    for _ in range(20):
        stand = Stand(network(*LAYERS[:5]), 0.0, fails)
        assert not any(reason.proven for reason in find_reasons(stand.build, stand.until_both(), 10))


def test_a_coin_is_never_a_proven_reason() -> None:
    random.seed(2)
    for _ in range(20):
        stand = Stand(network(*LAYERS[:5]), 0.0, lambda chosen: random.random() < 0.5)  # noqa: ARG005 - that is the point
        assert not any(reason.proven for reason in find_reasons(stand.build, stand.until_both(), 10))
