"""A Ray cluster as places: each GPU, or processor core, is reached by a command, as a host is by ssh.

Run as a program, the module is that command: it passes standard input and output on to an interpreter that an actor has
started on its node. Ray finds the nodes, places the actors, and ends what belongs to a driver that is gone. The nodes need
Ray, NumPy and the runtime's own package: the actor's class goes over by value.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import threading
from typing import Any

from bisect_trt.errors import PlaceError
from bisect_trt.worker.channel import write_all
from bisect_trt.worker.place import FIRST_LINE, Place
from bisect_trt.worker.process import module_command

_LOOK_SECONDS = 90
_START_SECONDS = 60
"""Seconds that an actor may wait for a free GPU: less than any sensible time-out of a probe, which runs meanwhile."""
_TIDY_SECONDS = 1.5
_PIECE = 1 << 20


def slots(word: str, address: str, resource: str) -> tuple[Place, ...]:
    """A place for each ``GPU``, or core (``CPU``), of the cluster at an address, which is Ray's.

    Raises:
        UnavailableError: Ray, the cluster, or the resource is not there.
    """
    if importlib.util.find_spec("ray") is None:
        raise PlaceError(f"--on {word}: Ray is not installed; run: pip install ray.")
    command, said = module_command(__name__, address, resource), [f"no answer from {address} in {_LOOK_SECONDS} s"]
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LOOK_SECONDS, check=False)
        said = done.stderr.strip().splitlines() or said if done.returncode else []
    if said:
        raise PlaceError(f"--on {word}: there is no Ray cluster: {said[-1]}; start one with `ray start --head`.")
    nodes: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    if not nodes:
        more = "" if resource == "CPU" else f"; write ray={address},cpus to use its processor cores"
        raise PlaceError(f"--on {word}: the Ray cluster has no {resource}{more}.")
    relays = ((number, (*command, node)) for node, number in nodes.items())
    return tuple(Place("ray", word, relay) for number, relay in relays for _ in range(number))


class Slot:
    """The actor: holds one GPU, or core, and an interpreter on it."""

    def __init__(self, program: str) -> None:
        """Start the interpreter, with what it runs first."""
        argv = [sys.executable, "-c", program]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def write(self, content: bytes) -> None:
        """Write all of it to the interpreter; nothing is the end of its input."""
        assert self._process.stdin is not None
        self._process.stdin.write(content)
        self._process.stdin.flush()
        if not content:
            self._process.stdin.close()
            self._process.wait()

    def read(self, most: int) -> bytes:
        """Return the next output of the interpreter; empty at its end."""
        assert self._process.stdout is not None
        return os.read(self._process.stdout.fileno(), most)


def nodes_with(ray: Any, resource: str) -> dict[str, int]:  # noqa: ANN401 - the module
    """Return the amount of a resource on each node of a cluster, without nodes that have none."""
    nodes = sorted(
        (node for node in ray.nodes() if node["Alive"]), key=lambda node: (node["NodeManagerAddress"], node["NodeID"])
    )
    counts = {node["NodeID"]: int(node["Resources"].get(resource, 0)) for node in nodes}
    return {node: count for node, count in counts.items() if count >= 1}


def relay(ray: Any, resource: str, node: str, source: int, sink: int) -> None:  # noqa: ANN401 - the module
    """Pass bytes on to an actor and back, until either side ends."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415 - an extra

    options = {
        "num_gpus": 1 if resource == "GPU" else 0,
        "num_cpus": 0 if resource == "GPU" else 1,
        "max_restarts": 0,  # the pool asks again, and decides where
        "max_task_retries": 0,
        "max_concurrency": 2,  # one call reads while another writes
        # Its own node while that lives; any other that is like it after.
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=True),
    }
    actor = ray.remote(Slot).options(**options).remote(FIRST_LINE)
    ray.get(actor.__ray_ready__.remote(), timeout=_START_SECONDS)

    def forward() -> None:
        while content := os.read(source, _PIECE):
            ray.get(actor.write.remote(content))
        with contextlib.suppress(Exception):  # it may be gone, and its node too
            ray.get(actor.write.remote(b""), timeout=_TIDY_SECONDS)
        ray.kill(actor)
        os._exit(0)

    threading.Thread(target=forward, daemon=True).start()
    while content := ray.get(actor.read.remote(_PIECE)):
        write_all(sink, content)


def main(address: str, resource: str, node: str = "") -> None:
    """Join a cluster as a driver of its own: list its nodes, or be the relay to one."""
    import ray  # noqa: PLC0415 - an extra, and it takes a second

    source, sink = os.dup(0), os.dup(1)
    os.dup2(2, 1)  # whatever Ray prints is no message
    ray.init(address=address, log_to_driver=False, logging_level="ERROR", configure_logging=False)
    if node:
        relay(ray, resource, node, source, sink)
    else:
        write_all(sink, json.dumps(nodes_with(ray, resource)).encode() + b"\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
