"""Somebody who follows pages: runs their commands one after the other, and holds what comes out against what they show."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

OF_EXAMPLES = {
    "vit_overflow": ("docs/start.md", "examples/vit_overflow/README.md"),
    "masked_attention": ("examples/masked_attention/README.md",),
    "instance_norm": ("examples/instance_norm/README.md",),
}
"""Pages on which a whole diagnosis stands: they are followed where its answer is looked at, so that
it is made once."""

NOT_RUN = {
    r"make \w+": "it installs what these tests run in, or runs these tests",
    r"\. \S+/activate": "the tests run in such an environment already",
    r"pip install|python3 -m venv": "it changes that environment",
    r"bisect-trt releases|.* --releases|.*--on \"?env=": "it installs releases from an index",
    r".*--slower-than\b|.* --latency\b": "its answer depends on the machine",
    r".*\btrtexec\b": "it needs TensorRT and a GPU",
    r".*--trt\b": "it needs TensorRT and a GPU, or TensorRT-RTX",
    r".*\b(a16w8|context)\.onnx|.*--save-outputs ref\.npz": "tests/targets/test_qnn.py and tests/truth/qnn.py run them",
    r".*\bmagika/|.* fixed\.onnx .*--ep qnn\b": "it needs the model of another package",
    r"bisect-trt (cause|workaround) model\.onnx --onnxrt": "it needs a wrong release of ONNX Runtime",
    r".* --through 'onnxsim ": "it needs another package, onnxsim",
    r".* sh on_board\.sh\b": "it needs a Jetson",
    r".* \./serve_and_compare\.sh\b": "it needs an application",
}
"""Commands by what they begin with, and why they are not run."""

SHELLS = ("console", "bash", "sh")
RUN = r"\d{8}-\d{6}-"
"""How the folder of a run begins."""
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
        leave_out = shutil.ignore_patterns(
            "*.onnx", "*.npz", "*-reproducer", ".bisect-trt", "__pycache__"
        )
        shutil.copytree(ROOT / "examples", folder / "examples", ignore=leave_out)
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self._environment = {
            **os.environ,
            "PATH": path,
            "LC_ALL": "C.UTF-8",
            "NO_COLOR": "1",
            "COLUMNS": "100",
        }

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
            runs = (self.folder / ".bisect-trt").iterdir()
            found = {run: re.fullmatch(rf"({RUN}{match[1]})(?:-(\d+))?", run.name) for run in runs}
            # Of one second those after the first are numbered.
            order = {
                run: (named[1], int(named[2] or 0))
                for run, named in found.items()
                if named is not None
            }
            return str(max(order, key=order.__getitem__).relative_to(self.folder))

        return re.sub(rf"\.bisect-trt/{RUN}([\w-]+)", newest, text)

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
        printed = re.sub(
            r"^(\d+ h )?(\d+ min )?\d+ s(  |, ).*\n", "", printed, flags=re.MULTILINE
        )  # progress
        self.status = process.returncode
        return printed

    def follow_page(self, name: str, *, compare: bool = True) -> None:
        """Run all commands of a page that can be run here; each prints what the page shows, if that is to be compared."""
        page = ROOT / name
        pending: Command | None = None  # ended with another status than 0: the page has to say so
        for fence in read_fences(page):
            if fence.info[:1] == ["python"] and len(fence.info) == 2:
                (self.folder / fence.info[1]).write_text("\n".join(fence.lines) + "\n")
            for command in read_commands(fence) if fence.info and fence.info[0] in SHELLS else ():
                if command.text == "echo $?":
                    assert command.shown == [str(self.status)], f"{page.name}: {pending}"
                    pending = None
                    continue
                assert pending is None, f"{page.name}: ends with status {self.status}: {pending}"
                if any(re.match(pattern, command.text) for pattern in NOT_RUN):
                    continue
                printed = self.follow(command)
                pending = command if self.status else None
                if compare and command.shown is not None and not matches(command.shown, printed):
                    says = "the page does not show what came out, which is"
                    pytest.fail(f"{page.name}, `{command.text}`: {says}\n{printed}")
        assert pending is None, f"{page.name}: ends with status {self.status}: {pending}"

    def printed(self, begin: str) -> str:
        """What the one command printed that begins like this."""
        (printed,) = [
            printed for text, (_, printed) in self._seen.items() if text.startswith(begin)
        ]
        return printed


def masked(text: str) -> str:
    """Without what differs from run to run: numbers, how far columns are apart, and that a version is none of a release."""
    text = re.sub(rf"({RUN}[\w-]+?)-\d+\b", r"\1", text)  # the second run within a second
    text = re.sub(
        r"\b(\d+ h )?(\d+ min )?\d+(\.\d+)? s\b", "1 s", text
    )  # a slow machine takes minutes
    return re.sub(r" {2,}", "  ", re.sub(r"\d+(\.\d+)?(\.dev\d+|e[-+]\d+)?", "#", text))


def matches(shown: list[str], printed: str) -> bool:
    """Whether a page shows what came out."""
    pattern = "".join(
        r"(?:.*\n)*?"
        if line == REST
        else re.escape(masked(line)).replace(re.escape(REST), ".*") + r"\n"
        for line in shown
        if line != "^C"
    )
    return (
        re.fullmatch(
            pattern, masked(printed if printed.endswith("\n") or not printed else printed + "\n")
        )
        is not None
    )
