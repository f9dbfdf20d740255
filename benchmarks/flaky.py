"""Simulates checks that fail only sometimes.

    python -m benchmarks.flaky [--searches N] [--rate P] [--units N] [--repeat N] [--workers N]

One required node among some; the check sees it in a share of its runs. The search is the one that ``bisect-trt reduce
--repeat N`` makes, probes, journal and all; only the check is a coin. Prints a markdown table: how many searches end at
exactly the required node, and what they cost. A search that believes each run stands beside it.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
from onnx import helper

from bisect_trt.probing.candidate import Candidate
from bisect_trt.probing.journal import Journal
from bisect_trt.probing.ledger import Budget, Ledger
from bisect_trt.probing.outcome import Ending, Outcome
from bisect_trt.probing.prober import DoesNotReproduce, Prober
from bisect_trt.probing.runner import Runner
from bisect_trt.probing.workspace import Workspace
from bisect_trt.search.question import over_units
from bisect_trt.search.strategy import minimise
from bisect_trt.search.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from bisect_trt.probing.journal import Record
    from bisect_trt.probing.workers.process import Cancel
    from bisect_trt.probing.workspace import CandidateFiles
    from bisect_trt.search.oracle import Ask, Minimum


@dataclass(frozen=True)
class Search:
    """How one simulated search ended.

    Attributes:
        right: Whether it found exactly the required unit.
        probes: How many candidates were probed, the original included.
        runs: How often the check ran.
    """

    right: bool
    probes: int
    runs: int


class CoinCheck:
    """Fails in a share of its runs where the required unit is there."""

    parallel = True

    def __init__(self, required: int, rate: float, seed: int) -> None:
        self.runs = 0
        self._required = required
        self._rate = rate
        self._coin = random.Random(seed)
        self._lock = threading.Lock()

    def run(self, files: CandidateFiles, cancel: Cancel | None = None) -> Outcome:  # noqa: ARG002 - it takes no time
        """Toss the coin for one candidate."""
        (entry,) = onnx.load(str(files.model)).metadata_props
        with self._lock:
            self.runs += 1
            fails = self._required in json.loads(entry.value) and self._coin.random() < self._rate
        return Outcome(Ending.FAILED, "wrong", "it fails") if fails else Outcome(Ending.PASSED, "pass", "it passes")


class _Nobody:
    more = ()

    def probed(self, record: Record) -> None:
        pass

    def select(self, names: Sequence[str]) -> Mapping[str, NDArray[Any]]:  # noqa: ARG002 - the models have no inputs
        return {}


def build(units: Iterable[int]) -> Candidate:
    """A model that says which units it has."""
    chosen = frozenset(units)
    proto = onnx.ModelProto(ir_version=8, graph=onnx.GraphProto(name="flaky"))
    helper.set_model_props(proto, {"units": json.dumps(sorted(chosen))})
    return Candidate(proto, (), (), f"{len(chosen)} units", chosen)


def simulate(folder: Path, seed: int, units: int, rate: float, repeat: int, workers: int) -> Search | None:
    """One search; ``None`` if the failure did not reproduce, which the user is told.

    Args:
        folder: For the run's files; empty.
        seed: Chooses the required unit, and tosses the coin.
        units: How many there are.
        rate: The share of its runs in which the check sees the failure.
        repeat: How often the original is run; with 1 every run is believed.
        workers: How many probes at a time.
    """
    required = random.Random(seed).randrange(units)
    check = CoinCheck(required, rate, seed)
    ledger = Ledger(Journal(folder), _Nobody(), Budget())
    prober = Prober(Runner(check, Workspace(folder), _Nobody()), ledger, workers)

    def algorithm(ask: Ask) -> Minimum:
        return minimise(range(units), ask)

    try:
        prober.probe_original(build(range(units)), repeat=repeat, units=units)
    except DoesNotReproduce:
        return None
    else:
        minimum = prober.search(over_units(Verdict.FAIL, algorithm), build)
        return Search(minimum.units == {required}, len(ledger.records), check.runs)
    finally:
        ledger.close()


def table(arguments: argparse.Namespace) -> str:
    """The results as markdown."""
    lines = [
        "| original run | searches | reproduced | right | probes, mean | check runs, mean | check runs, most |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for repeat in (1, arguments.repeat):
        searches = []
        for seed in range(arguments.searches):
            with tempfile.TemporaryDirectory() as folder:
                options = (arguments.units, arguments.rate, repeat, arguments.workers)
                searches.append(simulate(Path(folder), seed, *options))
        done = [search for search in searches if search is not None]
        right = sum(search.right for search in done)
        probes = statistics.mean(search.probes for search in done)
        runs = [search.runs for search in done]
        lines.append(
            f"| {'once' if repeat == 1 else f'{repeat} times'} | {len(searches)} | {len(done)} "
            f"| {right} ({right / len(done):.1%}) | {probes:.1f} | {statistics.mean(runs):.1f} | {max(runs)} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Simulate checks that fail only sometimes.")
    parser.add_argument("--searches", type=int, default=200)
    parser.add_argument("--rate", type=float, default=0.7, help="how often the check sees the failure")
    parser.add_argument("--units", type=int, default=371)
    parser.add_argument("--repeat", type=int, default=20, help="how often the original is run first")
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    print(f"Failure rate {arguments.rate:g}, one required node of {arguments.units}:\n")
    print(table(arguments))


if __name__ == "__main__":
    main()
