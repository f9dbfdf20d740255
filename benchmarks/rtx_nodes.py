"""Verdicts of TensorRT-RTX releases on the models of ONNX's node tests, as a page of Markdown.

    python -m benchmarks.rtx_nodes [--most N] [--release VERSION ...] [--bare]

Each model is parsed and built in an environment of each release, without a GPU. The page counts the
verdicts and lists the models whose verdict differs between releases. With ``--bare`` the same
models are built by the ten lines of ``BARE`` in the interpreter of each release too, and the exit
status is 1 if a verdict differs from those.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

import onnx

from bisect_trt.targets.base import TargetSettings, find
from bisect_trt.tensors.files import save_npz
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.worker.environments import Environment, interpreter, with_numpy
from bisect_trt.worker.environments import releases as list_releases
from bisect_trt.worker.place import make_place
from bisect_trt.worker.pool import WorkerPool
from bisect_trt.worker.protocol import Compare, Failed, Sample

TARGET = TargetSettings("trt-rtx").with_own(build_only=True)
BARE = """
import sys, tensorrt_rtx_bindings as trt
logger = trt.Logger(trt.Logger.INTERNAL_ERROR)
builder = trt.Builder(logger)
for path in sys.argv[1:]:
    network = builder.create_network(0)
    parser, config = trt.OnnxParser(network, logger), builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM89, 0)
    parsed = parser.parse_from_file(path)
    if parsed and any(network.get_input(place).is_shape_tensor for place in range(network.num_inputs)):
        print(path, 'needs values', flush=True)
        continue
    built = parsed and builder.build_serialized_network(network, config) is not None
    print(path, 'builds' if built else 'builder' if parsed else 'parser', flush=True)
"""
_AT_ONCE = 20
"""Models that one process of the bare script builds, for a crash ends it."""


def write_models(folder: Path, most: int) -> list[Path]:
    """Write models of node tests, evenly chosen, each with the test's values for its inputs beside it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases  # noqa: PLC0415 - it computes all of them

        models = [(case, case.model) for case in collect_testcases(None) if case.model is not None]
    written = []
    for case, model in models[:: max(1, len(models) // most)][:most]:
        path = folder / f"{case.name}.onnx"
        try:
            names = [value.name for value in model.graph.input]
            save_npz(
                path.with_suffix(".npz"),
                dict(zip(names, (case.data_sets or [])[0][0], strict=True)),
            )
        except Exception:  # sequences and optionals are no tensors
            continue
        onnx.save(model, path)
        written.append(path)
    return written


def environment(release: str) -> Environment:
    """Return the environment of a release."""
    package = find(TARGET.runtime).package(TARGET)
    assert package is not None, "it has releases"
    return Environment(with_numpy((*package.requirements(release), "ml_dtypes")), alone=True)


def verdicts(release: str, models: list[Path], folder: Path) -> dict[str, str]:
    """Return ``builds``, ``parser``, ``builder`` or the kind of another ending, by the name of a model."""
    wanted = environment(release)
    python = str(interpreter(wanted))
    found: dict[str, str] = {}
    with WorkerPool(
        folder, timeout=120, places=(make_place(f"env={wanted}", lambda _: python),)
    ) as pool:
        for model in models:
            inputs = model.with_suffix(".npz")
            reply = pool.ask(
                Compare(TARGET, model, (Sample(inputs, inputs),), ToleranceOptions()), 120
            )
            verdict = "builds"
            if isinstance(reply, Failed):
                verdict = "parser" if "the ONNX parser" in reply.message else "builder"
                verdict = verdict if reply.kind == "build" else reply.kind
            found[model.stem] = verdict
    return found


def bare(release: str, models: list[Path]) -> dict[str, str]:
    """Return the same by a bare script; a model that ends its process is not in it."""
    python = interpreter(environment(release))
    found: dict[str, str] = {}
    for start in range(0, len(models), _AT_ONCE):
        words = [str(python), "-c", BARE, *map(str, models[start : start + _AT_ONCE])]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        lines = [line.split(" ", 1) for line in done.stdout.splitlines() if ".onnx " in line]
        found |= {Path(path).stem: verdict for path, verdict in lines}
    return found


def page(seen: dict[str, dict[str, str]], models: list[Path]) -> str:
    """Return the tables."""
    kinds = sorted({verdict for found in seen.values() for verdict in found.values()})
    lines = [f"{len(models)} models of the node tests of ONNX {onnx.__version__}.", ""]
    lines += [f"| release | {' | '.join(kinds)} |", f"| --- {'| ---: ' * len(kinds)}|"]
    for release, found in seen.items():
        counts = Counter(found.values())
        lines.append(f"| {release} | {' | '.join(str(counts[kind]) for kind in kinds)} |")
    lines += [
        "",
        f"| model whose verdict differs | {' | '.join(seen)} |",
        f"| --- {'| --- ' * len(seen)}|",
    ]
    for model in models:
        row = [found[model.stem] for found in seen.values()]
        lines += [f"| `{model.stem}` | {' | '.join(row)} |"] if len(set(row)) > 1 else []
    return "\n".join(lines)


def main() -> int:
    """Print the page, and return the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--most", type=int, default=400)
    parser.add_argument("--release", nargs="*")
    parser.add_argument("--bare", action="store_true")
    own = parser.parse_args()
    package = find(TARGET.runtime).package(TARGET)
    assert package is not None, "it has releases"
    releases = own.release or list_releases(package.index_name)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        models = write_models(folder, own.most)
        seen = {release: verdicts(release, models, folder) for release in releases}
        print(page(seen, models), flush=True)
        differ = []
        for release in releases if own.bare else ():
            for name, verdict in bare(release, models).items():
                ours = seen[release][name]
                differ += (
                    [f"{release} {name}: {ours}, bare {verdict}"]
                    if verdict not in (ours, "needs values")
                    else []
                )
    print(*differ, sep="\n", file=sys.stderr)
    return bool(differ)


if __name__ == "__main__":
    sys.exit(main())
