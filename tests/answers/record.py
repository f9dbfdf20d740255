"""Runs the rows of the corpus and says what came of each; as a program it writes that down.

``python tests/answers/record.py [NAME...]`` records these rows anew, or all that are not recorded
yet; ``--all`` all of them.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

import jsonschema
import onnx

from answers import seam
from answers.rows import FIELDS, ROWS, Row
from bisect_trt.report.answers import answer_of

RECORDED = Path(__file__).parent / "recorded"
SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "answer.schema.json").read_text())
VALIDATOR = jsonschema.validators.validator_for(SCHEMA)(SCHEMA)
CHECK = f"{sys.executable} {Path(__file__).with_name('check.py')} {{model}}"


def run_row(row: Row, folder: Path) -> dict[str, Any]:
    """What each command line of a row does, in an empty folder."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        row.prepare(folder)
        with seam.replaced(row.interrupt_at, row.seed, tensorrt=row.tensorrt) as counter:
            return {"lines": [_run_line(row, line, counter) for line in row.lines]}
    finally:
        os.chdir(before)


def _present(plain: Any) -> Any:
    """Plain values without what was not found, which a type has as its default."""
    if isinstance(plain, dict):
        present = {name: _present(value) for name, value in plain.items()}
        return {name: value for name, value in present.items() if value not in (None, {}, [])}
    return [_present(each) for each in plain] if isinstance(plain, list | tuple) else plain


def _run_line(row: Row, line: str, counter: seam.Counter) -> dict[str, Any]:
    runs = sorted(Path(".bisect-trt").glob("*/")) if Path(".bisect-trt").exists() else []
    stands_for = {
        "{run}": str(runs[-1]) if runs else "none",
        "CHECK": CHECK,
        "TOOL": "'PYTHON tool.py {model} {out}'",
        "PYTHON": sys.executable,  # last: no recorded line may name this machine's
    }
    typed = line
    for name, value in stands_for.items():
        typed = typed.replace(name, value)
    words = shlex.split(typed)
    asked = any(word in words for word in ("--json",))
    at = words.index("--check") if "--check" in words else len(words)
    takes = words[0] in row.answers
    words = words if asked or not takes else [*words[:at], "--json", "answer.json", *words[at:]]
    Path("answer.json").unlink(missing_ok=True)
    counted = counter.runs
    known = _journal_lines()
    before = _files()
    status, said = _call(words)
    answer = json.loads(Path("answer.json").read_text()) if Path("answer.json").exists() else {}
    found: dict[str, Any] = {"argv": line, "exit": status}
    if answer:
        VALIDATOR.validate(answer)
        types = answer_of(answer)
        assert not types.other
        assert _present(types.to_json()) == _present(answer)
        found["status"] = answer.get("status")
        found["minimality"] = answer.get("minimality")
        found["culprits"] = [
            each["name"] or each["outputs"][0] for each in answer.get("culprits", ())
        ]
        found |= {name: _named(_plain(answer.get(name))) for name in FIELDS.get(words[0], ())}
    found["questions"] = [each for _, each in _questions(known)]
    found["runs"] = counter.runs - counted
    found["files"] = {
        name: _content(Path(name)) for name in sorted(_files() - before) if name != "answer.json"
    }
    if row.shows:
        found["shown"] = [word for word in row.shows if word in said]
    found["said"] = said
    return found


def _read(words: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Read a command line, with ``-v``, which prints the verdicts that rows look for."""
    from bisect_trt.cli.parser import parse

    name, values = parse(words)
    return name, {**values, "verbose": 1} if "verbose" in values else dict(values)


def _call(words: Sequence[str]) -> tuple[int, str]:
    """The exit status of a command line and all that it prints."""
    from bisect_trt.cli.app import perform

    out = io.TextIOWrapper(
        io.BytesIO(), encoding="utf-8", errors="backslashreplace", write_through=True
    )
    stdin = io.TextIOWrapper(io.BytesIO())
    with (
        mock.patch.object(sys, "stdin", stdin),
        mock.patch("bisect_trt.cli.app.parse", _read),  # of a run that is resumed
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
    ):
        try:
            perform(*_read(words), tuple(words))
        except SystemExit as ending:
            code = ending.code
        except KeyboardInterrupt:
            code = 130
    buffer: Any = out.buffer
    said = buffer.getvalue().decode()
    if isinstance(code, str):
        said = said + code
        code = 1
    return int(code or 0), said


def _files() -> set[str]:
    """What lies in the folder but for runs."""
    return {
        str(path)
        for path in Path().rglob("*")
        if path.is_file() and path.parts[0] not in (".bisect-trt", "__pycache__")
    }


def _journal_lines() -> dict[Path, int]:
    return {
        path: len(path.read_text().splitlines())
        for path in Path().glob(".bisect-trt/*/journal.jsonl")
    }


def _questions(known: dict[Path, int]) -> list[tuple[int, str]]:
    """What the search asked since, in order: the verdict and the nodes of the candidate."""
    found = []
    for path in sorted(Path().glob(".bisect-trt/*/journal.jsonl")):
        for line in path.read_text().splitlines()[known.get(path, 0) :]:
            entry = json.loads(line)
            if entry["event"] == "verdict":
                found.append((entry["number"], f"{entry['verdict']} {_label(path.parent, entry)}"))
    return found


def _label(run: Path, entry: dict[str, Any]) -> str:
    """The names of the candidate's nodes; how many there are of another name than in the original."""
    key = entry["key"].partition("-again-")[0]
    again = " again" if "-again-" in entry["key"] else ""
    names = _nodes(
        next(
            (
                each
                for each in _models(run)
                if each.stem == key[: len(each.stem)] or each.parent.name == key[:12]
            ),
            None,
        )
    )
    if names is None:
        return f"? {entry['size']}{again}"
    if not _original:
        _original.extend(names)
    own = [name for name in names if name in _original]
    label = (
        "all"
        if own == _original
        else "{" + " ".join(own) + "}"
        if len(own) <= 12
        else f"{len(own)} of {own[0]}..{own[-1]}"
    )
    more = len(names) - len(own)
    return f"{label}{f' +{more}' if more else ''}{again}"


_original: list[str] = []


def _models(run: Path) -> list[Path]:
    folder = run / "candidates"
    return [
        each
        for each in [*folder.glob("*/model.onnx"), *folder.glob("*.onnx")]
        if not each.name.startswith("spoiled-")
    ]


def _nodes(path: Path | None) -> list[str] | None:
    if path is None:
        return None
    return [
        node.name or node.output[0]
        for node in onnx.load(str(path), load_external_data=False).graph.node
    ]


def _content(path: Path) -> str:
    """What of a file has to stay: of a model its nodes, of others that they are not empty."""
    if path.suffix == ".onnx":
        try:
            names = _nodes(path) or []
        except Exception:
            return "no model"
        return " ".join(names) if len(names) <= 12 else f"{len(names)} nodes"
    return "empty" if path.stat().st_size == 0 else "there"


def _named(value: Any) -> Any:
    """Of a list of nodes their names alone; why each is there is a sentence."""
    if (
        isinstance(value, list)
        and value
        and all(isinstance(each, dict) and "name" in each for each in value)
    ):
        return [each["name"] for each in value]
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.3g}")
    if isinstance(value, str):
        return re.sub(r"\.bisect-trt/[-0-9]+-", "RUN-", value)
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def replay(row: Row) -> dict[str, Any]:
    """What comes of a row now."""
    _original.clear()
    with TemporaryDirectory() as folder:
        return run_row(row, Path(folder).resolve())


def recorded(row: Row) -> dict[str, Any] | None:
    """What came of it when it was recorded."""
    path = RECORDED / f"{row.name}.json"
    found: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    return found


def main() -> None:
    """Record rows."""
    wanted = [word for word in sys.argv[1:] if not word.startswith("-")]
    for row in ROWS:
        if (wanted and row.name not in wanted) or (
            not wanted and "--all" not in sys.argv and recorded(row) is not None
        ):
            continue
        began = time.monotonic()
        now = replay(row)
        if "-v" in sys.argv:
            for line in now["lines"]:
                print(line["said"])
        for line in now["lines"]:
            del line["said"]
        RECORDED.mkdir(exist_ok=True)
        (RECORDED / f"{row.name}.json").write_text(json.dumps(now, indent=1) + "\n")
        print(
            f"{time.monotonic() - began:5.2f} s",
            row.name,
            *(
                f"exit {line['exit']} {line.get('status')} {len(line['questions'])}q {line['runs']}r"
                for line in now["lines"]
            ),
        )


if __name__ == "__main__":
    main()
