"""Prints each figure beside its aim, and beside Polygraphy's where it has such a thing.

    python -m benchmarks [NAME...]

Each NAME is a benchmark of ``benchmarks/figures.py``; all of them where none is given. A table of
markdown is printed for each as soon as it is measured, and every figure is written to
``benchmarks/out/figures.json``, beside those of other benchmarks that are there from before. The
exit status is 1 if an aim is missed or a benchmark cannot be run. Several are run in a process
each, which is ended if it takes longer than its limit, so that none keeps the others from being
run.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks.figures import BENCHMARKS, HEAD, Figure, benchmark, machine

MOST_S = {
    "reduce": 1800.0,
    "reduce-two": 1800.0,
    "graphs": 1800.0,
    "zoo": 7200.0,
    "networks": 7200.0,
    "latency": 3600.0,
}
"""Seconds on the clock that a benchmark may take; an idle machine of two cores takes a fifth of
them, or less."""
_MOST_ELSE_S = 900.0
OUT = Path(__file__).with_name("out") / "figures.json"


def measure(name: str) -> list[Figure]:
    """Run one benchmark, and print its figures as they come."""
    function = benchmark(name)
    about = (function.__doc__ or "").strip().splitlines()[0]
    print(f"### {name}: {about}\n\n{HEAD}", flush=True)
    figures = []
    began = time.monotonic()
    for figure in function():
        print(figure.row(), flush=True)
        figures.append(figure)
    print(f"\n{name} took {time.monotonic() - began:.0f} s.\n", flush=True)
    return figures


def keep(name: str, figures: list[Figure]) -> None:
    """Write figures down, beside those of other benchmarks."""
    OUT.parent.mkdir(exist_ok=True)
    kept = json.loads(OUT.read_text()) if OUT.exists() else {}
    kept[name] = {
        "machine": machine(),
        "figures": [{**asdict(each), "reached": each.reached} for each in figures],
    }
    OUT.write_text(json.dumps(kept, indent=1) + "\n")


def alone(name: str) -> list[str]:
    """Run one benchmark here; what it misses."""
    try:
        figures = measure(name)
    except (Exception, SystemExit) as error:
        print(f"\n{name} could not be run: {error}\n", file=sys.stderr)
        return [name]
    keep(name, figures)
    return [f"{name}: {figure.what}" for figure in figures if figure.reached is False]


def apart(name: str) -> list[str]:
    """The same in a process of its own, for so long as it may take."""
    kept = json.loads(OUT.read_text()) if OUT.exists() else {}
    if kept.pop(name, None) is not None:
        OUT.write_text(json.dumps(kept, indent=1) + "\n")
    most = MOST_S.get(name, _MOST_ELSE_S)
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks", name], start_new_session=True
    ) as run:
        try:
            run.wait(most)
        except BaseException as error:
            os.killpg(run.pid, signal.SIGTERM)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            print(f"\n{name} was ended after {most:.0f} s.\n", file=sys.stderr)
    figures = (json.loads(OUT.read_text()) if OUT.exists() else {}).get(name, {"figures": None})[
        "figures"
    ]
    if figures is None:
        return [f"{name}: not run to its end"]
    return [f"{name}: {figure['what']}" for figure in figures if figure["reached"] is False]


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"any of: {', '.join(BENCHMARKS)} (default: all)"
    )
    names = parser.parse_args().names or list(BENCHMARKS)
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark is called {unknown[0]!r}; there are: {', '.join(BENCHMARKS)}")
    missed = [line for name in names for line in (alone(name) if len(names) == 1 else apart(name))]
    if missed:
        print("Missed:", *missed, sep="\n- ")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
