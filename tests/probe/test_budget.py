"""A budget ends a search with the best so far, and status 3."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CommandLine
from support import SHAPE, assert_gone, chain, endless, has, node_names, pids, script

from bisect_trt.targets.base import reference_settings
from bisect_trt.worker.deadline import BudgetSpent, Deadline
from bisect_trt.worker.pool import WorkerPool
from bisect_trt.worker.protocol import About, Collect, Failed

pytestmark = pytest.mark.any_version
REQUIRED = ("<11>", "<30>")


@pytest.fixture
def model(here: Path) -> Path:
    return chain(here / "model.onnx", 40)


def reduced(
    cli: CommandLine, model: Path, check: str, *options: str
) -> tuple[int, dict[str, Any], list[str] | None]:
    """Status, result, and the nodes of the model that was written, if one was."""
    output = Path("out.onnx")
    output.unlink(missing_ok=True)
    words = [
        "-o",
        output,
        "--json",
        "r.json",
        "--no-shrink",
        "--overwrite",
        *options,
        "--check",
        check,
        "{model}",
    ]
    ran = cli("reduce", model, *words)
    assert "Traceback" not in ran.err
    return ran.status, ran.result, node_names(output) if output.exists() else None


def decided(result: dict[str, Any]) -> dict[str, Any]:
    """The part of a result that no clock has a say in."""
    kept = ("status", "culprits", "minimality", "why")
    return {**{name: result[name] for name in kept}, "probes": {**result["probes"], "wasted": None}}


def test_the_number_of_probes(cli: CommandLine, model: Path) -> None:
    """For each budget the best so far is the same with several workers, and it is never worse than with less."""
    check = "./" + script(Path("check"), f"{has(*REQUIRED)} && exit 1; exit 0")
    status, whole, nodes = reduced(cli, model, check, "--workers", "1")
    assert (status, nodes) == (0, list(REQUIRED))
    sizes = []
    # The last probe is about the rest of the model: without it the answer stands.
    for budget in (1, 5, whole["probes"]["run"] - 2):
        status, result, best = reduced(
            cli, model, check, "--workers", "1", "--max-probes", str(budget)
        )
        assert status == 3
        assert (result["status"], result["minimality"]) == ("inconclusive", "unproven")
        assert result["why"] == f"the budget is spent (--max-probes {budget})."
        assert not any(
            "resume" in each["command"] for each in result["report"]["commands"]
        )  # it would end at once
        assert result["probes"]["run"] == budget
        assert [node["name"] for node in result["culprits"]] == (best or [])
        assert result["artifacts"]["reduced"] == (None if best is None else "out.onnx")
        assert best is None or set(best) >= set(REQUIRED)
        sizes.append(len(best) if best else 40)
        again = reduced(cli, model, check, "--workers", "3", "--max-probes", str(budget))
        assert (again[0], decided(again[1]), again[2]) == (status, decided(result), best)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 40  # nothing but the original was probed, which is no result
    assert sizes[-1] == 2
    # With enough for all, a budget has no say.
    status, result, nodes = reduced(
        cli, model, check, "--workers", "2", "--max-probes", str(whole["probes"]["run"])
    )
    assert (status, decided(result), nodes) == (0, decided(whole), list(REQUIRED))


@pytest.mark.parametrize(
    "words",
    ["reduce m.onnx -o r.onnx --onnxrt", "diagnose m.onnx --onnxrt", "cause m.onnx --onnxrt"],
)
def test_the_time_of_the_reference_counts(cli: CommandLine, here: Path, words: str) -> None:
    """The reference never gets to the end of this model, and its own limit is ten minutes."""
    endless(here / "m.onnx")
    ran = cli(*words.split(), "--max-time", "2", "--json", "r.json").ended(3)
    more = "No new probe ended in this time, so the run needs more."
    assert ran.result["why"] == f"the budget is spent (--max-time 2). {more}"


@pytest.mark.slow
def test_the_time_of_the_original_counts(cli: CommandLine, model: Path) -> None:
    check = "./" + script(Path("check"), "sleep 600 & echo $$ $! >> pids; sleep 600")
    for repeat in ([], ["--repeat", "3"]):
        status, result, best = reduced(cli, model, check, "--max-time", "4", *repeat)
        assert (status, result["why"], best) == (3, "the budget is spent (--max-time 4).", None)
    assert_gone(pids(Path()))


def test_no_request_begins_after_the_deadline_and_none_outlives_it(here: Path) -> None:
    model = endless(here / "m.onnx")
    target = reference_settings()
    np.savez(here / "x.npz", x=np.ones(SHAPE, np.float32))
    for seconds in (0.0, 4.0):
        with WorkerPool(here, deadline=Deadline(seconds)) as workers, pytest.raises(BudgetSpent):
            workers.ask(Collect(target, model, (here / "x.npz",), (here / "y.npz",)))
    deadline = Deadline(0.0)
    with WorkerPool(here, deadline=deadline) as workers, deadline.extended():
        assert not isinstance(workers.ask(About(target)), Failed)


@pytest.mark.parametrize("workers", ["1", "3"])
def test_the_time(cli: CommandLine, model: Path, workers: str) -> None:
    """Small candidates hang: they are ended when the time is up, with all that they started."""
    large = "test $(grep -aoE '<[0-9]+>' \"$1\" | sort -u | wc -l) -gt 25"
    body = f"{has(*REQUIRED)} && if {large}; then exit 1; fi; sleep 600 & echo $$ $! >> pids; sleep 600"
    check = "./" + script(Path("check"), body)
    for seconds in (2, 20, 100):  # a busy machine may need more until it asks about a small one
        began = time.monotonic()
        limits = ("--workers", workers, "--max-time", str(seconds), "--mode", "linear")
        status, result, best = reduced(cli, model, check, *limits)
        assert time.monotonic() - began < seconds + 100
        assert status == 3
        assert result["why"] == f"the budget is spent (--max-time {seconds})."
        assert best is None or set(best) >= set(REQUIRED)
        if started := pids(Path()):
            break
    assert started
    assert_gone(started)
