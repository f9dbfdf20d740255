"""Choices of builds: read from files that builds leave, and counted in good builds and in bad ones; ``diff`` shows them.

The files are those of ``repeat``, tactic replays of Polygraphy, layers that ``trtexec`` exports, and engines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bisect_trt.commands.call import Call
from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.options.commands import Diff
from bisect_trt.report.console import Console
from bisect_trt.report.result import RESULT_FILE, Result
from bisect_trt.report.tree import Branch
from bisect_trt.search.statistics import TEST_METHOD, fisher, holm
from bisect_trt.targets.choices import (
    FORMAT,
    PRECISION,
    RECORD,
    REPLAY,
    TACTIC,
    Choice,
    choices_of_layers,
    read_choices,
)
from bisect_trt.worker.guard import scratch

GOOD, BAD = "good", "bad"
ENGINES = (".engine", ".plan", ".trt")
"""The suffixes of engines."""
_SHOWN = 20
_NUMBERED = re.compile(r"^(\d+)_")
_BEST = (RECORD, REPLAY)
"""Of the files that one build left, those that say most, first."""
_TYPES = {"FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16"}
_FILES = (
    "a file of `bisect-trt repeat`, a tactic replay of Polygraphy (--save-tactics), layers of trtexec (--exportLayerInfo), or "
    "an engine"
)


@dataclass(frozen=True)
class Build:
    """A build that was judged.

    Attributes:
        name: What it is called: its number, or the file that says what it chose.
        good: Whether it is good.
        choices: What it chose.
    """

    name: str
    good: bool
    choices: frozenset[Choice]


@dataclass(frozen=True)
class Row:
    """A choice that some builds made and others did not.

    Attributes:
        choice: The choice.
        good: How many good builds made it.
        bad: How many bad ones did.
        p: How likely the two groups are to differ so by chance, corrected for how many choices are compared.
        alone: The same, not corrected.
        proven: Whether builds that were held to it, and kept from it, showed that it is the reason.
    """

    choice: Choice
    good: int
    bad: int
    p: float
    alone: float
    proven: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        choice = self.choice
        said = {"layer": choice.layer, "choice": choice.said, "kind": choice.kind, "value": choice.value}
        return {**said, "good": self.good, "bad": self.bad, "p": self.p, "p_alone": self.alone, "proven": self.proven}


@dataclass(frozen=True)
class Table:
    """All choices that differ from build to build, those that speak most against the bad ones first.

    Attributes:
        rows: The choices.
        good: How many builds are good.
        bad: How many are bad.
        compared: How many comparisons were made; choices that are always made together are one.
    """

    rows: tuple[Row, ...]
    good: int
    bad: int
    compared: int

    def proven(self, choices: frozenset[Choice], builds: Sequence[Build]) -> Table:
        """The same with some choices proven, which come first.

        One that all of these builds made, or none, is no comparison, and proven all the same where it takes others to be bad: it
        has a row here too.
        """
        rows = [replace(row, proven=row.choice in choices) for row in self.rows]
        for choice in sorted(choices - {row.choice for row in rows}):
            made = [build.good for build in builds if choice in build.choices]
            rows.append(Row(choice, sum(made), len(made) - sum(made), p=1.0, alone=1.0, proven=True))
        return replace(self, rows=tuple(sorted(rows, key=lambda row: not row.proven)))

    def to_json(self) -> dict[str, Any]:
        """Plain values: ``choices``, ``compared`` and the ``test``."""
        return {"choices": [row.to_json() for row in self.rows], "compared": self.compared, "test": TEST_METHOD}


def compare_builds(builds: Sequence[Build]) -> Table:
    """Count of each choice that not all builds made how many good and how many bad ones did."""
    goods = sum(build.good for build in builds)
    bads = len(builds) - goods
    made: dict[Choice, int] = {}
    for place, build in enumerate(builds):
        for choice in build.choices:
            made[choice] = made.get(choice, 0) | 1 << place
    everyone = (1 << len(builds)) - 1
    varying = {choice: by for choice, by in made.items() if by != everyone}
    good_ones = sum(1 << place for place, build in enumerate(builds) if build.good)
    counts = {by: ((by & good_ones).bit_count(), (by & ~good_ones).bit_count()) for by in varying.values()}
    chances = {by: fisher(bad, bads, good, goods) for by, (good, bad) in counts.items()}
    corrected = dict(zip(chances, holm(list(chances.values())), strict=True))
    rows = [Row(choice, *counts[by], corrected[by], chances[by]) for choice, by in varying.items()]

    def rank(row: Row) -> tuple[bool, float, bool, Choice]:
        more_bad = row.bad * max(goods, 1) > row.good * max(bads, 1)
        return not more_bad, row.alone, row.good > 0, row.choice

    return Table(tuple(sorted(rows, key=rank)), goods, bads, len(chances))


def tell_table(table: Table, console: Console) -> None:
    """What the bad builds chose and the good ones did not, as a table."""
    only = [row for row in table.rows if row.bad and not row.good]
    often = [row for row in table.rows if row not in only and row.bad * table.good > row.good * table.bad]
    shown = only or often
    if not table.rows:
        console.say("  all builds chose the same, as far as they say")
        return
    if not shown:
        console.say(f"  no choice is made by more of the bad builds than of the good ones ({len(table.rows)} differ)")
        return
    what = "only in bad builds" if only else "in more of the bad builds than of the good ones"
    console.say(f"  {len(shown)} of {len(table.rows)} choices that differ are {what}:")
    width = max(len(row.choice.layer) for row in shown[:_SHOWN])
    console.say(f"    {'layer':{width}}  bad  good  p        choice")
    for row in shown[:_SHOWN]:
        bad, good = f"{row.bad}/{table.bad}", f"{row.good}/{table.good}"
        mark = "  <- proven" if row.proven else ""
        console.say(f"    {row.choice.layer:{width}}  {bad}  {good}  {row.p:<7.2g}  {row.choice.said}{mark}")
    if len(shown) > _SHOWN:
        console.say(f"    and {len(shown) - _SHOWN} more, which the JSON has")
    console.say(f"  (p: {TEST_METHOD} over {table.compared} comparisons)")


def diff_builds(
    paths: Sequence[Path], good: Sequence[Path], bad: Sequence[Path], console: Console, result: Result
) -> Result:
    """Say which layers, tactics, precisions, formats and fusions the bad builds have and the good ones do not.

    Raises:
        UnavailableError: A file is not there, or says nothing of builds.
        UsageError: Whether one is good or bad is not said.
    """
    builds = gather(paths, good, bad, console.warn)
    layers = [
        {choice.layer for build in builds if build.good is side for choice in build.choices} for side in (True, False)
    ]
    if all(layers) and not set.intersection(*layers):
        console.warn("no layer is in good builds and in bad ones: are they of one model?")
    table = compare_builds(builds)
    console.step(f"{table.good} good and {table.bad} bad builds")
    tell_table(table, console)
    only = [row for row in table.rows if row.bad and not row.good]
    always = [row for row in only if row.bad == table.bad]
    result.extra |= {"runs": len(builds), "good": table.good, "bad": table.bad, **table.to_json()}
    result.extra["builds"] = [{"file": build.name, "verdict": "PASS" if build.good else "FAIL"} for build in builds]
    result.status, result.minimality = ("found" if only else "not_reproduced"), "1-minimal"
    if not only:
        result.why = "no choice is made by bad builds alone"
        console.answer(f"{result.why[0].upper()}{result.why[1:]}.")
    else:
        what = "choice" if len(only) == 1 else "choices"
        every = f", {len(always)} of them in every one" if len(only) > 1 else " in every one" if always else ""
        console.answer(
            f"{len(only)} {what} in bad builds alone{every}. That is no proof: `bisect-trt repeat` builds with one pinned and "
            "forbidden."
        )
    return result


def read_file(path: Path) -> frozenset[Choice] | None:
    """What a build chose by a file; ``None`` if the file is of no kind that says.

    Raises:
        UnavailableError: It cannot be read.
    """
    if path.suffix in ENGINES:
        return _of_engine(path)
    try:
        plain = json.loads(path.read_bytes())
    except OSError as error:
        raise UnavailableError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError:  # no JSON, or no text at all
        return None
    found = read_choices(plain)
    if found is None:
        found = _of_replay(plain)
    if found is None:
        found = _of_layers(plain)
    return None if found is None else frozenset(found)


def _of_replay(plain: object) -> list[Choice] | None:
    """Polygraphy's ``TacticReplayData``: of each layer the implementation, the tactic, and what its tensors look like."""
    replay = plain.get("replay") if isinstance(plain, dict) else None
    if not isinstance(replay, dict):
        return None
    found = []
    try:
        for layer, algorithm in replay.items():
            if isinstance(algorithm, list):  # pairs of a name and a value, as some releases write mappings
                algorithm = dict(algorithm)  # noqa: PLW2901 - the same in another form
            inputs, outputs = (_sequence(algorithm[side]) for side in ("inputs", "outputs"))
            value = f"{algorithm['implementation']}:{algorithm['tactic']}"
            found.append(Choice(str(layer), TACTIC, value, pins=True))
            types = dict.fromkeys(_type(str(each["dtype"])) for each in outputs)
            formats = [_format(each) for each in [*inputs, *outputs]]
            found += [
                Choice(str(layer), kind, ", ".join(of)) for kind, of in ((PRECISION, types), (FORMAT, formats)) if of
            ]
    except (KeyError, TypeError, ValueError):
        return None
    return found


def _sequence(value: object) -> list[Any]:
    """A tuple in Polygraphy's JSON: a list, or a list under a name."""
    if isinstance(value, Mapping):
        value = next(each for each in value.values() if isinstance(each, list))
    assert isinstance(value, list)
    return value


def _type(text: str) -> str:
    """``float16`` of ``DataType.HALF``."""
    name = text.rpartition(".")[2]
    return _TYPES.get(name, name.lower())


def _format(tensor: Mapping[str, Any]) -> str:
    packed = tensor.get("components_per_element")
    vector = f" by {packed}" if isinstance(packed, int) and packed > 1 else ""
    return f"{_type(str(tensor['dtype']))} {_sequence(tensor['strides'])}{vector}".replace(" ", "")


def _of_layers(plain: object) -> list[Choice] | None:
    """What TensorRT's engine inspector says, as ``trtexec --exportLayerInfo`` writes it."""
    layers = plain.get("Layers") if isinstance(plain, dict) else None
    if not isinstance(layers, list):
        return None
    from onnx import ModelProto  # noqa: PLC0415 - of such files alone

    from bisect_trt.targets.trt.inspect import Origins, parse_layers  # noqa: PLC0415 - as above

    parsed = parse_layers(layers, Origins(ModelProto()))
    return choices_of_layers({**vars(each), "tensors": each.name.split(" + ")} for each in parsed)


def _of_engine(path: Path) -> frozenset[Choice]:
    from bisect_trt.commands.inspection import describe_engine  # noqa: PLC0415 - it starts a worker

    with scratch() as folder:
        return frozenset(choices_of_layers(describe_engine(path, Path(folder))["layers"]))


def gather(
    paths: Iterable[Path], good: Iterable[Path], bad: Iterable[Path], warn: Callable[[str], None]
) -> list[Build]:
    """The builds that files and folders speak of, each once.

    Args:
        paths: Folders that hold ``good`` and ``bad``; files and folders that are called so, or lie in such; or two others, the
            first of which is good.
        good: Files and folders of good builds.
        bad: Those of bad ones.
        warn: Is told of what is left out.

    Raises:
        UnavailableError: One is not there, or says nothing of builds.
        UsageError: Whether one is good or bad is not said.
    """
    builds: dict[tuple[bool, Path], Build] = {}
    sides = _sides(paths, good, bad)
    for side, found in sides.items():
        for build in (each for path in found for each in _builds(path, warn, good=side == GOOD)):
            builds.setdefault((build.good, Path(build.name).resolve()), build)
    for side, found in sides.items():
        if not any(build.good == (side == GOOD) for build in builds.values()):
            where = ", ".join(map(str, found)) or "what was given"
            raise UnavailableError(f"there is no {side} build in {where} that says what it chose; give {_FILES}.")
    return [*builds.values()]


def _sides(paths: Iterable[Path], good: Iterable[Path], bad: Iterable[Path]) -> dict[str, list[Path]]:
    """The files and folders of good builds, and of bad ones.

    Raises:
        UnavailableError: One is not there.
        UsageError: Whether one is good or bad is not said.
    """
    sides: dict[str, list[Path]] = {GOOD: list(good), BAD: list(bad)}
    untold = []
    for path in paths:
        inside = _inside(path)
        side = _side(path)
        for name, places in inside.items():
            sides[name] += places
        if not inside and side is not None:
            sides[side].append(path)
        elif not inside:
            if not path.exists():
                raise UnavailableError(f"{path}: no such file or folder; give good builds and bad ones.")
            untold.append(path)
    if len(untold) == 2 and not any(sides.values()):
        sides[GOOD], sides[BAD] = [untold[0]], [untold[1]]
    elif untold:
        raise UsageError(
            f"whether {untold[0]} is of good builds or of bad ones is not said: give two, the good one first, or say it with "
            "--good and --bad, or have good and bad in their paths."
        )
    return sides


def _inside(path: Path) -> dict[str, list[Path]]:
    """The good and the bad builds of a folder that has both, of a run of ``repeat``, or of what its ``--json`` wrote."""
    folders = {side: [path / side] for side in (GOOD, BAD) if (path / side).is_dir()}
    if folders:
        return folders
    file = path / RESULT_FILE if path.is_dir() else path
    if not file.is_file() or file.suffix != ".json":
        return {}
    try:
        plain = json.loads(file.read_bytes())
        if not isinstance(plain, dict) or plain.get("command") != "repeat":
            return {}
        verdicts = {"PASS": GOOD, "FAIL": BAD}
        found: dict[str, list[Path]] = {GOOD: [], BAD: []}
        for build in plain["builds"]:
            kept = build["files"].get("choices")
            if build["verdict"] in verdicts and kept is not None:
                found[verdicts[build["verdict"]]].append(Path(kept))
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        return {}
    return found


def _side(path: Path) -> str | None:
    """Whether a path says that it is good or bad: by its name, or by the folder nearest to it that is called so."""
    for side in (GOOD, BAD):
        if path.name.startswith(side):
            return side
    return next((part for part in reversed(path.parts) if part in (GOOD, BAD)), None)


def _builds(path: Path, warn: Callable[[str], None], *, good: bool) -> list[Build]:
    """The builds of a file or of a folder.

    Raises:
        UnavailableError: It is not there, or the file says nothing of builds.
    """
    if not path.is_dir():
        return [Build(str(path), good, _read(path))]
    found = []
    for files in _groups(path):
        read = next(((file, choices) for file in files if (choices := read_file(file)) is not None), None)
        if read is not None:
            found.append(Build(str(read[0]), good, read[1]))
        elif _NUMBERED.sub("", files[0].name) in _BEST:
            warn(f"{files[0]} is left out: it is no whole file of what a build chose")
    return found


def _read(path: Path) -> frozenset[Choice]:
    """What a build chose by a file.

    Raises:
        UnavailableError: It is not there, or says nothing of builds.
    """
    choices = read_file(path)
    if choices is None:
        raise UnavailableError(f"{path} says nothing of what a build chose; give {_FILES}.")
    return choices


def describe_choices(path: Path) -> dict[str, Any]:
    """What a build chose by a file, as plain values: ``layers``, each with its ``name`` and its choices by kind.

    Raises:
        UnavailableError: It is not there, or says nothing of builds.
    """
    layers: dict[str, dict[str, str]] = {}
    for choice in sorted(_read(path)):
        layers.setdefault(choice.layer, {})[choice.kind] = choice.value
    return {"layers": [{"name": name, **kinds} for name, kinds in layers.items()]}


def choices_tree(title: str, plain: Mapping[str, Any]) -> Branch:
    """The same for the terminal."""
    lines = [
        Branch.of(layer["name"], [f"{kind} {value}" for kind, value in layer.items() if kind != "name"])
        for layer in plain["layers"]
    ]
    return Branch(f"{title}: {len(lines)} layer(s)", lines)


def _groups(folder: Path) -> list[list[Path]]:
    """The files of each build in a folder, what says most of it first; engines where nothing else says it."""
    groups: dict[tuple[Path, str], list[Path]] = {}
    for file in sorted(each for each in folder.rglob("*") if each.is_file()):
        number = _NUMBERED.match(file.name)
        groups.setdefault((file.parent, number[1] if number else file.name), []).append(file)

    def rank(file: Path) -> tuple[int, bool]:
        name = _NUMBERED.sub("", file.name)
        return _BEST.index(name) if name in _BEST else len(_BEST), file.suffix in ENGINES

    plain = [sorted(files, key=rank) for files in groups.values()]
    told = [[file for file in files if file.suffix == ".json"] for files in plain]
    return [files for files in told if files] or plain


def run(call: Call) -> Result:
    """``diff``: show what bad builds chose and good ones did not.

    Raises:
        UsageError: No builds are named.
        UnavailableError: A file cannot be read.
    """
    own = call[Diff]
    if not (own.paths or own.good or own.bad):
        raise UsageError("there are no builds to compare; name a run of `bisect-trt repeat`, or good and bad files.")
    return diff_builds(own.paths, own.good, own.bad, call.console, call.result)
