"""Choices of builds: ``diff``, which compares good and bad builds, and the proof that some make a build bad.

For the proof, the choices of a bad build are the units of a search. A candidate is the model with
the bad build's choices in the subset pinned, and a good build's for the others, so chance has no
part in it, and choices that fail only together are found.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, structs

from bisect_trt.errors import MissingOptionError, UnreadableFileError
from bisect_trt.report.console import Console
from bisect_trt.report.parts import BuildReason, ChoiceCount, ChoiceMade
from bisect_trt.report.proofs import describe
from bisect_trt.report.sentences import GOOD_CHOICES, MIXED_CHOICES, Unexplained
from bisect_trt.report.text import Entry
from bisect_trt.search.oracle import Subset, Verdict
from bisect_trt.search.strategy import minimise
from bisect_trt.targets.base import TargetSettings
from bisect_trt.targets.choices import (
    LAYERS,
    MARK,
    RECORD,
    TACTIC,
    Choice,
    choices_of_layers,
)
from bisect_trt.targets.trt.settings import TrtSettings
from bisect_trt.tensors.files import read_inside
from bisect_trt.worker.guard import scratch
from bisect_trt.worker.pool import WorkerPool
from bisect_trt.worker.protocol import Describe, Failed

ENGINES = (".engine", ".plan", ".trt")
"""The suffixes of engines."""
_SHOWN = 20
_MOST_BYTES = 256 << 20
"""Bytes of a file of choices that are read."""
MOST_REASONS = 8
"""The largest number of reasons of bad builds that are searched for."""
Choices = frozenset[Choice]
Place = tuple[str, str]
"""A layer, and the kind of choice."""
Places = Mapping[Place, Choice]
"""The choices of a build that can be pinned."""


class Build(Struct, frozen=True):
    """A build with its verdict; its name is its number, or the file with its choices."""

    name: str
    good: bool
    choices: Choices


def compare_builds(builds: Sequence[Build], proven: Choices = frozenset()) -> list[ChoiceCount]:
    """Return the choices that not all builds made, and the ``proven`` ones, with the builds that made them.

    Proven ones come first, then those that are more frequent in bad
    builds.
    """
    goods, bads = count_verdicts(builds)
    good, bad = (
        Counter(choice for build in builds if build.good is side for choice in build.choices)
        for side in (True, False)
    )

    def rank(choice: Choice) -> tuple[bool, float, Choice]:
        return (
            choice not in proven,
            good[choice] / max(goods, 1) - bad[choice] / max(bads, 1),
            choice,
        )

    differing = (choice for choice in {*good, *bad} if good[choice] + bad[choice] < len(builds))
    return [
        ChoiceCount(
            **structs.asdict(choice_part(choice)),
            good=good[choice],
            bad=bad[choice],
            proven=choice in proven,
        )
        for choice in sorted(proven.union(differing), key=rank)
    ]


def count_verdicts(builds: Sequence[Build]) -> tuple[int, int]:
    """The number of good builds, and of bad ones."""
    goods = sum(build.good for build in builds)
    return goods, len(builds) - goods


def choice_part(choice: Choice) -> ChoiceMade:
    """A choice as results have it."""
    return ChoiceMade(layer=choice.layer, choice=choice.said, kind=choice.kind, value=choice.value)


def tell_choices(builds: Sequence[Build], rows: Sequence[ChoiceCount], console: Console) -> None:
    """Print a table of the choices that are more frequent in bad builds.

    Args:
        builds: The builds with their verdicts.
        rows: How many good and bad builds made each choice.
        console: Where the table goes.
    """
    goods, bads = count_verdicts(builds)
    shown = [row for row in rows if row.bad * goods > row.good * bads]
    console.say(f"  {len(shown)} of {len(rows)} differing choices are more frequent in bad builds")
    lines = [
        (row.layer, row.choice, f"{row.bad} of {bads}", f"{row.good} of {goods}") for row in shown
    ]
    if lines:
        console.table(("layer", "choice", "bad", "good"), lines, _SHOWN)


class Held(Struct, frozen=True):
    """A build with some choices pinned and some forbidden.

    Attributes:
        title: A short description.
        pins: The choices that it must make.
        bans: The choices that it must not make.
        units: The bad build's choices that are pinned, as units of the search.
        repetition: The number of this build among several alike, from 1; 0 if there is one.
    """

    title: str
    pins: tuple[Choice, ...] = ()
    bans: tuple[Choice, ...] = ()
    units: Subset = frozenset()
    repetition: int = 0


Bench = Callable[[Held], tuple[Verdict, Choices]]
"""Builds; returns the verdict of the build, and its choices."""


class BadChoices(Struct, frozen=True):
    """Choices that make a build bad.

    Attributes:
        choices: The choices, which make it bad together; empty if none were found.
        proven: Whether a good build with them pinned is bad, the same build with them forbidden is
            good, and each is needed.
        why: Why it is not proven, or why none were found.
        of: The build, or the choices, that this is about; without ``why`` the reason of the search.
    """

    choices: Choices
    proven: bool
    why: Unexplained | None = None
    of: str | None = None

    def to_part(self) -> BuildReason:
        """Return the reason as results have it."""
        why = self.of if self.why is None else self.why.value.format(self.of)
        return BuildReason(tuple(map(choice_part, sorted(self.choices))), self.proven, why)


def find_reasons(bench: Bench, builds: Sequence[Build], tries: int) -> list[BadChoices]:
    """Return the reasons of the bad builds.

    Args:
        bench: Builds.
        builds: The builds seen; at least one is good.
        tries: The number of builds with only the reason pinned, which confirm that it is complete.

    Returns:
        The reasons; the last one has no choices if a bad build cannot be explained.
    """
    reasons: list[BadChoices] = []
    goods = [_pinnable(build.choices) for build in builds if build.good]
    bads = [(build, _pinnable(build.choices)) for build in builds if not build.good]
    for build, chosen in sorted(bads, key=lambda pair: (not pair[1], len(pair[1]))):
        if any(reason.choices and reason.choices <= build.choices for reason in reasons):
            continue
        reasons.append(_explained(bench, build.name, chosen, list(goods), tries))
        if not reasons[-1].choices or len(reasons) == MOST_REASONS:
            break
    return reasons


def _pinnable(choices: Choices) -> Places:
    return {(choice.layer, choice.kind): choice for choice in sorted(choices) if choice.pins}


def _explained(bench: Bench, name: str, bad: Places, goods: list[Places], tries: int) -> BadChoices:
    """Return the fewest choices that make a good build bad, confirmed by builds in which nothing else is pinned.

    If such a build is good, the reason is incomplete, and the search goes on with that build as
    another good one.
    """
    for _ in range(MOST_REASONS):
        reason = _explain(bench, name, bad, goods)
        unpinned = tuple(choice for choice in bad.values() if choice not in reason.choices)
        for number in range(1, tries + 1) if reason.proven else ():
            # The first build avoids the bad build's other choices: a frequent choice may be in all
            # other builds.
            title = f"only the reason pinned, build {number}"
            bans = unpinned if number == 1 else ()
            verdict, chose = bench(
                Held(title, tuple(sorted(reason.choices)), bans, repetition=number)
            )
            if verdict is Verdict.PASS:
                break
        else:
            return reason
        if (good := _pinnable(chose)) in goods:
            break
        goods.append(good)
    return structs.replace(reason, proven=False, why=Unexplained.INCOMPLETE)


def _explain(bench: Bench, name: str, bad: Places, goods: Sequence[Places]) -> BadChoices:
    """Return the fewest choices of a bad build that make a good one bad."""
    reason = Unexplained.UNPINNED
    for good in _replacements(bad, goods) if bad else ():
        places = [place for place, choice in bad.items() if good.get(place) != choice]

        # The default arguments bind the values of this turn of the loop.
        def mixed(units: Subset, good: Places = good, places: Sequence[Place] = places) -> Held:
            pins = {**good, **{places[unit]: bad[places[unit]] for unit in units}}
            title = MIXED_CHOICES.format(len(units), len(places), name)
            return Held(title, tuple(pins.values()), units=units)

        def ask(units: Subset, mixed: Callable[[Subset], Held] = mixed) -> Verdict:
            return bench(mixed(units))[0]

        if not places:
            reason = Unexplained.ALIKE
            continue
        # Both ends of the search have to repeat what was seen, else choices between them decide
        # nothing.
        if ask(frozenset(range(len(places)))) is not Verdict.FAIL:
            reason = Unexplained.STAYS_GOOD
            break
        if ask(frozenset()) is not Verdict.PASS:
            reason = Unexplained.STAYS_BAD
            continue
        minimum = minimise(range(len(places)), ask)
        turned = {places[unit]: bad[places[unit]] for unit in minimum.units}
        choices = frozenset(turned.values())
        _, chose = bench(mixed(minimum.units))
        # A builder may drop a pin without saying so.
        if not choices <= chose:
            missing = ", ".join(
                f"{choice.layer}: {choice.said}" for choice in sorted(choices - chose)
            )
            return BadChoices(choices, proven=False, why=Unexplained.DROPPED, of=missing)
        # The choices are enough for a bad build; now whether a bad build needs them.
        title = GOOD_CHOICES.format(len(choices), name)
        pinned = tuple(choice for place, choice in good.items() if place not in turned)
        verdict, chose = bench(Held(title, pinned, tuple(sorted(choices))))
        if verdict is Verdict.PASS and not choices & chose:
            return BadChoices(choices, minimum.proven, of=describe(minimum.remark))
        reason = Unexplained.FORBIDDEN if verdict is Verdict.FAIL else Unexplained.CHOSEN
        return BadChoices(choices, proven=False, why=reason)
    return BadChoices(frozenset(), proven=False, why=reason, of=name)


def _replacements(bad: Places, goods: Sequence[Places]) -> list[Places]:
    """Return replacements for a bad build's choices: the most usual other choice at each place, then the nearest good build.

    The first has none of the bad build's choices where possible, so that choices that are bad only
    together are all replaced.
    """
    counters: dict[Place, Counter[Choice]] = {}
    for place, choice in (pair for good in goods for pair in good.items()):
        counters.setdefault(place, Counter())[choice] += 1
    unlike = {
        place: max(counts, key=lambda choice: (choice != bad.get(place), counts[choice], choice))
        for place, counts in counters.items()
    }
    return [
        unlike,
        min(
            goods, key=lambda good: sum(good.get(place) != choice for place, choice in bad.items())
        ),
    ]


def gather(paths: Sequence[Path], warn: Callable[[str], None]) -> list[Build]:
    """Return the builds in files and folders.

    Args:
        paths: A folder with ``good`` and ``bad`` in it, as the run of ``repeat``; or two paths, the
            first of good builds.
        warn: Called with a sentence for each file that is skipped.

    Raises:
        UnavailableError: A path does not exist, or has no build.
        UsageError: There are more paths, or none.
    """
    if not 1 <= len(paths) <= 2:
        raise MissingOptionError(
            "give a run of `repeat`, or two paths: the good builds, then the bad ones."
        )
    good, bad = paths if len(paths) > 1 else (paths[0] / "good", paths[0] / "bad")
    sides = (True, _read(good, warn)), (False, _read(bad, warn))
    return [Build(str(file), side, choices) for side, files in sides for file, choices in files]


def _read(path: Path, warn: Callable[[str], None]) -> list[tuple[Path, Choices]]:
    """Return the choices of the builds in a file or in a folder; engines are read where there is nothing else.

    Raises:
        UnavailableError: The file does not exist, or has no build.
    """
    if path.is_dir():
        files = sorted(filter(Path.is_file, path.rglob("*")))
        named = [file for file in files if file.suffix == ".json"]
        # The record of a build of `repeat` has more than its layers.
        recorded = any(file.name.endswith(RECORD) for file in named)
        files = [file for file in named if not (recorded and file.name.endswith(LAYERS))] or files
        read = [(file, read_build(path, file.relative_to(path))) for file in files]
    else:
        real = path.resolve()
        read = [(path, read_build(real.parent, real.name))]
    for file in (file for file, choices in read if choices is None and file.name.endswith(RECORD)):
        warn(f"{file} is skipped: it is incomplete")
    recordings = [(file, choices) for file, choices in read if choices is not None]
    if not recordings:
        raise UnreadableFileError(
            f"{path} has no choices of a build; give a file of `repeat`, a tactic replay of Polygraphy "
            "(--save-tactics), layers of trtexec (--exportLayerInfo), or an engine."
        )
    return recordings


def describe_engine(path: Path) -> Entry:
    """Return the inputs, outputs and layers of an engine, read by TensorRT in a worker process.

    Raises:
        UnavailableError: TensorRT or a GPU is missing, or the engine is for another GPU.
    """
    if not path.is_file():
        raise UnreadableFileError(f"{path}: no such file; give the path of a TensorRT engine.")
    with scratch() as folder, WorkerPool(Path(folder)) as workers:
        reply = workers.ask(
            Describe(TargetSettings("trt", own=TrtSettings(load_engine=str(path.absolute()))))
        )
    if isinstance(reply, Failed):
        raise UnreadableFileError(
            f"TensorRT cannot read the engine {path}: {reply.message}; build it again with `convert`."
        )
    return reply


def read_choices(plain: Any) -> list[Choice] | None:  # noqa: ANN401 - any JSON
    """Return the JSON of ``write_choices``; ``None`` if the file is something else."""
    try:
        return msgspec.convert(plain["choices"], list[Choice]) if plain[MARK] == 1 else None
    except (KeyError, TypeError, msgspec.ValidationError):
        return None


def read_build(folder: Path, name: str | Path) -> Choices | None:
    """Return the choices of a build in a file; ``None`` if the kind of the file is unknown, or it is damaged.

    Args:
        folder: A folder that may be a stranger's.
        name: The file's path below it.

    Raises:
        UnavailableError: It cannot be read.
    """
    path = folder / name
    if path.suffix in ENGINES:
        return frozenset(choices_of_layers(describe_engine(path)["layers"]))
    try:
        plain = json.loads(read_inside(folder, name, _MOST_BYTES))
    except OSError as error:
        raise UnreadableFileError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError):
        # The file is no JSON, nested too deeply, or no text at all.
        return None
    choices = read_choices(plain)
    with suppress(KeyError, TypeError, ValueError, AttributeError):
        if choices is None and "replay" in plain:
            # Polygraphy's `TacticReplayData`, with pairs in some releases.
            layers = {str(layer): dict(algorithm) for layer, algorithm in plain["replay"].items()}
            values = {
                layer: f"{record['implementation']}:{record['tactic']}"
                for layer, record in layers.items()
            }
            choices = [Choice(layer, TACTIC, value, pins=True) for layer, value in values.items()]
        elif choices is None:
            # TensorRT's engine inspector, as `trtexec --exportLayerInfo` writes it.
            from bisect_trt.targets.trt.engine import Origins, read_layers  # noqa: PLC0415 - of such files alone

            read = read_layers(plain["Layers"], Origins())
            choices = choices_of_layers(
                {**entry, "tensors": entry["name"].split(" + ")} for entry in read
            )
    return None if choices is None else frozenset(choices)
