"""``diff``: choices of builds, read from the files of builds, and counted in good builds and in bad ones.

The files are those of ``repeat``, tactic replays of Polygraphy, layers that ``trtexec`` exports, and engines.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bisect_trt.commands.call import Call
from bisect_trt.errors import MissingOptionError, UnreadableFileError
from bisect_trt.options.commands import Diff
from bisect_trt.report.console import Console
from bisect_trt.report.result import Result
from bisect_trt.targets.choices import LAYERS, RECORD, TACTIC, Choice, choices_of_layers, read_choices
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.targets.trt.settings import TrtSettings
from bisect_trt.worker.guard import scratch
from bisect_trt.worker.pool import WorkerPool
from bisect_trt.worker.protocol import Describe, Failed

ENGINES = (".engine", ".plan", ".trt")
"""The suffixes of engines."""
_SHOWN = 20
_FILES = (
    "a file of `bisect-trt repeat`, a tactic replay of Polygraphy (--save-tactics), layers of trtexec (--exportLayerInfo), or "
    "an engine"
)


@dataclass(frozen=True)
class Build:
    """A build with its verdict.

    Attributes:
        name: Its number, or the file with its choices.
        good: Whether it is good.
        choices: Its choices.
    """

    name: str
    good: bool
    choices: frozenset[Choice]


def compare_builds(builds: Sequence[Build], proven: frozenset[Choice] = frozenset()) -> list[dict[str, Any]]:
    """Returns each choice that some builds made and others did not, and each ``proven`` choice, as plain values.

    Each has ``layer``, ``choice``, ``kind``, ``value``, the number of ``good`` and ``bad`` builds with it, and ``proven``.
    Proven ones come first, then those that bad builds made more often than good ones.
    """
    goods, bads = _count(builds)
    counts: dict[Choice, list[int]] = {choice: [0, 0] for choice in sorted(proven)}
    for build in builds:
        for choice in build.choices:
            counts.setdefault(choice, [0, 0])[not build.good] += 1

    def rank(choice: Choice) -> tuple[bool, float, Choice]:
        good, bad = counts[choice]
        return choice not in proven, good / max(goods, 1) - bad / max(bads, 1), choice

    differing = [choice for choice, made in counts.items() if sum(made) < len(builds) or choice in proven]
    return [
        plain_choice(choice) | {"good": counts[choice][0], "bad": counts[choice][1], "proven": choice in proven}
        for choice in sorted(differing, key=rank)
    ]


def _count(builds: Sequence[Build]) -> tuple[int, int]:
    """The number of good builds, and of bad ones."""
    goods = sum(build.good for build in builds)
    return goods, len(builds) - goods


def plain_choice(choice: Choice) -> dict[str, Any]:
    """A choice as plain values."""
    return {"layer": choice.layer, "choice": choice.said, "kind": choice.kind, "value": choice.value}


def tell_choices(builds: Sequence[Build], rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print the choices that bad builds made more often than good ones, as a table."""
    goods, bads = _count(builds)
    shown = [row for row in rows if row["bad"] * goods > row["good"] * bads]
    console.say(
        f"  {len(shown)} of {len(rows)} choices that differ are in more of the bad builds than of the good ones"
    )
    lines = [(row["layer"], row["choice"], f"{row['bad']} of {bads}", f"{row['good']} of {goods}") for row in shown]
    if lines:
        console.table(("layer", "choice", "bad", "good"), lines, _SHOWN)


def diff_builds(builds: Sequence[Build], console: Console, result: Result) -> Result:
    """Report which layers, tactics, precisions, formats and fusions the bad builds have and the good ones do not."""
    goods, bads = _count(builds)
    layers = [
        {choice.layer for build in builds if build.good is side for choice in build.choices} for side in (True, False)
    ]
    if all(layers) and not set.intersection(*layers):
        console.warn("no layer is in good builds and in bad ones: are they of one model?")
    rows = compare_builds(builds)
    console.step(f"{goods} good and {bads} bad builds")
    tell_choices(builds, rows, console)
    only = [row for row in rows if row["bad"] and not row["good"]]
    result.extra |= {"runs": len(builds), "good": goods, "bad": bads, "choices": rows}
    result.extra["builds"] = [{"file": build.name, "verdict": "PASS" if build.good else "FAIL"} for build in builds]
    result.status, result.minimality = ("found" if only else "not_reproduced"), "1-minimal"
    result.why = None if only else "no choice is made by bad builds alone"
    every = sum(row["bad"] == bads for row in only)
    console.answer(
        f"{len(only)} choices in bad builds alone, {every} of them in every one. `bisect-trt repeat` proves which is the reason."
        if only
        else "No choice is made by bad builds alone."
    )
    return result


def gather(
    paths: Sequence[Path], good: Sequence[Path], bad: Sequence[Path], warn: Callable[[str], None]
) -> list[Build]:
    """The builds in files and folders, each once.

    Args:
        paths: Folders that hold ``good`` and ``bad``, as the run of ``repeat``; or two others, the first of which is good.
        good: Files and folders of good builds.
        bad: Those of bad ones.
        warn: Called with what is left out.

    Raises:
        UnavailableError: One is not there, or has no build.
        UsageError: Whether one is good or bad is not known.
    """
    both = [path for path in paths if (path / "good").is_dir() or (len(paths) == 1 and path.is_dir())]
    others = [path for path in paths if path not in both]
    if others and (len(others) != 2 or both or good or bad):
        raise MissingOptionError(
            f"whether {others[0]} is of good builds or of bad ones is not known: give two, the good one first, or use --good "
            "and --bad."
        )
    sides = {
        True: [*good, *(path / "good" for path in both), *others[:1]],
        False: [*bad, *(path / "bad" for path in both), *others[1:]],
    }
    builds: dict[tuple[bool, Path], Build] = {}
    for side, found in sides.items():
        for file, choices in (each for path in found for each in _read(path, warn)):
            builds.setdefault((side, file.resolve()), Build(str(file), side, choices))
        if not any(build.good is side for build in builds.values()):
            where = ", ".join(map(str, found)) or "what was given"
            raise UnreadableFileError(f"{where} has no {'good' if side else 'bad'} build with choices; give {_FILES}.")
    return [*builds.values()]


def _read(path: Path, warn: Callable[[str], None]) -> list[tuple[Path, frozenset[Choice]]]:
    """The choices of the builds in a file, or in a folder; of each build in a folder from the file with most of them.

    Raises:
        UnavailableError: It is not there, or the file has no build.
    """
    if not path.is_dir():
        choices = _read_file(path)
        if choices is None:
            raise UnreadableFileError(f"{path} has no choices of a build; give {_FILES}.")
        return [(path, choices)]
    files = sorted(each for each in path.rglob("*") if each.is_file())
    records = {file for file in files if file.name.endswith(RECORD)}
    # The record of a build of `repeat` has more than its layers.
    plain = [
        f for f in files if f.suffix == ".json" and f.with_name(f.name.replace(LAYERS, RECORD)) not in records - {f}
    ]
    found = []
    for file in plain or files:  # engines where there is nothing else
        choices = _read_file(file)
        if choices is not None:
            found.append((file, choices))
        elif file in records:
            warn(f"{file} is left out: it is not a whole file of choices")
    return found


def describe_choices(path: Path) -> dict[str, Any]:
    """The choices of a build in a file, as plain values: ``layers``, each with its ``name`` and its choices by kind.

    Raises:
        UnavailableError: It is not there, or has no build.
    """
    layers: dict[str, dict[str, str]] = {}
    ((_, choices),) = _read(path, lambda _: None)
    for choice in sorted(choices):
        layers.setdefault(choice.layer, {})[choice.kind] = choice.value
    return {"layers": [{"name": name, **kinds} for name, kinds in layers.items()]}


def describe_engine(path: Path, folder: Path) -> dict[str, Any]:
    """Return the inputs, outputs and layers of an engine, read by TensorRT in a worker process.

    Raises:
        UnavailableError: There is no TensorRT or no GPU, or the engine is not for this one.
    """
    if not path.is_file():
        raise UnreadableFileError(f"{path}: no such file; give the path of a TensorRT engine.")
    with WorkerPool(folder) as workers:
        reply = workers.ask(Describe(TargetSettings("trt", own=TrtSettings(load_engine=str(path.absolute())))))
    if isinstance(reply, Failed):
        raise UnreadableFileError(
            f"TensorRT cannot read the engine {path}: {reply.message}; build it again with `bisect-trt convert`."
        )
    return reply


def _read_file(path: Path) -> frozenset[Choice] | None:
    """The choices of a build in a file; ``None`` if the file is of no known kind.

    Raises:
        UnavailableError: It cannot be read.
    """
    if path.suffix in ENGINES:
        with scratch() as folder:
            return frozenset(choices_of_layers(describe_engine(path, Path(folder))["layers"]))
    try:
        plain = json.loads(path.read_bytes())
    except OSError as error:
        raise UnreadableFileError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError:  # no JSON, or no text at all
        return None
    found = read_choices(plain)
    with suppress(KeyError, TypeError, ValueError, AttributeError):
        if found is None and "replay" in plain:  # Polygraphy's `TacticReplayData`, with pairs in some releases
            layers = {str(layer): dict(algorithm) for layer, algorithm in plain["replay"].items()}
            values = {layer: f"{each['implementation']}:{each['tactic']}" for layer, each in layers.items()}
            found = [Choice(layer, TACTIC, value, pins=True) for layer, value in values.items()]
        elif found is None:  # TensorRT's engine inspector, as `trtexec --exportLayerInfo` writes it
            from bisect_trt.targets.trt.engine import Origins, read_layers  # noqa: PLC0415 - of such files alone

            read = read_layers(plain["Layers"], Origins())
            found = choices_of_layers({**each, "tensors": each["name"].split(" + ")} for each in read)
    return None if found is None else frozenset(found)


def run(call: Call) -> Result:
    """Show the choices that bad builds made and good ones did not.

    Raises:
        UsageError: No builds are named, or not which are good.
        UnavailableError: A file cannot be read.
    """
    own = call[Diff]
    if not (own.paths or own.good or own.bad):
        raise MissingOptionError(
            "there are no builds to compare; name a run of `bisect-trt repeat`, or good and bad files."
        )
    return diff_builds(gather(own.paths, own.good, own.bad, call.console.warn), call.console, call.result)
