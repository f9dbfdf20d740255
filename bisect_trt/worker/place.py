"""A place: where probes run, as a value. A Ray cluster has one for each GPU, or processor core.

Such a one is reached by a command, as a host is by ssh: this module, run as a program, passes
standard input and output on to an interpreter that an actor has started on its node. Ray finds the
nodes, places the actors, and ends what belongs to a driver that is gone. The nodes need Ray, NumPy
and the runtime's own package: the actor's class goes over by value.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from bisect_trt.aliases import Fields, Names, Plain
from bisect_trt.errors import PlaceError, ValueRefusedError
from bisect_trt.worker.channel import write_all
from bisect_trt.worker.process import module_command

Kind = Literal["python", "env", "ssh", "command", "ray"]
_DASH = re.compile(r"(?<=\s)-(?=['\"]*\s*$)")
"""The dash of ``python3 -``, at the end of a command."""
GREETING = b"@bisect-trt-worker "
"""Printed first by the interpreter of a place, followed by its version."""
OLDEST = (3, 10)
"""The oldest Python that a worker runs on."""
FIRST_LINE = (
    'import os,sys;n=os.write(1,("\\n@bisect-trt-worker %d.%d.%d\\n"%sys.version_info[:3]).encode());'
    'f=os.fdopen(0,"rb",0);exec(eval(f.readline()))'
)
"""The program that an interpreter of any version is started with: one line, without single quotes,
so that shells keep it."""
_FORMS: dict[Kind, tuple[str, str, str]] = {
    "python": ("(?P<python>.+)", "python=PATH", "another interpreter"),
    "env": ("(?P<env>.+)", "env='PACKAGE==VERSION ...'", "another environment"),
    "ssh": (
        "(?P<host>[^-,][^,]*)(?:,python=(?P<python>.+))?",
        "ssh=HOST,python=PATH",
        "another host",
    ),
    "command": ("(?P<command>.+)", "command='... python3 -'", "another machine or container"),
    "ray": (
        "(?P<address>[^,]+)(?:,(?P<resource>cpus|gpus))?(?:,resource=(?P<kind>[^,]+))?",
        "ray=auto or ray=ADDRESS; ray=auto,cpus for its processor cores; ray=auto,resource=NAME for nodes with a custom resource",
        "a Ray cluster",
    ),
}
"""The pattern of the words after ``=``, the form in messages, and the name in public reports, by
kind."""


class Place(Struct, frozen=True):
    """A place where probes run, by the user's words after ``--on``.

    Attributes:
        kind: ``python`` and ``env`` are on this machine; the others share nothing with it.
        argv: The command; the worker uses its standard input and output.
        typed: Whether the first line is typed into it, because it is an interpreter that reads its
            standard input.
    """

    kind: Kind
    said: str
    argv: Names
    typed: bool = False

    @property
    def local(self) -> bool:
        """Whether it takes this machine's memory and GPUs."""
        return self.kind in ("python", "env")

    @property
    def public(self) -> str:
        """The place for a public report: without a path of this machine or the name of a host."""
        return self.said if self.kind == "env" else _FORMS[self.kind][2]


class Seen(Struct, frozen=True):
    """The contents of a place: what ``host.facts`` found there, and the facts of the target."""

    place: Place
    found: Plain
    target: Plain

    @property
    def kind(self) -> dict[str, str]:
        """The facts that verdicts may depend on: the target's version, the GPU, the processor."""
        gpus = ", ".join(gpu["name"] for gpu in self.found.get("GPU", ()))
        facts = {
            "version": self.target.get("version", ""),
            "GPU": gpus,
            "processor": self.found.get("CPU", ""),
        }
        return {name: str(value) for name, value in facts.items() if value}

    def describe(self) -> str:
        """Its versions and hardware in words."""
        packages = [f"{name} {version}" for name, version in self.found.get("packages", {}).items()]
        gpus = [gpu["name"] for gpu in self.found.get("GPU", ())]
        parts = [
            *packages,
            f"Python {self.found['Python']}",
            *(gpus or [self.found.get("CPU", "")]),
        ]
        return ", ".join(part for part in parts if part)

    def to_json(self) -> Fields:
        """Plain values."""
        return {"place": self.place.said, **self.found, "target": dict(self.target)}

    def table(self) -> dict[str, str]:
        """Return the facts as text, by name."""
        facts = {"place": self.place.public, **self.found.get("packages", {})}
        facts |= {
            name: str(self.found.get(name, "")) for name in ("Python", "platform", "machine", "CPU")
        }
        gpus = self.found.get("GPU", ())
        facts["GPU"] = ", ".join(f"{gpu['name']} (driver {gpu['driver']})" for gpu in gpus)
        return {name: value for name, value in facts.items() if value}


def rerun_command(script: Path, places: Sequence[Place]) -> str:
    """The command that runs a script as the target ran: by the interpreter of the place, where it is on this machine."""
    place = places[0] if places else None
    python = place.argv[0] if place is not None and place.local else "python"
    suffix = "" if place is None or place.local else f", where the target ran: {place.said}"
    return shlex.join([python, str(script)]) + suffix


_SSH = (
    "-T",
    "-oBatchMode=yes",
    "-oConnectTimeout=20",
    "-oServerAliveInterval=5",
    "-oServerAliveCountMax=3",
)
"""No terminal and no questions; a host that is gone is noticed. The rest is in ~/.ssh/config."""


def parse(word: str) -> tuple[Kind, dict[str, str]]:
    """The kind and the parts of a place as it is written after ``--on``; nothing is started.

    Raises:
        UsageError: It is none.
    """
    name, _, text = word.partition("=")
    kind = next((form_name for form_name in _FORMS if form_name == name and text.strip()), None)
    if kind is None:
        raise ValueRefusedError(
            f"--on {word}: that is no place; give python=PATH, env='PACKAGE==VERSION ...', ssh=HOST,python=PATH, "
            "command='... python3 -' or ray=auto."
        )
    pattern, form, _ = _FORMS[kind]
    match = re.fullmatch(pattern, text)
    if match is None or (kind == "command" and not _words(text)):
        raise ValueRefusedError(f"--on {word}: write it as {form}.")
    return kind, {
        "python": "python3",
        "resource": "gpus",
        "kind": "",
        **{k: v for k, v in match.groupdict().items() if v},
    }


def _words(command: str) -> Names:
    """The words of a command; none if its quotes do not match."""
    try:
        return tuple(shlex.split(command))
    except ValueError:
        return ()


def make_place(word: str, environment: Callable[[str], str]) -> Place:
    """A place as it is written after ``--on``; ``environment`` makes one of packages in minutes, and returns its interpreter.

    Raises:
        UnavailableError: The environment cannot be made.
        UsageError: It is none.
    """
    kind, parts = parse(word)
    if kind in ("python", "env"):
        python = parts["python"] if kind == "python" else environment(parts["env"])
        if kind == "python" and "/" in python:
            # A run may go on in another folder.
            python = str(Path(python).absolute())
            word = f"python={python}"
        return Place(kind, word, (python, "-c", FIRST_LINE))
    if kind == "ssh":
        remote_command = shlex.join([parts["python"], "-c", FIRST_LINE])
        return Place(kind, word, ("ssh", *_SSH, parts["host"], remote_command))
    # An interpreter that reads its program from a pipe reads it to the end before it begins; -i
    # runs line after line.
    command = _DASH.sub("-i", parts["command"].strip())
    return Place(kind, word, _words(command), typed=True)


_LOOK_SECONDS = 90
_START_SECONDS = 60
"""Seconds that an actor may wait for a free GPU: less than any sensible time-out of a probe, which
runs meanwhile."""
_TIDY_SECONDS = 1.5
_PIECE = 1 << 20
_SHARE = 0.001
"""The share of a node's custom resource that an actor takes: it names the node, and never runs out."""


def slots(word: str, address: str, resource: str, kind: str = "") -> tuple[Place, ...]:
    """A place for each ``GPU``, or core (``CPU``), of the cluster at an address, which is Ray's.

    Args:
        word: The place as the user wrote it.
        address: The address of the cluster.
        resource: ``GPU`` or ``CPU``.
        kind: A custom resource of Ray that a node must have; empty for any node.

    Raises:
        UnavailableError: Ray, the cluster, or the resource is not there.
    """
    if importlib.util.find_spec("ray") is None:
        raise PlaceError(f"--on {word}: Ray is not installed; run: pip install ray.")
    # In a process of its own: Ray starts threads, and waits for ever for a cluster that is gone.
    command = module_command(__name__, address, resource, kind)
    errors = [f"no answer from {address} in {_LOOK_SECONDS} s"]
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_LOOK_SECONDS, check=False
        )
        errors = done.stderr.strip().splitlines() or errors if done.returncode else []
    if errors:
        raise PlaceError(
            f"--on {word}: there is no Ray cluster: {errors[-1]}; start one with `ray start --head`."
        )
    nodes: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    if not nodes:
        hint = "" if resource == "CPU" else f"; write ray={address},cpus to use its processor cores"
        kind_note = f" on a node with the resource {kind}" if kind else ""
        raise PlaceError(f"--on {word}: the Ray cluster has no {resource}{kind_note}{hint}.")
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

    def read(self, limit: int) -> bytes:
        """Return the next output of the interpreter; empty at its end."""
        assert self._process.stdout is not None
        return os.read(self._process.stdout.fileno(), limit)


def relay(ray: Any, resource: str, kind: str, node: str, source: int, sink: int) -> None:  # noqa: ANN401 - the module
    """Pass bytes on to an actor and back, until either side ends.

    Args:
        ray: The module.
        resource: ``GPU`` or ``CPU``, of which the actor takes one.
        kind: The custom resource that its node has, if any.
        node: The node that it starts on if it can.
        source: The descriptor of what goes to the actor.
        sink: The descriptor of what comes back.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415 - an extra

    options = {
        "num_gpus": int(resource == "GPU"),
        "num_cpus": int(resource == "CPU"),
        "resources": {kind: _SHARE} if kind else {},
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
        # The actor may be gone, and its node too.
        with contextlib.suppress(Exception):
            ray.get(actor.write.remote(b""), timeout=_TIDY_SECONDS)
        ray.kill(actor)
        os._exit(0)

    threading.Thread(target=forward, daemon=True).start()
    while content := ray.get(actor.read.remote(_PIECE)):
        write_all(sink, content)


def main(address: str, resource: str, kind: str = "", node: str = "") -> None:
    """Join a cluster as a driver of its own: print how much of a resource each node has, or be the relay to one."""
    import ray  # noqa: PLC0415 - an extra, and it takes a second

    source = os.dup(0)
    sink = os.dup(1)
    # Whatever Ray prints is no message.
    os.dup2(2, 1)
    ray.init(address=address, log_to_driver=False, logging_level="ERROR", configure_logging=False)
    if node:
        relay(ray, resource, kind, node, source, sink)
    else:
        nodes = sorted(
            ray.nodes(),
            key=lambda node_facts: (node_facts["NodeManagerAddress"], node_facts["NodeID"]),
        )
        counts = {
            node_facts["NodeID"]: int(node_facts["Resources"].get(resource, 0))
            for node_facts in nodes
            if node_facts["Alive"] and (not kind or kind in node_facts["Resources"])
        }
        write_all(
            sink,
            json.dumps({name: count for name, count in counts.items() if count}).encode() + b"\n",
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
