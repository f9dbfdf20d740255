"""A Ray cluster of two nodes: the answer is that of one worker here, also when a node dies, and nothing is left behind."""

from __future__ import annotations

import contextlib
import importlib.util
import json
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
        wait_for(self._nodes, 180)
        self.add("second")

    def add(self, name: str, *words: str, wait: bool = True) -> None:
        """Start another node, with more options of `ray start`."""
        before = self._nodes()
        self._started.append(self._start(name, f"--address={self.address}", *words))
        if wait:
            wait_for(lambda: self._nodes() - before, 180)

    def _start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        options = "start --block --num-cpus=1 --disable-usage-stats"
        command = [sys.executable, "-m", "ray.scripts.scripts", *options.split()]
        environment = {**os.environ, MARK: f"{self._mark}-{name}"}
        with (self._folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen([*command, *words], env=environment, stdout=log, stderr=log)

    def _nodes(self) -> set[str]:
        """The nodes of the cluster; none before it has started."""
        command = [sys.executable, "-m", "bisect_trt.worker.place", self.address, "CPU"]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        return set() if said.returncode else set(json.loads(said.stdout.splitlines()[-1]))

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


def in_cluster(
    folder: Path, cluster: Cluster, nodes: str = ""
) -> tuple[Story, subprocess.Popen[bytes]]:
    """The same run, its probes in the cluster, on the nodes with a resource."""
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
    return story, story.popen(*words, "--on", f"ray={cluster.address},cpus{nodes}", "--overwrite")


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


def test_probes_run_on_the_nodes_with_a_resource(
    cluster: Cluster, expected: Answer, tmp_path: Path
) -> None:
    """A cluster of unlike nodes is used by their kind."""
    cluster.add("special", '--resources={"fits": 1}')
    story, driver = in_cluster(tmp_path / "story", cluster, ",resource=fits")
    elsewhere = False
    while driver.poll() is None:
        for name in ("head", "second", "node1", "node2"):
            elsewhere |= any(PLACED[0] in words for words in cluster.processes(name).values())
        time.sleep(0.05)
    assert story.wait(driver) == 0, story.said()
    assert story.answer() == expected
    assert not elsewhere
    story, driver = in_cluster(tmp_path / "none", cluster, ",resource=missing")
    assert story.wait(driver) == 4
    assert "has no CPU on a node with the resource missing" in story.said()
    cluster.kill("special")


def test_half_of_six_nodes_die_and_two_join_late(
    cluster: Cluster, expected: Answer, tmp_path: Path
) -> None:
    names = [f"of-six-{number}" for number in range(5)]  # beside the head
    for name in names:
        cluster.add(name)
    story, driver = in_cluster(tmp_path / "story", cluster)
    while not story.journal() and driver.poll() is None:
        time.sleep(0.01)
    for name in names[:3]:
        cluster.kill(name)
    for name in ("late-1", "late-2"):
        cluster.add(name, wait=False)
    assert story.wait(driver) == 0, story.said()
    assert story.answer() == expected
    cluster.assert_nothing_of_ours_is_left()
