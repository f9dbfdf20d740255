"""The places where targets run, opened and examined before a run, and whether target and reference run there."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec

from bisect_trt.errors import (
    ConflictError,
    ModelRefusedError,
    PlaceError,
    RunFolderError,
    RunStateError,
    UnsuitableModelError,
)
from bisect_trt.onnxlib.low_census import count_lowered
from bisect_trt.onnxlib.low_plan import LOW_TYPES, Stays
from bisect_trt.onnxlib.nodes import all_nodes
from bisect_trt.options.shared import Places
from bisect_trt.report.console import Console
from bisect_trt.report.lowering import describe_left
from bisect_trt.report.text import plural
from bisect_trt.session.advice import advice
from bisect_trt.session.subject import Subject
from bisect_trt.targets.base import TargetSettings
from bisect_trt.tensors.comparison import strict_json
from bisect_trt.tensors.files import read_inside, replacing, shapes_of
from bisect_trt.worker.deadline import Deadline
from bisect_trt.worker.place import Place, make_place, parse, slots
from bisect_trt.worker.protocol import Failed, Look

PLACES_FILE = "places.json"
"""In a run's folder: the packages and devices of its places."""
_MOST_BYTES = 16 << 20


def open_places(options: Places, console: Console, deadline: Deadline) -> tuple[Place, ...]:
    """Return the places given by ``--on``; environments are created, which may take minutes.

    Args:
        options: The words of ``--on``.
        console: Prints what is created.
        deadline: The end of the time of the run.

    Raises:
        BudgetSpent: The deadline has passed before the environments are created.
        UnavailableError: A place does not exist, or cannot be created.
        UsageError: A word is no place.
    """
    wanted = [(word, *parse(word)) for word in options.on]
    # All programs are looked for before an environment is created, which takes a minute.
    for word, kind, parts in wanted:
        program = parts["python"] if kind == "python" else "ssh" if kind == "ssh" else None
        if program is not None and shutil.which(program) is None:
            raise PlaceError(
                f"--on {word}: the program '{program}' does not exist here; check its path."
            )

    def environment(packages: str) -> str:
        from bisect_trt.worker.environments import Environment, interpreter  # noqa: PLC0415 - of those alone

        try:
            return str(
                interpreter(
                    Environment.parse(packages), console.say, timeout=deadline.seconds_left()
                )
            )
        except PlaceError:
            deadline.check()
            raise

    places: list[Place] = []
    for word, kind, parts in wanted:
        if kind == "ray":
            resource = "CPU" if parts["resource"] == "cpus" else "GPU"
            places += slots(word, parts["address"], resource, parts["kind"])
        else:
            places.append(make_place(word, environment))
    return tuple(places)


def look_around(subject: Subject, target: TargetSettings) -> None:
    """Examine all places before anything runs there, and check that their verdicts are comparable.

    Raises:
        UnavailableError: A place or the target is not available.
        UsageError: The places differ, or have changed since the run began.
    """
    plugin = target.target
    packages = tuple(dict.fromkeys([*(package.name for package in plugin.packages), "numpy"]))
    for place in dict.fromkeys(subject.workers.places):
        # A target that stays on this machine runs in no place.
        if place in subject.seen or plugin.stays:
            continue
        reply = subject.workers.ask(Look(target, packages), place=place)
        if isinstance(reply, Failed):
            raise PlaceError(
                f"{place.said} cannot be used: {reply.message}; see `bisect-trt doctor --on {shlex.quote(place.said)}`."
            )
        subject.seen[place] = reply
        subject.console.say(f"  on {place.said}: {subject.seen[place].describe()}")
    if subject.seen:
        _require_alike(subject)


def _require_alike(subject: Subject) -> None:
    """Check that all places are alike, and as they were when the run began."""
    kinds = {entry.place.said: entry.kind for entry in subject.seen.values()}
    first, ours = next(iter(kinds.items()))
    for place, theirs in kinds.items():
        if unlike := _unlike(ours, theirs):
            raise ConflictError(
                f"the places {first} and {place} differ ({unlike}), so their verdicts are not comparable; use places that are "
                "alike."
            )
    # Written at the first run, and read by `resume`.
    file = subject.workspace.folder / PLACES_FILE
    if not file.exists():
        with replacing(file) as stream:
            stream.write(json.dumps(kinds, indent=1).encode())
    for place, before in earlier_kinds(file.parent).items():
        if unlike := _unlike(before, kinds.get(place, {})):
            raise RunStateError(
                f"{subject.workspace.folder} cannot be resumed, because its verdicts are out of date: {place} has changed "
                f"({unlike}); start a new run."
            )


def earlier_kinds(folder: Path) -> dict[str, dict[str, str]]:
    """Return the facts of each place when the run in a folder began.

    Raises:
        UnavailableError: They are damaged.
    """
    try:
        plain = strict_json(read_inside(folder, PLACES_FILE, _MOST_BYTES))
        return msgspec.convert(plain, dict[str, dict[str, str]])
    except (OSError, ValueError, RecursionError, msgspec.ValidationError) as error:
        raise RunFolderError(
            f"{folder / PLACES_FILE} is damaged ({error}); start a new run."
        ) from error


def _unlike(one: Mapping[str, str], another: Mapping[str, str]) -> str:
    """Return the differences of two places in words; empty if there are none."""
    names = [name for name in {**one, **another} if one.get(name) != another.get(name)]
    return "; ".join(
        f"{name}: {one.get(name, 'none')} and {another.get(name, 'none')}" for name in names
    )


def require_target(subject: Subject, target: TargetSettings) -> None:
    """Check that the target is installed and has the options that are given.

    Raises:
        UnavailableError: It is not installed, or has no GPU, or crashes when it starts.
        UsageError: It has no such option, or its profile does not fit the model.
    """
    for sample in subject.samples:
        target.target.check_inputs(target, shapes_of(sample))
    look_around(subject, target)
    subject.about(target)


def require_fit(subject: Subject, target: TargetSettings) -> None:
    """Check that the target is installed, and that its options fit the model.

    Raises:
        UnavailableError: See :func:`require_target`.
        UsageError: As there, or the options do not fit.
    """
    require_target(subject, target)
    target.target.check_model(target, {node.op_type for node in all_nodes(subject.network.proto)})
    precision = next((name for name in target.low_precisions if name in LOW_TYPES), None)
    by_casts = target.target.writes_casts and not target.target.computes_low(target)
    if precision is not None and by_casts and subject.about(target) == "cast":
        _say_left(subject, target, precision)


def _say_left(subject: Subject, target: TargetSettings, precision: str) -> None:
    """Warn about nodes that compute in fp32 on a target though the low precision was asked for.

    Raises:
        UnavailableError: The reference cannot run the model, so types are not known.
        UsageError: None can be lowered, so a verdict would not be about the low precision.
    """
    # What compiles a model knows as many types as ONNX; a build needs no reference run.
    types = None if target.target.compiles else subject.element_types
    census = count_lowered(subject.network, target.keep, types, LOW_TYPES[precision])
    unchanged = describe_left(census, precision)
    if census.lowered and unchanged:
        subject.console.warn(f"{unchanged}; {plural(len(census.lowered), 'node')} can")
    elif any(reason is not Stays.UNTYPED for reason, _ in census.left) and not target.keep:
        if types is not None:
            # Nodes that the reference cannot run have no types.
            require_reference(subject)
        raise UnsuitableModelError(
            f"--{precision} changes nothing in {subject.settings.path}: {unchanged}; drop the option."
        )
    elif not census.lowered:
        subject.console.warn(
            f"--{precision} changes nothing: {unchanged or 'no node computes in fp32'}"
        )


def require_reference(subject: Subject) -> None:
    """Check that the reference runs the model.

    Raises:
        UnavailableError: ONNX Runtime cannot run a node of the model.
    """
    for index, failed in subject.expected.missing.items():
        raise ModelRefusedError(
            f"ONNX Runtime cannot run {subject.network.describe(index)}: {failed.message}."
            f"{advice(subject, failed)} So there is nothing to compare with; `reduce` with your own --check command "
            "does not need the reference."
        )
