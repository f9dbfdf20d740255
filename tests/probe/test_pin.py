"""Builds are held to what the build that failed chose, once it is seen that this is why it fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.probe.outcome import Ending, Outcome
from bisect_trt.probe.pin import Pin, make_pin
from bisect_trt.probe.workspace import CandidateFiles
from bisect_trt.search.oracle import Verdict
from bisect_trt.targets.choices import RECORD, Choice, write_choices
from bisect_trt.targets.settings import TargetSettings

CHOSEN = [Choice("a", "tactic", "wrong", pins=True), Choice("a", "format", "linear")]
FAILED = Outcome(Ending.MISMATCHED, "mismatch", "off by far")
PASSED = Outcome(Ending.PASSED, "match", "1 output matches")
REFUSED = Outcome(Ending.BROKEN, "build: pin", "the target refuses the model: it cannot be held")


@dataclass(frozen=True)
class Settings:
    """Of a target that notes what its builds are told."""

    record: Path | None = None
    pins: tuple[Choice, ...] = ()
    can: bool = True

    @property
    def target(self) -> Settings:
        return self

    def describe(self) -> str:
        return "Ours"

    def recording(self, settings: Settings, folder: Path) -> Settings:
        return replace(settings, record=folder)

    def held_to(self, settings: Settings, choices: Sequence[Choice], folder: Path) -> Settings | None:
        assert (folder / RECORD).exists()
        return replace(settings, pins=tuple(choices)) if self.can else None


class World:
    """A search's builds: what a build that is free, and one that is held, comes to."""

    def __init__(self, run: Path, free: Outcome, held: Outcome, chosen: Sequence[Choice] = CHOSEN) -> None:
        self.pin, self.asked = Pin(run), list[Settings]()
        self._run, self._free, self._held, self._chosen = run, free, held, chosen

    def _ask(self, target: Any) -> Outcome:
        self.asked.append(target)
        if target.record is not None and self._chosen:
            write_choices(target.record / RECORD, self._chosen)
        return self._held if target.pins else self._free

    def probe(self, name: str = "original", settings: Settings = Settings()) -> Outcome:
        folder = self._run / "candidates" / name
        folder.mkdir(parents=True, exist_ok=True)
        files = CandidateFiles(folder, folder / "m", folder / "i", folder / "g", folder / "l")
        return self.pin.probe(cast("TargetSettings", settings), files, self._ask)


def test_the_first_build_that_fails_is_what_others_are_held_to(tmp_path: Path) -> None:
    world = World(tmp_path, FAILED, FAILED)
    assert "its build is what others are held to (1 choice)" in world.probe().reason
    world.probe("other")
    free, again, other = world.asked
    assert free.record is not None
    assert not free.pins
    assert again.pins == other.pins == tuple(CHOSEN)
    assert world.pin.to_json() == {
        "build": str(tmp_path / "pinned"),
        "choices": [{"layer": "a", "choice": "tactic wrong"}],
    }
    # A run that goes on knows it.
    later = World(tmp_path, PASSED, FAILED)
    assert later.probe("another").ending is Ending.MISMATCHED
    assert later.asked[0].pins == tuple(CHOSEN)


def test_a_build_that_cannot_be_held_says_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, FAILED, FAILED)
    world.probe()
    world._held = REFUSED
    assert world.probe("other").judge(original="mismatch") is Verdict.UNRESOLVED


@pytest.mark.parametrize("again", [PASSED, REFUSED, Outcome(Ending.MISMATCHED, "nan", "NaN")])
def test_choices_that_do_not_decide_are_not_held_to(tmp_path: Path, again: Outcome) -> None:
    world = World(tmp_path, FAILED, again)
    with pytest.raises(
        UnavailableError, match=r"^--pin: what this build chose is not why it fails: held to it \(1 choice\)"
    ):
        world.probe()
    assert not world.pin.is_held()


@pytest.mark.parametrize(("chosen", "can"), [([], True), (CHOSEN, False)])
def test_a_build_that_says_nothing_cannot_be_held_to(tmp_path: Path, chosen: Sequence[Choice], can: bool) -> None:
    with pytest.raises(
        UnavailableError, match=r"^--pin: Ours says nothing of this build that another one can be held to"
    ):
        World(tmp_path, FAILED, FAILED, chosen).probe(settings=Settings(can=can))


@pytest.mark.parametrize(
    ("target", "others", "why"),
    [
        (None, False, "the builds of a --check command"),
        (
            TargetSettings("trt"),
            True,
            "the builds of a --check command, of a --metric and of other releases cannot be held",
        ),
        (TargetSettings("onnxrt"), False, "ONNX Runtime has none that could be held"),
    ],
)
def test_where_it_cannot_be(target: TargetSettings | None, others: bool, why: str) -> None:
    with pytest.raises(UsageError, match=f"^--pin holds the builds of a target to what one of them chose, and {why}"):
        make_pin(Path(), target, True, others)


def test_where_it_can() -> None:
    assert make_pin(Path("run"), TargetSettings("trt"), True, False) == Pin(Path("run"))
    assert make_pin(Path("run"), None, False, False) is None
