"""Where a probe is minutes, what comes next is begun while the original is built, and the answer is that of one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import CommandLine
from standin_runtime import TOGETHER, install
from support import node_names, overflowing, read_json

from bisect_trt.probing.journal import JOURNAL, read_journal
from bisect_trt.probing.workers.spare import end_spare
from bisect_trt.workflows import checks


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The builds of a stand-in for TensorRT, in the order in which they begin; four may be under way at a time."""
    install(tmp_path, monkeypatch.setenv)
    monkeypatch.setattr(checks, "builders", lambda: 4)
    end_spare()
    yield tmp_path / "begun.txt"
    end_spare()


def ran(cli: CommandLine, *words: str | Path) -> dict[str, Any]:
    done = cli(*words, "--json", "r.json", "--overwrite")
    assert done.status == 0, done.out + done.err
    return read_json(Path("r.json"))


def decisions(result: dict[str, Any]) -> list[tuple[Any, ...]]:
    """What the search took in, in its order."""
    path = Path(result["artifacts"]["run"]) / JOURNAL
    names = ("number", "key", "title", "size", "verdict", "signature", "reason")
    return [tuple(entry[name] for name in names) for entry in read_journal(path) if entry["event"] == "verdict"]


@pytest.mark.parametrize("command", ["reduce", "diagnose"])
def test_what_comes_next_is_built_beside_the_original(
    cli: CommandLine, begun: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """The first build ends only once the other three have begun: the look, the suspect alone, and the rest."""
    model = overflowing(Path("model.onnx"))
    words = (command, model, "--trt", "--fp16", "-o", "out.onnx" if command == "reduce" else "out")
    monkeypatch.setenv(TOGETHER, "1 7 8 8")
    beside = ran(cli, *words)
    assert any(line.startswith("1 held") for line in begun.read_text().splitlines())
    monkeypatch.setenv(TOGETHER, "")
    alone = ran(cli, *words, "--workers", "1")
    assert decisions(beside) == decisions(alone)
    for key in ("culprits", "minimality", "more_failures", "fault", "held"):
        assert beside[key] == alone[key]
    assert beside["held"]
    assert beside["probes"] == alone["probes"]
    assert node_names(Path("out.onnx" if command == "reduce" else "out/model.onnx")) == ["big"]
