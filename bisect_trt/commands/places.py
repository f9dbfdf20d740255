"""Where targets run, as it was asked for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from bisect_trt.commands.subject import Subject
from bisect_trt.errors import BisectError, ConflictError, PlaceError, RunStateError
from bisect_trt.options.shared import Places
from bisect_trt.report.console import Console
from bisect_trt.report.result import Result
from bisect_trt.targets.options import selectable
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.npz import replacing
from bisect_trt.worker.place import Place, Seen, make_place, parse
from bisect_trt.worker.pool import WorkerPool
from bisect_trt.worker.protocol import About, Failed, Look


def open_places(options: Places, console: Console) -> tuple[Place, ...]:
    """The places that were named; environments are made, which may take minutes.

    Raises:
        UnavailableError: One is not there, or cannot be made.
        UsageError: A word names no place.
    """
    for word in options.on:  # before any environment is made
        kind, parts = parse(word)
        program = parts["python"] if kind == "python" else "ssh" if kind == "ssh" else None
        if program is not None and shutil.which(program) is None:
            raise PlaceError(f"--on {word}: there is no program '{program}' here; check its path.")

    def environment(packages: str) -> str:
        from bisect_trt.worker.environments import Environment, interpreter  # noqa: PLC0415 - of those alone

        return str(interpreter(Environment.parse(packages), console.say))

    places: list[Place] = []
    for word in options.on:
        kind, parts = parse(word)
        if kind == "ray":
            from bisect_trt.worker.cluster import slots  # noqa: PLC0415 - as above

            places += slots(word, parts["address"], parts["resource"])
        else:
            places.append(make_place(word, environment))
    return tuple(places)


PLACES_FILE = "places.json"
"""In a run's folder: what there was in its places."""


def look_around(subject: Subject, target: TargetSettings) -> None:
    """Ask all places what there is, before anything runs there, and make sure that verdicts of one are those of another.

    Args:
        subject: What its places are goes to ``seen``.
        target: The runtime under test.

    Raises:
        UnavailableError: A place is not there, or the target is not there.
        UsageError: They are unlike, or they are not what they were when the run began.
    """
    plugin = target.target
    packages = tuple(dict.fromkeys([*(package.name for package in plugin.packages), "numpy"]))
    for place in dict.fromkeys(subject.workers.places):
        if place in subject.seen or plugin.stays:
            continue
        reply = subject.workers.ask(Look(target, packages), place=place)
        if isinstance(reply, Failed):
            raise PlaceError(f"{place.said} cannot be used: {reply.message}; `bisect-trt doctor --on` says more.")
        subject.seen[place] = reply
        subject.console.say(f"  on {place.said}: {subject.seen[place].describe()}")
    if subject.seen:
        _refuse_unlike(list(subject.seen.values()))
        _refuse_changed(subject)


def look_there(folder: Path, places: Sequence[Place], console: Console, result: Result) -> Result:
    """Say what there is in places, and which targets run there; what ``doctor --on`` prints.

    Args:
        folder: Where the log of the workers goes.
        places: The places.
        console: Who is told.
        result: Gets ``places``: of each what it says of itself, and under ``targets`` why one cannot be used there or ``None``.

    Raises:
        UnavailableError: A place is not there.
    """
    packages, found = (*dict.fromkeys([*_all_packages(), "numpy"]),), []
    with WorkerPool(folder, places=places) as workers:
        for place in dict.fromkeys(places):
            reply = workers.ask(Look(TargetSettings(), packages, start=False), place=place)
            if isinstance(reply, Failed):
                raise PlaceError(f"{place.said} cannot be used: {reply.message}.")
            targets = {
                f"--{plugin.name}": _missing(workers, plugin.name, place) for plugin in selectable() if plugin.sent
            }
            found.append({**reply.to_json(), "said": reply.describe(), "targets": targets})
            for name, value in reply.table().items():
                console.answer(f"{name}: {place.said if name == 'place' else value}")
            console.answer(f"host: {reply.found['host']}; interpreter: {reply.found['executable']}")
            for target, missing in targets.items():
                console.answer(f"{target}: {'yes' if missing is None else f'no: {missing}'}")
    result.extra["places"] = found
    result.status, result.minimality = "found", "1-minimal"
    return result


def _missing(workers: WorkerPool, target: str, place: Place) -> str | None:
    """Why a target cannot be used in a place; ``None`` if it can."""
    try:
        reply = workers.ask(About(TargetSettings(target)), place=place)
    except BisectError as error:
        return str(error)
    return reply.message if isinstance(reply, Failed) else None


def _all_packages() -> list[str]:
    return [package.name for plugin in selectable() for package in plugin.packages]


def _refuse_unlike(seen: Sequence[Seen]) -> None:
    first = seen[0]
    for other in seen[1:]:
        ours, theirs = first.kind, other.kind
        unlike = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
        if unlike:
            said = "; ".join(f"{name}: {ours.get(name, 'none')} and {theirs.get(name, 'none')}" for name in unlike)
            raise ConflictError(
                f"the places {first.place.said} and {other.place.said} are unlike ({said}), and a search with verdicts of "
                "both would be about neither; name those that are alike."
            )


def _refuse_changed(subject: Subject) -> None:
    """Bind the run to what there is in its places."""
    file = subject.workspace.folder / PLACES_FILE
    now = {seen.place.said: seen.kind for seen in subject.seen.values()}
    if not file.exists():
        with replacing(file) as stream:
            stream.write(json.dumps(now, indent=1).encode())
        return
    for said, before in json.loads(file.read_bytes()).items():
        for name, value in before.items():
            if now.get(said, {}).get(name) != value:
                raise RunStateError(
                    f"{subject.workspace.folder} cannot be continued, because its verdicts were about something else: the "
                    f"{name} of {said} ({value}, now {now.get(said, {}).get(name, 'none')}) changed since; start a new run."
                )
