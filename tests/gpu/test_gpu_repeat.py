"""Builds on a real GPU: what they choose is recorded, held to and named; tactics that are planted as bad are recovered."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
from selector import PLAIN, needs_selector
from support import chained_convolutions

import bisect_trt
from bisect_trt.search.oracle import Verdict
from bisect_trt.steps.build_choices import Build, Held, compare_builds, find_reasons, read_choices
from bisect_trt.targets.choices import RECORD, TACTIC, TIMINGS, Choice
from bisect_trt.targets.messages import BuildError
from bisect_trt.targets.runtime import Runtime

TRIES = 20
T = TypeVar("T")


def convolutions(path: Path) -> Path:
    """Three small convolutions that are unlike each other, so that each has tactics of its own to choose of.

    Nothing is between them: of four such with a Tanh behind each every build took 3.2 to 4 s on an
    H200 (TensorRT 8.6.0), also one that was held to a tactic in each layer, as pointwise layers are
    compiled again in each build.
    """
    return chained_convolutions(path, [(16, 3), (24, 1), (8, 3)], [1, 8, 16, 16], bare=True)


def contains(choice: Choice, chosen: frozenset[Choice]) -> bool:
    return choice in chosen


@dataclass
class RealBuilds:
    """Builds in this process; layers that are not held are dealt one of the tactics that were ``seen`` of them.

    So choices vary as they do where tactics are as fast as each other, and TensorRT times those
    tactics alone. A build that is told as much of each layer as one before chooses the same, which
    another test holds, and is not made again.

    Attributes:
        known: What builds chose, by what they were told; ``None`` if they could not be held to it.
        asked: How many builds were asked for.
    """

    model: Path
    folder: Path
    bad: Callable[[frozenset[Choice]], bool]
    seen: frozenset[Choice] = frozenset()
    known: dict[tuple[frozenset[Choice], frozenset[Choice]], frozenset[Choice] | None] = field(
        default_factory=dict
    )
    asked: int = 0

    def build(self, held: Held) -> tuple[Verdict, frozenset[Choice]]:
        self.asked += 1
        layers = {each.layer for each in held.pins}
        dealt = {
            layer: random.choice(sorted(of_layer))
            for layer in sorted({each.layer for each in self.seen} - layers)
            if (of_layer := {each for each in self.seen if each.layer == layer} - set(held.bans))
        }
        told = frozenset([*held.pins, *dealt.values()]), frozenset(held.bans)
        if not self.seen or told not in self.known:
            self.known[told] = self.make(*told)
        chosen = self.known[told]
        if chosen is None:
            return Verdict.UNRESOLVED, frozenset()
        return Verdict.FAIL if self.bad(chosen) else Verdict.PASS, chosen

    def make(
        self, pins: frozenset[Choice], bans: frozenset[Choice] = frozenset()
    ) -> frozenset[Choice] | None:
        """What a build of its own chooses; ``None`` if it cannot be held to the pins."""
        settings = PLAIN.target.pinned(PLAIN, sorted(pins), sorted(bans))
        settings = PLAIN.target.recording(settings, self.folder)
        feed = {"x": np.ones((1, 8, 16, 16), np.float32)}
        try:
            Runtime(settings).load(self.model, feed)
        except BuildError as error:
            if error.sign() != "pin":
                raise
            return None
        found = read_choices(json.loads((self.folder / RECORD).read_text()))
        assert found is not None
        return frozenset(found)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> RealBuilds:
    """Builds that are dealt the tactics that three builds chose, each of which was kept from those of the ones before."""
    needs_selector()
    folder = tmp_path_factory.mktemp("known")
    real = RealBuilds(convolutions(folder / "m.onnx"), folder, lambda _: False)
    tactics: set[Choice] = set()
    for _ in range(3):
        chosen = real.build(Held("free", bans=tuple(sorted(tactics))))[1]
        tactics |= {each for each in chosen if each.pins and each.kind == TACTIC}
    real.seen = frozenset(tactics)
    print(f"tactics: {[(each.layer, each.said) for each in sorted(tactics)]}")
    return real


def test_a_build_leaves_what_it_chose(tmp_path: Path) -> None:
    real = RealBuilds(convolutions(tmp_path / "m.onnx"), tmp_path, lambda _: False)
    _, chosen = real.build(Held("free"))
    kinds = {each.kind for each in chosen}
    assert {"tactic", "precision", "format"} <= kinds, sorted(chosen)
    assert (tmp_path / TIMINGS).stat().st_size > 0
    needs_selector()
    assert sum(each.pins for each in chosen) >= 3, sorted(chosen)


def test_a_build_is_held_to_what_another_one_chose(known: RealBuilds) -> None:
    tactics = [
        frozenset(each for each in known.build(Held("free"))[1] if each.pins) for _ in range(6)
    ]
    assert len(set(tactics)) > 1, "nothing varies"
    for wanted in tactics:
        chosen = known.make(wanted)
        assert chosen is not None
        assert wanted <= chosen


def test_planted_tactics_are_recovered(
    known: RealBuilds, record_property: Callable[[str, object], None]
) -> None:
    counts = Counter(each.layer for each in known.seen)
    planted = [each for each in sorted(known.seen) if counts[each.layer] > 1]
    assert len(planted) >= 2, counts
    exact = 0
    builds_made = []
    for number in range(TRIES):
        random.seed(number)
        guilty = planted[number % len(planted)]
        real = replace(known, bad=partial(contains, guilty), asked=0)
        before = len(known.known)
        builds: list[Build] = []
        while len(builds) < 6 or len({build.good for build in builds}) < 2:
            assert real.asked < 80, f"{guilty} is chosen always or never"
            verdict, made = real.build(Held("free"))
            if verdict is not Verdict.UNRESOLVED:
                builds.append(Build(f"build {len(builds) + 1}", verdict is Verdict.PASS, made))
        reasons = find_reasons(real.build, builds, 2)
        builds_made.append(len(known.known) - before)
        named = {choice for reason in reasons for choice in reason.choices if reason.proven}
        exact += named == {guilty}
        row = compare_builds(builds, frozenset(named))[0]
        print(
            f"try {number + 1}: planted {guilty.layer} {guilty.said}, named {[c.said for c in named]}, "
            f"{builds_made[-1]} builds of {real.asked}, "
            f"{row.bad} bad and {row.good} good builds have it, {[reason.why for reason in reasons]}",
            flush=True,
        )
    record_property("builds", builds_made)
    assert exact == TRIES


def test_the_command_on_real_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = bisect_trt.repeat(
        convolutions(tmp_path / "m.onnx"), target="trt", number=3, run=tmp_path / "run"
    )
    assert (result.runs, result.bad, result.status) == (3, 0, "not_reproduced")
    for build in result.builds:
        assert {"choices", "layers", "timing", "model"} <= set(build.files or ())
        assert all(Path(file).stat().st_size for file in (build.files or {}).values())
    same = bisect_trt.repeat(
        tmp_path / "m.onnx", target="trt", number=3, same_engine=True, run=tmp_path / "same"
    )
    assert (same.runs, same.good) == (3, 3)
