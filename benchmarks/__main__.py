"""Prints each figure beside its aim, and beside Polygraphy's where it has such a thing.

    python -m benchmarks [NAME...]

Each NAME is a benchmark of ``benchmarks/figures.py``; all of them where none is given. A table of markdown is printed for
each as soon as it is measured, and every figure is written to ``benchmarks/out/figures.json``, beside those of other
benchmarks that are there from before. The exit status is 1 if an aim is missed or a benchmark cannot be run.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks.figures import BENCHMARKS, HEAD, Figure, benchmark, machine

OUT = Path(__file__).with_name("out") / "figures.json"


def measure(name: str) -> list[Figure]:
    """Run one benchmark, and print its figures as they come."""
    function = benchmark(name)
    about = (function.__doc__ or "").strip().splitlines()[0]
    print(f"### {name}: {about}\n\n{HEAD}", flush=True)
    figures = []
    for figure in function():
        print(figure.row(), flush=True)
        figures.append(figure)
    print(flush=True)
    return figures


def keep(name: str, figures: list[Figure]) -> None:
    """Write figures down, beside those of other benchmarks."""
    OUT.parent.mkdir(exist_ok=True)
    kept = json.loads(OUT.read_text()) if OUT.exists() else {}
    kept[name] = {"machine": machine(), "figures": [{**asdict(each), "reached": each.reached} for each in figures]}
    OUT.write_text(json.dumps(kept, indent=1) + "\n")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of: {', '.join(BENCHMARKS)} (default: all)")
    names = parser.parse_args().names or list(BENCHMARKS)
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark is called {unknown[0]!r}; there are: {', '.join(BENCHMARKS)}")
    missed = []
    for name in names:
        try:
            figures = measure(name)
        except (Exception, SystemExit) as error:  # one that cannot be run does not keep the others from it
            print(f"\n{name} could not be run: {error}\n", file=sys.stderr)
            missed.append(name)
            continue
        keep(name, figures)
        missed += [f"{name}: {figure.what}" for figure in figures if figure.reached is False]
    if missed:
        print("Missed:", *missed, sep="\n- ")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
