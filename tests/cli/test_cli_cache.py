"""``--cache``: runs share verdicts by content, and the proof is run all the same."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from conftest import CommandLine
from support import overflowing, read_json

REDUCE = ("reduce", "model.onnx", "--onnxrt", "--fp16", "--no-shrink", "--overwrite")


def shared(cli: CommandLine, *words: str | Path, status: int = 0) -> tuple[int, int]:
    """Reduce; return the number of probes, and of those the cache answered."""
    ran = cli(*REDUCE, "-o", "small.onnx", "--json", "r.json", *words).ended(status)
    probes = read_json(Path("r.json"))["probes"]
    assert (f"{probes['shared']} verdicts from the cache" in ran.out) is (probes["shared"] > 1)
    return probes["run"], probes["shared"]


def test_the_same_question_is_asked_once(
    cli: CommandLine, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From another folder too; the proof is run, unless it is asked for."""
    overflowing(here / "model.onnx")
    pool = here / "pool"
    run, hits = shared(cli, "--cache", pool)
    assert hits == 0
    elsewhere = here / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(here / "model.onnx", elsewhere)
    monkeypatch.chdir(elsewhere)
    again, hits = shared(cli, "--cache", pool)
    assert again == run
    assert 0 < hits < run
    assert shared(cli, "--cache", pool, "--cache-proof") == (run, run)


ELSEWHERE = ("--on", f"python={sys.executable}")


def test_whatever_a_verdict_depends_on_names_it(cli: CommandLine, here: Path) -> None:
    overflowing(here / "model.onnx")
    shared(cli, "--cache", "pool")
    for others in (("--atol", "0.5"), ("--seed", "7"), ("--bf16",), ELSEWHERE):
        words = [word for word in REDUCE if word != "--fp16" or "--bf16" not in others]
        cli(*words, *others, "-o", "small.onnx", "--cache", "pool", "--json", "r.json")
        assert read_json(Path("r.json"))["probes"]["shared"] == 0, others


def test_damaged_records_are_asked_anew(cli: CommandLine, here: Path) -> None:
    overflowing(here / "model.onnx")
    shared(cli, "--cache", "pool")
    for number, record in enumerate(Path("pool").rglob("*.json")):
        record.write_bytes((b"", b"{}", b"[" * 5000, record.read_bytes()[:-9])[number % 4])
    _, hits = shared(cli, "--cache", "pool")
    assert hits == 0


@pytest.mark.parametrize(
    ("url", "code"),
    [("model.onnx/pool", "BT1006"), ("nothing://x", "BT1006"), ("s3://x/y", "BT2008")],
)
def test_a_cache_that_cannot_be_used(cli: CommandLine, here: Path, url: str, code: str) -> None:
    overflowing(here / "model.onnx")
    ran = cli(*REDUCE, "-o", "small.onnx", "--cache", url)
    assert code in ran.err, ran.err
    assert f"--cache {url}" in ran.err
