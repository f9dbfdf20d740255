"""Every command and option on the pages for users of Polygraphy is run here on a small model; those of TensorRT are read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from conftest import CommandLine, missing_gpu
from support import chain, has, overflowing, script

from bisect_trt.cli.aliases import ALIASES, translated

PAGES = sorted((Path(__file__).parents[2] / "docs").glob("from-polygraphy*.md"))
TENSORRT = "TensorRT"
ACCEPTED = "Names of Polygraphy that work"
NEED_A_GPU = {"--trt", "--strongly-typed", "--load-engine"}
"""Options of TensorRT that the other sections name too."""
CHECK = "--check ./check {model}"
SEARCH = "--workers 1 --repeat 2 --max-probes 99 --max-time 60 --timeout 20"
PLOTS = "--save-heatmaps h --save-error-metrics-plot m"
COMMANDS = {
    "run model.onnx --onnxrt --iterations 2 --seed 3 --val-range [0,1] x:[2,3] --save-inputs x.json --save-outputs y.json": 0,
    "run model.onnx --onnxrt --load-inputs x.json --load-outputs y.json --atol 0 --rtol out:0": 2,
    "run model.onnx --onnxrt --load-inputs x.json --load-outputs y.json --atol 0 --rtol t1:0": 0,
    "run model.onnx --onnxrt --data-loader-script data.py:mine --array-swap-mb 0": 0,
    "layerwise model.onnx --onnxrt --array-swap-mb 0": 1,
    "run --load-outputs a.npz b.npz --check-error-stat elemwise": 1,
    "run --load-outputs a.npz b.npz --check-error-stat mean --atol 0.9": 0,
    "run --load-outputs a.npz b.npz --check-error-stat quantile --error-quantile 0.5 t1:0": 0,
    "run --load-outputs a.npz b.npz --check-error-stat max t1:median": 1,
    "run --load-outputs inf.npz inf.npz --infinities-compare-equal --validate": 1,
    "run --load-outputs a.npz b.npz --compare-func-script compare.py": 0,
    "run model.onnx --onnxrt --input-shapes x:[2,3] --external-data-dir . --save-onnx ran.onnx --fp16": 0,
    "run model.onnx --onnxrt --onnx-outputs mark all --onnx-exclude-outputs t1": 0,
    "run model.onnx --onnxrt --providers cpu --iterations 1": 0,
    "run model.onnx --onnxrt --onnx-outputs mark all --trt-outputs mark all --exclude-outputs t1": 0,
    "run model.onnx --onnxrt --mark-all --model-input-shapes x:[2,3] --fp-to-fp16": 0,
    "run model.onnx --onnxrt --graph-optimization-level ORT_ENABLE_BASIC --load-inputs x.json x.json --save-inputs all.json": 0,
    "sanitize model.onnx -o s1.onnx --override-input-shapes x:[2,3]": 0,
    "sanitize model.onnx -o s2.onnx --no-fold-constants --no-shape-inference --no-cleanup": 0,
    "inspect model model.onnx --show layers attrs weights": 0,
    "inspect a.npz": 0,
    "inspect data a.npz --show values --num-items 1": 0,
    "convert model.onnx -o h1.onnx --fp16 --keep-fp32 t0": 0,
    "extract model.onnx --inputs t0 --outputs t1 -o piece.onnx": 0,
}
"""Command lines, and the status that each ends with."""
SEARCHES = {
    f"reduce model.onnx -o r1.onnx --no-shrink {SEARCH} {CHECK}": 0,
    "resume": 0,
    "log": 0,
    "report": 0,
    "reduce model.onnx -o r2.onnx --no-shrink --mode bisect --min-good good.onnx --check ./check bisect_trt_debug.onnx": 0,
    f"reduce model.onnx -o r3.onnx --no-shrink --mode linear --fail-regex wrong --fail-code 1 {CHECK}": 0,
    f"reduce model.onnx -o r4.onnx --no-shrink --mode ddmin --ignore-fail-code 1 {CHECK}": 1,
    "reduce model.onnx -o r5.onnx --no-shrink --candidate now.onnx --no-reduce-inputs --check ./check now.onnx": 0,
    f"reduce model.onnx -o r6.onnx --no-reduce-outputs --input-shapes x:[2,3] {CHECK}": 0,
    f"reduce model.onnx -o r8.onnx --no-shrink --artifacts left.txt --artifacts-dir sorted {CHECK}": 0,
    f"reduce model.onnx -o r9.onnx --model-input-shapes=x:[2,3] --iter-artifact i.onnx --art-dir s2 --show-output {CHECK}": 0,
    "precision large.onnx --onnxrt --fp16 -o p1.onnx --json p.json --include big* op:Mul --exclude a*": 0,
    "precision large.onnx --bf16 -o p2.onnx --check ./check {model}": 1,
    "diagnose large.onnx --onnxrt --fp16 -o found": 0,
    "layerwise large.onnx --onnxrt --fp16 -v": 0,
    "run model.onnx --onnxrt --fp16 -q": 0,
    "repeat model.onnx --onnxrt --same-engine --until 3": 1,
    f"repeat model.onnx --until bad {CHECK}": 0,
    "diff builds": 0,
    "diff builds/good builds/bad": 0,
}
"""The same of searches, and of what looks at them."""
READ = (
    "run model.onnx --trt --tf32 --fp16 --builder-flag OBEY_PRECISION_CONSTRAINTS --tactic-sources cublas",
    "run model.onnx --trt --pool-limit workspace:1G --builder-optimization-level 2 --save-timing-cache t.cache",
    "run model.onnx --trt --builder-flag VERSION_COMPATIBLE --builder-set max_aux_streams=0 --save-engine m.engine",
    "run model.onnx --trt --trt-min-shapes x:[2,3] --trt-opt-shapes x:[2,3] --trt-max-shapes x:[2,3] --onnx-outputs mark all",
    "run model.onnx --trt --bf16 --strongly-typed --load-timing-cache a.npz --plugins a.npz --onnx-outputs t0",
    "run model.onnx --trt --fp8 --load-engine a.npz",
    "run model.onnx --trt --pin-tactic conv=1:2",
    "run model.onnx --trt --fp16 --keep-fp32 t0 --hold-precision",
    "run model.onnx --trt --sparse-weights --direct-io --trt-outputs t0",
    "layerwise model.onnx --trt --debug-tensors",
    "convert model.onnx -o m.engine --int8 --calibration-cache c.cache",
    "inspect engine a.npz",
)
"""Command lines of TensorRT: without it they are read, and refused for want of it."""
PICTURES = {f"run --load-outputs a.npz b.npz {PLOTS}": 1}


def sections() -> dict[str, str]:
    """The sections of the pages that have a table, by their titles."""
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    parts = re.split(r"^## ", text, flags=re.MULTILINE)
    return {part.splitlines()[0]: part for part in parts if "\n| " in part}


def promised(text: str) -> set[str]:
    """The options in the second column of a section's table."""
    rows = [line.split("|")[1:3] for line in text.splitlines() if line.startswith("| ")]
    cells = [f"{here} {theirs}" if "the same" in here else here for theirs, here in rows]
    return {option for cell in cells for option in re.findall(r"--[a-z][a-z0-9-]*", cell)}


def options_of(commands: Iterable[str]) -> set[str]:
    return {word for words in commands for word in words.split() if word.startswith("--")}


@pytest.fixture(autouse=True)
def files(here: Path) -> None:
    chain(here / "model.onnx", 2)
    overflowing(here / "large.onnx", after=1)
    script(here / "check", f"echo left > left.txt; {has('<1>')} && echo wrong && exit 1; exit 0")
    values = np.array([[1.0, 5.0, 3.0]], np.float32)
    np.savez("a.npz", t1=values)
    np.savez("b.npz", t1=np.array([[1.0, 4.0, 4.5]], np.float32))
    np.savez("inf.npz", t1=np.array([np.inf]))
    for side in ("good", "bad"):
        Path("builds", side).mkdir(parents=True)
        layer = {"layer": "conv", "kind": "tactic", "value": side}
        Path("builds", side, "0001_choices.json").write_text(
            json.dumps({"bisect_trt_build": 1, "choices": [layer]})
        )
    Path("data.py").write_text(
        "import numpy\ndef mine():\n    yield {'x': numpy.ones((2, 3), numpy.float32)}\n"
    )
    Path("compare.py").write_text(
        "def compare_outputs(a, b):\n    return {name: a[name].shape == b[name].shape for name in a}\n"
    )


@pytest.mark.parametrize(
    "commands",
    [COMMANDS, pytest.param(SEARCHES, marks=pytest.mark.slow)],
    ids=["commands", "searches"],
)
def test_every_command_ends_as_it_should(cli: CommandLine, commands: dict[str, int]) -> None:
    """The tests of each option run searches too (tests/cli/test_cli_reduce.py)."""
    for words, status in commands.items():
        cli(*words.split()).ended(status)


def test_pictures(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    for words, status in PICTURES.items():
        assert cli(*words.split()).status == status, words


def test_what_needs_tensorrt_is_read(cli: CommandLine) -> None:
    if missing_gpu() is None:
        pytest.skip("TensorRT is here")
    for words in READ:
        ran = cli(*words.split()).ended(4)
        assert re.search("tensorrt", ran.error, re.IGNORECASE), ran.error


def test_every_option_that_the_page_promises_is_in_a_command() -> None:
    for title, text in sections().items():
        if title == ACCEPTED:
            continue
        used = (
            options_of(READ)
            if title == TENSORRT
            else options_of((*COMMANDS, *SEARCHES, *PICTURES)) | NEED_A_GPU
        )
        assert promised(text) - used == set(), title


def test_the_page_lists_the_names_that_are_read_as_ours() -> None:
    rows = re.findall(
        r"^\| `(--\S+)` \| (?:`(.+)`|nothing.*) \|$", sections()[ACCEPTED], re.MULTILINE
    )
    assert {theirs: tuple(ours.split()) for theirs, ours in rows} == ALIASES


def test_what_follows_a_check_keeps_its_names() -> None:
    words = ["reduce", "m.onnx", "--mark-all", "--check", "polygraphy", "run", "--mark-all"]
    flags = ["--onnx-outputs", "--check"]
    expected = ["reduce", "m.onnx", "--onnx-outputs", "mark", "all", *words[3:]]
    assert translated(words, flags, "--check") == expected
    assert translated(words, ["--check"], "--check") == words


def test_every_command_that_the_page_promises_is_run() -> None:
    cells = [
        line.split("|")[2] for line in sections()["Commands"].splitlines() if line.startswith("| `")
    ]
    named = {name for cell in cells for name in re.findall(r"`(inspect \w+|[a-z]+)[ `]", cell)}
    assert len(named) >= 10
    run = {
        " ".join(words.split()[: 2 if words.startswith("inspect") else 1])
        for words in (*COMMANDS, *SEARCHES, *READ)
    }
    run |= {"inspect FILE"} if "inspect a.npz" in COMMANDS else set()
    assert named - run == set()
