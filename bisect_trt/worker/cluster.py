"""The GPUs, or processor cores, of a Ray cluster as places: an actor for each, which holds a channel to a worker on its node.

Ray finds the nodes, places the actors, and ends what belongs to a driver that is gone. A crash of the runtime is reported by
the channel, as everywhere; if the actor itself is gone, so is its node, which says nothing of the model. The nodes need Ray,
NumPy and the runtime's own package: the channel goes over by value.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from bisect_trt.errors import UnavailableError
from bisect_trt.worker import channel
from bisect_trt.worker.channel import FIRST_LINE, Buffer, ChannelLost, Message, ProcessChannel
from bisect_trt.worker.place import Place
from bisect_trt.worker.process import module_command

_LOOK_SECONDS = 90
_START_SECONDS = 60
"""How long an actor may wait for a free GPU: less than any sensible time-out of a probe, which runs meanwhile."""
_TIDY_SECONDS = 1.5
_NO_RAY = "--on {}: that takes Ray, which is not installed here; install bisect-trt[ray]."


def slots(word: str, address: str, resource: str) -> tuple[Place, ...]:
    """A place for each GPU, or core, of a cluster.

    Args:
        word: The place as it is written after ``--on``.
        address: Ray's; ``auto`` for the cluster that this machine belongs to.
        resource: ``GPU`` or ``CPU``, as Ray names them.

    Raises:
        UnavailableError: Ray, the cluster, or the resource is not there.
    """
    if importlib.util.find_spec("ray") is None:
        raise UnavailableError(_NO_RAY.format(word))
    command = module_command(__name__, address, resource)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LOOK_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(
            f"--on {word}: no Ray cluster answers at {address} within {_LOOK_SECONDS} s; check its address, and `ray status`."
        ) from error
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        raise UnavailableError(
            f"--on {word}: there is no Ray cluster: {said[-1] if said else 'it does not answer'}; start one with "
            "`ray start --head`."
        )
    nodes: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    if not nodes:
        more = "" if resource == "CPU" else f"; write ray={address},cpus to use its processor cores"
        raise UnavailableError(f"--on {word}: the Ray cluster has no {resource}{more}.")
    return tuple(Place("ray", word, (address, resource, node)) for node, number in nodes.items() for _ in range(number))


class Slot:
    """The actor: holds one GPU, or core, and a channel to the worker on it. It goes over by value."""

    def __init__(self, title: str, program: bytes) -> None:
        """Nothing is started yet; the arguments are those of the channel."""
        self._channel = ProcessChannel(title, [sys.executable, "-c", FIRST_LINE], program)

    def exchange(self, header: Mapping[str, Any], *payload: bytes) -> tuple[dict[str, Any], bytes]:
        """Pass a message on; the header of the answer has ``lost``, the message and ``refused``, if there is none."""
        try:
            known, content = self._channel.exchange(header, payload)
        except ChannelLost as lost:
            return {"lost": (str(lost), lost.refused)}, b""
        return known, bytes(content)

    def close(self) -> None:
        """End the worker."""
        self._channel.close()


class RayChannel:
    """Exchanges messages with an actor, which is started by the first one."""

    def __init__(self, place: Place, program: bytes) -> None:
        """The actor is started by the first message; ``program`` is that of the channel."""
        self._place = place
        self._program = program
        self._ray: Any = None
        self._actor: Any = None

    def exchange(self, header: Mapping[str, Any], payload: Sequence[Buffer] = ()) -> Message:
        """Send a message and wait for the answer.

        Raises:
            ChannelLost: The actor is gone, or found no room in the cluster.
            UnavailableError: Ray is not there.
        """
        actor = self._started()
        try:
            known, content = self._ray.get(actor.exchange.remote(dict(header), *map(bytes, payload)))
        except Exception as error:  # the actor's own are answers, so this one is Ray's
            raise self._lost(error) from error
        if "lost" in known:
            message, refused = known["lost"]
            raise ChannelLost(message, refused=refused)
        return known, bytearray(content)

    def _started(self) -> Any:  # noqa: ANN401 - Ray's handle of an actor
        if self._actor is not None:
            return self._actor
        address, resource, node = self._place.argv
        self._ray = self._ray or connect(address)
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415 - an extra

        options = {
            "num_gpus": 1 if resource == "GPU" else 0,
            "num_cpus": 0 if resource == "GPU" else 1,
            "max_restarts": 0,  # the pool asks again, and decides where
            "max_task_retries": 0,
            # Its own node while that lives; any other that is like it after.
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=True),
        }
        actor = self._ray.remote(Slot).options(**options).remote(self._place.said, self._program)
        self._actor = actor
        try:
            self._ray.get(actor.__ray_ready__.remote(), timeout=_START_SECONDS)
        except Exception as error:  # each of Ray's failures has a type of its own
            raise self._lost(error) from error
        return actor

    def close(self) -> None:
        """End the actor and its worker."""
        actor, self._actor = self._actor, None
        if actor is not None:
            with contextlib.suppress(Exception):  # it may be gone, and its node too
                self._ray.get(actor.close.remote(), timeout=_TIDY_SECONDS)
            with contextlib.suppress(Exception):
                self._ray.kill(actor)

    def _lost(self, error: Exception) -> ChannelLost:
        self.close()
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        return ChannelLost(f"the place {self._place.said} is lost: {type(error).__name__}: {first}")


def connect(address: str) -> Any:  # noqa: ANN401 - the module ray
    """Join a cluster as a driver of its own, whose actors end with this process.

    Raises:
        UnavailableError: Ray is not installed.
    """
    try:
        import ray  # noqa: PLC0415 - an extra, and it takes a second
        from ray import cloudpickle  # noqa: PLC0415 - as above
    except ImportError as error:
        raise UnavailableError(_NO_RAY.format(f"ray={address}")) from error
    for module in (sys.modules[Slot.__module__], channel):
        cloudpickle.register_pickle_by_value(module)
    ray.init(address=address, log_to_driver=False, logging_level="ERROR", configure_logging=False)
    return ray


def main(address: str, resource: str) -> None:
    """Print how many of a resource each node of a cluster has; nodes with none are left out."""
    nodes = sorted(
        (node for node in connect(address).nodes() if node["Alive"]),
        key=lambda node: (node["NodeManagerAddress"], node["NodeID"]),
    )
    counts = {node["NodeID"]: int(node["Resources"].get(resource, 0)) for node in nodes}
    print(json.dumps({node: count for node, count in counts.items() if count >= 1}))


if __name__ == "__main__":
    main(*sys.argv[1:])
