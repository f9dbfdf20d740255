"""Simulates checks that fail only sometimes.

    python -m benchmarks.flaky [--searches N] [--rates P,...] [--units N] [--required N] [--repeats N,...] [--workers N]

Some required nodes among many; the check sees them in a share of its runs. The search is the one that ``bisect-trt reduce
--repeat N`` makes, probes, journal and all (a repeat of 0 is without ``--repeat``); only the check is a coin. Prints a
markdown table: how many searches end at exactly the required nodes, how many are wrong and called proven, and what they
cost.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
from onnx import helper

from benchmarks.figures import Figure
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.ledger import Ledger
from bisect_trt.probe.outcome import Ending, Outcome
from bisect_trt.probe.prober import DoesNotReproduce, Prober, Runner
from bisect_trt.probe.workspace import Workspace
from bisect_trt.search.confirm import confirm
from bisect_trt.search.oracle import Again, Oracle, Transcript, Units, Verdict, about_units
from bisect_trt.search.strategy import minimise

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from bisect_trt.probe.workspace import CandidateFiles
    from bisect_trt.search.oracle import Minimum
    from bisect_trt.worker.process import Cancel


@dataclass(frozen=True)
class Ended:
    """How one simulated search ended.

    Attributes:
        right: Whether it found exactly the required units.
        proven: Whether it is called 1-minimal.
        probes: How many candidates were probed, the original included.
        runs: How often the check ran.
    """

    right: bool
    proven: bool
    probes: int
    runs: int


class CoinCheck:
    """Fails in a share of its runs where the required units are there."""

    parallel = True

    def __init__(self, required: frozenset[int], rate: float, seed: int) -> None:
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
            fails = self._required.issubset(json.loads(entry.value)) and self._coin.random() < self._rate
        return Outcome(Ending.FAILED, "wrong", "it fails") if fails else Outcome(Ending.PASSED, "pass", "it passes")


class _Nobody:
    more = ()

    def select(self, names: Sequence[str]) -> Mapping[str, NDArray[Any]]:  # noqa: ARG002 - the models have no inputs
        return {}


def build(units: Iterable[int]) -> Candidate:
    """A model that says which units it has."""
    chosen = frozenset(units)
    proto = onnx.ModelProto(ir_version=8, graph=onnx.GraphProto(name="flaky"))
    helper.set_model_props(proto, {"units": json.dumps(sorted(chosen))})
    return Candidate(proto, (), (), f"{len(chosen)} units", chosen)


def simulate(
    folder: Path, seed: int, units: int, rate: float, repeat: int | None, workers: int = 1, required: int = 1
) -> Ended | None:
    """One search; ``None`` if the failure did not reproduce, which the user is told.

    Args:
        folder: For the run's files; empty.
        seed: Chooses the required units, and tosses the coin.
        units: How many there are.
        rate: The share of its runs in which the check sees the failure.
        repeat: How often the original is run; ``None`` without ``--repeat``.
        workers: How many probes at a time.
        required: How many units are required.
    """
    wanted = frozenset(random.Random(seed).sample(range(units), required))
    check = CoinCheck(wanted, rate, seed)
    ledger = Ledger(folder)
    prober = Prober(Runner(check, Workspace(folder), _Nobody()), ledger, workers)

    def algorithm(oracle: Oracle) -> tuple[Minimum, bool]:
        heard = Transcript(oracle)
        minimum = minimise(range(units), about_units(heard))
        minimum = confirm(minimum, heard, frozenset, prober.runner.flakiness if prober.measured else None)
        return minimum, oracle(Again(Units(minimum.units), "read back", runs=None)) is Verdict.FAIL

    original = build(range(units))
    try:
        prober.probe_original(original, repeat=repeat, units=units)
    except DoesNotReproduce:
        return None
    else:
        minimum, confirmed = prober.search(algorithm, build, original)
        # A search that knows of a flaky failure states a confidence, and is not called proven.
        proven = minimum.proven and confirmed and prober.runner.flakiness.passes_needed == 1
        return Ended(minimum.units == wanted, proven, len(ledger.records), check.runs)
    finally:
        ledger.close()


_FIGURES = 150
"""Searches of each figure: with none that is wrong and called proven, less than two in a hundred are, at 95%."""


def figures() -> Iterator[Figure]:
    """Checks that fail only sometimes, one of 371 units required: searches that end wrong and call it proven."""
    for repeat in (None, 20):
        for rate in (0.2, 0.5, 0.8, 0.9, 0.95, 0.99):
            with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
                ended = []
                for seed in range(_FIGURES):
                    (place := Path(folder, str(seed))).mkdir()
                    ended.append(simulate(place, seed, 371, rate, repeat))
                    shutil.rmtree(place)
            done = [search for search in ended if search is not None]
            wrong = 100 * sum(search.proven and not search.right for search in done) / _FIGURES
            option = "" if repeat is None else f", --repeat {repeat}"
            runs = statistics.mean(search.runs for search in done)
            right = sum(search.right for search in done)
            note = f"{len(done)} of {_FIGURES} reproduced, {right} right, {runs:.0f} runs of the check"
            yield Figure(f"failing in {rate:.0%} of runs{option}: wrong and called proven, %", wrong, 1, note=note)


def row(arguments: argparse.Namespace, rate: float, repeat: int | None) -> str:
    """The results for one rate and one number of repeats as a row of markdown."""
    ended = []
    for seed in range(arguments.searches):
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            options = (arguments.units, rate, repeat, arguments.workers, arguments.required)
            ended.append(simulate(Path(folder), seed, *options))
    done = [search for search in ended if search is not None]
    right, proven = sum(search.right for search in done), sum(search.proven for search in done)
    wrong = sum(search.proven and not search.right for search in done)
    probes = statistics.mean(search.probes for search in done) if done else 0
    runs = [search.runs for search in done] or [0]
    return (
        f"| {rate:g} | {'-' if repeat is None else repeat} | {len(done)} | {right} | {proven} "
        f"| {wrong} ({wrong / len(ended):.1%}) | {probes:.1f} | {statistics.mean(runs):.1f} | {max(runs)} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Simulate checks that fail only sometimes.")
    parser.add_argument("--searches", type=int, default=200, help="of each row")
    parser.add_argument("--rates", default="0.2,0.5,0.7,0.8,0.9,0.95,0.99", help="how often the check sees the failure")
    parser.add_argument("--units", type=int, default=371)
    parser.add_argument("--required", type=int, default=1, help="how many of the units are required")
    parser.add_argument("--repeats", default="0,1,5,20", help="how often the original is run first; 0 without --repeat")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--folder", help="where the runs' files go for a moment; best in memory")
    arguments = parser.parse_args()
    print(f"{arguments.required} required of {arguments.units} units, {arguments.searches} searches a row:\n")
    columns = (
        "failure rate",
        "--repeat",
        "reproduced",
        "right",
        "called proven",
        "wrong and called proven",
        "probes, mean",
        "check runs, mean",
        "check runs, most",
    )
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
    for repeat in map(int, arguments.repeats.split(",")):
        for rate in map(float, arguments.rates.split(",")):
            print(row(arguments, rate, repeat or None), flush=True)


if __name__ == "__main__":
    main()
