"""The pages say what is so: their commands run, their output is what comes out, their links and names lead somewhere."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bisect_trt import errors
from bisect_trt.cli.arguments import rewrite
from bisect_trt.cli.parser import make_command, several
from bisect_trt.options.given import Given
from bisect_trt.probing.ledger import BudgetSpent
from bisect_trt.probing.prober import DoesNotReproduce
from bisect_trt.targets.options import Target

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "bisect_trt"
PATTERNS = ("*.md", "docs/*.md", "docs/tutorials/*.md", "examples/*/README.md")
PAGES = [page for pattern in PATTERNS for page in sorted(ROOT.glob(pattern))]
PAGES.remove(ROOT / "CHANGELOG.md")
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]

NOT_RUN = {
    r"make \w+": "it installs what these tests run in, or runs these tests",
    r"\. \S+/activate": "the tests run in such an environment already",
    r"pip install": "it changes that environment",
    r"bisect-trt releases|.* --releases|.*--on env=": "it installs releases from an index",
    r".*\btrtexec\b": "it needs TensorRT and a GPU",
    r".*--trt\b": "it needs TensorRT and a GPU",
}
"""Commands by what they begin with, and why they are not run."""

SHELLS = ("console", "bash", "sh")
REST = "..."
"""On a line of its own: lines are left out here. Within one: the rest of it is."""


@dataclass
class Fence:
    """A fenced block of a page: the words after the fence, and its lines."""

    info: list[str]
    lines: list[str] = field(default_factory=list)


def read_fences(page: Path) -> Iterator[Fence]:
    fence = None
    for line in page.read_text(encoding="utf-8").splitlines():
        if fence is None and line.startswith("```"):
            fence = Fence(line[3:].split())
        elif fence is not None and line == "```":
            yield fence
            fence = None
        elif fence is not None:
            fence.lines.append(line)
    assert fence is None, f"{page} has a fence that does not end"


@dataclass
class Command:
    """A command of a page, and the output that the page shows; ``None`` where it shows none."""

    text: str
    shown: list[str] | None = None


def read_commands(fence: Fence) -> list[Command]:
    """The commands of a block: in ``console`` those after ``$``, in ``bash`` each line."""
    session = fence.info[0] == "console"
    commands: list[Command] = []
    for line in fence.lines:
        if commands and commands[-1].text.endswith("\\"):
            commands[-1].text = commands[-1].text[:-1] + line.strip()
        elif session and line.startswith("$ "):
            commands.append(Command(line[2:], []))
        elif session:
            shown = commands[-1].shown
            assert shown is not None
            shown.append(line)
        elif line.strip():
            commands.append(Command(line))
    return commands


class Reader:
    """Somebody who follows a page, in a folder like a fresh checkout."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.status = 0
        self._seen: dict[str, tuple[int, str]] = {}
        leave_out = shutil.ignore_patterns("*.onnx", "*.npz", "*-reproducer", ".bisect-trt", "__pycache__")
        shutil.copytree(ROOT / "examples", folder / "examples", ignore=leave_out)
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self._environment = {**os.environ, "PATH": path, "LC_ALL": "C.UTF-8", "NO_COLOR": "1", "COLUMNS": "100"}

    def follow(self, command: Command) -> str:
        """Run one command; what it prints."""
        if command.text.startswith("cd "):
            self.folder /= command.text[3:].strip()
            return ""
        if command.text in self._seen:  # a page may show later what a command above printed
            self.status, printed = self._seen[command.text]
            return printed
        printed = self._run(self._with_run_folders(command.text), command.shown or [])
        self._seen[command.text] = self.status, printed
        return printed

    def _with_run_folders(self, text: str) -> str:
        """The folder of a run is named after the time, so the page's name stands for the newest of its kind."""

        def newest(match: re.Match[str]) -> str:
            return str(max((self.folder / ".bisect-trt").glob(f"*-{match[1]}")).relative_to(self.folder))

        return re.sub(r"\.bisect-trt/\d{8}-\d{6}-([\w-]+)", newest, text)

    def _run(self, text: str, shown: list[str]) -> str:
        with subprocess.Popen(
            ["bash", "-c", f"exec {text}" if "^C" in shown else text],
            cwd=self.folder,
            env=self._environment,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process:
            assert process.stdout is not None
            printed = ""
            if "^C" in shown:
                last = masked(shown[shown.index("^C") - 1])
                for line in process.stdout:
                    printed += line
                    if masked(line.rstrip("\n")) == last:
                        break
                process.send_signal(signal.SIGINT)
            printed += process.stdout.read()
        self.status = process.returncode
        return printed


def masked(text: str) -> str:
    """Without what differs from run to run: numbers, and how far columns are apart."""
    return re.sub(r" {2,}", "  ", re.sub(r"\d+(\.\d+)?(e[-+]\d+)?", "#", text))


def matches(shown: list[str], printed: str) -> bool:
    """Whether a page shows what came out."""
    pattern = "".join(
        r"(?:.*\n)*?" if line == REST else re.escape(masked(line)).replace(re.escape(REST), ".*") + r"\n"
        for line in shown
        if line != "^C"
    )
    return re.fullmatch(pattern, masked(printed if printed.endswith("\n") else printed + "\n")) is not None


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_command_of_a_page_runs_and_prints_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    reader = Reader(tmp_path / "checkout")
    pending: Command | None = None  # ended with another status than 0: the page has to say so
    for fence in read_fences(page):
        if fence.info[:1] == ["python"] and len(fence.info) == 2:
            (reader.folder / fence.info[1]).write_text("\n".join(fence.lines) + "\n")
        for command in read_commands(fence) if fence.info and fence.info[0] in SHELLS else ():
            if command.text == "echo $?":
                assert command.shown == [str(reader.status)], f"{page.name}: {pending}"
                pending = None
                continue
            assert pending is None, f"{page.name}: ends with status {reader.status}: {pending}"
            if any(re.match(pattern, command.text) for pattern in NOT_RUN):
                continue
            printed = reader.follow(command)
            pending = command if reader.status else None
            if command.shown is not None and not matches(command.shown, printed):
                pytest.fail(f"{page.name}, `{command.text}`: the page does not show what came out, which is\n{printed}")
    assert pending is None, f"{page.name}: ends with status {reader.status}: {pending}"


def test_every_reason_not_to_run_a_command_is_needed() -> None:
    commands = [
        command.text
        for page in PAGES
        for fence in read_fences(page)
        if fence.info and fence.info[0] in SHELLS
        for command in read_commands(fence)
    ]
    assert [reason for reason in NOT_RUN if not any(re.match(reason, text) for text in commands)] == []


def commands_with_trt() -> list[tuple[str, str]]:
    """Commands of ours that need a GPU, with the page they stand on."""
    return [
        (page.name, command.text)
        for page in PAGES
        for fence in read_fences(page)
        if fence.info and fence.info[0] in SHELLS
        for command in read_commands(fence)
        if re.match(r"bisect-trt \S+ .*--trt\b", command.text)
    ]


@pytest.mark.parametrize(("page", "text"), commands_with_trt())
def test_a_command_that_needs_a_gpu_is_one_that_the_command_line_takes(
    page: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not run; the command line's own parser reads it, and its target becomes settings, files taken for there."""
    name, *words = shlex.split(text)[1:]
    values = make_command(name).make_context(name, rewrite(words, several(name))).params
    assert values["trt"] or values["check"], page
    if values["trt"]:
        monkeypatch.chdir(tmp_path)
        for path in (values["load_timing_cache"], values["load_engine"], *values["plugins"]):
            if path is not None:
                path.touch()
        assert Given(values)[Target].settings(engines=name == "run") is not None


def test_some_commands_need_a_gpu() -> None:
    assert len(commands_with_trt()) >= 5


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """What the headings of a page go by in links."""
    headings = re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


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
    there = set(re.findall(r"- (?:[^:\n]+: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE))
    assert set(NAMES) - there == set()


@pytest.mark.parametrize(
    "page", [ROOT / "CONTRIBUTING.md", ROOT / "docs" / "architecture.md"], ids=lambda page: page.stem
)
def test_every_file_that_is_named_is_there(page: Path) -> None:
    spans = set(re.findall(r"`([^`\s]+)`", prose(page)))
    paths = {span for span in spans if span.endswith((".py", ".txt")) or re.fullmatch(r"[\w./]+/", span)}
    paths -= {"reproduce.py"}  # it is written
    places = [PACKAGE, ROOT, *(folder for folder in PACKAGE.glob("targets/*/"))]  # a recipe names what each target has
    assert {path for path in paths if not any((place / path).exists() for place in places)} == set()


def test_the_list_of_modules_is_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "docs" / "modules.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (ROOT / "docs" / "modules.md").read_text(encoding="utf-8") == done.stdout, "run `make docs`"


ENDINGS = {
    "UsageError": errors.UsageError,
    "UnavailableError": errors.UnavailableError,
    "BudgetSpent": BudgetSpent,
    "DoesNotReproduce": DoesNotReproduce,
}


def read_messages() -> Iterator[tuple[str, list[str], int]]:
    """Every message that ends a run: where it stands, its text between what is filled in, and its exit status."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in ENDINGS:
                message = call.args[0]
                parts = message.values if isinstance(message, ast.JoinedStr) else [message]
                text = [str(part.value) for part in parts if isinstance(part, ast.Constant)]
                if len("".join(text)) > 2:  # else all of it is another message
                    yield f"{path.relative_to(PACKAGE)}:{call.lineno}", text, int(ENDINGS[call.func.id].status)


def test_every_message_that_ends_a_run_is_explained() -> None:
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")]
    unexplained = []
    for place, text, status in read_messages():
        pattern = r".+".join(re.escape(part) for part in text)
        found = [cells for cells in rows if re.search(pattern, cells[0])]
        if not any(cells[1] == str(status) for cells in found):
            unexplained.append(f"{place} (status {status}): {' ... '.join(text)}")
    assert not unexplained, "docs/errors.md lacks:\n" + "\n".join(unexplained)
