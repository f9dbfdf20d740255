"""The GPUs, or processor cores, of a Ray cluster as places: an actor for each, which stays warm.

Ray finds the nodes, places the actors, keeps weights in its object store and ends all that belongs to a driver that is gone. An
actor starts what every other place starts, as its child, and passes questions on. So a crash of the runtime is reported as an
answer, as everywhere; if the actor itself is gone, so is its node, and that is none (``max_restarts`` and
``max_task_retries`` are 0: what is asked again, and where, is the pool's business).

The nodes need Ray, NumPy and the runtime's own package: the code goes over by value.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bisect_trt.errors import UnavailableError
from bisect_trt.probing.places.bundle import FINDER, sources
from bisect_trt.probing.places.connection import Answered, Connection, PlaceLost, ProcessDied
from bisect_trt.probing.places.place import Place
from bisect_trt.probing.workers.process import module_command

_LOOK_SECONDS = 90
_START_SECONDS = 60
"""How long an actor may wait for a free GPU: less than any sensible time-out of a probe, which runs meanwhile."""
_TIDY_SECONDS, _GIVE_UP_SECONDS = 1.5, 0.2
_NO_RAY = "--on {}: that takes Ray, which is not installed here; install bisect-trt[ray]."


def slots(word: str, address: str, resource: str) -> tuple[Place, ...]:
    """A place for each GPU, or core, of a cluster.

    Args:
        word: How it is written after ``--on``.
        address: Ray's; ``auto`` for the cluster that this machine belongs to.
        resource: ``GPU`` or ``CPU``, as Ray calls them.

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


_SENT = (
    "bisect_trt.errors",
    "bisect_trt.probing.places.bundle",
    "bisect_trt.probing.places.connection",
    "bisect_trt.probing.places.place",
    "bisect_trt.probing.places.sent.wire",
)
"""The modules that an actor needs to talk to what it starts."""


class Slot:
    """What runs in the cluster: an actor that holds one GPU, or core, and what runs models on it.

    It goes over by value, so it names nothing of ours but what it is sent.
    """

    def __init__(self, finder: str, modules: Mapping[str, str], options: Mapping[str, Any]) -> None:
        """Nothing is started yet.

        Args:
            finder: What makes modules of text; see the bundle.
            modules: Those of :data:`_SENT`.
            options: ``said``, ``session``, ``memory_limit`` and ``program``; see :class:`Connection`.
        """
        scope: dict[str, Any] = {}
        exec(finder, scope)
        scope["finder"].add_modules(modules)
        self._module = importlib.import_module("bisect_trt.probing.places.connection")
        here = importlib.import_module("bisect_trt.probing.places.place")
        first = importlib.import_module("bisect_trt.probing.places.bundle").FIRST_LINE
        place = here.Place("python", options["said"], (sys.executable, "-c", first))
        more = {name: options[name] for name in ("session", "memory_limit", "program")}
        self._connection = self._module.Connection(place, **more)

    def ask(self, what: str, header: Mapping[str, Any], *payload: Any) -> tuple[str, Any, bytes]:  # noqa: ANN401 - any buffers
        """Pass a question on; how it ended, what is said, and what follows."""
        connection = self._connection
        try:
            answered = connection.ask(what, header, [memoryview(piece).cast("B") for piece in payload])
        except self._module.PlaceLost as lost:
            return "lost", str(lost), b""
        except self._module.ProcessDied as death:
            return "died", (death.code, death.log, death.over_memory), b""
        except self._module.UnavailableError as error:
            return "unavailable", str(error), b""
        printed, connection.printed = connection.printed, ""
        return "answered", (dict(answered.header), dict(connection.memory), printed), bytes(answered.payload)

    def put(self, name: str, content: Any) -> tuple[str, Any, bytes]:  # noqa: ANN401 - a buffer of Ray's object store
        """Take a file in."""
        return self.ask("put", {"hash": name, "offset": 0, "last": True}, content)

    def give_up(self) -> None:
        """End the process here; called while it is asked."""
        self._connection.give_up()

    def close(self) -> None:
        """End what runs here."""
        self._connection.close()


class ClusterConnection(Connection):
    """A conversation with an actor of a Ray cluster, as with any other place."""

    def __init__(self, place: Place, *, session: str, memory_limit: int | None = None) -> None:
        """As for any other place; the actor is started when it is first asked."""
        super().__init__(place, session=session, memory_limit=memory_limit)
        self._session, self._limit = session, memory_limit
        self._ray: Any = None
        self._actor: Any = None
        self._sent: set[str] = set()
        self._given_up = False

    def give_up(self) -> None:
        """Nobody waits for the answer any more; called by a signal, so what is done about it is done elsewhere."""
        self._given_up = True

    def wanted(self) -> None:
        """Something new is asked."""
        self._given_up = False

    def ask(self, what: str, header: Mapping[str, Any] | None = None, payload: Sequence[Any] = ()) -> Answered:
        """Ask the process there.

        Raises:
            PlaceLost: The actor is gone, or found no place in the cluster.
            ProcessDied: The process has ended; the next question goes to a new one.
            UnavailableError: Ray is not there.
        """
        return self._take_in(self._started().ask.remote(what, dict(header or {}), *map(bytes, payload)))

    def has(self, files: Mapping[str, Any]) -> None:
        """Make sure that files are there; each goes into Ray's object store once a worker.

        Raises:
            PlaceLost: As :meth:`ask`; and ProcessDied.
        """
        wanted = [name for name in files if name not in self._sent]
        if not wanted:
            return
        for name in self.ask("lacks", {"hashes": wanted}).header["lacks"]:
            self._take_in(self._started().put.remote(name, self._ray.put(_array(files[name]))))
        self._sent.update(wanted)

    def close(self) -> None:
        """End the actor, and what it runs with it."""
        actor, self._actor = self._actor, None
        if actor is not None:
            with contextlib.suppress(Exception):  # it may be gone, and its node too
                self._ray.get(actor.close.remote(), timeout=_TIDY_SECONDS)
            with contextlib.suppress(Exception):
                self._ray.kill(actor)

    def _started(self) -> Any:  # noqa: ANN401 - Ray's handle of an actor
        if self._actor is not None:
            return self._actor
        if self._ray is None:
            self._ray = connect(self.place.argv[0])
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415 - an extra

        _, resource, node = self.place.argv
        options = {
            "num_gpus": 1 if resource == "GPU" else 0,
            "num_cpus": 0 if resource == "GPU" else 1,
            "max_restarts": 0,
            "max_task_retries": 0,
            "max_concurrency": 2,  # it can be told to give up
            # Its own node while that lives; any other that is like it after.
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=True),
        }
        own = {
            "said": self.place.said,
            "session": self._session,
            "memory_limit": self._limit,
            "program": self.program,
        }
        actor = self._ray.remote(Slot).options(**options).remote(FINDER, sources(_SENT), own)
        self._actor, self._sent = actor, set()
        try:
            self._ray.get(actor.__ray_ready__.remote(), timeout=_START_SECONDS)
        except Exception as error:  # each of Ray's failures has a type of its own
            raise self._gone(error) from error
        return actor

    def _take_in(self, asked: Any) -> Answered:  # noqa: ANN401 - Ray's reference of an answer
        try:
            while not self._ray.wait([asked], timeout=_GIVE_UP_SECONDS)[0]:
                if self._given_up:
                    self._given_up = False
                    self._actor.give_up.remote()
            how, said, content = self._ray.get(asked)
        except Exception as error:  # the actor's own are answers, so it is Ray that says something
            raise self._gone(error) from error
        if how == "lost":
            raise PlaceLost(said)
        if how == "died":
            self._sent.clear()
            code, log, over_memory = said
            raise ProcessDied(code, log, over_memory=over_memory)
        if how == "unavailable":
            raise UnavailableError(said)
        header, self.memory, printed = said
        self.printed += printed
        return Answered(header, bytearray(content))

    def _gone(self, error: Exception) -> PlaceLost:
        self.close()
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        return PlaceLost(f"the place {self.place.said} is lost: {type(error).__name__}: {first}")


def _array(content: Any) -> Any:  # noqa: ANN401 - bytes, or the path of a file
    """A buffer as Ray's object store takes it without a copy in memory."""
    import numpy as np  # noqa: PLC0415 - a driver finds its places before it imports NumPy

    if isinstance(content, (bytes, memoryview)):
        return np.frombuffer(content, np.uint8)
    return np.memmap(content, np.uint8, "r") if Path(content).stat().st_size else np.zeros(0, np.uint8)


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
    cloudpickle.register_pickle_by_value(sys.modules[Slot.__module__])
    ray.init(address=address, log_to_driver=False, logging_level="ERROR", configure_logging=False)
    return ray


def main(address: str, resource: str) -> None:
    """Print how many of a resource each node of a cluster has, the nodes with none left out."""
    ray = connect(address)
    nodes = sorted(
        (node for node in ray.nodes() if node["Alive"]), key=lambda node: (node["NodeManagerAddress"], node["NodeID"])
    )
    print(
        json.dumps(
            {
                node["NodeID"]: int(node["Resources"].get(resource, 0))
                for node in nodes
                if node["Resources"].get(resource, 0) >= 1
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
