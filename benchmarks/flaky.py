"""Simulates checks that fail only sometimes.

    python -m benchmarks.flaky [--searches N] [--rates P,...] [--units N] [--required N] [--repeats
    N,...] [--workers N]

Some required nodes among many; the check sees them in a share of its runs. The search is that of
``bisect-trt reduce --repeat N`` with its probes and journal; only the check is a coin. A repeat of
0, without ``--repeat``, is simulated without journal and models: the same search, verdicts and
runs. Prints a markdown table: how many searches end at exactly the required nodes, how many are
wrong and called proven, and their cost.
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

from benchmarks.figures import Figure
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.check import Check
from bisect_trt.probe.ledger import Ledger
from bisect_trt.probe.outcome import Ending, Outcome
from bisect_trt.probe.prober import DoesNotReproduce, Prober
from bisect_trt.probe.workspace import Workspace
from bisect_trt.report.outcomes import describe_outcome
from bisect_trt.search.confirm import confirm, read_back
from bisect_trt.search.oracle import (
    Again,
    Oracle,
    Question,
    Transcript,
    Units,
    Verdict,
    about_units,
)
from bisect_trt.search.strategy import minimise

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from bisect_trt.probe.workspace import CandidateFiles
    from bisect_trt.search.oracle import Minimum
    from bisect_trt.search.statistics import Flakiness
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


class CoinCheck(Check):
    """Fails in a share of its runs on candidates that contain the required units."""

    parallel = True
    runs_user_code = False

    def __init__(self, required: frozenset[int], rate: float, seed: int) -> None:
        self.runs = 0
        self._required = required
        self._rate = rate
        # Not the generator that chose the required units: those are its first bits, which the first
        # toss would repeat.
        self._coin = random.Random(f"coin {seed}")
        self._lock = threading.Lock()

    def fails(self, units: Iterable[int]) -> bool:
        """Toss the coin for one candidate."""
        with self._lock:
            self.runs += 1
            return self._required.issubset(units) and self._coin.random() < self._rate

    def run(self, files: CandidateFiles, cancel: Cancel | None = None) -> Outcome:  # noqa: ARG002 - it takes no time
        """Toss the coin for the model in a file."""
        (entry,) = onnx.load(str(files.model)).metadata_props
        if self.fails(json.loads(entry.value)):
            return Outcome(Ending.FAILED, "wrong", "it fails")
        return Outcome(Ending.PASSED, "pass", "it passes")


class _Nobody:
    more = ()
    refused = None

    def select(self, names: Sequence[str]) -> Mapping[str, NDArray[Any]]:  # noqa: ARG002 - the models have no inputs
        return {}


def build(units: Iterable[int]) -> Candidate:
    """A model that says which units it has."""
    chosen = frozenset(units)
    proto = onnx.ModelProto(ir_version=8, graph=onnx.GraphProto(name="flaky"))
    helper.set_model_props(proto, {"units": json.dumps(sorted(chosen))})
    return Candidate(proto, (), (), f"{len(chosen)} units", chosen)


def _find(oracle: Oracle, units: int, flakiness: Flakiness | None = None) -> Minimum:
    heard = Transcript(oracle)
    minimum = minimise(range(units), about_units(heard))
    minimum = confirm(minimum, heard, frozenset, flakiness, frozenset(range(units)).difference)
    return read_back(minimum, oracle)


def simulate_in_memory(seed: int, units: int, rate: float, required: int = 1) -> Ended | None:
    """Return what :func:`simulate` does without a repeat and with one worker, without journal and models."""
    wanted = frozenset(random.Random(seed).sample(range(units), required))
    check = CoinCheck(wanted, rate, seed)
    memory: dict[Question, Verdict] = {}

    def oracle(question: Question) -> Verdict:
        if question not in memory:
            again, about = (
                (question, question.question) if isinstance(question, Again) else (None, question)
            )
            assert isinstance(about, Units)
            runs, until = (again.runs or 1, again.until) if again else (1, Verdict.FAIL)
            tosses = (
                Verdict.FAIL if check.fails(about.units) else Verdict.PASS for _ in range(runs)
            )
            memory[question] = next(
                (verdict for verdict in tosses if verdict is until), until.opposite
            )
        return memory[question]

    if not check.fails(range(units)):
        return None
    minimum = _find(oracle, units)
    return Ended(minimum.units == wanted, minimum.proven, 1 + len(memory), check.runs)


def simulate(
    folder: Path,
    seed: int,
    units: int,
    rate: float,
    repeat: int | None,
    workers: int = 1,
    required: int = 1,
) -> Ended | None:
    """Return how one search ends; ``None`` if the failure did not reproduce.

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
    ledger = Ledger(folder, describe_outcome)
    prober = Prober(check, Workspace(folder), _Nobody(), ledger, workers)

    def algorithm(oracle: Oracle) -> Minimum:
        return _find(oracle, units, prober.flakiness if prober.measured else None)

    original = build(range(units))
    try:
        prober.probe_original(original, repeat=repeat, units=units)
    except DoesNotReproduce:
        return None
    else:
        minimum = prober.search(algorithm, build, original)
        # A search with a measured rate below 1 states a confidence and is not called proven.
        proven = minimum.proven and prober.flakiness.passes_needed == 1
        return Ended(minimum.units == wanted, proven, len(ledger.records), check.runs)
    finally:
        ledger.close()


_FIGURES = 150
"""Searches for each figure with ``--repeat``: if none is wrong and called proven, fewer than 2%
are, with 95% confidence."""
_MORE_FIGURES = 2000
"""Searches for each figure without ``--repeat``, which are simulated in memory."""
_SIZES = (24, 668, 143, 371, 176, 203, 66, 46, 22)
"""Units of the nine light models of ``benchmarks/cases.py``."""


_STEADY_SEEDS = 20


def steady_runs(required: int) -> float:
    """Return the runs of a steady check over 18 searches: the original, the search, its proof, the read-back, the rest.

    It is the mean over 20 seeds: two searches of each size, whose culprits lie elsewhere with each
    seed.
    """
    ended = [
        simulate_in_memory(seed, units, 1.0, required)
        for units in _SIZES
        for seed in range(_STEADY_SEEDS)
    ]
    assert all(search is not None and search.right and search.proven for search in ended)
    runs = sum(search.runs for search in ended if search is not None) + (
        len(ended) if required == 1 else 0
    )
    return 2 * runs / _STEADY_SEEDS


def _searches(
    number: int, units: int, rate: float, repeat: int | None, workers: int, required: int
) -> list[Ended | None]:
    """Return the ends of a number of searches."""
    if repeat is None and workers == 1:
        return [simulate_in_memory(seed, units, rate, required) for seed in range(number)]
    ended = []
    for seed in range(number):
        with tempfile.TemporaryDirectory(
            dir="/dev/shm" if Path("/dev/shm").is_dir() else None
        ) as folder:
            ended.append(simulate(Path(folder), seed, units, rate, repeat, workers, required))
    return ended


def figures() -> Iterator[Figure]:
    """Yield the runs of steady checks, and for checks that fail only sometimes the searches that are wrong and called proven."""
    for required, aim in ((2, 380), (5, 770)):
        yield Figure(
            f"runs of a steady check, {required} required, 18 searches, mean of 20 seeds",
            steady_runs(required),
            aim,
        )
    for repeat, number in ((None, _MORE_FIGURES), (20, _FIGURES)):
        for rate in (0.2, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99):
            done = [
                search
                for search in _searches(number, 371, rate, repeat, 1, 1)
                if search is not None
            ]
            wrong = 100 * sum(search.proven and not search.right for search in done) / number
            option = "" if repeat is None else f", --repeat {repeat}"
            runs = statistics.mean(search.runs for search in done)
            right = sum(search.right for search in done)
            note = (
                f"{len(done)} of {number} reproduced, {right} right, {runs:.0f} runs of the check"
            )
            yield Figure(
                f"failing in {rate:.0%} of runs{option}: wrong and called proven, %",
                wrong,
                1,
                note=note,
            )


def row(arguments: argparse.Namespace, rate: float, repeat: int | None) -> str:
    """Return the results for one rate and one number of repeats as a row of markdown."""
    ended = _searches(
        arguments.searches, arguments.units, rate, repeat, arguments.workers, arguments.required
    )
    done = [search for search in ended if search is not None]
    right = sum(search.right for search in done)
    proven = sum(search.proven for search in done)
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
    parser.add_argument(
        "--rates",
        default="0.2,0.5,0.7,0.8,0.9,0.95,0.99",
        help="how often the check sees the failure",
    )
    parser.add_argument("--units", type=int, default=371)
    parser.add_argument(
        "--required", type=int, default=1, help="how many of the units are required"
    )
    parser.add_argument(
        "--repeats",
        default="0,1,5,20",
        help="how often the original is run first; 0 without --repeat",
    )
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    print(
        f"{arguments.required} required of {arguments.units} units, {arguments.searches} searches a row:\n"
    )
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
