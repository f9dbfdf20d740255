"""One, two and four GPUs of one host through a Ray cluster, beside one worker without.

    python -m benchmarks.ray_gpus MODEL [--gpus 1,2,4] [--resource gpus|cpus] [-- OPTION ...]

Starts a cluster of so many GPUs after the other, runs ``precision`` and ``layerwise --isolate`` in
each, and prints a markdown table of wall seconds, probes, and whether the answer is that of one
worker. What follows ``--`` is about the target (``--trt --fp16`` if nothing does).
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

COMMANDS = {
    "precision": ("precision", "-o", "mixed.onnx"),
    "layerwise --isolate": ("layerwise", "--isolate"),
}


@contextmanager
def cluster(number: int, resource: str) -> Iterator[str]:
    """A cluster of this host with so many GPUs, or cores; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    sizes = (
        [f"--num-gpus={number}", "--num-cpus=8"] if resource == "gpus" else [f"--num-cpus={number}"]
    )
    more = ["--include-dashboard=false", "--disable-usage-stats", *sizes]
    command = [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        "--head",
        f"--port={port}",
        *more,
    ]
    environment = dict(os.environ)
    if resource == "gpus":
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(number)))
    started = subprocess.Popen(
        [*command, "--block"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    address = f"127.0.0.1:{port}"
    look = [sys.executable, "-m", "bisect_trt.worker.place", address, "CPU"]
    try:
        while (
            subprocess.run(look, capture_output=True, check=False).returncode != 0
            and started.poll() is None
        ):
            time.sleep(1)
        yield address + (",cpus" if resource == "cpus" else "")
    finally:
        started.terminate()
        started.wait()


def run(model: Path, words: Sequence[str], more: Sequence[str]) -> tuple[float, dict[str, Any]]:
    """Seconds that a command takes, and its result."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "bisect_trt",
            words[0],
            str(model.absolute()),
            *words[1:],
            *more,
            "--json",
            "r.json",
        ]
        began = time.monotonic()
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - began
        if done.returncode not in (0, 1):
            raise SystemExit(done.stdout + done.stderr)
        return seconds, json.loads(Path(folder, "r.json").read_text())


def answer(result: dict[str, Any]) -> str:
    """What must not depend on the number of workers."""
    kept = {
        name: result.get(name)
        for name in ("culprits", "kept", "minimality", "first_mismatch", "status")
    }
    return json.dumps(kept, sort_keys=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="GPUs of one host through a Ray cluster.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--gpus", default="1,2,4", help="how many, one cluster after the other")
    parser.add_argument("--resource", choices=("gpus", "cpus"), default="gpus")
    before, _, after = "\0".join(sys.argv[1:]).partition("\0--\0")
    arguments = parser.parse_args(before.split("\0"))
    target = after.split("\0") if after else ["--trt", "--fp16"]
    print("| command | workers | wall, s | probes | same answer |\n| --- | --- | --- | --- | --- |")
    for name, words in COMMANDS.items():
        one = ["--workers", "1"] if words[0] == "precision" else []  # layerwise has a worker a GPU
        alone, first = run(arguments.model, words, [*target, *one])
        beside = f"{'one' if one else 'as many as here'}, no Ray"
        print(
            f"| `{name}` | {beside} | {alone:.1f} | {first.get('probes', {}).get('run', '')} | |",
            flush=True,
        )
        for number in map(int, arguments.gpus.split(",")):
            with cluster(number, arguments.resource) as address:
                seconds, result = run(arguments.model, words, [*target, "--on", f"ray={address}"])
            same = "yes" if answer(result) == answer(first) else "no"
            print(
                f"| `{name}` | {number} | {seconds:.1f} | {result.get('probes', {}).get('run', '')} | {same} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
