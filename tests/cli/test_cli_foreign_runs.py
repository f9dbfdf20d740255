"""A run folder that somebody sent is data: it is shown, or refused in a sentence; nothing else is read or written."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import CommandLine
from foreign_runs import changed_journal, changed_json, lines_of
from support import bisect_trt, chain, has, read_json, script

from bisect_trt.errors import UnavailableError
from bisect_trt.probe.ledger import read_probes, sealed
from bisect_trt.probe.outcome import Ending, MetricScore, Outcome
from bisect_trt.session.places import PLACES_FILE, earlier_kinds
from bisect_trt.targets.choices import TACTIC, Choice, write_choices
from bisect_trt.tensors.comparison import to_plain

pytestmark = pytest.mark.any_version
FILES = ("journal.jsonl", "result.json", "run.json")
CANARY = "what is not in the folder"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working folder of a finished run."""
    folder = tmp_path_factory.mktemp("finished")
    chain(folder / "m.onnx", 3)
    script(folder / "check", f"{has('<1>')} && exit 1; exit 0")
    words = ("reduce", "m.onnx", "-o", "o.onnx", "--check", "./check", "{model}")
    bisect_trt(*words, cwd=folder).ended(0)
    return folder


@pytest.fixture
def run(cli: CommandLine, here: Path, finished: Path) -> Path:  # noqa: ARG001 - where both work
    """The folder of a finished run, a copy of it in the working folder."""
    shutil.copytree(finished, here, symlinks=True, dirs_exist_ok=True)
    (folder,) = Path(".bisect-trt").iterdir()
    return folder


def ends_with_a_sentence(cli: CommandLine, *words: str | Path) -> None:
    ran = cli(*words)
    assert "Traceback" not in ran.out + ran.err, ran.err
    assert "internal error" not in ran.err, ran.err
    assert ran.status in (0, 1, 2, 3, 4)
    assert CANARY not in ran.out + ran.err


def replaced(way: str) -> Callable[[Path], object]:
    def fifo(path: Path) -> None:
        os.mkfifo(path)

    links = {
        "a device": "/dev/zero",
        "a link": "../../outside",
        "a loop": "journal.jsonl",
        "a gone file": "nowhere",
    }
    if way == "a FIFO":
        return fifo
    if way == "a folder":
        return Path.mkdir
    if way == "zeros":
        return lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_RDWR), 1 << 43)
    return lambda path: path.symlink_to(links[way])


@pytest.mark.timeout(60)  # what is waited for never ends
@pytest.mark.parametrize(
    "way", ["a FIFO", "a device", "a link", "a loop", "a gone file", "a folder", "zeros"]
)
@pytest.mark.parametrize("name", FILES)
def test_what_is_no_file_is_not_read(cli: CommandLine, run: Path, name: str, way: str) -> None:
    shutil.copy(run / name, "outside")
    (run / name).unlink()
    replaced(way)(run / name)
    for words in (("log", run), ("log", run, "1"), ("report", run)):
        ends_with_a_sentence(cli, *words)
    command = "report" if name == "result.json" else "log"
    if (name, way) != ("journal.jsonl", "a gone file"):
        cli(command, run).refused("BT2006", name)
    ends_with_a_sentence(cli, "resume", run)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("way", ["a FIFO", "a device", "a link"])
@pytest.mark.parametrize("name", ["output.log", "command.txt", ""])
def test_files_of_a_probe_stay_in_the_folder(
    cli: CommandLine, run: Path, name: str, way: str
) -> None:
    Path("outside").mkdir()
    for each in ("output.log", "command.txt"):
        (Path("outside") / each).write_text(CANARY)
    key = lines_of(run, "verdict")[0]["key"][:12]
    path = run / "candidates" / key / name if name else run / "candidates"
    path.unlink() if name else shutil.rmtree(path)
    if way == "a link":
        path.symlink_to(Path("outside", name).absolute())
    else:
        replaced(way)(path)
    ends_with_a_sentence(cli, "log", run, "1")


def test_a_key_is_no_path(cli: CommandLine, run: Path) -> None:
    Path("output.log").write_text(CANARY)
    Path("command.txt").write_text(CANARY)
    for key in ("../../..", "..", str(Path.cwd()), "a/b", "a\0b", ""):
        entries = lines_of(run)
        for entry in entries:
            entry["key"] = key
        (run / "journal.jsonl").write_bytes(b"".join(map(sealed, entries)))
        cli("log", run, "1").refused("BT2006", "journal.jsonl", "line 1")


@pytest.mark.parametrize("name", ["report.html"])
def test_a_report_is_not_written_through_a_link(cli: CommandLine, run: Path, name: str) -> None:
    Path("mine").write_text("precious")
    (run / name).unlink()
    (run / name).symlink_to(Path("mine").absolute())
    cli("report", run).refused("BT1006", "symbolic link", "-o")
    assert Path("mine").read_text() == "precious"
    cli("report", run, "-o", "page.html").ended(0)


def test_a_report_is_not_written_into_a_pipe(cli: CommandLine, run: Path) -> None:
    """Nobody reads it, so that the command would wait for ever."""
    (run / "report.html").unlink()
    os.mkfifo(run / "report.html")
    cli("report", run).refused("BT1006", "no regular file", "-o")


VALUES: list[Any] = [None, "x", "\x1b[31m\n<b>", [1], {}, {"x": [{}]}, -1, 10**400, 1.5, True]


def test_values_of_other_types(cli: CommandLine, run: Path) -> None:
    """Each value of each line and of the result, one after the other, with checksums that are right."""
    journal = run / "journal.jsonl"
    entries = lines_of(run)
    firsts = {entry["event"]: number for number, entry in reversed([*enumerate(entries)])}
    for number in firsts.values():
        holders = [[name] for name in entries[number]]
        holders += [["outcome", name] for name in entries[number].get("outcome", ())]
        for place in holders:
            for value in VALUES:
                journal.write_bytes(changed_journal(entries, number, place, value))
                ends_with_a_sentence(cli, "log", run)
                ends_with_a_sentence(cli, "log", run, "1")
    journal.write_bytes(b"".join(map(sealed, entries)))
    result = read_json(run / "result.json")
    for name in result:
        for value in VALUES:
            (run / "result.json").write_text(json.dumps({**result, name: value}))
            ends_with_a_sentence(cli, "report", run)


@pytest.mark.parametrize(
    "content", [b"[1, 2]", b"55", b"[" * 100_000 + b"]" * 100_000, b'{"a": 1}', b'"text"']
)
def test_lines_that_are_something_else(cli: CommandLine, run: Path, content: bytes) -> None:
    import zlib

    line = b'%s, "crc32": %d}\n' % (content[:-1], zlib.crc32(content))
    with (run / "journal.jsonl").open("ab") as file:
        file.write(line)
    cli("log", run).refused("BT2006", "damaged")
    (run / "result.json").write_bytes(content)
    cli("report", run).refused("BT2006")
    (run / "run.json").write_bytes(content)
    for command in ("log", "resume"):
        cli(command, run).refused("BT2006")


@pytest.mark.parametrize("seed", range(40))
def test_changes_anywhere(cli: CommandLine, run: Path, seed: int) -> None:
    """`make fuzz` makes thousands of these."""
    rng = random.Random(seed)
    for name in FILES:
        (run / name).write_bytes(changed_json(run / name, rng))
    for words in (("log", run), ("log", run, "1"), ("report", run)):
        ends_with_a_sentence(cli, *words)


LAYER = {"name": "a", "tactic": "7", "tensors": ["t"], "precisions": ["fp16"], "formats": ["row"]}
SCORE = MetricScore("top-1", 0.5, float("nan"), None, False, None, 4, 4)


def test_scores_and_layers_of_other_types(here: Path) -> None:
    """A search that is resumed reads these from the journal; NaN, which JSON has not, is text there."""
    journal = here / "journal.jsonl"
    outcome = Outcome(Ending.MISMATCHED, "metric", "why", metric=SCORE, layers=(LAYER,))
    entries = [{"event": "outcome", "key": "k", "outcome": to_plain(outcome)}]
    journal.write_bytes(sealed(entries[0]))
    outcomes, _, _ = read_probes(journal)
    assert repr(outcomes["k"]) == repr(outcome)
    places = [("metric", name) for name in SCORE.__struct_fields__] + [
        ("layers", 0, name) for name in LAYER
    ]
    for place in places:
        for value in (VALUES[3], VALUES[5]):
            journal.write_bytes(changed_journal(entries, 0, ["outcome", *place], value))
            with pytest.raises(UnavailableError, match=r"damaged in line 1"):
                read_probes(journal)


@pytest.mark.timeout(60)
def test_places_of_other_types(here: Path) -> None:
    file = here / PLACES_FILE
    file.write_text('{"ssh=host": {"version": "1.0"}}')
    assert earlier_kinds(here) == {"ssh=host": {"version": "1.0"}}
    for content in (
        "",
        "[",
        "[1]",
        "7",
        '{"a": 1}',
        '{"a": {"b": 1}}',
        '{"a": [["b", "c"]]}',
        "[" * 100_000,
    ):
        file.write_text(content)
        with pytest.raises(UnavailableError, match="damaged"):
            earlier_kinds(here)
    for way in ("a FIFO", "a device", "a loop", "a folder"):
        file.unlink()
        replaced(way)(file)
        with pytest.raises(UnavailableError, match="damaged"):
            earlier_kinds(here)


def test_choices_of_other_types(cli: CommandLine, here: Path) -> None:
    """Each value of a record of a build, one after the other, beside an intact one."""
    good = here / "run" / "good"
    bad = here / "run" / "bad"
    for folder, tactic in ((good, "1"), (bad, "2")):
        folder.mkdir(parents=True)
        write_choices(folder / "0001_choices.json", [Choice("layer", TACTIC, tactic, pins=True)])
    write_choices(bad / "0002_choices.json", [Choice("layer", TACTIC, "2")])
    cli("diff", "run").ended(0)
    record = read_json(bad / "0001_choices.json")
    places: list[list[Any]] = [[name] for name in record]
    places += [["choices", 0], *(["choices", 0, name] for name in record["choices"][0])]
    for place in places:
        for value in VALUES:
            changed = copy.deepcopy(record)
            holder = changed
            for name in place[:-1]:
                holder = holder[name]
            holder[place[-1]] = value
            (bad / "0001_choices.json").write_text(json.dumps(changed))
            ends_with_a_sentence(cli, "diff", "run")
    (bad / "0001_choices.json").write_text("[" * 100_000)
    ends_with_a_sentence(cli, "diff", "run")


def test_a_result_with_few_facts_of_its_model_is_rendered(cli: CommandLine, run: Path) -> None:
    result = read_json(run / "result.json")
    for model in ({}, {"sha256": "0"}):
        (run / "result.json").write_text(json.dumps({**result, "model": model}))
        cli("report", run).ended(0)
