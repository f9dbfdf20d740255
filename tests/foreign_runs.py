"""Folders of runs that somebody has changed: other values, types and files, with checksums that are right."""

from __future__ import annotations

import copy
import json
import os
import random
from pathlib import Path
from typing import Any

from bisect_trt.probe.ledger import sealed

VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        0,
        -1,
        1.5,
        10**400,
        2**63,
        "",
        "x",
        "../..",
        "/etc",
        "a\0b",
        "\x1b[31m\n<b>",
        "nan",
        "PASS",
    ),
    *([], [1], [[]], {}, {"x": [{}]}, ["x"] * 50),
)
FILES = ("journal.jsonl", "result.json", "run.json")


def lines_of(run: Path, event: str = "") -> list[dict[str, Any]]:
    """The lines of a journal, or those of an event, without checksums."""
    lines = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    return [
        {name: line[name] for name in line if name != "crc32"}
        for line in lines
        if event in ("", line["event"])
    ]


def changed_journal(
    entries: list[dict[str, Any]], number: int, place: list[str], value: Any
) -> bytes:
    """A journal with another value at a place of a line."""
    changed = [*entries]
    holder = changed[number] = copy.deepcopy(entries[number])
    for name in place[:-1]:
        holder = holder[name]
    holder[place[-1]] = value
    return b"".join(map(sealed, changed))


def _change(plain: Any, rng: random.Random) -> Any:
    """Change one value anywhere, take one away, or put one in another's place."""
    if not isinstance(plain, dict | list) or not plain or rng.random() < 0.15:
        return copy.deepcopy(rng.choice(VALUES))
    key = rng.choice(list(plain)) if isinstance(plain, dict) else rng.randrange(len(plain))
    if rng.random() < 0.1:
        del plain[key]
    else:
        plain[key] = _change(plain[key], rng)
    return plain


def changed_json(path: Path, rng: random.Random) -> bytes:
    """The content of a file of a run with some changes; lines of a journal are sealed again."""
    if path.name == "journal.jsonl":
        entries: list[Any] = lines_of(path.parent)
        for _ in range(rng.choice((0, 1, 1, 2, 5))):
            number = rng.randrange(len(entries))
            changed = _change(entries[number], rng)
            entries[number] = changed if isinstance(changed, dict) else {"event": changed}
        content = b"".join(map(sealed, entries))
    else:
        plain = json.loads(path.read_bytes())
        for _ in range(rng.choice((0, 1, 1, 2, 5))):
            plain = _change(plain, rng)
        content = json.dumps(plain).encode()
    return content[: rng.randrange(len(content) + 1)] if rng.random() < 0.05 else content


def spoil_folder(run: Path, rng: random.Random) -> None:
    """Change files of a run's folder, and what they are."""
    for name in FILES:
        if rng.random() < 0.6:
            (run / name).write_bytes(changed_json(run / name, rng))
    if rng.random() < 0.3:
        path = rng.choice([path for path in run.rglob("*") if path.is_file()])
        path.unlink()
        kind = rng.randrange(5)
        if kind == 0:
            os.mkfifo(path)
        elif kind == 1:
            path.symlink_to("/dev/zero")
        elif kind == 2:
            path.symlink_to("../" * rng.randrange(4) + path.name)
        elif kind == 3:
            path.mkdir()
