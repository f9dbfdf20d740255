"""Files that say what builds chose: those of ``repeat``, Polygraphy's tactic replays, TensorRT's layer information, engines."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.probing.workers.guard import scratch
from bisect_trt.reporting.result import RESULT_FILE
from bisect_trt.reporting.tree import Branch
from bisect_trt.targets.chosen import FORMAT, PRECISION, RECORD, REPLAY, TACTIC, Choice, choices_of_layers, read_choices
from bisect_trt.workflows.builds.compared import Build

GOOD, BAD = "good", "bad"
ENGINES = (".engine", ".plan", ".trt")
"""How the names of files end that are engines."""
_NUMBERED = re.compile(r"^(\d+)_")
_BEST = (RECORD, REPLAY)
"""Of what one build left, what says most first."""
_TYPES = {"FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16"}


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
            inputs, outputs = (_entries(algorithm[side]) for side in ("inputs", "outputs"))
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


def _entries(value: object) -> list[Mapping[str, Any]]:
    """What stands for a tuple in Polygraphy's JSON: a list, or a list under a name."""
    if isinstance(value, Mapping):
        value = next(each for each in value.values() if isinstance(each, list))
    assert isinstance(value, list)
    return [each for each in value if isinstance(each, Mapping)]


def _type(text: str) -> str:
    """``float16`` of ``DataType.HALF``."""
    name = text.rpartition(".")[2]
    return _TYPES.get(name, name.lower())


def _format(tensor: Mapping[str, Any]) -> str:
    strides = tensor["strides"] if isinstance(tensor["strides"], list) else list(_plain(tensor["strides"]))
    packed = tensor.get("components_per_element")
    vector = f" by {packed}" if isinstance(packed, int) and packed > 1 else ""
    return f"{_type(str(tensor['dtype']))} {strides}{vector}".replace(" ", "")


def _plain(value: Mapping[str, Any]) -> Iterable[Any]:
    return next(each for each in value.values() if isinstance(each, list))


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
    from bisect_trt.workflows.inspect_files import describe_engine  # noqa: PLC0415 - it starts a worker

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
            raise UnavailableError(
                f"there is no {side} build in {where} that says what it chose; give files of `bisect-trt repeat`, tactic "
                "replays of Polygraphy (--save-tactics), layers of trtexec (--exportLayerInfo), or engines."
            )
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
    if path.is_dir():
        found = []
        for files in _groups(path):
            read = next(((file, choices) for file in files if (choices := read_file(file)) is not None), None)
            if read is not None:
                found.append(Build(str(read[0]), good, read[1]))
            elif _NUMBERED.sub("", files[0].name) in _BEST:
                warn(f"{files[0]} is left out: it is no whole file of what a build chose")
        return found
    return [Build(str(path), good, _read(path))]


def _read(path: Path) -> frozenset[Choice]:
    """What a build chose by a file.

    Raises:
        UnavailableError: It is not there, or says nothing of builds.
    """
    choices = read_file(path)
    if choices is None:
        raise UnavailableError(
            f"{path} says nothing of what a build chose; give a file of `bisect-trt repeat`, a tactic replay of Polygraphy "
            "(--save-tactics), layers of trtexec (--exportLayerInfo), or an engine."
        )
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
