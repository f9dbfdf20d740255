"""The pages say what is so: their commands run, their output is what comes out, their links and names lead somewhere."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version
from pages import NOT_RUN, OF_EXAMPLES, ROOT, SHELLS, Reader, read_commands, read_fences

from bisect_trt import errors
from bisect_trt.cli.parser import parse
from bisect_trt.options.spec import Params
from bisect_trt.probe.prober import DoesNotReproduce
from bisect_trt.targets.options import Target
from bisect_trt.worker.deadline import BudgetSpent

PACKAGE = ROOT / "bisect_trt"
PATTERNS = ("*.md", "docs/*.md", "docs/tutorials/*.md", "examples/*/README.md")
PAGES = [page for pattern in PATTERNS for page in sorted(ROOT.glob(pattern))]
PAGES.remove(ROOT / "CHANGELOG.md")
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "page", [name for name in NAMES if name not in chain(*OF_EXAMPLES.values())]
)
def test_every_command_of_a_page_runs_and_prints_what_the_page_shows(
    page: str, tmp_path: Path
) -> None:
    Reader(tmp_path / "checkout").follow_page(page)


def test_what_no_tag_says_is_a_step_past_the_newest_release() -> None:
    changes, project = (
        (ROOT / name).read_text(encoding="utf-8") for name in ("CHANGELOG.md", "pyproject.toml")
    )
    newest = re.search(r"^## \[(\d.*?)\]", changes, re.MULTILINE)
    (past,) = re.findall(r'^fallback-version = "(.*)"', project, re.MULTILINE)
    if newest is None:
        assert Version(past) == Version("0.1.0.dev0")
        return
    *first, last = Version(newest[1]).release
    assert Version(past) == Version(f"{'.'.join(map(str, [*first, last + 1]))}.dev0")


def commands() -> Iterator[tuple[str, str]]:
    """All commands, with the page they stand on."""
    for page in PAGES:
        shown = (fence for fence in read_fences(page) if fence.info and fence.info[0] in SHELLS)
        yield from (
            (page.name, command.text) for fence in shown for command in read_commands(fence)
        )


def test_every_command_stands_in_a_block_that_is_followed() -> None:
    others = [
        f"{page.name}: {line}"
        for page in PAGES
        if page.name != "reference.md"  # it is generated, and has the usage of each command
        and not page.parent.name.startswith("custom_")  # tests/examples installs these
        for fence in read_fences(page)
        if not fence.info or fence.info[0] not in SHELLS
        for line in fence.lines
        if re.match(r"(\$ |bisect-trt )", line)
    ]
    assert others == []


def test_every_reason_not_to_run_a_command_is_needed() -> None:
    known = [text for _, text in commands()]
    assert [reason for reason in NOT_RUN if not any(re.match(reason, text) for text in known)] == []


def read_values(text: str) -> dict[str, Any]:
    """What the command line's own parser makes of a command; it ends with status 2 if it does not take it."""
    return parse(shlex.split(text, comments=True)[1:])[1]


def test_the_command_line_takes_every_command_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The quick half of following the pages; of one that needs a GPU the target becomes settings, files taken for there."""
    monkeypatch.chdir(tmp_path)
    for page, text in commands():
        if not text.startswith("bisect-trt "):
            continue
        values = read_values(text)
        assert values, page
        if not re.match(r"bisect-trt \S+ .*--trt\b", text):
            continue
        assert values["trt"] or values["trt_rtx"] or values["check"], page
        if values["trt"]:
            for path in (
                values["load_timing_cache"],
                values["load_engine"],
                *(values["plugins"] or ()),
            ):
                if path is not None:
                    path.touch()
            engines = text.startswith("bisect-trt run ")
            assert (
                Params([Target], values, words=True)[Target].settings(engines=engines) is not None
            ), page


def test_the_skill_names_commands_and_keys_that_exist() -> None:
    page = (ROOT / "skills" / "bisect-trt" / "SKILL.md").read_text(encoding="utf-8")
    commands = re.findall(r"\| `(\w+ \w+\.onnx[^`]*)`", page) + re.findall(
        r"^bisect-trt (.*)$", page, re.MULTILINE
    )
    assert len(commands) > 8
    for text in commands:
        assert read_values(f"bisect-trt {text}"), text
    schema = json.loads((ROOT / "docs" / "answer.schema.json").read_text(encoding="utf-8"))
    keys = re.search(r"^\| key \| use \|$(.*?)^$", page, re.MULTILINE | re.DOTALL)
    assert keys is not None
    named = {
        key.split(".")[0]
        for row in keys[1].splitlines()
        for key in re.findall(r"`([\w.]+)`", row.split("|")[1:2][0] if row else "")
    }
    assert named
    assert named <= set(schema["properties"])


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(
        r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )


def anchors(page: Path) -> set[str]:
    """What the headings of a page go by in links."""
    headings = re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_no_page_is_too_long_to_read() -> None:
    """But for what is generated."""
    words = {page.name: len(page.read_text(encoding="utf-8").split()) for page in PAGES}
    del words["reference.md"]
    assert {name: count for name, count in words.items() if count > 1500} == {}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        path, _, anchor = link.partition("#")
        if re.match(r"https?:", path):
            continue
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name} links to {link}"
        assert not anchor or anchor in anchors(target), f"{page.name} links to {link}"


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    there = set(
        re.findall(
            r"- (?:[^:\n]+: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE
        )
    )
    assert set(NAMES) - there == set()


@pytest.mark.parametrize(
    "page",
    [
        ROOT / "CONTRIBUTING.md",
        ROOT / "docs" / "architecture.md",
        *sorted(ROOT.glob("docs/internals-*.md")),
    ],
    ids=lambda page: page.stem,
)
def test_every_file_that_is_named_is_there(page: Path) -> None:
    spans = set(re.findall(r"`([^`\s]+)`", prose(page)))
    paths = {
        span for span in spans if span.endswith((".py", ".txt")) or re.fullmatch(r"[\w./]+/", span)
    }
    paths -= {"reproduce.py"}  # it is written
    places = [
        PACKAGE,
        ROOT,
        *(folder for folder in PACKAGE.glob("targets/*/")),
    ]  # a recipe names what each target has
    assert {path for path in paths if not any((place / path).exists() for place in places)} == set()


ENDINGS = {
    "UsageError": errors.UsageError,
    "UnavailableError": errors.UnavailableError,
    "BudgetSpent": BudgetSpent,
    "FormatRefusedError": errors.FormatRefusedError,
    "DoesNotReproduce": DoesNotReproduce,
}


def read_messages() -> Iterator[tuple[str, list[str], int]]:
    """Every message that ends a run: where it stands, its text between what is filled in, and its exit status."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Name)
                and call.func.id in ENDINGS
            ):
                message = call.args[0]
                parts = message.values if isinstance(message, ast.JoinedStr) else [message]
                text = [str(part.value) for part in parts if isinstance(part, ast.Constant)]
                if len("".join(text)) > 2:  # else all of it is another message
                    yield (
                        f"{path.relative_to(PACKAGE)}:{call.lineno}",
                        text,
                        int(ENDINGS[call.func.id].status),
                    )


def test_every_message_on_the_page_of_messages_is_one_that_ends_a_run() -> None:
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    known = [
        (re.compile(".+".join(re.escape(part) for part in text)), status)
        for _, text, status in read_messages()
    ]
    stale = [
        row[0]
        for row in rows
        if not any(row[1] == str(status) and found.search(row[0]) for found, status in known)
    ]
    assert rows
    assert not stale, "docs/errors.md has messages that no longer exist:\n" + "\n".join(stale)
