"""A Ray cluster of two nodes: the answer is that of one worker here, also when a node dies, and nothing is left behind."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from story import Answer, Story
from support import marked, wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="Ray is not installed (bisect-trt[ray])"
    ),
    pytest.mark.skipif(
        "BISECT_TRT_CHAOS_KILLS" not in os.environ, reason="it takes minutes: make chaos"
    ),
]
MARK = "BISECT_TRT_TEST_RAY"
PLACED = (b"bisect-trt-worker", b"ray::Slot")
"""What says of a process that it is an actor of ours, or started by one."""


class Cluster:
    """A cluster on this machine, each node as `ray start` makes it; only what it has started is ever ended."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self._folder = folder
        self._mark = uuid.uuid4().hex
        # Ray keeps sockets below its folder, whose paths may be 107 bytes long.
        self._started = [
            self._start(
                "head",
                "--head",
                f"--port={self.address.rpartition(':')[2]}",
                "--include-dashboard=false",
            )
        ]
        self._wait(1)
        self.add("second")

    def add(self, name: str) -> None:
        """Start another node."""
        self._started.append(self._start(name, f"--address={self.address}"))
        self._wait(2)

    def _start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        options = "start --block --num-cpus=1 --disable-usage-stats"
        command = [sys.executable, "-m", "ray.scripts.scripts", *options.split()]
        environment = {**os.environ, MARK: f"{self._mark}-{name}"}
        with (self._folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen([*command, *words], env=environment, stdout=log, stderr=log)

    def _wait(self, nodes: int) -> None:
        command = [sys.executable, "-m", "bisect_trt.worker.place", self.address, "CPU"]

        def has_nodes() -> bool:
            said = subprocess.run(command, capture_output=True, text=True, check=False)
            return said.returncode == 0 and said.stdout.count(": 1") == nodes

        wait_for(has_nodes, 180)

    def processes(self, name: str = "") -> dict[int, bytes]:
        """The command lines of what runs on a node, or on all."""
        return marked(f"{MARK}={self._mark}-{name}")

    def kill(self, name: str) -> None:
        """kill -9 of all that runs on a node at once, as a machine dies."""
        for pid in self.processes(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def assert_nothing_of_ours_is_left(self) -> None:
        """Neither actors nor what they have started."""
        wait_for(
            lambda: not any(sign in words for words in self.processes().values() for sign in PLACED)
        )

    def close(self) -> None:
        """End it."""
        for _ in range(3):
            self.kill("")
        for started in self._started:
            started.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("ray"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Answer:
    """In another interpreter: a place gets candidates of an older IR version, whose keys are others."""
    return Story("place", tmp_path_factory.mktemp("here") / "story").to_the_end()


def in_cluster(folder: Path, cluster: Cluster) -> tuple[Story, subprocess.Popen[bytes]]:
    """The same run, its probes in the cluster."""
    story = Story("reduce", folder)
    words = [
        "reduce",
        "model.onnx",
        "--json",
        "result.json",
        "-o",
        "out.onnx",
        "--onnxrt",
        "--fp16",
    ]
    return story, story.popen(*words, "--on", f"ray={cluster.address},cpus", "--overwrite")


def test_it_gives_the_answer_of_one_worker(
    cluster: Cluster, expected: Answer, tmp_path: Path
) -> None:
    story, driver = in_cluster(tmp_path / "story", cluster)
    assert story.wait(driver) == 0, story.said()
    assert story.answer() == expected
    cluster.assert_nothing_of_ours_is_left()


def test_a_cluster_without_gpus_is_said(cluster: Cluster, tmp_path: Path) -> None:
    story = Story("reduce", tmp_path / "story")
    words = [
        "reduce",
        "model.onnx",
        "-o",
        "out.onnx",
        "--onnxrt",
        "--fp16",
        "--on",
        f"ray={cluster.address}",
    ]
    assert story.wait(story.popen(*words)) == 4
    assert (
        f"the Ray cluster has no GPU; write ray={cluster.address},cpus to use its processor cores."
        in story.said()
    )


def test_a_driver_that_is_killed_leaves_nothing_in_the_cluster(
    cluster: Cluster, expected: Answer, tmp_path: Path
) -> None:
    story, driver = in_cluster(tmp_path / "story", cluster)
    while len(story.journal()) < 4 and driver.poll() is None:
        time.sleep(0.01)
    assert any(any(sign in words for sign in PLACED) for words in cluster.processes().values())
    driver.kill()
    story.wait(driver)
    cluster.assert_nothing_of_ours_is_left()
    assert story.to_the_end() == expected


@pytest.mark.parametrize("seed", range(3))
def test_a_node_that_dies_in_mid_search_changes_no_answer(
    cluster: Cluster, expected: Answer, tmp_path: Path, seed: int
) -> None:
    name = "second" if seed == 0 else f"node{seed}"
    if seed:
        cluster.add(name)
    story, driver = in_cluster(tmp_path / "story", cluster)
    while not story.journal() and driver.poll() is None:
        time.sleep(0.01)
    time.sleep(random.Random(seed).uniform(0, 3))
    cluster.kill(name)
    assert story.wait(driver) == 0, story.said()
    assert story.answer() == expected
    cluster.assert_nothing_of_ours_is_left()
