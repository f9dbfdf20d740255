"""Kills, full disks, deleted folders, clocks that jump, journals that were edited: no traceback, no orphan, no other answer.

Everything is drawn from a seed: ``BISECT_TRT_CHAOS_SEED=N`` repeats it, as far as moments can be
repeated. ``make test-slow`` has a few of each, ``make chaos`` 300 kills.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from story import STORIES, Answer, Killer, Story

KILLS = int(os.environ.get("BISECT_TRT_CHAOS_KILLS", "6"))
SEED = int(os.environ.get("BISECT_TRT_CHAOS_SEED", "0"))
ROUNDS = max(KILLS // 30, 1)
"""Of everything else."""
KINDS = tuple(STORIES) if KILLS > 20 else ("check",)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]


class Whole:
    """Undisturbed runs, made when they are first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, tuple[Answer, float]] = {}

    def of(self, kind: str) -> tuple[Answer, float]:
        """The answer, and how many seconds it took."""
        if kind not in self._known:
            began = time.monotonic()
            answer = Story(kind, self._folder / kind).to_the_end()
            self._known[kind] = answer, time.monotonic() - began
        return self._known[kind]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return Whole(tmp_path_factory.mktemp("whole"))


def test_kills_at_any_moment_change_no_answer_and_leave_nothing(
    whole: Whole, tmp_path: Path
) -> None:
    drawn = random.Random(SEED)
    killed = Counter[str]()
    longest = 0.0
    number = 0
    resumed = 0
    while killed.total() < KILLS:
        number += 1
        story = Story(KINDS[number % len(KINDS)], tmp_path / str(number))
        expected, seconds = whole.of(story.kind)
        for _ in range(
            drawn.choice((1, 1, 2, 3))
        ):  # sessions that are disturbed, one after the other
            driver = story.begin()
            killer = Killer(story, driver, drawn, seconds)
            killer.start()
            status = story.wait(driver)
            killer.join()
            killed.update(killer.killed)
            assert status == (-9 if "driver" in killer.killed and status < 0 else 0), story.said()
            if status == 0:
                break
        if not (story.folder / "result.json").exists() or status != 0:
            story.to_the_end()
        assert story.answer() == expected, story.said()
        longest = max(longest, story.longest)
        resumed = resumed + story.resumed
        shutil.rmtree(story.folder)
    print(
        f"\n{number} runs, {dict(killed)} killed, {resumed} times gone on with, the longest command {longest:.1f} s"
    )


@contextlib.contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[None]:
    """A file system of so many KiB in a folder.

    Needs the right to mount; the caller skips where there is none.
    """
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "none", str(folder)]
    if (
        os.geteuid() != 0
        or subprocess.run(command, capture_output=True, check=False).returncode != 0
    ):
        pytest.skip("nothing can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("turn", range(ROUNDS))
def test_a_full_disk_is_said_and_gone_on_from(whole: Whole, tmp_path: Path, turn: int) -> None:
    drawn = random.Random(SEED + turn)
    story = Story(drawn.choice(KINDS), tmp_path / "story")
    with small_disk(story.folder / ".bisect-trt", drawn.randrange(8, 400, 4)):
        status = story.wait(story.begin())
        assert status in (0, 2, 3, 4), story.said()
        grow = ["mount", "-o", "remount,size=100m", str(story.folder / ".bisect-trt")]
        subprocess.run(grow, check=True)
        if status != 0:
            (story.folder / "driver.log").write_text("")
            assert story.wait(story.begin()) == 0, story.said()
        assert story.answer() == whole.of(story.kind)[0], story.said()


def test_a_folder_that_cannot_be_written_to_is_said(tmp_path: Path) -> None:
    story = Story("check", tmp_path / "story")
    with small_disk(story.folder / ".bisect-trt", 400):
        subprocess.run(["mount", "-o", "remount,ro", str(story.folder / ".bisect-trt")], check=True)
        assert story.wait(story.begin()) == 2
        assert "error" in story.said()


@pytest.mark.parametrize("turn", range(ROUNDS))
def test_a_run_whose_folder_is_deleted_ends_with_a_sentence(
    whole: Whole, tmp_path: Path, turn: int
) -> None:
    drawn = random.Random(SEED + turn)
    story = Story(KINDS[turn % len(KINDS)], tmp_path / "story")
    expected, seconds = whole.of(story.kind)
    driver = story.begin()
    until = time.monotonic() + drawn.uniform(0.1 * seconds, seconds)
    while (time.monotonic() < until or story.run is None) and driver.poll() is None:
        time.sleep(0.005)
    shutil.rmtree(story.folder / ".bisect-trt", ignore_errors=True)
    assert story.wait(driver) in (0, 2, 3, 4), story.said()
    shutil.rmtree(story.folder / ".bisect-trt", ignore_errors=True)
    (story.folder / "driver.log").write_text("")
    assert story.to_the_end() == expected


JUMPING = """
import datetime, random, time
_drawn, _time, _date = random.Random({seed}), time.time, datetime.datetime
def _jump():
    return _drawn.choice([0, 0, -86400, 86400, -3e8, 3600, -0.5])
time.time = lambda: _time() + _jump()
time.time_ns = lambda: int(time.time() * 1e9)
class datetime_that_jumps(_date):
    @classmethod
    def now(cls, tz=None):
        return _date.now(tz) + datetime.timedelta(seconds=_jump())
datetime.datetime = datetime_that_jumps
"""


@pytest.mark.parametrize("turn", range(ROUNDS))
def test_a_clock_that_jumps_changes_nothing(whole: Whole, tmp_path: Path, turn: int) -> None:
    drawn = random.Random(SEED + turn)
    (tmp_path / "sitecustomize.py").write_text(JUMPING.format(seed=SEED + turn))
    story = Story(KINDS[turn % len(KINDS)], tmp_path / "story", {"PYTHONPATH": str(tmp_path)})
    driver = story.begin()
    time.sleep(drawn.uniform(1, 4))
    driver.kill()
    story.wait(driver)
    for path in story.folder.rglob("*"):
        if path.is_file():
            with contextlib.suppress(OSError):
                os.utime(path, (when := drawn.choice([0, 4e9, time.time()]), when))
    if story.run is None or not (story.folder / "result.json").exists():
        story.to_the_end()
    assert story.answer() == whole.of(story.kind)[0]
